#!/usr/bin/env python3
"""Vectors for the pre-tokenizers of Llama 3 and Qwen2: what `tokenizers` makes of a toy folder's tokenizer.json.

    pip install tokenizers==0.23.3
    make_folder_vectors.py llama 200 > vectors/folder-llama.jsonl     (COUNT random texts beside the written ones; SEED after it)
    make_folder_vectors.py qwen2 200 > vectors/folder-qwen2.jsonl

The toy vocabulary has few merges, so the ids show every border of the pre-tokenizer only where merges could
cross it; each line therefore carries the pieces too (byte offsets of their ends, after normalisation).
"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))
import texts
from tokenizers import Tokenizer

EXTRA = [
    "'S'T'RE'VE'M'LL'D 's't're've'm'll'd 'Re'vE'lL", "'\u017f 'l\u017f x'\u017fx '\u212a", "a1234567b 12 345 6789 \u0661\u0662\u0663\u0664\u0665 \u2167\u00bd1",
    "x\n\ny  \n z\r\n\r\n \t\n  w   \n", " \n", "\n ", "  \n\n  ", "\t\tx \u00a0y\u00a0\u00a0z\u2028\u2028q", "!\n\n?\r\n .\n", " !a -b _c \"d (e\u0301)", "...\n...abc",
    "\u00a0abc \u3000abc\u3000\u3000abc", "e\u0301 e\u0323\u0301 e\u0301\u0323 \u0041\u030a \u212b \u2126 \u1e9b\u0323 \ufb01", "\u1112\u1161\u11ab \uac00\u11a8 \u1100\u1161\u11a7",
    "\u0958 \u0f73 \u0f75\u0f71 \u0344 \u0340\u0341 a\u0345\u0301\u0327", "\U0001d15e \U0001d1bb\U0001d16e \U000110ab \u2adc \ufa1f\ufa20", "a" + "\u0301\u0327" * 40,
    "\u0301abc", "\u03b1\u0313\u0300\u0345", "\u05d0\u05b7 \u05e9\u05c1\u05bc", "\u0898a\u0899", "\u212b" * 9,
]


def lines(seed, n):
    r = random.Random(seed)
    out = texts.written() + EXTRA + texts.randoms(seed, n)
    marks = [chr(c) for c in (*range(0x300, 0x316), 0x323, 0x327, 0x345, 0x5B0, 0x93C, 0x1161, 0x11A8, 0x3099, 0x20D0)]
    for _ in range(n // 4):
        out.append("".join(r.choice(["a", "E", "\u03b1", "\u1100", "\uac00", "\u304b", " ", "'", "s", "1", "\n", ".", "\u00e9", "\u212b"] + marks) for _ in range(r.randrange(1, 16))))
    return out


def main():
    arch, n = sys.argv[1], int(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 20261130
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, str(HERE / "../../fixtures/toy_folder.py"), folder, "--arch", arch], check=True)
        t = Tokenizer.from_file(folder + "/tokenizer.json")
    for text in lines(seed, n):
        ids = t.encode(text, add_special_tokens=False).ids
        normal = t.normalizer.normalize_str(text) if t.normalizer else text
        ends = []
        if "<|" not in text:
            ends = [len(normal[:b].encode()) for _, (_, b) in t.pre_tokenizer.pre_tokenize_str(normal)]
        print(json.dumps({"special": True, "text": text, "ids": ids, "ends": ends}, separators=(",", ":")))


main()
