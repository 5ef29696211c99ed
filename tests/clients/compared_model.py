"""A scripted model for coding agents, in Anthropic Messages and OpenAI Responses, which keeps what it is sent.

The user's words name a scene (FIRST, SECOND, THIRD; SUB-TASK for a sub-agent); how many results follow them says which call is
next.
"""

import json
import subprocess
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SCENES = ("FIRST", "SECOND", "THIRD", "SUB-TASK")
LISTING = "seq -f 'line %04g of what a tool writes' 1 700"


@dataclass
class Request:
    method: str
    path: str
    fields: dict
    body: dict


class Server(ThreadingHTTPServer):
    def handle_error(self, *_):
        pass  # a client that has gone


class Upstream:
    def __enter__(self):
        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.seen, self.server.last, self.server.lock = [], 0, threading.Lock()
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.base = f"http://127.0.0.1:{self.server.server_port}"
        self.seen = self.server.seen
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


# === scripts ===


def next_call(items, scenes):
    """What the model answers to items, each the user's words or a result: calls, or its last words."""
    scene, n = None, 0
    for words in items:
        named = next((name for name in SCENES if name in (words or "")), None)
        scene, n = (named, 0) if named else (scene, n + (words is None))
    for calls in scenes.get(scene, []):
        if n == 0:
            return calls
        n -= len(calls)
    return f"Done with {scene}."


def of_messages(body):
    tools = {tool.get("name") for tool in body.get("tools", [])}
    if "Bash" not in tools:
        return "A title"
    items = []
    for message in body["messages"]:
        content = message["content"]
        for block in content if isinstance(content, list) else [{"type": "text", "text": content}]:
            if block["type"] == "tool_result":
                items.append(None)
            elif block["type"] == "text" and message["role"] == "user":
                items.append(block["text"])
    if "summary of the conversation" in (items[-1] or ""):
        return "<summary>Nothing is left to do.</summary>"

    def shell(command):
        return ("Bash", {"command": command, "description": "Look"})

    search = [[("ToolSearch", {"query": "select:WebFetch", "max_results": 1})]] if "ToolSearch" in tools else []
    task = {"description": "look", "prompt": "SUB-TASK: look at it", "subagent_type": "general-purpose"}
    return next_call(items, {
        "FIRST": [
            *search,
            [shell("echo one")],
            [("Agent" if "Agent" in tools else "Task", task)],
            # A sub-agent in the background ends meanwhile.
            [shell("sleep 3; echo waited")],
            [shell(LISTING)],
            [shell("echo beside"), shell("sleep 1; echo once more")],
        ],
        "SECOND": [[shell("echo two")]],
        "THIRD": [[shell("echo three")]],
        "SUB-TASK": [[shell("echo sub")]],
    })


def of_responses(body):
    names, items, answered = set(), [], set()

    def add(tools, space=""):
        for tool in tools:
            if tool.get("type") == "namespace":
                add(tool.get("tools", []), f"{tool['name']}.")
            names.add(space + (tool.get("name") or tool.get("type")))

    def words(node):
        return node if isinstance(node, str) else " ".join(map(words, node.values() if isinstance(node, dict) else node or ()))

    add(body.get("tools", []))
    for item in body["input"]:
        kind = item.get("type", "message")
        if kind == "compaction_trigger":
            return None
        if kind == "additional_tools":
            add(item["tools"])
        # A notification is a further result of its call.
        if kind.endswith("_output") and item["call_id"] not in answered:
            answered.add(item["call_id"])
            items.append(None)
        # Of a sub-agent; the agent that began it has a message from it.
        if item.get("role") == "user" or kind == "agent_message" and "request_user_input" not in names:
            items.append(words(item.get("content")))

    if "request_user_input" not in names:
        time.sleep(2)  # the agent that began it waits by then

    def shell(command):
        if "exec" not in names:
            return ("exec_command", {"cmd": command})
        return ("exec", f"const ran = await tools.exec_command({json.dumps({'cmd': command})}); text(ran.output);")

    notify = "await tools.exec_command({cmd: 'sleep 0.3'});"
    notify = [[("exec", f"notify('half way'); {notify} notify('nearly there'); {notify} text('the end');")]]
    spawn = [[("collaboration.spawn_agent", {"task_name": "look", "message": "SUB-TASK: look at it"})],
             [("collaboration.wait_agent", {"timeout_ms": 30000})]]
    return next_call(items, {
        "FIRST": [
            [shell("echo one")],
            *(notify if "exec" in names else []),
            *(spawn if "collaboration.spawn_agent" in names else []),
            [shell(LISTING)],
        ],
        "SECOND": [[shell("echo two")]],
        "THIRD": [[shell("echo three")]],
        "SUB-TASK": [[shell("echo sub")]],
    })


# === answers ===


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"])) if "content-length" in self.headers else self.chunks()
        if self.headers.get("content-encoding") == "zstd":
            body = subprocess.run(["zstd", "-dc"], input=body, capture_output=True, check=True).stdout
        body = json.loads(body)
        path = self.path.split("?")[0]
        fields = {name.lower(): value for name, value in self.headers.items()}
        if path == "/v1/messages":
            self.server.seen.append(Request("POST", self.path, fields, body))
            self.say_messages(body, of_messages(body))
        elif path == "/v1/responses":
            self.server.seen.append(Request("POST", self.path, fields, body))
            self.say_responses(body, of_responses(body))
        else:
            self.reply({"input_tokens": 9} if path.endswith("/count_tokens") else {})

    def do_GET(self):
        # Codex tries a WebSocket, and goes on without one.
        self.reply({"object": "list", "data": []}, 426 if self.headers.get("upgrade") else 200)

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def chunks(self):
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def reply(self, answer, status=200):
        answer = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def stream(self, events):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in events:
            event = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.wfile.write(b"0\r\n\r\n")

    def unique(self, kind):
        with self.server.lock:
            self.server.last += 1
            return f"{kind}_{self.server.last:08d}"

    def say_messages(self, body, step):
        if isinstance(step, str):
            stop, blocks = "end_turn", [({"type": "text", "text": ""}, "text_delta", "text", step)]
        else:
            stop, blocks = "tool_use", []
            if body.get("thinking"):
                blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, "signature_delta", "signature", "RXJj" * 80))
            for name, arguments in step:
                call = {"type": "tool_use", "id": self.unique("toolu"), "name": name, "input": {}}
                blocks.append((call, "input_json_delta", "partial_json", json.dumps(arguments)))
        usage = {"input_tokens": 1000, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 20}
        whole = {"id": self.unique("msg"), "type": "message", "role": "assistant", "model": body["model"], "content": [],
                 "stop_reason": None, "stop_sequence": None, "usage": usage}
        if not body.get("stream"):
            [(block, _, key, text)] = blocks
            return self.reply({**whole, "content": [{**block, key: text}], "stop_reason": stop})
        events = [{"type": "message_start", "message": whole}]
        for n, (block, kind, key, text) in enumerate(blocks):
            events += [{"type": "content_block_start", "index": n, "content_block": block},
                       {"type": "content_block_delta", "index": n, "delta": {"type": kind, key: text}},
                       {"type": "content_block_stop", "index": n}]
        end = {"stop_reason": stop, "stop_sequence": None}
        self.stream([*events, {"type": "message_delta", "delta": end, "usage": {"output_tokens": 20}}, {"type": "message_stop"}])

    def say_responses(self, body, step):
        if step is None:
            output = [{"type": "compaction", "id": self.unique("cmp"), "encrypted_content": "Z0FB" * 40}]
        elif isinstance(step, str):
            said = [{"type": "output_text", "text": step, "annotations": []}]
            output = [{"type": "message", "id": self.unique("msg"), "role": "assistant", "content": said}]
        else:
            output = [{"type": "reasoning", "id": self.unique("rs"), "summary": [], "encrypted_content": "Z0FB" * 100}]
            for name, arguments in step:
                call = {"call_id": self.unique("call"), "status": "completed"}
                if isinstance(arguments, str):
                    output.append({"type": "custom_tool_call", "id": self.unique("ctc"), **call, "name": name, "input": arguments})
                else:
                    space, _, inner = name.rpartition(".")
                    call |= {"namespace": space} if space else {}
                    arguments = json.dumps(arguments)
                    output.append({"type": "function_call", "id": self.unique("fc"), **call, "name": inner, "arguments": arguments})
        tokens = len(json.dumps(body)) // 4
        usage = {"input_tokens": tokens, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 20,
                 "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": tokens + 20}
        whole = {"id": self.unique("resp"), "object": "response", "created_at": 1, "status": "completed", "model": body["model"],
                 "output": output, "usage": usage}
        events = [{"type": "response.created", "response": {**whole, "status": "in_progress", "output": []}}]
        for n, item in enumerate(output):
            events += [{"type": f"response.output_item.{what}", "output_index": n, "item": item} for what in ("added", "done")]
        self.stream([*events, {"type": "response.completed", "response": whole}])
