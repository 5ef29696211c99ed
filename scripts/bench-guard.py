#!/usr/bin/env python3
"""Compare the instructions that the operations of benches/core.rs take over 1 MB with the recorded ones.

    scripts/bench-guard.py            compare; exit code 1 where an operation takes over 3 % more
    scripts/bench-guard.py --write    record the counts in benches/instructions.json
    scripts/bench-guard.py --binary PATH [--json]    count with a bench that is built already

callgrind counts; the counts hold for one version of rustc, one profile and one machine type. Where
those of the record are others, or valgrind is missing, the script says NOT RUN and why, and its exit code is 0.
"""
import argparse, json, os, pathlib, platform, re, shutil, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = ROOT / "benches" / "instructions.json"
LIMIT = 1.03
PROFILE = {"CARGO_PROFILE_BENCH_LTO": "off", "CARGO_PROFILE_BENCH_CODEGEN_UNITS": "16", "CARGO_PROFILE_BENCH_OPT_LEVEL": "2"}


def build():
    command = ["cargo", "rustc", "--locked", "--bench", "core", "--profile", "bench", "--message-format=json"]
    command += ["--", "-C", "strip=none"]  # callgrind finds `counted` by its symbol
    lines = subprocess.run(command, cwd=ROOT, env=os.environ | PROFILE, check=True, stdout=subprocess.PIPE, text=True).stdout
    built = [json.loads(line) for line in lines.splitlines() if '"executable":"' in line]
    return next(target["executable"] for target in built if target["target"]["name"] == "core")


def count(binary):
    """The instructions of each operation, by its name: each runs in a thread of its own, and thread 1 is main's."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            "valgrind", "--tool=callgrind", "--collect-atstart=no", "--toggle-collect=core::counted*", "--separate-threads=yes",
            f"--callgrind-out-file={folder}/out", binary, "--count",
        ]
        run = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        names = run.stdout.splitlines()
        dumps = [(pathlib.Path(folder) / f"out-{n:02}").read_text() for n in range(2, len(names) + 2)]
    return {name: int(re.search(r"^totals: (\d+)", dump, re.M)[1]) for name, dump in zip(names, dumps)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--binary")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not shutil.which("valgrind"):
        return print("NOT RUN: instruction counts (valgrind is not installed)")
    rustc = subprocess.run(["rustc", "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    machine = {"rustc": rustc, "machine": platform.machine(), "profile": PROFILE}
    recorded = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    here = {key: recorded.get(key) for key in machine}
    if not options.write and not options.json and here != machine:
        return print(f"NOT RUN: instruction counts (recorded with {here}, this is {machine})")
    counts = count(options.binary or build())
    if options.json:
        return print(json.dumps(counts, indent=1))
    if options.write:
        RECORD.write_text(json.dumps(machine | {"instructions": counts}, indent=1) + "\n")
        return
    over = []
    for name, now in counts.items():
        before = recorded["instructions"].get(name)
        ratio = now / before if before else float("nan")
        print(f"{name:<36} {now:>13,} {ratio:>7.3f}")
        if not before or ratio > LIMIT:
            over.append(name)
    if over:
        sys.exit(f"over {LIMIT - 1:.0%} more than benches/instructions.json, or not in it: {', '.join(over)}; "
                 "if that is meant, record anew with --write and say why in the commit")


if __name__ == "__main__":
    main()
