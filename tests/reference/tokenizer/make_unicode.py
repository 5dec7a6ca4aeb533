#!/usr/bin/env python3
"""Writes serve/unicode_ranges.h: the Unicode classes of the byte-level pre-tokenizer.

Hugging Face `tokenizers` 0.23 asks two libraries: its regular expression engine
(Oniguruma, Unicode 16.0) for \\p{L}, \\p{N} and \\s, and Rust's char::is_numeric
(Unicode 17.0) for the Digits step. Both were probed code point by code point; the
tables below equal them on all 1,112,064. They come from the PyPI package
unicodedata2 in its two versions, unpacked into two folders:

    pip install --target ud16 unicodedata2==16.0.0
    pip install --target ud17 unicodedata2==17.0.0
    make_unicode.py ud16 ud17 > serve/unicode_ranges.h
"""
import subprocess
import sys

LIST = """
import sys
sys.path.insert(0, sys.argv[1])
import unicodedata2 as u
print(u.unidata_version)
for c in range(0x110000):
    k = u.category(chr(c))[0]
    if k in 'LN': print(k, c)
"""


def classes(folder):
    lines = subprocess.run([sys.executable, "-c", LIST, folder], check=True, capture_output=True, text=True).stdout.split("\n")
    sets = {"L": [], "N": []}
    for line in lines[1:]:
        if line:
            k, c = line.split()
            sets[k].append(int(c))
    return lines[0], sets


def ranges(points):
    out = []
    for c in sorted(points):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def table(name, points):
    print(f"static const struct unicode_range {name}[] = {{")
    r = [f"{{0x{a:x}, 0x{b:x}}}," for a, b in ranges(points)]
    for i in range(0, len(r), 6):
        print("\t" + " ".join(r[i : i + 6]))
    print("};\n")


def main():
    v16, s16 = classes(sys.argv[1])
    v17, s17 = classes(sys.argv[2])
    assert (v16, v17) == ("16.0.0", "17.0.0"), (v16, v17)
    print("/* Made by tests/reference/tokenizer/make_unicode.py; do not edit.")
    print(" * Letters and numbers of Unicode 16.0; numeric_late: numbers that Unicode 17.0 added. */")
    print("#pragma once\n#include <stdint.h>\n")
    print("struct unicode_range {\n\tuint32_t first, last;\n};\n")
    table("unicode_letter", s16["L"])
    table("unicode_number", s16["N"])
    table("unicode_numeric_late", set(s17["N"]) - set(s16["N"]))


main()
