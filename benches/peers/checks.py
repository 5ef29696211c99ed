"""What a proxy must not do to an exchange: each check asks through the running proxy and looks at both ends."""

import gzip
import json
import time
import zlib

import scripted
import wire
from outcome import NotApplicable, Wrong
from recover import recovered

PATIENCE = 25  # longer than any peer's retries take
SOON = 1.0

TOOLS = '"tools":[{"type":"function","function":{"name":"bash","description":"Run a command","parameters":{"type":"object","properties":{"command":{"type":"string"}},"required":["command"]}}}]'

# Complete, so that nothing is to be repaired; short, so that nothing is to be cut; spaced and spelled as nobody's serialiser would.
UNTOUCHED = """{ "model":"gpt-5.2",
  "messages": [ {"content": "You are terse.", "role": "system"},
    {"role":"user","content":"Read a.txt, na\\u00efve \\ud83d\\ude00 \\/ fine"},
    {"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"bash","arguments":"{\\"command\\":  \\"cat a.txt\\"}"}}]},
    {"role":"tool","tool_call_id":"call_1","content":"a\\tb"},
    {"role":"user","content":"Thanks. And now?"} ],
  "temperature": 1.0, "top_p": 1e0, "n":1 , """ + TOOLS + "}\n"

INTEGER = "123456789012345678901234567890"
UNKNOWN = (
    '{"model":"gpt-5.2","messages":[{"role":"user","content":"Read a.txt"},{"role":"assistant","content":null,"reasoning_content":"The file first.",'
    '"tool_calls":[{"id":"call_1","type":"function","function":{"name":"bash","arguments":"{\\"command\\":\\"cat a.txt\\"}"},'
    '"extra_content":{"google":{"thought_signature":"c2lnbmF0dXJl"}}}]},{"role":"tool","tool_call_id":"call_1","content":"a b"},{"role":"user","content":"And now?"}],'
    f'"vendor_option":{{"deep":[1.0,{INTEGER}]}},"vendor_number":{INTEGER},{TOOLS}}}'
)
HELLO = '{"model":"gpt-5.2","messages":[{"role":"user","content":"Say hello, please."}]}'
STREAMED = '{"model":"gpt-5.2","messages":[{"role":"user","content":"Say hello, please."}],"stream":true}'
DANGLING = (
    '{"model":"gpt-5.2","messages":[{"role":"user","content":"Read both."},{"role":"assistant","content":null,"tool_calls":['
    '{"id":"call_1","type":"function","function":{"name":"bash","arguments":"{}"}},{"id":"call_2","type":"function","function":{"name":"bash","arguments":"{}"}}]},'
    f'{{"role":"tool","tool_call_id":"call_1","content":"a"}},{{"role":"user","content":"Stop, and go on without the second."}}],{TOOLS}}}'
)


def ask(peer, text, query="", headers=(), body=None, patience=PATIENCE):
    body = peer.peer.body(text) if body is None else body
    return wire.ask(peer.port, peer.peer.path + query, body, [*peer.headers(), *headers], patience=patience)


def first(upstream, answer):
    """The request that the upstream got; the peer must have sent one, and have been content with the answer."""
    if answer.status != 200:
        raise Wrong(f"answered {answer.status or 'nothing'}: {answer.text()}")
    if not upstream.requests:
        raise Wrong("the upstream was never asked")
    return upstream.requests[0]


def untouched(peer, upstream):
    sent = peer.peer.body(UNTOUCHED)
    got = first(upstream, ask(peer, UNTOUCHED)).body
    if got != sent:
        raise Wrong(f"{len(sent)} bytes became {len(got)}, {difference(sent, got)}")


def difference(sent, got):
    at = next((n for n, (one, other) in enumerate(zip(sent, got)) if one != other), min(len(sent), len(got)))
    return f"from byte {at} on: `{got[at:at + 24].decode('utf-8', 'replace')}`"


def events(peer, upstream):
    wanted = b"".join(scripted.EVENTS)
    answer = ask(peer, STREAMED)
    first(upstream, answer)
    if answer.body != wanted:
        raise Wrong(f"{len(wanted)} bytes became {len(answer.body)}, {difference(wanted, answer.body)}")


def query(peer, upstream):
    asked = "?api-version=2025-04-01&tag=a%20b+c"
    target = first(upstream, ask(peer, HELLO, query=asked)).target
    if not target.endswith(asked):
        raise Wrong(f"the upstream was asked for `{target}`")


def unknown(peer, upstream):
    got = parsed(first(upstream, ask(peer, UNKNOWN)).body)
    call = next((m for m in got["messages"] if m.get("tool_calls")), {})
    kept = {
        "the unknown field": "vendor_option" in got,
        "the 30 digits": got.get("vendor_number") == INTEGER and got.get("vendor_option", {}).get("deep") == ["1.0", INTEGER],
        "`reasoning_content`": call.get("reasoning_content") == "The file first.",
        "`thought_signature`": "c2lnbmF0dXJl" in json.dumps(call),
    }
    lost = [name for name, is_kept in kept.items() if not is_kept]
    if lost:
        raise Wrong(f"lost {', '.join(lost)}")


def parsed(body):
    """Numbers as they are spelled."""
    return json.loads(body, parse_int=str, parse_float=str)


def zipped(peer, upstream):
    plain = peer.peer.body(HELLO)
    got = first(upstream, ask(peer, HELLO, headers=["content-encoding: gzip"], body=gzip.compress(plain)))
    body = got.body
    if got.headers.get("content-encoding") == "gzip":
        try:
            body = gzip.decompress(body)
        except (OSError, EOFError, zlib.error) as error:
            raise Wrong(f"the upstream was sent what is not gzip: {error}") from error
    if b"Say hello, please." not in body:
        raise Wrong("the upstream was sent another body")


def cancelled_stream(peer, upstream):
    upstream.play(scripted.stream_slowly)
    cancelled(peer, upstream, STREAMED)


def cancelled_call(peer, upstream):
    upstream.play(scripted.say_nothing)
    cancelled(peer, upstream, HELLO)


def cancelled(peer, upstream, text):
    stream = wire.send(peer.port, peer.peer.path, peer.peer.body(text), peer.headers())
    if not upstream.asked.wait(10):
        raise Wrong("the upstream was never asked")
    time.sleep(0.4)
    left = time.monotonic()
    stream.close()
    while time.monotonic() - left < 5 and upstream.gone is None:
        time.sleep(0.01)
    if upstream.gone is None:
        raise Wrong("the upstream was still asked 5 s later")
    if upstream.gone < left:
        raise Wrong("it left before the client did")
    if upstream.gone - left > SOON:
        raise Wrong(f"the upstream was left after {upstream.gone - left:.1f} s")


def limited(peer, upstream):
    upstream.play(scripted.too_many)
    answer = ask(peer, HELLO)
    time.sleep(0.2)
    wrong = []
    if answer.status != 429:
        wrong.append(f"answered {answer.status or 'nothing'}")
    if answer.headers.get("retry-after") != "1":
        wrong.append(f"`retry-after` {answer.headers.get('retry-after', 'is gone')}")
    if len(upstream.requests) != 1:
        wrong.append(f"the upstream was asked {len(upstream.requests)} times")
    if wrong:
        raise Wrong(", ".join(wrong))


def died(peer, upstream):
    upstream.play(scripted.die)
    answer = ask(peer, STREAMED)
    # A client that is told of an error in the stream knows it, however well the stream then ends.
    if answer.whole and b'"error"' not in answer.body and b"event: error" not in answer.body:
        raise Wrong("the cut stream ends as a complete one does")


def dangling(peer, upstream):
    got = parsed(first(upstream, ask(peer, DANGLING)).body)
    missing = unanswered(got["messages"])
    if missing:
        raise Wrong(f"`{missing[0]}` has no result at the upstream")


def unanswered(messages):
    """The calls without a result before the next message that is none, which strict servers refuse."""
    waiting = []
    for message in messages:
        if message.get("role") == "tool":
            waiting = [name for name in waiting if name != message.get("tool_call_id")]
        elif waiting:
            return waiting
        waiting += [call["id"] for call in message.get("tool_calls") or []]
    return waiting


CHECKS = {
    "untouched request identical": untouched,
    "SSE identical": events,
    "query kept": query,
    "unknown fields, 30-digit integers kept": unknown,
    "gzip request body": zipped,
    "cancelled stream": cancelled_stream,
    "cancelled call, not streamed": cancelled_call,
    "429 passed once, with Retry-After": limited,
    "death of the upstream visible": died,
    "dangling call repaired": dangling,
    "original there after a restart": recovered,
}


def check(running, upstream, name):
    """`ok`, `no` or `n/a`, and why."""
    upstream.play(scripted.answer)
    try:
        CHECKS[name](running, upstream)
        return "ok", ""
    except NotApplicable as reason:
        return "n/a", str(reason)
    except Wrong as reason:
        return "no", str(reason)
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        return "no", f"{type(error).__name__}: {error}"
