"""Whether a text that a proxy took out of a conversation can be had back, whole, after the proxy was started anew."""

import json
import os
import random
import re
import signal
import subprocess

import scripted
import wire
from outcome import NotApplicable, Wrong


def lines(n, seed):
    draw = random.Random(seed)
    return "".join(
        f"2026-03-02T14:{draw.randrange(60):02}:{draw.randrange(60):02}Z {draw.choice(['INFO', 'WARN', 'DEBUG'])} "
        f"worker::{draw.choice(['pool', 'io', 'plan'])} job={draw.randrange(1 << 32):08x} took {draw.randrange(9999)} ms\n"
        for _ in range(n)
    )


LOG = lines(900, 5)
MIDDLE = re.search(r"job=(\w+)", LOG[len(LOG) // 2 :])[0]


def conversation(peer, turns):
    """A log of 58 kB, and as many turns after it, which push it out of what is kept as it is."""
    messages = [
        {"role": "system", "content": "You are a coding agent."},
        {"role": "user", "content": "Read the log."},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": '{"command":"cat log"}'}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": LOG},
    ]
    for n in range(turns):
        messages += [{"role": "assistant", "content": f"Done with part {n}."}, {"role": "user", "content": lines(400, n) + "Go on."}]
    tool = {"type": "function", "function": {"name": "bash", "description": "Run a command", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}}
    return json.dumps({"model": peer.model, "messages": messages, "tools": [tool]}).encode()


def taken_out(running, upstream, turns=0):
    """What the upstream got in place of the log."""
    answer = wire.ask(running.port, running.peer.path, conversation(running.peer, turns), running.headers(), patience=60)
    if answer.status != 200:
        raise Wrong(f"answered {answer.status or 'nothing'}: {answer.text()}")
    got = upstream.requests[-1].body.decode()
    if MIDDLE in got:
        raise Wrong("the log was not taken out")
    return got


def again(running, upstream):
    """Ends it as a service manager would, and starts it anew with what it left on the disk."""
    running.stop(signal.SIGTERM)
    return running.peer.start(upstream.port, running.home)


def from_abridge(running, upstream):
    got = taken_out(running, upstream)
    named = re.search(r"/abridge/recall/[\w-]+", got)
    if not named:
        raise Wrong("the request names no place")
    fetched(again(running, upstream), named[0], lambda body: body.decode())


def from_headroom(running, upstream):
    got = taken_out(running, upstream)
    named = re.search(r"(?:hash=|<<ccr:)(\w+)", got)
    if not named:
        raise Wrong("the request names no hash")
    fetched(again(running, upstream), f"/v1/retrieve/{named[1]}", lambda body: json.loads(body)["original_content"])


def fetched(running, path, text):
    try:
        answer = wire.ask(running.port, path, b"", running.headers(), method="GET")
        if answer.status != 200:
            raise Wrong(f"{path.rpartition('/')[0]} answered {answer.status}")
        if text(answer.body) != LOG:
            raise Wrong("another text came back")
    finally:
        running.stop()


def from_context_guardian(running, upstream):
    """By its command, which is what it tells the model to run."""
    taken_out(running, upstream, turns=6)
    running = again(running, upstream)
    command = running.peer.folder / "bin" / "context-guardian-recall"
    found = subprocess.run([command, MIDDLE], capture_output=True, text=True, cwd=running.home,
                           env={"PATH": os.environ["PATH"], "HOME": str(running.home)})
    running.stop()
    spans = [file for file in running.home.rglob("*.json") if file.name in found.stdout]
    if found.returncode or not spans:
        raise Wrong(f"its search does not find it: {found.stdout[:80]}")
    if not any(json.dumps(LOG)[1:-1] in span.read_text() or LOG in span.read_text() for span in spans):
        raise Wrong("what it kept is not the whole")


def from_awecompress(running, upstream):
    """It offers no way to get a text back, so its files are looked at."""
    taken_out(running, upstream, turns=12)
    running = again(running, upstream)
    running.stop()
    kept = any(MIDDLE.encode() in file.read_bytes() for file in running.home.iterdir() if file.is_file())
    raise Wrong("kept in its database, but there is no way to ask for it" if kept else "only the summary is kept")


WAYS = {"abridge": from_abridge, "headroom": from_headroom, "context-guardian": from_context_guardian, "awecompress": from_awecompress}


def recovered(running, upstream):
    if running.peer.name not in WAYS:
        raise NotApplicable("takes nothing out")
    upstream.play(scripted.answer)
    WAYS[running.peer.name](running, upstream)
