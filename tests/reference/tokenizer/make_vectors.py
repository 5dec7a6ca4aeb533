#!/usr/bin/env python3
"""Writes the vectors that tests/unit/serve/test_tokenizer.c reads: one JSON object a line.

    pip install tokenizers==0.23.3
    make_vectors.py MODEL.gguf 340 > vectors/smollm2.jsonl
    ../../fixtures/toy_model.py /tmp/toy.gguf && make_vectors.py /tmp/toy.gguf 60 > vectors/toy.jsonl
"""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import oracle
import texts

meta = oracle.gguf_metadata(sys.argv[1])
lines = texts.written() + texts.randoms(20261129, int(sys.argv[2]))
for special in (True, False):
    for text, ids in zip(lines, oracle.ids(oracle.build(meta, special), lines)):
        if special or "<" in text:
            print(json.dumps({"special": special, "text": text, "ids": ids}, separators=(",", ":")))
