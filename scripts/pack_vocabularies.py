#!/usr/bin/env python3
"""Packs the lists of tiktoken-rs into assets/, in the form that src/tokens/vocabulary.rs says.

    scripts/pack_vocabularies.py ~/.cargo/registry/src/*/tiktoken-rs-*/assets

It needs the brotli command.
"""

import base64
import pathlib
import struct
import subprocess
import sys

for name in ["o200k_base", "cl100k_base"]:
    lines = (pathlib.Path(sys.argv[1]) / f"{name}.tiktoken").read_text().split("\n")
    tokens = {int(rank): base64.b64decode(token) for token, rank in (line.split() for line in lines if line)}
    in_order = [tokens.get(rank, b"") for rank in range(max(tokens) + 1)]
    packed = struct.pack("<I", len(in_order)) + bytes(map(len, in_order)) + b"".join(in_order)
    out = pathlib.Path(__file__).parent.parent / "assets" / f"{name}.br"
    # The window is as long as the longest list; a longer one would only take memory.
    subprocess.run(["brotli", "-q", "11", "-w", "21", "-f", "-o", out, "-"], input=packed, check=True)
