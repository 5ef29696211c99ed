#!/usr/bin/env python3
"""A handler for abridge, with Python's standard library alone.

    python3 handler.py --listen 127.0.0.1:9000
    python3 handler.py --listen unix:/run/handler.sock --model-url http://127.0.0.1:11434/v1 --model qwen3:4b

It keeps the failures and the totals of test output, and the changed lines of diffs. Of other texts it has a model make a
digest if one is given, and else leaves the choice to abridge. docs/handlers.md describes the JSON on both sides.
"""

import argparse
import json
import os
import re
import socketserver
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DIFF = re.compile(r"^(diff --git |--- |\+\+\+ |@@ )", re.MULTILINE)
CHANGED = re.compile(r"^(diff --git |--- |\+\+\+ |@@ |[+-])")
TESTS = re.compile(r"^(test result: |=+ .*(passed|failed).* =+$|Tests: |running \d+ tests|FAILED|ok\s+\S+\s+[\d.]+s)", re.MULTILINE)
PASSED = re.compile(r"(\.\.\. ok$|PASSED\b|^ok\s|^\s*[✓√] )")


def compress_tests(text):
    """Test output without the lines of tests that have passed."""
    lines = text.splitlines()
    kept = [line for line in lines if line.strip() and not PASSED.search(line)]
    return "\n".join(kept + [f"({len(lines) - len(kept)} lines of passed tests are left out)"])


def compress_diff(text):
    """The changed lines of a diff, with its headers."""
    return "\n".join(line for line in text.splitlines() if CHANGED.match(line))


def digest(ask, model):
    """What a small model says that the text says."""
    text = ask.get("text") or f"{ask['head']}\n[…]\n{ask['tail']}"
    told = "Write a digest of this tool output in at most 100 words. Keep names, paths, numbers and errors word for word."
    messages = [{"role": "system", "content": told}, {"role": "user", "content": text}]
    body = json.dumps({"model": model.name, "messages": messages, "max_tokens": 400}).encode()
    headers = {"content-type": "application/json"}
    if model.key:
        headers["authorization"] = f"Bearer {model.key}"
    request = urllib.request.Request(f"{model.url}/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=model.timeout) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


def answer(ask, model):
    """What stands in place of the text: an action of abridge, and the text if it is "replace"."""
    text = ask.get("text")  # a very long text has `head` and `tail` instead
    if text and TESTS.search(text):
        shorter = compress_tests(text)
    elif text and len(DIFF.findall(text)) > 2:
        shorter = compress_diff(text)
    elif model.url:
        shorter = digest(ask, model)
    else:
        return {"action": "default"}
    if not shorter.strip() or len(shorter.encode()) > ask["max_bytes"]:
        return {"action": "default"}
    return {"action": "replace", "text": shorter}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model = None

    def do_POST(self):
        ask = json.loads(self.rfile.read(int(self.headers["content-length"])))
        body = json.dumps({"id": ask["id"], **answer(ask, self.model)}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self):
        return str(self.client_address)  # of a Unix socket it is no pair

    def log_message(self, *_):
        pass  # texts are the user's


class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listen", default="127.0.0.1:9000", help="HOST:PORT or unix:/path")
    parser.add_argument("--model-url", dest="url", help="base URL of Chat Completions")
    parser.add_argument("--model", dest="name", default="gpt-4o-mini")
    parser.add_argument("--key-env", default="OPENAI_API_KEY", help="the variable with the model's key")
    parser.add_argument("--timeout", type=float, default=8.0, help="seconds; less than handlers.NAME.timeout")
    model = parser.parse_args()
    model.key = os.environ.get(model.key_env)
    Handler.model = model
    if model.listen.startswith("unix:"):
        server = UnixServer(model.listen.removeprefix("unix:"), Handler)
        print(f"listening on {model.listen}", flush=True)
    else:
        host, port = model.listen.rsplit(":", 1)
        server = ThreadingHTTPServer((host, int(port)), Handler)
        print(f"listening on http://{host}:{server.server_port}/", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
