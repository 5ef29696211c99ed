"""Whether what a proxy takes out of a conversation can be had back, in the way that its documentation names."""

import json
import os
import re
import subprocess
import threading
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import wire
from compare import Handler

LEAST = 20  # characters of a line that is looked for, without white space
MOST = 40  # texts of one session that are asked for one by one


class Upstream(Handler):
    """Answers while the proxies start, and keeps what arrives; between the two, the judge has the port."""

    protocol_version = "HTTP/1.0"
    arrived = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        Upstream.arrived.append(body.decode(errors="replace"))
        path = self.path.partition("?")[0]
        self.reply(200, json.dumps(message(body) if path.endswith("/messages") else CHAT | {"status": "completed", "output": []}).encode())

    def do_GET(self):
        self.reply(200, b'{"object":"list","data":[]}')


CHAT = {"id": "1", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}]}
RETRIEVE = "litellm_content_retrieve"


def message(body):
    """An answer of Messages: once, with a call for each text that LiteLLM offers, as it has no other way to them."""
    keys = [] if len(Upstream.arrived) > 1 else keys_offered(json.loads(body))
    calls = [{"type": "tool_use", "id": f"toolu_{n}", "name": RETRIEVE, "input": {"key": key}} for n, key in enumerate(keys)]
    return {"id": "1", "type": "message", "role": "assistant", "model": "m", "content": calls or [{"type": "text", "text": "Hello."}],
            "stop_reason": "tool_use" if calls else "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}}


def keys_offered(request):
    found = [tool for tool in request.get("tools") or [] if tool.get("name") == RETRIEVE]
    return found[0]["input_schema"]["properties"]["key"].get("enum", []) if found else []


@contextmanager
def upstream(port):
    server = ThreadingHTTPServer(("127.0.0.1", port), Upstream)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def path_of(request):
    """Where a recorded conversation is posted to."""
    blocks = {part.get("type") for turn in request.get("messages", []) if isinstance(turn.get("content"), list) for part in turn["content"]}
    if "input" in request:
        return "/v1/responses"
    return "/v1/messages" if "system" in request or blocks & {"tool_use", "tool_result"} else "/v1/chat/completions"


def completed(request):
    """A recording with what its agent must have sent: `max_tokens`, and the tools that it calls, on which ways to read back depend."""
    turns, kind = request.get("messages") or request["input"], path_of(request).rpartition("/")[2]
    parts = [part for turn in turns for part in (turn.get("content") if isinstance(turn.get("content"), list) else [])]
    calls = {"completions": [call["function"] for turn in turns for call in turn.get("tool_calls") or []],
             "messages": [part for part in parts if part.get("type") == "tool_use"],
             "responses": [turn for turn in turns if turn.get("type") == "function_call"]}[kind]
    takes = {"type": "object", "properties": {}}
    offer = {"completions": lambda name: {"type": "function", "function": {"name": name, "parameters": takes}},
             "messages": lambda name: {"name": name, "input_schema": takes},
             "responses": lambda name: {"type": "function", "name": name, "parameters": takes}}[kind]
    names = sorted({call["name"] for call in calls})
    limit = {"max_tokens": 4096} if kind == "messages" else {}
    return {**limit, **({"tools": [offer(name) for name in names]} if names else {}), **request}


def texts(value):
    """All strings of a JSON value but ids."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from texts([part for key, part in value.items() if not key.endswith("id")])
    elif isinstance(value, list):
        for part in value:
            yield from texts(part)


def joined(body):
    return "\n".join(texts(json.loads(body)))


def lines(text):
    """The longer lines, without white space and without the file before a number, so that what was only laid out anew is there."""
    bare = ("".join(re.sub(r"^[^\s:]+:(?=\d+:)", "", line).split()) for line in text.splitlines())
    return {line for line in bare if len(line) >= LEAST}


def absent(wanted, text):
    """The lines that a text does not have."""
    wanted = wanted - lines(text)
    whole = "".join(text.split()) if wanted else ""
    return {line for line in wanted if line not in whole}


def fetched(pattern, path, text):
    """A way over HTTP: each handle that the request names, at a path."""
    def way(running, arrived, _taken):
        handles = set(re.findall(pattern, arrived[-1]))
        answers = (wire.ask(running.port, path + handle, b"", running.headers(), method="GET") for handle in handles)
        return arrived[-1], "\n".join(text(answer.body.decode()) for answer in answers if answer.status == 200)
    return way


def files_named(running, arrived, _taken):
    """lean-ctx names files, which the agent's own tools read."""
    named = (Path(name) for name in set(re.findall(r"/[\w/.-]+/tee/\w+\.log", arrived[-1])))
    return arrived[-1], "\n".join(file.read_text() for file in named if file.exists())


def recalled(running, arrived, taken):
    """context-guardian tells the model to search with its command, which names files."""
    command, back = running.peer.folder / "bin" / "context-guardian-recall", ""
    for text in list(taken(arrived[-1]))[:MOST]:
        words = max(text.splitlines(), key=len)[:80]
        found = subprocess.run([command, words], capture_output=True, text=True, cwd=running.home,
                               env={"PATH": os.environ["PATH"], "HOME": str(running.home)}).stdout
        files = (file for file in running.home.rglob("*.json") if file.name in found)
        back += "\n" + found + "\n".join(joined(file.read_text()) for file in files)
    return arrived[-1], back


def in_band(_running, arrived, _taken):
    """LiteLLM answers its own calls: what came back is in the next request."""
    return arrived[0], joined(arrived[-1]) if len(arrived) > 1 else ""


WAYS = {
    "abridge": fetched(r"(?:/abridge/recall/|handle=)([\w-]+)", "/abridge/recall/", lambda body: body),
    "headroom": fetched(r"(?:hash=|<<ccr:)(\w+)", "/v1/retrieve/", lambda body: json.loads(body)["original_content"]),
    "context-guardian": recalled,
    "lean-ctx": files_named,
    "litellm": in_band,
}


def gone(running, sessions):
    """Of the texts of the sessions' last requests with lines that did not arrive, those whose lines did not come back either."""
    way = WAYS.get(running.peer.lock)
    if not way:
        return "n/a"
    missing, total = 0, 0
    for request in sessions:
        said = {text: lines(text) for text in texts(request.get("messages") or request["input"])}

        def taken(arrived):
            whole = joined(arrived)
            lost = absent(set().union(*said.values()), whole)
            return {text: lost & has for text, has in said.items() if lost & has}

        Upstream.arrived.clear()
        wire.ask(running.port, path_of(request), json.dumps(request).encode(), running.headers(), patience=300)
        if not Upstream.arrived:
            continue
        arrived, back = way(running, Upstream.arrived, taken)
        asked = list(taken(arrived).values())[: MOST if way is recalled else None]
        total += len(asked)
        missing += sum(bool(absent(lost, back)) for lost in asked)
    return f"{missing:,} of {total:,}"
