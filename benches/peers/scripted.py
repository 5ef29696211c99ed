"""An upstream that does what the check at hand tells it to, on a socket, and keeps every byte that it was sent."""

import select
import socket
import threading
import time

ANSWER = (
    b'{"id":"chatcmpl-b3","object":"chat.completion","created":1760000000,"model":"gpt-5.2","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"The logs were read. Every test of the planner passes, the build of the '
    b'relay failed once on a type, was mended and passes; nothing else is open, and no file outside was touched."},'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":512,"completion_tokens":44,"total_tokens":556}}'
)


def event(content, **more):
    extra = "".join(f',"{key}":{value}' for key, value in more.items())
    return (
        f'data: {{"id":"chatcmpl-b3","object":"chat.completion.chunk","created":1760000000,"model":"gpt-5.2",'
        f'"choices":[{{"index":0,"delta":{{"content":"{content}"}},"finish_reason":null}}]{extra}}}\n\n'
    ).encode()


# What servers really send: comments, fields of their own, numbers as they please, a usage event without choices.
EVENTS = [
    b": keep-alive\n\n",
    event("", obfuscation='"x7"'),
    event("Hello", vendor_latency="1.0"),
    event(", w\\u00f6rld", system_fingerprint="null"),
    b'data: {"id":"chatcmpl-b3","object":"chat.completion.chunk","created":1760000000,"model":"gpt-5.2","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
    b'data: {"id":"chatcmpl-b3","object":"chat.completion.chunk","created":1760000000,"model":"gpt-5.2","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}\n\n',
    b"data: [DONE]\n\n",
]
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"


def whole(status, body, *headers):
    lines = [f"HTTP/1.1 {status}", "content-type: application/json", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


class Request:
    def __init__(self, head, body):
        self.line, _, rest = head.partition(b"\r\n")
        self.method, self.target = (self.line.decode("latin-1").split(" ") + ["", ""])[:2]
        self.headers = {}
        for line in rest.split(b"\r\n"):
            name, _, value = line.decode("latin-1").partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self.body = body


class Upstream:
    """Plays `script`, a function of a connection and a request; GETs get a 404 and are not kept."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self.listener.getsockname()[1]
        self.play(answer)
        threading.Thread(target=self._accept, daemon=True).start()

    def play(self, script):
        self.script = script
        self.requests = []
        self.gone = None  # when the one who asked closed the connection of a script that watches for that
        self.asked = threading.Event()

    def _accept(self):
        while True:
            stream, _ = self.listener.accept()
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(stream,), daemon=True).start()

    def _serve(self, stream):
        try:
            with stream:
                reader = stream.makefile("rb")
                while True:
                    request = read_request(reader)
                    if request is None:
                        return
                    if request.method != "POST":
                        stream.sendall(whole("404 Not Found", b'{"error":{"message":"not here"}}'))
                        continue
                    script = self.script
                    self.requests.append(request)
                    self.asked.set()
                    if script(self, stream, request) == "close":
                        return
        except OSError:
            pass


def read_request(reader):
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = reader.readline(1 << 20)
        if not line:
            return None
        head += line
    request = Request(head[:-4], b"")
    if request.headers.get("expect", "").lower() == "100-continue":
        return None
    if "chunked" in request.headers.get("transfer-encoding", ""):
        while size := int(reader.readline().split(b";")[0], 16):
            request.body += reader.read(size)
            reader.readline()
        reader.readline()
    else:
        request.body = reader.read(int(request.headers.get("content-length", 0)))
    return request


# Scripts.


def answer(upstream, stream, request):
    if b'"stream": true' in request.body or b'"stream":true' in request.body:
        return stream_events(upstream, stream, request)
    stream.sendall(whole("200 OK", ANSWER))


def stream_events(upstream, stream, request):
    stream.sendall(STREAM_HEAD)
    for data in EVENTS:
        stream.sendall(chunk(data))
        time.sleep(0.002)
    stream.sendall(b"0\r\n\r\n")


def say_nothing(upstream, stream, request):
    """A model that thinks: no byte, but an eye on who asked."""
    watch(upstream, stream, None)
    return "close"


def stream_slowly(upstream, stream, request):
    stream.sendall(STREAM_HEAD)
    stream.sendall(chunk(EVENTS[1]))
    watch(upstream, stream, chunk(event("more")))
    return "close"


def watch(upstream, stream, data):
    end = time.monotonic() + 15
    while time.monotonic() < end:
        if select.select([stream], [], [], 0.05)[0] and not peek(stream):
            upstream.gone = time.monotonic()
            return
        if data:
            try:
                stream.sendall(data)
            except OSError:
                upstream.gone = time.monotonic()
                return


def peek(stream):
    try:
        return stream.recv(1, socket.MSG_PEEK)
    except OSError:
        return b""


def too_many(upstream, stream, request):
    body = b'{"error":{"message":"Rate limit reached for gpt-5.2","type":"requests","param":null,"code":"rate_limit_exceeded"}}'
    stream.sendall(whole("429 Too Many Requests", body, "retry-after: 1", "x-ratelimit-remaining-requests: 0"))


def die(upstream, stream, request):
    stream.sendall(STREAM_HEAD)
    for data in EVENTS[1:4]:
        stream.sendall(chunk(data))
        time.sleep(0.02)
    return "close"
