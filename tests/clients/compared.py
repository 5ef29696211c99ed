"""Codex and Claude Code with one scripted model, once direct and once through abridge: the model must see the same.

    compared.py ABRIDGE

Notifications, sub-agents, tools that are searched for, compaction and resumed sessions are in the script. Where abridge edits,
what differs is a result that can be read back. ABRIDGE_CLIENTS is the folder of the agents.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request

import compared_model
from harness import check, run

ABRIDGE = sys.argv[1]
BIN = os.path.join(os.environ["ABRIDGE_CLIENTS"], "node_modules/.bin")
PATIENCE = 240
# The same in both sessions, as agents tell the model where they are.
HOME = tempfile.TemporaryDirectory(prefix="abridge-compared-")
# Greater numbers are times, which differ from session to session.
A_TIME = 1_000_000_000

EDITS = """
policy.edits = ["patch_tool_calls", "truncate_tool_results", "clear_tool_results"]
truncate_tool_results.max_bytes = 8000
clear_tool_results = { when = "any", trigger = { tokens = 13000 }, keep = { results = 1 } }
"""

CODEX = """
model = "gpt-5.6"
openai_base_url = "{base}/v1"
approval_policy = "never"
sandbox_mode = "danger-full-access"
[features]
multi_agent = true
multi_agent_v2 = true
code_mode = true
code_mode_only = true
remote_compaction_v2 = true
"""


def claude_code(base, home):
    """The command and the environment of each process of a session."""
    env = {"ANTHROPIC_BASE_URL": base, "ANTHROPIC_API_KEY": "sk-client", "ANTHROPIC_MODEL": "claude-opus-4-8"}
    env |= {"IS_SANDBOX": "1", "DISABLE_TELEMETRY": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    prompts = ["FIRST: list it.", "SECOND: go on.", "/compact", "THIRD: go on."]
    go_on = [[], *[["--continue"]] * 3]
    return [["claude", *more, "-p", prompt, "--allowedTools", "Bash"] for more, prompt in zip(go_on, prompts)], env


def codex(base, home):
    with open(f"{home}/config.toml", "w") as config:
        config.write(CODEX.format(base=base))
    env = {"CODEX_HOME": home, "OPENAI_API_KEY": "sk-client", "CODEX_API_KEY": "sk-client"}
    command = ["codex", "exec", "--skip-git-repo-check"]
    # What the model reports is a token for four bytes: the third process begins with a compaction.
    compacts = ["-c", "model_auto_compact_token_limit=15000"]
    return [
        [*command, "FIRST: list it."],
        [*command, "resume", "--last", "SECOND: go on."],
        [*command, *compacts, "resume", "--last", "THIRD: go on."],
    ], env


def session(agent, base):
    """Plays a session to its end; returns how each process ended."""
    home = HOME.name
    shutil.rmtree(home, ignore_errors=True)
    os.makedirs(f"{home}/work")
    commands, env = agent(base, home)
    env |= {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": home, "NO_PROXY": "*", "no_proxy": "*"}
    ends = []
    for command in commands:
        process = subprocess.Popen(
            command, env=env, cwd=f"{home}/work", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        )
        try:
            said, told = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            raise
        assert process.returncode == 0, f"{command}: {process.returncode}: {said[-500:]} {told[-500:]}"
        ends.append(said)
    shutil.rmtree(home)
    return ends


class Proxy:
    """abridge with its settings in a folder of its own."""

    def __init__(self, base, settings):
        self.folder = tempfile.mkdtemp()
        with open(f"{self.folder}/proxy.toml", "w") as config:
            config.write(f'server.listen = "127.0.0.1:0"\nupstream.url = "{base}/v1"\nstore.path = "{self.folder}/store.redb"\n')
            config.write(settings)
        command = [ABRIDGE, "serve", "--config", f"{self.folder}/proxy.toml"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"http://127\.0\.0\.1:\d+(?=/abridge/)", line):
                self.base = found[0]
                return
        raise AssertionError("abridge should say where it listens")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate()
        shutil.rmtree(self.folder)


def normal(text):
    """A text without what differs from session to session."""
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{12,}\b", "ID", text)
    return re.sub(r"127\.0\.0\.1:\d+|\d+(\.\d+)?", "N", text)


def differences(direct, proxied, at=()):
    """Where two JSON values differ, with both. Codex writes some fields in an order of chance."""
    if isinstance(direct, dict) and isinstance(proxied, dict) and direct.keys() == proxied.keys():
        for key in direct:
            yield from differences(direct[key], proxied[key], (*at, key))
    elif isinstance(direct, list) and isinstance(proxied, list) and len(direct) == len(proxied):
        for n, (a, b) in enumerate(zip(direct, proxied)):
            yield from differences(a, b, (*at, n))
    elif isinstance(direct, str) and isinstance(proxied, str):
        if normal(direct) != normal(proxied):
            # JSON in a text, such as metadata.
            try:
                yield from differences(json.loads(direct), json.loads(proxied), at)
            except ValueError:
                yield at, direct, proxied
    elif direct != proxied and not all(type(number) in (int, float) and number > A_TIME for number in (direct, proxied)):
        yield at, direct, proxied


def threads(seen):
    """The requests to the model, those of a sub-agent behind the others. An answer of 426 to a WebSocket is one of a client's tries."""

    def is_sub_agent(request):
        fields = request.fields
        return "x-claude-code-agent-id" in fields or fields.get("thread-id") != fields.get("session-id")

    return sorted((request for request in seen if request.body), key=is_sub_agent)


def compared(agent, settings):
    """Plays both sessions and compares them. On a busy machine an agent may ask once more, as when its sub-agent has ended before it
    waits: then both are played again."""
    for _ in range(4):
        with compared_model.Upstream() as upstream:
            ends = session(agent, upstream.base)
            direct = threads(upstream.seen)
        with compared_model.Upstream() as upstream, Proxy(upstream.base, settings) as proxy:
            assert session(agent, proxy.base) == ends
            proxied = threads(upstream.seen)
            if len(direct) == len(proxied) > 8:
                return proxied, compared_with(direct, proxied, proxy)
        for name, requests in ("direct", direct), ("abridge", proxied):
            print(f"  {len(requests)} requests, {name}: {[outline(request.body) for request in requests]}", flush=True)
    raise AssertionError("in each play, one session had more requests")


def outline(body):
    items = body.get("input") or body["messages"]
    return len(items), items[-1].get("type") or items[-1].get("role")


def compared_with(direct, proxied, proxy):
    """Compares each request with the one of the direct session. Returns how many results were read back."""
    read_back = 0
    for a, b in zip(direct, proxied):
        assert (a.method, a.path) == (b.method, b.path)
        hop = {"connection", "content-length"}
        fields = [{name: value for name, value in request.fields.items() if name not in hop} for request in (a, b)]
        found = list(differences(*fields))
        assert not found, found
        for at, text, edited in differences(a.body, b.body):
            handle = re.search(r"/abridge/recall/\w+", str(edited))
            assert handle and isinstance(text, str), f"{at}: {text}: {edited}"
            with urllib.request.urlopen(proxy.base + handle[0]) as answer:
                assert normal(answer.read().decode()) == normal(text), f"{at}: {text[:500]}"
            read_back += 1
    return read_back


def kinds(requests):
    """The types of all that was sent: items, blocks, parts."""

    def of(node):
        if isinstance(node, dict):
            yield node.get("type")
        for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            yield from of(inner)

    return {kind for request in requests for kind in of(request.body) if isinstance(kind, str)}


def installed(program):
    if not os.path.exists(os.path.join(BIN, program)):
        print(f"  NOT RUN: {program} is not installed")
        return False
    return True


@check
def claude_code_misses_nothing_with_the_defaults():
    if installed("claude"):
        requests, _ = compared(claude_code, "")
        assert {"tool_use", "tool_result", "thinking"} <= kinds(requests)


@check
def claude_code_misses_nothing_where_results_are_cut_and_cleared():
    if installed("claude"):
        _, read_back = compared(claude_code, EDITS)
        assert read_back > 3, read_back


@check
def codex_misses_nothing_with_the_defaults():
    if installed("codex"):
        requests, _ = compared(codex, "")
        of_code_mode = {"custom_tool_call_output", "agent_message", "compaction_trigger", "compaction"}
        assert of_code_mode <= kinds(requests), kinds(requests)


@check
def codex_misses_nothing_where_results_are_cut_and_cleared():
    if installed("codex"):
        _, read_back = compared(codex, EDITS)
        assert read_back > 3, read_back


run()
