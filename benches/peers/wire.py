"""A client on a bare socket: what it sends is what is written here, and what it reads is kept as it came."""

import socket
import time


class Answer:
    def __init__(self, raw, ended):
        head, _, rest = raw.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split(" ")[1]) if lines[0].startswith("HTTP/") else 0
        self.headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self.headers.setdefault(name.strip().lower(), value.strip())
        self.body, self.whole = rest, False
        if "chunked" in self.headers.get("transfer-encoding", ""):
            self.body, self.whole = dechunk(rest)
        elif "content-length" in self.headers:
            self.whole = len(rest) >= int(self.headers["content-length"])
        else:
            # No framing: the end of the connection is the end of the body, unless it was reset.
            self.whole = ended == "closed" and bool(head)

    def text(self, most=160):
        return " ".join(self.body[:most].decode("utf-8", "replace").split())


def dechunk(data):
    body = b""
    while True:
        size, found, rest = data.partition(b"\r\n")
        if not found:
            return body, False
        n = int(size.split(b";")[0], 16)
        if n == 0:
            return body, rest.startswith(b"\r\n")
        body += rest[:n]
        if len(rest) < n + 2:
            return body, False
        data = rest[n + 2 :]


def send(port, target, body, headers=(), method="POST"):
    stream = socket.create_connection(("127.0.0.1", port), timeout=30)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    lines = [f"{method} {target} HTTP/1.1", f"host: 127.0.0.1:{port}", *headers]
    if method == "POST":
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    stream.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    return stream


def receive(stream, patience=30):
    """Reads an answer to its end, which is its framing's or the connection's."""
    stream.settimeout(patience)
    raw, ended = b"", "open"
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if raw and Answer(raw, ended).whole and b"\r\n\r\n" in raw:
            break
        try:
            data = stream.recv(1 << 16)
        except socket.timeout:
            ended = "silent"
            break
        except OSError:
            ended = "reset"
            break
        if not data:
            ended = "closed"
            break
        raw += data
    return Answer(raw, ended)


def ask(port, target, body, headers=(), method="POST", patience=30):
    with send(port, target, body, headers, method) as stream:
        return receive(stream, patience)
