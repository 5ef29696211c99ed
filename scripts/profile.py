#!/usr/bin/env python3
"""The profile that abridge is compiled with: which branches run how often, for profile-guided optimisation.

    scripts/profile.py TARGET            write packaging/profile.txt as rustc reads it for TARGET, and print the path
    scripts/profile.py --record PROGRAM  write packaging/profile.txt anew: start PROGRAM, which counts, and send requests

`scripts/release.sh --record` builds PROGRAM. Both need llvm-profdata of the toolchain, which rustup installs where it is missing.

A line of packaging/profile.txt is a function in the text format of LLVM: its symbol, a hash of its branches, the number of
counters, the counters, and the functions that it called by pointers; N*COUNT stands for COUNT that comes N times. In symbols,
crates of the standard library have no hashes, as these differ between platforms; scripts/rustc.sh makes those of other crates the
same everywhere. A function whose branches have changed since is compiled without a profile. With another version of rustc than
that in the first line, nothing is written, and the exit code is 1.
"""
import collections, concurrent.futures, hashlib, http.client, importlib, itertools, json, pathlib, re, shutil, signal, subprocess, sys, tempfile

guard = importlib.import_module("bench-guard")

ROOT = guard.ROOT
PROFILE = ROOT / "packaging" / "profile.txt"
CLEARING = """
[truncate_tool_results]
max_bytes = 10000
[clear_tool_results]
when = 'any'
trigger = { tokens = 20000 }
"""
SMALL_REQUESTS, CLIENTS = 20000, 4


def host():
    return re.search(r"^host: (.*)", guard.said("rustc", "-vV"), re.M)[1]


def llvm_profdata(*arguments):
    tool = pathlib.Path(guard.said("rustc", "--print", "sysroot"), "lib/rustlib", host(), "bin/llvm-profdata")
    if not tool.exists() and not shutil.which("rustup"):
        sys.exit(f"there is no {tool}; it is the component llvm-tools of rustup")
    if not tool.exists():
        subprocess.run(["rustup", "component", "add", "llvm-tools"], check=True, stdout=sys.stderr)
    subprocess.run([tool, *arguments], check=True)


def standard_library(target):
    """The hash of each crate of the standard library, by its name."""
    hashes = {}
    for library in pathlib.Path(guard.said("rustc", "--print", "target-libdir", "--target", target)).glob("lib*.rlib"):
        name = re.match(r"lib(\w+)-", library.name)[1].encode()
        found = collections.Counter(re.findall(rb"Cs([0-9A-Za-z]+)_%d%s" % (len(name), name), library.read_bytes()))
        if found:
            hashes[name.decode()] = found.most_common(1)[0][0].decode()
    return hashes


def write_for(target):
    lines = PROFILE.read_text().splitlines()
    if lines[0] != guard.said("rustc", "--version"):
        sys.exit(f"packaging/profile.txt was recorded with {lines[0]}; scripts/release.sh --record writes it anew")
    text = "\n".join(lines[1:])
    for name, hashed in standard_library(target).items():
        text = text.replace(f"Cs_{len(name)}{name}", f"Cs{hashed}_{len(name)}{name}")
    text = re.sub(r"\t(\d+)\*(\d+)", lambda run: f"\t{run[2]}" * int(run[1]), text)
    text = ":ir\n" + text.replace("\n", "\n\n").replace("\t", "\n") + "\n"
    # Cargo compiles again where the path is another one, and not where the file is.
    path = ROOT / "target" / f"profile.{hashlib.sha256(text.encode()).hexdigest()[:12]}.profdata"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        source = path.with_suffix(".txt")
        source.write_text(text)
        llvm_profdata("merge", "--output", path, source)
    print(path)


def record(program):
    with tempfile.TemporaryDirectory() as folder:
        counted = pathlib.Path(folder)
        for settings in ("", CLEARING):
            train(pathlib.Path(program).resolve(), settings, counted)
        text = counted / "text"
        llvm_profdata("merge", "--sparse", "--text", "--output", text, *counted.glob("*.profraw"))
        text = "".join(line for line in text.read_text().splitlines(keepends=True) if line[0] not in "#:")
    for name, hashed in standard_library(host()).items():
        text = text.replace(f"Cs{hashed}_{len(name)}{name}", f"Cs_{len(name)}{name}")
    lines = [guard.said("rustc", "--version")]
    for function in filter(None, text.split("\n\n")):
        groups = [(word, len(list(same))) for word, same in itertools.groupby(function.splitlines())]
        lines.append("\t".join(word if times == 1 else f"{times}*{word}" for word, times in groups))
    PROFILE.write_text("\n".join(lines) + "\n")


class Upstream(guard.Upstream):
    """The same with streams of many events that come without pauses."""
    words, pause = [f" word{n}" for n in range(100)], 0


def train(program, settings, counted):
    with guard.serving(program, settings=settings, handler=Upstream) as (served, address, folder):
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as clients:
            list(clients.map(lambda client: send(address, client), range(CLIENTS)))
        # Where it ends by itself, it writes what it has counted.
        served.send_signal(signal.SIGTERM)
        assert served.wait(30) == 0
        for raw in folder.glob("*.profraw"):
            raw.rename(counted / f"{served.pid}.{raw.name}")


def send(address, client):
    connection = http.client.HTTPConnection(address)
    for path, body in requests(client):
        connection.request("POST", path, body, {"content-type": "application/json", "authorization": "Bearer sk-0123456789"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status


def requests(client):
    """Most requests are small, so that what is hot in them is hot in the whole: large ones run the same loops for long."""
    chat = "/v1/chat/completions"
    yield from fixtures()
    for _ in range(SMALL_REQUESTS // CLIENTS // 3):
        yield chat, guard.small_request(2)
        yield chat, guard.small_request(1)
        yield "/v1/embeddings", guard.small_request(2)
    for _ in range(100 // CLIENTS):
        yield chat, guard.small_request(2, stream=True)
    # A session in each dialect, which grows by a round with each request.
    sources = "".join(path.read_text() for path in sorted((ROOT / "src").rglob("*.rs")))[client * 500_000:]
    texts = [sources[start:start + size] for start, size in zip(range(0, 400_000, 8000), itertools.cycle([300, 8000, 2000, 14000]))]
    for rounds in range(1, len(texts) + 1, 3):
        for path, session in SESSIONS.items():
            yield path, json.dumps(session(texts[:rounds])).encode()


def fixtures():
    for path, folder in {"/v1/chat/completions": "chat_completions", "/v1/messages": "messages", "/v1/responses": "responses"}.items():
        for request in sorted((ROOT / "fixtures" / folder).glob("*/request.json")):
            yield path, request.read_bytes()


def chat_completions(texts):
    messages = [{"role": "system", "content": "You are a coding agent."}, {"role": "user", "content": "Repair the build."}]
    for n, text in enumerate(texts):
        function = {"name": "read_file", "arguments": json.dumps({"path": f"src/part_{n}.rs"})}
        messages.append({"role": "assistant", "content": None, "tool_calls": [{"id": f"call_{n}", "type": "function", "function": function}]})
        messages.append({"role": "tool", "tool_call_id": f"call_{n}", "content": text})
    return {"model": "gpt-5", "messages": messages}


def messages(texts):
    messages = [{"role": "user", "content": "Repair the build."}]
    for n, text in enumerate(texts):
        call = {"type": "tool_use", "id": f"toolu_{n}", "name": "read_file", "input": {"path": f"src/part_{n}.rs"}}
        messages.append({"role": "assistant", "content": [{"type": "text", "text": "I read on."}, call]})
        messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"toolu_{n}", "content": text}]})
    return {"model": "claude-sonnet-4-5", "max_tokens": 4096, "system": "You are a coding agent.", "messages": messages}


def responses(texts):
    items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Repair the build."}]}]
    for n, text in enumerate(texts):
        arguments = json.dumps({"path": f"src/part_{n}.rs"})
        items.append({"type": "function_call", "call_id": f"call_{n}", "name": "read_file", "arguments": arguments})
        items.append({"type": "function_call_output", "call_id": f"call_{n}", "output": text})
    return {"model": "gpt-5-codex", "instructions": "You are a coding agent.", "input": items}


SESSIONS = {"/v1/chat/completions": chat_completions, "/v1/messages": messages, "/v1/responses": responses}


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--record", program]:
            record(program)
        case [target] if not target.startswith("-"):
            write_for(target)
        case _:
            sys.exit(__doc__)
