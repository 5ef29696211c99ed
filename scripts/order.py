#!/usr/bin/env python3
"""Put the functions of abridge that run at start, for each request and for each event next to each other. They lie all over the
program otherwise, and the kernel maps 64 KiB around each page that is touched: half of the memory of an idle abridge is pages
that nobody reads.

    scripts/order.py PROGRAM             print the symbols of PROGRAM in the order of packaging/functions.txt, for LLD
    scripts/order.py --record PROGRAM    write packaging/functions.txt anew: start PROGRAM under callgrind, and send requests

PROGRAM is a build of scripts/release.sh with symbols. In the list they have no hashes of crates, which change with each version
of the compiler. What it does not name stays where it was; a list that is old orders less.
"""
import importlib, pathlib, re, subprocess, sys

FUNCTIONS = pathlib.Path(__file__).resolve().parent.parent / "packaging" / "functions.txt"


def key(symbol):
    """A symbol without what is another one in each build."""
    return re.sub(r"\.llvm\.\d+", "", re.sub(r"Cs[0-9A-Za-z]+_", "C", symbol))


def symbols(program):
    """The symbols of its functions by their keys."""
    listed = subprocess.run(["nm", program], check=True, stdout=subprocess.PIPE, text=True).stdout
    by_key = {}
    for symbol in sorted(re.findall(r"^\w+ [tT] (\S+)$", listed, re.M)):
        by_key.setdefault(key(symbol), []).append(symbol)
    return by_key


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
    with guard.serving(*guard.CALLGRIND, "--demangle=no", pathlib.Path(program).resolve()) as (served, address, folder):
        subprocess.run(["callgrind_control", "--dump", str(served.pid)], check=True, capture_output=True)
        requests = [guard.small_request(2), guard.small_request(1), guard.small_request(2, stream=True)]
        for number, request in enumerate(requests, 2):
            guard.count_case(served.pid, address, folder, number, "/v1/chat/completions", request)
        # What each request runs comes first.
        dumps = [functions_run(folder / f"out.{number}") for number in (2, 3, 4, 1)]
    known = symbols(program)
    names = [key(symbol) for symbol in sum(dumps, [])]
    FUNCTIONS.write_text("".join(f"{name}\n" for name in dict.fromkeys(names) if name in known))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--record", program]:
            record(program)
        case [program] if not program.startswith("-"):
            known = symbols(program)
            print(*(symbol for name in FUNCTIONS.read_text().split() for symbol in known.get(name, [])), sep="\n")
        case _:
            sys.exit(__doc__)
