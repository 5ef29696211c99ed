#!/usr/bin/env python3
"""Writes src/tokens/pretokens/classes.bin from the Unicode tables of regex-syntax, which tiktoken-rs reads its patterns with.

    scripts/char_classes.py ~/.cargo/registry/src/*/regex-syntax-0.8.*/src/unicode_tables
"""

import pathlib
import re
import struct
import sys

TABLES = {
    "UPPERCASE_LETTER": "UPPER", "TITLECASE_LETTER": "UPPER", "LOWERCASE_LETTER": "LOWER", "MODIFIER_LETTER": "CASELESS",
    "OTHER_LETTER": "CASELESS", "MARK": "MARK", "NUMBER": "NUMBER", "WHITE_SPACE": "SPACE",
}
NAMES = ["OTHER", "UPPER", "LOWER", "CASELESS", "MARK", "NUMBER", "SPACE", "BREAK"]
ESCAPES = {"\\t": "\t", "\\n": "\n", "\\r": "\r", "\\0": "\0", "\\'": "'", "\\\\": "\\"}


def char(literal):
    code = re.fullmatch(r"\\u\{([0-9a-f]+)\}|\\x([0-9a-f]{2})", literal)
    return int(code[1] or code[2], 16) if code else ord(ESCAPES.get(literal, literal))


folder = pathlib.Path(sys.argv[1])
text = "".join((folder / f"{name}.rs").read_text() for name in ["general_category", "perl_space"])
classes = ["OTHER"] * 0x110000
for table, name in TABLES.items():
    ranges = re.search(rf"pub const {table}: .*?=\s*&\[(.*?)\];", text, re.S)[1]
    for first, last in re.findall(r"\('(\\?.[^']*)',\s*'(\\?.[^']*)'\)", ranges):
        for code in range(char(first), char(last) + 1):
            classes[code] = name
classes[ord("\r")] = classes[ord("\n")] = "BREAK"

starts = [code for code in range(0x110000) if code == 0 or classes[code] != classes[code - 1]]
changes = [code << 8 | 1 << NAMES.index(classes[code]) for code in starts]
out = pathlib.Path(__file__).parent.parent / "src" / "tokens" / "pretokens" / "classes.bin"
out.write_bytes(struct.pack(f"<{len(changes)}I", *changes))
