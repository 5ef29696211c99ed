#!/usr/bin/env python3
"""Put the functions of abridge that run at start, for each request and for each event next to each other. They lie all over the
program otherwise, and the kernel maps 64 KiB around each page that is touched: half of the memory of an idle abridge is pages
that nobody reads.

    scripts/order.py PROGRAM             print the symbols of PROGRAM in the order of packaging/functions.txt, for LLD
    scripts/order.py --record PROGRAM    write packaging/functions.txt anew: start PROGRAM under callgrind, and send requests

PROGRAM has its symbols. In the list they have no hashes, which change with each version of the compiler or of a library. What
it does not name stays where it was; a list that is old orders less.
"""
import importlib, pathlib, re, subprocess, sys

FUNCTIONS = pathlib.Path(__file__).resolve().parent.parent / "packaging" / "functions.txt"


def key(symbol):
    """A symbol without the hashes of its crates and of itself."""
    return re.sub(r"17h[0-9a-f]{16}E|\.llvm\.\d+", "", re.sub(r"Cs[0-9A-Za-z]+_", "C", symbol))


def functions(program):
    """The symbols and sizes of its functions."""
    listed = subprocess.run(["nm", "--print-size", program], check=True, stdout=subprocess.PIPE, text=True).stdout
    return sorted((symbol, int(size, 16)) for _, size, _, symbol in re.findall(r"^(\w+) (\w+) ([tT]) (\S+)$", listed, re.M))


def symbols(program):
    by_key = {}
    for symbol, size in functions(program):
        by_key.setdefault(key(symbol), {}).setdefault(size, []).append(symbol)
    surely, perhaps = [], []
    for line in FUNCTIONS.read_text().splitlines():
        size, name = line.split()
        size = int(size)
        by_size = by_key.get(name, {})
        # Without hashes, a generic function with hundreds of types has one name. Its size tells which of them is meant.
        if size in by_size or len(by_size) == 1:
            surely += by_size.get(size) or sum(by_size.values(), [])
        else:
            perhaps += sum(by_size.values(), [])
    return dict.fromkeys(surely + perhaps)


def functions_run(dump):
    """The symbols that a dump of callgrind has instructions of."""
    names, run = {}, {}
    for called, number, name in re.findall(r"^(c?)fn=\((\d+)\)(?: (.*))?$", dump.read_text(), re.M):
        if name:
            names[number] = re.sub(r"'\d+$", "", name)
        if not called:
            run[names[number]] = None
    return list(run)


def record(program):
    guard = importlib.import_module("bench-guard")
    with guard.serving(program, "--demangle=no") as (pid, address, folder):
        subprocess.run(["callgrind_control", "--dump", str(pid)], check=True, capture_output=True)
        requests = [guard.small_request(2), guard.small_request(1), guard.small_request(2, stream=True)]
        for number, request in enumerate(requests, 2):
            guard.count_case(pid, address, folder, number, "/v1/chat/completions", request)
        # What each request runs comes first.
        dumps = [functions_run(folder / f"out.{number}") for number in (2, 3, 4, 1)]
    sizes = dict(functions(program))
    lines = [f"{sizes[symbol]} {key(symbol)}\n" for symbol in sum(dumps, []) if symbol in sizes]
    FUNCTIONS.write_text("".join(dict.fromkeys(lines)))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--record", program]:
            record(program)
        case [program] if not program.startswith("-"):
            print(*symbols(program), sep="\n")
        case _:
            sys.exit(__doc__)
