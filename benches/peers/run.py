#!/usr/bin/env python3
"""abridge beside what else stands between an agent and a model: what each adds, takes, and does to an exchange.

    benches/peers/run.py [--out FILE.md] [--once] [--only NAME,...] [--scratch DIR]

Installs the peers into a scratch folder (once; needs PyPI), starts all on free ports of this machine, and ends them.
With --out, the tables go into FILE between the two lines that mark their place, or are all of it.
"""

import argparse
import atexit
import datetime
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.dont_write_bytecode = True

import checks
import peers
import report
import scripted
import wire

ROOT = Path(__file__).resolve().parents[2]
STARTED = time.monotonic()
SIZES = {"11 kB": 11_000, "401 kB": 401_000}
SMALL = 2_000
CONNECTIONS = 16


def main():
    options = parse()
    atexit.register(peers.stop_all)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        compare(options)
    finally:
        # Before the threads are waited for that wait for their starts.
        peers.stop_all()


def compare(options):
    load_before = os.getloadavg()[0]
    binaries = build(options)
    compared = install(options, binaries)
    if options.install:
        return
    shutil.rmtree(options.scratch / "run", ignore_errors=True)
    results = {"facts": facts(options, load_before), "peers": {name: vars(entry) for name, entry in compared.items()}}
    results["checks"] = fidelity(options, binaries, compared)
    results["speed"] = speed(options, binaries, compared)
    results["facts"]["load after"] = os.getloadavg()[0]
    results["facts"]["minutes"] = (time.monotonic() - STARTED) / 60
    (options.scratch / "results.json").write_text(json.dumps(results, indent=1, default=str))
    text = report.markdown(results)
    if options.out:
        report.write(options.out, text)
    else:
        print(text)
    note("done")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the file that gets the tables; else they are printed")
    parser.add_argument("--once", action="store_true", help="a second for each measurement: does it work, not how quick is it")
    parser.add_argument("--seconds", type=int, default=45, help="for each body size, and for requests a second")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], help="these peers; abridge and nginx always are")
    parser.add_argument("--install", action="store_true", help="install the peers, and no more")
    parser.add_argument("--scratch", type=lambda text: Path(text).resolve(), default=ROOT / "target" / "peers")
    parser.add_argument("--abridge", type=lambda text: Path(text).resolve(), help="another abridge than the one built here")
    parser.add_argument("--load", type=lambda text: Path(text).resolve(), help="another load client than the one built here")
    options = parser.parse_args()
    options.seconds = 1 if options.once else options.seconds
    return options


def note(text):
    print(f"peers: {time.monotonic() - STARTED:5.1f} s  {text}", file=sys.stderr, flush=True)


def build(options):
    """The load client, which is also the upstream, and abridge."""
    if options.abridge and options.load:
        return {"load": options.load, "abridge": options.abridge}
    note("building")
    built = subprocess.run(
        ["cargo", "bench", "--bench", "load", "--no-run", "--message-format=json-render-diagnostics"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
    )
    found = {}
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable"):
            found[message["target"]["name"]] = Path(message["executable"])
    return {"load": options.load or found["load"], "abridge": options.abridge or found["abridge"]}


class Compared:
    """A peer as it is known before it runs."""

    def __init__(self, kind):
        self.kind, self.missing, self.version, self.disk = kind, "", "", 0


KINDS = {
    "nginx": peers.Nginx,
    "abridge": peers.Abridge,
    "tensorzero": peers.TensorZero,
    "awecompress": peers.Awecompress,
    "context-guardian": peers.ContextGuardian,
    "headroom": peers.Headroom,
    "litellm": peers.LiteLlm,
}


def make(kind, options, binaries, wide=False):
    arguments = [binaries["abridge"]] if issubclass(kind, peers.Abridge) else []
    return kind(options.scratch, *arguments, wide=wide)


def install(options, binaries):
    compared = {}
    for name, kind in KINDS.items():
        if options.only and name not in (*options.only, "nginx", "abridge"):
            continue
        note(f"installing {name}")
        entry = compared[name] = Compared(kind)
        try:
            peer = make(kind, options, binaries)
            peer.install()
            entry.version, entry.disk = peer.version(), peer.disk()
        except peers.Missing as reason:
            entry.missing = str(reason)
            note(entry.missing)
    return compared


def fidelity(options, binaries, compared):
    """Every check on every peer, each with an upstream of its own; all start at a time, as some take long."""

    def start(name, upstream):
        return make(compared[name].kind, options, binaries).start(upstream.port, options.scratch / "run" / "checks" / name)

    wanted = [name for name, entry in compared.items() if not entry.missing]
    upstreams = {name: scripted.Upstream() for name in wanted}
    pool = ThreadPoolExecutor(len(wanted))
    starting = {name: pool.submit(start, name, upstreams[name]) for name in wanted}
    table = {}
    for name in wanted:
        try:
            running = starting[name].result()
        except peers.Missing as reason:
            compared[name].missing = str(reason)
            note(f"{name}: {reason}")
            continue
        note(f"checking {name}")
        table[name] = {check: checks.check(running, upstreams[name], check) for check in checks.CHECKS}
        running.stop()
    return table


def speed(options, binaries, compared):
    """Times and memory of all peers, one worker each, in front of the same upstream."""
    port = peers.free_port()
    upstream = subprocess.Popen([binaries["load"], "--serve", f"127.0.0.1:{port}"], stdout=subprocess.DEVNULL)
    atexit.register(upstream.kill)
    await_upstream(port)
    kinds = {name: entry.kind for name, entry in compared.items() if not entry.missing}
    kinds["abridge-rewrite"] = peers.AbridgeRewrite
    if "headroom" in kinds:
        kinds["headroom-no-optimize"] = peers.HeadroomPassing
    running, figures = {}, {}
    for name, kind in kinds.items():
        note(f"starting {name}")
        try:
            running[name], ready = start_often(make(kind, options, binaries, wide=True), port, options.scratch / "run" / "speed" / name)
            figures[name] = {"ready": ready}
        except peers.Missing as reason:
            compared.setdefault(name, Compared(kind)).missing = str(reason)
            note(f"{name}: {reason}")
    time.sleep(2)
    for name, one in running.items():
        figures[name]["idle"] = one.memory()

    cores = sorted(os.sched_getaffinity(0))
    apart = len(cores) > 1
    if apart:
        # Left to the scheduler, a request takes three times as long across the cores as on one of them.
        place(upstream.pid, cores[:1])
        for one in running.values():
            one.move(cores[1:2])
    tables = {}
    for title, size in SIZES.items():
        note(f"latency at {title}")
        tables[title] = measure(options, binaries, port, targets(running, port, latency=True), size, 1, cores[:1] if apart else cores)
    place(upstream.pid, cores)
    for one in running.values():
        one.move(cores)
    note("requests a second")
    tables["rate"] = measure(options, binaries, port, targets(running, port, latency=False), SMALL, CONNECTIONS, cores)
    for name, one in running.items():
        figures[name]["loaded"] = one.memory()
        one.stop()
    upstream.kill()
    upstream.wait()
    return {"figures": figures, "tables": tables}


def place(pid, cores):
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


def await_upstream(port):
    for _ in range(500):
        try:
            wire.ask(port, "/counts", b"", method="GET")
            return
        except OSError:
            time.sleep(0.01)
    raise SystemExit("the upstream did not start")


def start_often(peer, upstream, home):
    """Starts it up to five times, if that is quick, and keeps the last; the median of the times counts."""
    times = []
    while True:
        running = peer.start(upstream, home / str(len(times)))
        times.append(running.ready)
        if sum(times) > 3 or len(times) == 5:
            return running, statistics.median(times)
        running.stop()


def targets(running, upstream, latency):
    """The ways to the upstream, in the order of the tables."""
    key = peers.KEY

    def target(name, one, path=None, **more):
        return {"name": name, "address": f"127.0.0.1:{one.port}", "path": path or one.peer.path, "key": key, "model": one.peer.model, **more}

    ways = [{"name": "direct", "address": f"127.0.0.1:{upstream}", "path": "/v1/chat/completions", "key": key, "model": "gpt-5.2"}]
    for name, one in running.items():
        if name != "abridge-rewrite":
            ways.append(target(name, one))
        elif latency:
            # Of a body, three results and what is no result are left, and words for the others.
            ways.append(target("abridge-rewrite", one, arrives=75))
            ways.append(target("abridge-rewrite-new", one, arrives=75, all_new=True))
        if name == "abridge" and not latency:
            ways.append(target("abridge-passed", one, "/v1/embeddings"))
    return ways


def measure(options, binaries, upstream, ways, size, connections, cores):
    plan = options.scratch / "run" / "plan.json"
    plan.write_text(json.dumps({
        "connections": connections, "seconds": options.seconds, "bytes": size, "upstream": f"127.0.0.1:{upstream}", "targets": ways,
    }))
    done = subprocess.run([binaries["load"], "--plan", plan], stdout=subprocess.PIPE, check=True,
                          preexec_fn=lambda: os.sched_setaffinity(0, cores))
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    for name, row in rows.items():
        if row["error"]:
            note(f"{name}: {row['error'][:200]}")
    return rows


def facts(options, load):
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return {
        "when": datetime.datetime.now().strftime("%H:%M on %Y-%m-%d"), "load": load, "commit": commit,
        "cpu": cpu[1] if cpu else platform.machine(), "cores": len(os.sched_getaffinity(0)), "kernel": platform.release(),
        "python": platform.python_version(), "seconds": options.seconds,
    }


if __name__ == "__main__":
    main()
