#!/usr/bin/env python3
"""Proxies that shorten conversations, by the measure of `abridge simulate`: what of recorded sessions arrives behind each.

    benches/judge/run.py --abridge PROGRAM [--limit N] [--only NAME,...] [--out FILE.md] SESSIONS...

Installs the peers of benches/peers/ into a scratch folder (once; needs PyPI), starts each at its defaults, and prints a row for
each. With --out, the rows go into FILE between the two lines that mark their place.
"""

import argparse
import atexit
import json
import platform
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benches" / "peers"))

import peers  # noqa: E402

JUDGE = 8786
BEGIN, END = "<!-- judge: begin (written by benches/judge/run.py) -->", "<!-- judge: end -->"


class Headroom(peers.Headroom):
    """At its defaults, which is to keep prefixes."""

    flags = ("--anthropic-api-url", f"http://127.0.0.1:{JUDGE}")


class HeadroomToken(Headroom):
    """With the mode that its help has for the most savings."""

    name = "headroom, `--mode token`"
    flags = (*Headroom.flags, "--mode", "token")


KINDS = {
    "headroom": Headroom,
    "headroom-token": HeadroomToken,
    "awecompress": peers.Awecompress,
    "context-guardian": peers.ContextGuardian,
}


class Ready(BaseHTTPRequestHandler):
    """Answers until the proxies have started; then the judge takes the port."""

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        message = {"role": "assistant", "content": "Hello."}
        answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "m",
                  "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        self.reply(json.dumps(answer).encode())

    def do_GET(self):
        self.reply(b'{"object":"list","data":[]}')

    def reply(self, body):
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def main():
    options = parse()
    atexit.register(peers.stop_all)
    ready = ThreadingHTTPServer(("127.0.0.1", JUDGE), Ready)
    threading.Thread(target=ready.serve_forever, daemon=True).start()
    started, missing = {}, []
    for name, kind in KINDS.items():
        if options.only and name not in options.only:
            continue
        try:
            peer = kind(options.scratch)
            peer.install()
            started[name] = (peer, peer.start(JUDGE, options.scratch / "judge" / name))
        except peers.Missing as reason:
            missing.append(f"{name}: {reason}")
        print(f"judge: {name}: {missing[-1] if name not in started else 'started'}", file=sys.stderr, flush=True)
    ready.shutdown()
    ready.server_close()
    policies = ["none", "present", *(f"http://127.0.0.1:{running.port}/v1" for _, running in started.values())]
    command = [options.abridge, "simulate", "--json", "--judge-upstream", f"127.0.0.1:{JUDGE}"]
    command += [word for policy in policies for word in ("--policy", policy)]
    command += ["--limit", str(options.limit)] if options.limit else []
    named = {f"127.0.0.1:{running.port}/v1": f"{peer.name} {peer.version()}" for peer, running in started.values()}
    text = ""
    for sessions in options.sessions:
        print(f"judge: {sessions}", file=sys.stderr, flush=True)
        began = time.monotonic()
        ended = subprocess.run([*command, sessions], stdout=subprocess.PIPE, text=True, check=True, cwd=options.scratch)
        memory = {f"127.0.0.1:{running.port}/v1": running.memory() for _, running in started.values()}
        text += table(f"{sessions.parent.name}/{sessions.name}", json.loads(ended.stdout), named, memory, time.monotonic() - began) + "\n"
    text += "".join(f"\nNot run: {reason}.\n" for reason in missing)
    write(options.out, text) if options.out else print(text)


def table(name_of_all, result, named, memory, seconds):
    none = result["totals"][0]
    version = {"none": "none", "present": "abridge, its defaults"}
    count = none["figures"]["requests"]
    rows = [f"**{name_of_all}**: {len(result['transcripts'])} sessions, {count:,} requests, {seconds / 60:.0f} minutes, on {platform.machine()}, "
            f"{time.strftime('%Y-%m-%d')}.\n",
            "| | tokens | cost | with recalls | cached | broken beginnings | faults | hard | lost | refused | words changed "
            "| bytes rewritten | further | median | memory |",
            "|---|" + "---:|" * 14]
    for total in result["totals"]:
        figures, regret, seen = total["figures"], total["regret"], total.get("sightings")
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
        cells += [f"{seen['median_ms']:.1f} ms", f"{memory[total['policy']] / 1e6:.0f} MB"] if seen else ["", ""]
        name = version.get(total["policy"]) or named[total["policy"]]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
        if seen and seen.get("reason"):
            rows.append(f"| | lost: {seen['reason'][:100].replace('|', '/')} |" + " |" * 13)
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
