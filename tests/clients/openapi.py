"""The description of the paths below /abridge/ held against the program, with schemathesis.

    openapi.py ABRIDGE

Requests that the description allows are answered as it says, others are refused, and no answer has a field without a
description. What schemathesis cannot play (a stream without end, a file that is written) is asked once here.
"""

import http.server
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request

from harness import check, run

sys.path.append(os.path.join(os.path.dirname(__file__), "../../scripts"))
from compare import Handler

ABRIDGE = sys.argv[1]
SCHEMATHESIS = os.path.join(os.environ["ABRIDGE_CLIENTS"], "openapi/bin/schemathesis")
EXAMPLES = 20
# Their fields are those of the API, or free.
OPEN = ["Conversation"]
ANSWER = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-4o",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Done."}}],
    "usage": {"prompt_tokens": 900, "completion_tokens": 2, "total_tokens": 902},
}


class Upstream(Handler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.reply(200, json.dumps(ANSWER).encode())


class Abridge:
    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
        threading.Thread(target=self.upstream.serve_forever, daemon=True).start()
        settings = os.path.join(self.folder.name, "proxy.toml")
        with open(settings, "w") as file:
            file.write(
                f'server.listen = "127.0.0.1:0"\nupstream.url = "http://127.0.0.1:{self.upstream.server_port}/v1"\n'
                f'store.path = "{self.folder.name}/store.redb"\ninspect.keep = 20\n'
                'clear_tool_results = { when = "any", trigger = { tokens = 500 }, keep = { results = 1 } }\n'
            )
        env = os.environ | {"XDG_STATE_HOME": self.folder.name}
        self.process = subprocess.Popen([ABRIDGE, "serve", "--config", settings], env=env, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"page: (http://[^/]+)/abridge/#token=(\w+)", line):
                self.base, self.token = found.groups()
                break
        # Nothing waits for a full pipe.
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def ask(self, path, body=None, method=None, **fields):
        """The status, the header fields and the text of an answer."""
        fields = {"authorization": f"Bearer {self.token}", "content-type": "application/json"} | fields
        request = urllib.request.Request(self.base + path, body and json.dumps(body).encode(), fields, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.headers, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read().decode()


def converse(abridge):
    """A conversation whose results are cleared, so that every list has something in it."""
    messages = [{"role": "user", "content": "Look at it."}]
    for n in range(6):
        function = {"name": "look", "arguments": json.dumps({"n": n})}
        call = {"id": f"call_{n}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"call_{n}", "content": f"line {n} of what is there\n" * 300})
        body = {"model": "gpt-4o", "messages": messages}
        status, _, text = abridge.ask("/v1/chat/completions", body, authorization="Bearer sk-client")
        assert status == 200, text


def closed(node):
    """The schema without room for fields that have no description."""
    if isinstance(node, list):
        return [closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {name: item if name in OPEN else closed(item) for name, item in node.items()}
    if "properties" in node:
        node["additionalProperties"] = False
    return node


abridge = Abridge()
converse(abridge)
description = json.loads(abridge.ask("/abridge/openapi.json")[2])


@check
def every_answer_is_as_described():
    status, _, text = abridge.ask("/abridge/payloads")
    handle = json.loads(text)["payloads"][0]["handle"]
    schema = os.path.join(abridge.folder.name, "openapi.json")
    with open(schema, "w") as file:
        json.dump(closed(description), file)
    settings = os.path.join(abridge.folder.name, "schemathesis.toml")
    with open(settings, "w") as file:
        file.write(f"""
base-url = "{abridge.base}"
seed = 1
[auth.openapi.operator]
bearer = "{abridge.token}"
[auth.openapi.caller]
bearer = "sk-client"
[generation]
max-examples = {EXAMPLES}
[phases.stateful]
enabled = false

[[operations]] # one stream never ends, one writes files, one is a protocol of its own
include-operation-id = ["events", "backup", "mcp"]
enabled = false
[[operations]]
include-operation-id = "recall" # of the ways to choose a part, one at a time
checks.positive_data_acceptance.enabled = false
parameters = {{ "path.handle" = "{handle}" }}
[[operations]]
include-operation-id = "request"
parameters = {{ "path.id" = "last" }}
[[operations]] # these take any body of a dialect, and what cannot be read goes on as it came
include-operation-id = ["rewrite", "summarize"]
generation.mode = "positive"
[[operations]] # programs of this machine need no token, and no model wants a key here
include-operation-id = ["metrics", "recall", "summarize"]
checks.ignored_auth.enabled = false
checks.missing_required_header.enabled = false
[[operations]]
include-operation-id = "metrics"
checks.negative_data_rejection.enabled = false
""")
    command = [SCHEMATHESIS, "--config-file", settings, "run", schema, "--phases", "examples,coverage,fuzzing"]
    ended = subprocess.run(command, cwd=abridge.folder.name, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert ended.returncode == 0, ended.stdout
    tested = re.search(r"Tested: (\d+)", ended.stdout)
    assert tested and int(tested[1]) == len(description["paths"]) - 3, ended.stdout


@check
def every_path_is_described():
    status, _, said = abridge.ask("/abridge/no-such-path")
    assert status == 404
    for path in re.findall(r"/abridge/[\w./]*", said):
        described = path.replace("HANDLE", "{handle}").replace("ID", "{id}")
        assert described in description["paths"], f"{path} has no description"


@check
def events_are_described():
    with urllib.request.urlopen(
        urllib.request.Request(f"{abridge.base}/abridge/events", headers={"authorization": f"Bearer {abridge.token}"})
    ) as events:
        assert events.status == 200 and events.headers["content-type"] == "text/event-stream"
    status, fields, _ = abridge.ask("/abridge/events", authorization="")
    assert status == 401 and fields["content-type"].startswith("text/plain")


@check
def backups_are_described():
    described = description["paths"]["/abridge/backup"]["post"]["responses"]
    file = os.path.join(abridge.folder.name, "copy.redb")
    for query, expected in [(f"file={file}", 200), (f"file={file}", 422), ("file=copy.redb", 400), ("", 400)]:
        status, fields, text = abridge.ask(f"/abridge/backup?{query}", method="POST")
        assert status == expected and str(status) in described, (query, status, text)
        assert fields["content-type"].startswith("text/plain")
    assert os.path.getsize(file) > 0


@check
def the_mcp_server_is_described():
    described = description["paths"]["/abridge/mcp"]["post"]["responses"]
    both = "application/json, text/event-stream"
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    begin = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    for body, fields, expected in [
        (begin, {"accept": both}, 200),
        (note, {"accept": both}, 202),
        (begin, {"accept": "application/json"}, 406),
        (begin, {"accept": both, "content-type": "text/plain"}, 415),
    ]:
        status, _, text = abridge.ask("/abridge/mcp", body, **fields)
        assert status == expected and str(status) in described, (body, fields, status, text)


try:
    run()
finally:
    abridge.process.kill()
    abridge.upstream.shutdown()
