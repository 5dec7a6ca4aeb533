#!/usr/bin/env python3
"""Writes serve/unicode_nfc.h: canonical decompositions, compositions and combining classes, for NFC.

Hugging Face `tokenizers` normalises with a table of its own. What it does was probed code point by code point (NFD of
each; whether it moves each in front of a mark of class 240), and the table below, of the Python interpreter's
unicodedata less what `tokenizers` does not know, equals it on all of them.

    pip install tokenizers==0.23.3 && make_nfc.py > serve/unicode_nfc.h
"""
import sys
import unicodedata as u

from tokenizers import normalizers

NFD, NFC = normalizers.NFD().normalize_str, normalizers.NFC().normalize_str
HANGUL = range(0xAC00, 0xD7A4)


def main():
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    decompose, compose, classes, odd = [], [], [], []
    for c in points:
        s = chr(c)
        k = u.combining(s)
        moved = NFD("\u0345" + s) == NFD(s) + "\u0345"
        if NFD(s) != u.normalize("NFD", s):
            odd.append(("decomposes", c))
        if len(NFD(s)) == 1 and c != 0x345 and moved != (0 < k < 240):
            assert k, f"{c:x} has a class that unicodedata does not know"
            odd.append(("class", c))
            k = 0
        if k:
            if classes and classes[-1][1] == c - 1 and classes[-1][2] == k:
                classes[-1][1] = c
            else:
                classes.append([c, c, k])
        d = u.decomposition(s)
        if d and not d.startswith("<") and c not in HANGUL and NFD(s) != s:
            parts = [int(x, 16) for x in d.split()]
            decompose.append((c, parts[0], parts[1] if len(parts) > 1 else 0))
            if len(parts) == 2 and NFC(chr(parts[0]) + chr(parts[1])) == s:
                compose.append((parts[0], parts[1], c))
    print(f"unicodedata {u.unidata_version}; {len(odd)} code points where tokenizers differs: {[hex(c) for _, c in odd[:40]]}", file=sys.stderr)
    print("/* Made by tests/reference/tokenizer/make_nfc.py; do not edit.")
    print(f" * Canonical normalisation as `tokenizers` 0.23 does it (Unicode {u.unidata_version} less what that does not know). */")
    print("#pragma once\n#include <stdint.h>\n")
    for name, fields, rows, per in (("nfc_decompose", "c, first, second; /* second 0: one character */", decompose, 7),
                                    ("nfc_compose", "first, second, c;", sorted(compose), 7), ("nfc_class", "first, last, class;", classes, 8)):
        print(f"static const struct {name} {{\n\tuint32_t {fields}\n}} {name}[] = {{")
        items = ["{" + ", ".join(f"0x{x:x}" if i < 2 or name != "nfc_class" else str(x) for i, x in enumerate(r)) + "}," for r in rows]
        for i in range(0, len(items), per):
            print("\t" + " ".join(items[i : i + per]))
        print("};\n")


main()
