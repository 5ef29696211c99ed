#!/usr/bin/env python3
"""Compare what two abridge binaries send for the same requests.

    scripts/compare.py OLD NEW [--conversations 2000] [--seed 1]

Both binaries run as proxies with the same settings and the same store secret, each before an upstream of its own that
records what it gets. The requests are all request.json of fixtures/, all bodies below ABRIDGE_CORPUS (its chat/ folder
and prefixes of its trajectories/), and generated conversations that grow request by request. They are sent under the
defaults with small limits, under each preset, and under filter with clear. For each request the bodies that arrive
upstream, the x-abridge headers of the answer and the changes that /abridge/requests/ID lists must be equal. Exit code 1
and the first differences where they are not.

RENAMED maps words of the old binary to those of the new one, where a name was changed on purpose.
"""
import argparse, http.client, http.server, json, os, pathlib, random, re, shutil, socket, subprocess, sys, tempfile, threading, time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RENAMED = []  # pairs of old and new words in headers and reports

SMALL = """
[clear_tool_results]
trigger = { tokens = 1500 }
[truncate_tool_results]
max_bytes = 2000
[summarize]
trigger = { tokens = 6000 }
"""
POLICIES = {
    "small": SMALL,
    "zh": 'language = "zh"\n' + SMALL,
    "filter": SMALL + "\n[filter_tool_calls]\nmax_tool_calls = 4\n",
    "sliding": SMALL.replace("[clear_tool_results]", '[clear_tool_results]\nfrontier = "sliding"'),
    "inputs": SMALL.replace("[clear_tool_results]", "[clear_tool_results]\nclear_tool_inputs = true"),
    "eino": 'preset = "eino"\n[clear_tool_results]\ntrigger = { tokens = 1500 }\n[truncate_tool_results]\nmax_bytes = 2000\n',
    "langchain": 'preset = "langchain"\n[clear_tool_results]\ntrigger = { tokens = 1500 }\n',
    "agno": 'preset = "agno"\n[filter_tool_calls]\nmax_tool_calls = 3\n',
}
SUMMARY = "<summary>They worked on the task, and the tests fail in parse().</summary>"


class Upstream(http.server.ThreadingHTTPServer):
    """Answers every chat with one word, and requests for a summary with a summary; keeps the bodies it gets."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.bodies.append(body)
        asks = b"<analysis>" in body[-6000:] or b"stream_options" in body[-200:]
        answer = json.dumps({"choices": [{"index": 0, "finish_reason": "stop", "message": {
            "role": "assistant", "content": SUMMARY if asks else "ok"}}]}).encode()
        self.reply(200, answer)

    def do_GET(self):
        self.reply(404, b"{}")

    def reply(self, status, body):
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


# Of operators.
TOKEN = "a-token-of-operators"


class Abridge:
    """A binary as a proxy before an upstream of its own."""

    def __init__(self, binary, folder, settings):
        self.upstream = Upstream()
        self.port = free_port()
        config = folder / "proxy.toml"
        top, tables = split(settings)
        config.write_text(f'{top}\n[server]\nlisten = "127.0.0.1:{self.port}"\n'
                          f'[upstream]\nurl = "http://127.0.0.1:{self.upstream.server_port}/v1"\nprobe = false\n'
                          f'[store]\npath = "{folder}/store.redb"\n'
                          f'[recall]\npublic_url = "http://127.0.0.1:9"\n'
                          f'[tokens]\nask_upstream = false\n{tables}')
        environment = {**os.environ, "HOME": str(folder), "XDG_STATE_HOME": str(folder),
                       "ABRIDGE__ADMIN__TOKEN_ENV": "COMPARE_TOKEN", "COMPARE_TOKEN": TOKEN}
        self.process = subprocess.Popen([binary, "serve", "--config", config], stderr=subprocess.PIPE, env=environment, text=True)
        for line in self.process.stderr:
            if "listening" in line:
                break
        else:
            sys.exit(f"{binary} did not start")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        self.client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(self, body):
        """What goes upstream for a body, and what is reported of it."""
        before = len(self.upstream.bodies)
        self.client.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        answer = self.client.getresponse()
        answer.read()
        headers = {name: value for name, value in answer.getheaders() if name.startswith("x-abridge")}
        request_id, report = headers.pop("x-abridge-request-id", None), None
        if request_id:
            for _ in range(200):
                self.client.request("GET", f"/abridge/requests/{request_id}", headers={"authorization": f"Bearer {TOKEN}"})
                reply = json.loads(self.client.getresponse().read())
                if "request" in reply:
                    report = {key: reply.get(key) for key in ("changes", "left_out", "unknown_window")}
                    break
                time.sleep(0.005)
        return self.upstream.bodies[before:], renamed(headers), renamed(report)

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.upstream.shutdown()


def split(settings):
    """The keys before the first table, and the tables."""
    at = settings.find("[")
    return settings[:at], settings[at:]


def renamed(value):
    text = json.dumps(value, sort_keys=True)
    for old, new in RENAMED:
        text = text.replace(old, new)
    return text


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


# === requests ===

def fixtures():
    for path in sorted(ROOT.glob("fixtures/*/*/request.json")):
        yield str(path.relative_to(ROOT)), [path.read_bytes()]


def corpus():
    folder = os.environ.get("ABRIDGE_CORPUS")
    if not folder:
        return print("no corpus: ABRIDGE_CORPUS is not set")
    for path in sorted(pathlib.Path(folder).glob("chat/*.json")):
        yield path.name, [path.read_bytes()]
    for path in sorted(pathlib.Path(folder).glob("trajectories/*.json"))[:12]:
        session = json.loads(path.read_bytes())
        messages = session["messages"]
        ends = [n for n, message in enumerate(messages) if message["role"] == "assistant"][::6][:20]
        yield path.name, [json.dumps({**session, "messages": messages[:end]}, ensure_ascii=False).encode() for end in ends if end]


def generated(n, seed):
    for number in range(n):
        yield f"generated {number}", list(conversation(random.Random(f"{seed} {number}")))


def conversation(draw):
    """Requests of one conversation that grows: batches, dangling, displaced and late results, long texts, odd parts."""
    messages, late = [], []
    if draw.random() < 0.7:
        messages.append({"role": draw.choice(["system", "developer"]), "content": text(draw, 60)})
    messages.append({"role": "user", "content": text(draw, 40)})
    for step in range(draw.randint(2, 14)):
        calls = [{"id": draw.choice([f"c{step}_{n}", f"c{n}", ""]) if draw.random() < 0.2 else f"c{step}_{n}", "type": "function",
                  "function": {"name": draw.choice(["bash", "read", "build"]), "arguments": json.dumps({"x": text(draw, 12)})}}
                 for n in range(draw.choice([1, 1, 1, 2, 3]))]
        message = {"role": "assistant", "content": draw.choice([None, "", text(draw, 20)]), "tool_calls": calls}
        if draw.random() < 0.3:
            message["reasoning_content"] = text(draw, 30)
        messages.append(message)
        results = [{"role": "tool", "tool_call_id": call["id"], "content": content(draw)} for call in calls]
        draw.shuffle(results)
        for result in results:
            fate = draw.random()
            if fate < 0.08:
                continue
            if fate < 0.14:
                late.append(result)
            else:
                messages.append(result)
        if draw.random() < 0.25:
            messages.append({"role": "user", "content": text(draw, 20)})
        if late and draw.random() < 0.4:
            messages.append(late.pop(0))
        if draw.random() < 0.1:
            messages.append({"role": "assistant", "content": text(draw, 30)})
            messages.append({"role": "user", "content": [{"type": "text", "text": text(draw, 10)}]})
        yield json.dumps({"model": draw.choice(["gpt-4o", "local"]), "messages": messages,
                          "tools": [{"type": "function", "function": {"name": "bash", "parameters": {}}}]},
                         ensure_ascii=draw.random() < 0.3, indent=draw.choice([None, None, 1])).encode()


def content(draw):
    long = text(draw, draw.choice([3, 30, 300, 1500]))
    if draw.random() < 0.15:
        return [{"type": "text", "text": long}, {"type": "image_url", "image_url": {"url": "data:,x"}}]
    return long


def text(draw, n_words):
    words = ["let", "x = \"1\"", "fn\\n", "{\"a\": [1]}", "é", "error:", "😀", "src/main.rs", "\n", "\t", "the"]
    return " ".join(draw.choice(words) for _ in range(draw.randint(1, n_words)))


# === comparison ===

def compare(old, new, cases):
    n_requests, different = 0, []
    for name, bodies in cases:
        for step, body in enumerate(bodies):
            one, other = old.ask(body), new.ask(body)
            n_requests += 1
            for what, a, b in zip(("bodies", "headers", "report"), one, other):
                if a != b:
                    different.append((name, step, what, a, b))
                    break
    return n_requests, different


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old"), parser.add_argument("new")
    parser.add_argument("--conversations", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    failed = False
    for policy, settings in POLICIES.items():
        with tempfile.TemporaryDirectory() as scratch:
            folders = [pathlib.Path(scratch) / name for name in ("old", "new")]
            [folder.mkdir() for folder in folders]
            Abridge(options.old, folders[0], settings).stop()
            shutil.copy(folders[0] / "store.redb", folders[1] / "store.redb")
            old, new = (Abridge(binary, folder, settings) for binary, folder in zip((options.old, options.new), folders))
            share = options.conversations // len(POLICIES)
            cases = [*fixtures(), *corpus(), *generated(share, f"{options.seed} {policy}")]
            n_requests, different = compare(old, new, cases)
            old.stop(), new.stop()
        print(f"{policy}: {n_requests} requests of {len(cases)} conversations, {len(different)} differ")
        for name, step, what, a, b in different[:3]:
            failed = True
            print(f"  {name}, request {step}: {what}\n    old {str(a)[:1500]}\n    new {str(b)[:1500]}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
