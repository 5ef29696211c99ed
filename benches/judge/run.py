#!/usr/bin/env python3
"""Proxies that shorten conversations, by the measure of `abridge simulate`: what of recorded sessions arrives behind each.

    benches/judge/run.py --abridge PROGRAM [--limit N] [--only NAME,...] [--out FILE.md] SESSIONS...

Installs the peers of benches/peers/ and those below into a scratch folder (once; needs PyPI), starts each as its
documentation says, and prints a row for each. With --out, the rows go into FILE between the two lines that mark their place.
"""

import argparse
import atexit
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benches" / "peers"), str(ROOT / "scripts")]

import originals  # noqa: E402
import peers  # noqa: E402

JUDGE = 8786
BEGIN, END = "<!-- judge: begin (written by benches/judge/run.py) -->", "<!-- judge: end -->"
COLUMNS = ("tokens", "cost", "with recalls", "cached", "broken beginnings", "faults", "hard", "lost", "refused", "words changed",
           "changed without need", "further", "median", "not had back", "peak memory")

# What else was looked for on 2026-11-28, by name.
NOT_RUN = (
    "lean-ctx 3.12.0 (crates.io): its lock file asks for a `webpki-roots` that the index does not have; measured is the one on PyPI; not on npm",
    "headroom: npm's `headroom-ai` is a client of the proxy, its `headroom` a reserved name; that of crates.io works on audio",
    "awecompress, context-guardian: not on npm or crates.io",
    "litellm 1.110: its `proxy` extra asks for `litellm-proxy`, which PyPI does not have",
    "LiteLLM's guardrails: Compresr compresses on its makers' servers, Headroom asks the headroom above",
    "llmtrim (crates.io 0.13.8, npm 0.13.4): takes no other upstream than the providers",
    "mintoken (PyPI 0.2.2): compresses on its makers' servers",
    "paritok (PyPI 1.3.14): compresses with a model of 4B parameters",
    "aphrodite (crates.io 1.7.0): shortens answers, not requests",
)


class Abridge(peers.Abridge):
    lock = "abridge"

    def __init__(self, scratch):
        super().__init__(scratch, Abridge.program)


class AbridgeThrifty(Abridge):
    """With the goal that saves the most."""

    name = "abridge, `goal = \"thrifty\"`"

    def command(self, port, upstream, home):
        command = super().command(port, upstream, home)
        with open(home / self.config, "a") as config:
            config.write('\n[policy]\ngoal = "thrifty"\n')
        return command


class Headroom(peers.Headroom):
    """At its defaults, which is to keep prefixes."""

    flags = ("--anthropic-api-url", f"http://127.0.0.1:{JUDGE}")


class HeadroomToken(Headroom):
    """With the mode that its help has for the most savings."""

    name = "headroom, `--mode token`"
    flags = (*Headroom.flags, "--mode", "token")


class LiteLlm(peers.LiteLlm):
    """Its own compression acts on Messages only; without a master key it takes the judge's."""

    path = "/v1/messages"

    def environment(self):
        return {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}

    def command(self, port, upstream, home):
        config = peers.configured("litellm-compression.yaml", home, port, upstream)
        return [self.folder / "bin" / "litellm", "--config", config, "--host", "127.0.0.1", "--port", str(port)]


class LeanCtx(peers.Peer):
    name = lock = "lean-ctx"
    package = "thinkery-leanctx-engine"

    def command(self, port, upstream, home):
        program = next(self.folder.glob("lib/*/site-packages/*/bin/lean-ctx"))
        program.chmod(0o755)
        return ["env", *(f"LEAN_CTX_{of}_UPSTREAM=http://127.0.0.1:{upstream}" for of in ("OPENAI", "ANTHROPIC")),
                program, "proxy", "start", f"--port={port}"]


class AipProxy(peers.Peer):
    name = package = lock = "aip-proxy"

    def command(self, port, upstream, home):
        return [self.folder / "bin" / "aip-proxy", "start", "--target", f"http://127.0.0.1:{upstream}", "--port", str(port)]


KINDS = {
    "abridge": Abridge,
    "abridge-thrifty": AbridgeThrifty,
    "headroom": Headroom,
    "headroom-token": HeadroomToken,
    "lean-ctx": LeanCtx,
    "litellm": LiteLlm,
    "awecompress": peers.Awecompress,
    "context-guardian": peers.ContextGuardian,
    "aip-proxy": AipProxy,
}


def main():
    options = parse()
    Abridge.program = options.abridge
    atexit.register(peers.stop_all)
    started, missing = {}, []
    for name, kind in KINDS.items():
        if options.only and name not in options.only:
            continue
        try:
            peer, home = kind(options.scratch), options.scratch / "judge" / name
            peer.install()
            shutil.rmtree(home, ignore_errors=True)  # what an earlier run left
            with originals.upstream(JUDGE):
                started[name] = peer.start(JUDGE, home)
        except peers.Missing as reason:
            missing.append(f"{name}: {reason}")
        print(f"judge: {name}: {missing[-1] if name not in started else 'started'}", file=sys.stderr, flush=True)
    which = f"the longest sessions, {options.limit} at most" if options.limit else "all sessions"
    text = (f"Measured on {time.strftime('%Y-%m-%d')}, {platform.machine()}: of each corpus {which}, with the tools that they call "
            "offered, written as compact JSON, and `max_tokens` set where the recording has none.\n\n")
    end = "Started as, with the upstream at port 8786:\n\n" + "".join(f"- {how(running)}\n" for running in started.values())
    end += "\nNot run:\n\n" + "".join(f"- {reason}.\n" for reason in (*missing, *NOT_RUN))
    for sessions in options.sessions:
        text += judged(options, sessions, list(started.values())) + "\n"
        if options.out:  # after each, as a run takes long
            write(options.out, text + end)
    if not options.out:
        print(text + end)


def judged(options, sessions, all_running):
    """The table of one corpus."""
    print(f"judge: {sessions}", file=sys.stderr, flush=True)
    folder = options.scratch / "judge" / "sessions" / sessions.parent.name
    recorded = longest(sessions, options.limit, folder)
    messages = originals.path_of(recorded[0]) == "/v1/messages"
    running = {f"127.0.0.1:{one.port}/v1": one for one in all_running if messages or one.peer.lock != "litellm"}
    for one in running.values():
        one.forget_peak()
    command = [options.abridge, "simulate", "--json", "--judge-upstream", f"127.0.0.1:{JUDGE}"]
    command += [word for url in ("none", *(f"http://{url}" for url in running)) for word in ("--policy", url)]
    began = time.monotonic()
    ended = subprocess.run([*command, folder], stdout=subprocess.PIPE, text=True, check=True, cwd=options.scratch)
    seconds = time.monotonic() - began
    memory = {url: one.memory("VmHWM") for url, one in running.items()}
    with originals.upstream(JUDGE):
        gone = {url: originals.gone(one, recorded) for url, one in running.items()}
    return table(f"{sessions.parent.name}/{sessions.name}", json.loads(ended.stdout), running, memory, gone, seconds)


def longest(sessions, limit, into):
    """The last requests of the longest sessions, which are what is recorded of them, and are written to a folder."""
    requests = {file.name: originals.completed(json.loads(file.read_text())) for file in sorted(sessions.glob("*.json"))}
    turns = lambda request: request.get("messages") or request["input"]
    kept = sorted(requests.items(), key=lambda named: -len(turns(named[1])))[:limit]
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    for name, request in kept:
        (into / name).write_text(json.dumps(request, ensure_ascii=False, separators=(",", ":")))  # as HTTP clients of agents spell it
    for _, request in kept:
        while len(turns(request)) > 1 and turns(request)[-1].get("role") == "assistant":
            turns(request).pop()
        request.update(stream=False)
    return [request for _, request in kept]


def how(running):
    """How it was started, so that others can."""
    words = [Path(word).name if str(word).startswith("/") else str(word) for word in running.process.args]
    line = " ".join(word for word in words if word != "env").replace(str(running.port), "PORT")
    settings = "".join(f"{name}={value} " for name, value in running.peer.environment().items())
    return f"{running.peer.name} {running.peer.version()}: `{settings}{line}`"


def table(name_of_all, result, running, memory, gone, seconds):
    none = result["totals"][0]
    count = none["figures"]["requests"]
    rows = [f"**{name_of_all}**: {len(result['transcripts'])} sessions, {count:,} requests, {seconds / 60:.0f} minutes\n",
            "| | " + " | ".join(COLUMNS) + " |", "|---|" + "---:|" * len(COLUMNS)]
    for total in result["totals"]:
        figures, regret, seen, url = total["figures"], total["regret"], total.get("sightings"), total["policy"]
        part = lambda n, of: f"{100 * n / of:.1f} %"
        answers = max(1, regret["answers"])
        cells = [
            part(figures["tokens_sent"], none["figures"]["tokens_sent"]),
            part(figures["cost"], none["figures"]["cost"]),
            part(regret["cost_with_recalls"], regret["cost_unedited"]),
            part(figures["tokens_cached"], figures["tokens_sent"]),
            f"{figures['frontier_moves']:,}",
            f"{100 * regret['faults'] / answers:.2f}",
            f"{100 * regret['hard'] / answers:.2f}",
        ]
        columns = ("lost", "refused", "words_changed", "bytes_rewritten", "further")
        cells += [f"{seen[column]:,}" for column in columns] if seen else [""] * 5
        cells += [f"{seen['median_ms']:.1f} ms", gone[url], f"{memory[url] / 1e6:.0f} MB"] if seen else [""] * 3
        name = f"{running[url].peer.name} {running[url].peer.version()}" if seen else "none"
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
        if seen and seen.get("reason"):
            rows.append(f"| | lost: {seen['reason'][:100].replace('|', '/')} |" + " |" * (len(COLUMNS) - 1))
    return "\n".join(rows) + "\n"


def write(path, text):
    whole = path.read_text()
    before, rest = whole.split(BEGIN)
    _, after = rest.split(END)
    path.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sessions", nargs="+", type=lambda text: Path(text).resolve(), help="a file or a folder, as `abridge simulate` takes them")
    parser.add_argument("--abridge", type=lambda text: Path(text).resolve(), required=True)
    parser.add_argument("--limit", type=int, help="only the longest sessions")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--scratch", type=lambda text: Path(text).resolve(), default=ROOT / "target" / "peers")
    return parser.parse_args()


if __name__ == "__main__":
    main()
