#!/usr/bin/env python3
"""Compare the instructions that abridge takes with the recorded ones: those of the operations of benches/core.rs over
400 KB, and those of `abridge serve` for a request of 2 KB.

    scripts/bench-guard.py            compare; exit code 1 where an operation takes over 3 % more, or a request over 10 %
    scripts/bench-guard.py --write    record the counts in benches/instructions.json
    scripts/bench-guard.py --json     print the counts

callgrind counts. Bench and binary are built with the profile of scripts/ci.sh, so CI has built them already. Counts hold
for one profile, one version of rustc, valgrind and the C library, and one kind of processor. Where those of the record
are others, or valgrind is missing, the script says NOT RUN and why, and its exit code is 0.
"""
import argparse, contextlib, json, os, pathlib, platform, re, shutil, socketserver, subprocess, sys, tempfile, threading, time, tomllib
from http.client import HTTPConnection

from compare import Handler

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = ROOT / "benches" / "instructions.json"
LIMIT = 1.03
# In how many pieces a request is read depends on what else the machine does.
LIMIT_OF_REQUESTS = 1.10
# That of scripts/ci.sh.
PROFILE = tomllib.loads((ROOT / "Cargo.toml").read_text())["profile"]["ci"]

# Small requests: how many are counted, and how many go before them.
REQUESTS, WARM_UP = 100, 50
CALLGRIND = ["valgrind", "--tool=callgrind", "--callgrind-out-file=out"]
SERVE = """
[server]
listen = "127.0.0.1:0"
[upstream]
url = "http://127.0.0.1:{port}/v1"
probe = false
"""


def build():
    """The executables of the bench and of abridge, by name."""
    command = ["cargo", "bench", "--locked", "--profile", "ci", "--no-run", "--bench", "core", "--message-format=json"]
    lines = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    built = [json.loads(line) for line in lines.splitlines() if '"executable":"' in line]
    return {target["target"]["name"]: target["executable"] for target in built}


def total(dump):
    return int(re.search(r"^totals: (\d+)", dump.read_text(), re.M)[1])


def count_operations(bench):
    """The instructions of each operation, by its name: what the bench has run between two calls of `getppid`."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", "--dump-before=getppid", f"--callgrind-out-file={folder}/out", bench, "--count"]
        run = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return {name: total(pathlib.Path(folder) / f"out.{2 * n}") for n, name in enumerate(run.stdout.splitlines(), 1)}


class Upstream(Handler):
    """Reads each request to its end, and answers with a completion of 400 bytes, or with events that come one by one."""
    wbufsize, disable_nagle_algorithm = -1, True
    # The words of a stream, and the seconds between two.
    words, pause = ["one", "two", "three"], 0.01

    def do_POST(self):
        if b'"stream": true' in self.rfile.read(int(self.headers["content-length"])):
            return self.stream()
        answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "x" * 280}, "finish_reason": "stop"}],
                  "usage": {"prompt_tokens": 500, "completion_tokens": 70}}
        self.reply(200, json.dumps(answer).encode())

    def stream(self):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        delta = lambda text: json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]})
        for data in [*map(delta, self.words), "[DONE]"]:
            event = f"data: {data}\n\n"
            self.wfile.write(f"{len(event):x}\r\n{event}\r\n".encode())
            self.wfile.flush()
            time.sleep(self.pause)
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()


def small_request(calls_with_results, **fields):
    """A request of 2 KB with two calls, of which so many have their results."""
    messages = [{"role": "system", "content": "You are a coding agent."}, {"role": "user", "content": "Repair the build."}]
    for n in range(2):
        function = {"name": "run_shell", "arguments": json.dumps({"command": f"cargo test -p part_{n}"})}
        messages.append({"role": "assistant", "content": None, "tool_calls": [{"id": f"call_{n}", "type": "function", "function": function}]})
        if n < calls_with_results:
            text = f'test planner::keeps_the_last_round{n} ... ok\nerror[E030{n}]: expected `"a"`, found `&[u8]`\n' * 4
            messages.append({"role": "tool", "tool_call_id": f"call_{n}", "content": text})
    parameters = {"type": "object", "properties": {"command": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "run_shell", "parameters": parameters}}]
    written = lambda text: json.dumps({"model": "gpt-5", "messages": messages + [{"role": "user", "content": text}], "tools": tools} | fields)
    return written("x" * (2048 - len(written("")))).encode()


def count_requests(abridge):
    """The instructions that `abridge serve` takes for a small request."""
    cases = {
        "serve, 2 KB passed through": ("/v1/embeddings", small_request(2)),
        "serve, 2 KB, nothing to edit": ("/v1/chat/completions", small_request(2)),
        "serve, 2 KB, one repair": ("/v1/chat/completions", small_request(1)),
    }
    with serving(*CALLGRIND, "--instr-atstart=no", abridge) as (served, address, folder):
        return {name: count_case(served.pid, address, folder, n, *case) for n, (name, case) in enumerate(cases.items(), 1)}


@contextlib.contextmanager
def serving(*command, settings="", handler=Upstream):
    """`abridge serve` by that command, with an upstream: its process, its address, and the folder that it works in."""
    with tempfile.TemporaryDirectory() as folder, socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as upstream:
        upstream.daemon_threads = True
        threading.Thread(target=upstream.serve_forever, daemon=True).start()
        folder = pathlib.Path(folder)
        (folder / "proxy.toml").write_text(SERVE.format(port=upstream.server_address[1]) + settings)
        log = folder / "log"
        with log.open("w") as stderr:
            served = subprocess.Popen([*command, "serve", "--config", "proxy.toml"], cwd=folder, stderr=stderr,
                                      env={"PATH": os.environ["PATH"], "XDG_STATE_HOME": str(folder)})
        try:
            yield served, listening(log), folder
        finally:
            served.kill()
            served.wait()
            upstream.shutdown()


def listening(log):
    """The address that the log names, once it is there."""
    for _ in range(600):
        if found := re.search(r"listening on http://(\S+)", log.read_text()):
            return found[1]
        time.sleep(0.1)
    sys.exit(f"abridge did not start: {log.read_text()}")


def count_case(pid, address, folder, number, path, body):
    client = HTTPConnection(address)
    headers = {"content-type": "application/json", "authorization": "Bearer sk-0123456789"}

    def ask(times):
        for _ in range(times):
            client.request("POST", path, body, headers)
            answer = client.getresponse()
            answer.read()
            assert answer.status == 200, answer.status

    def control(command):
        subprocess.run(["callgrind_control", command, str(pid)], check=True, capture_output=True)

    ask(WARM_UP)
    control("--instr=on")
    ask(REQUESTS)
    control("--instr=off")
    control("--dump")
    return total(folder / f"out.{number}") // REQUESTS


def said(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def environment():
    """All that the counts depend on besides the code. Routines of the C library are chosen by what the processor has."""
    cpu = pathlib.Path("/proc/cpuinfo")
    flags = re.search(r"^flags\s*:(.*)", cpu.read_text(), re.M) if cpu.exists() else None
    wide = " with avx2" if flags and "avx2" in flags[1].split() else ""
    return {
        "rustc": said("rustc", "--version"),
        "valgrind": said("valgrind", "--version"),
        "libc": " ".join(platform.libc_ver()),
        "machine": platform.machine() + wide,
        "profile": PROFILE,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not shutil.which("valgrind"):
        return print("NOT RUN: instruction counts (valgrind is not installed)")
    here = environment()
    recorded = json.loads(RECORD.read_text())
    other = [f"{key} {recorded.get(key)}, here {value}" for key, value in here.items() if recorded.get(key) != value]
    if not options.write and not options.json and other:
        return print(f"NOT RUN: instruction counts (recorded with {'; '.join(other)})")
    built = build()
    counts = count_operations(built["core"]) | count_requests(built["abridge"])
    if options.json:
        return print(json.dumps(counts, indent=1))
    if options.write:
        RECORD.write_text(json.dumps(here | {"instructions": counts}, indent=1) + "\n")
        return
    over = []
    for name, now in counts.items():
        before = recorded["instructions"].get(name)
        ratio = now / before if before else float("nan")
        print(f"{name:<48} {now:>13,} {ratio:>7.3f}")
        if not before or ratio > (LIMIT_OF_REQUESTS if name.startswith("serve") else LIMIT):
            over.append(name)
    if over:
        sys.exit(f"too many more than benches/instructions.json has, or not in it: {', '.join(over)}; "
                 "if that is meant, record anew with --write and say why in the commit")


if __name__ == "__main__":
    main()
