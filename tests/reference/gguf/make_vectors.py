#!/usr/bin/env python3
"""Writes vectors.bin: random blocks of every quantised GGUF type and what the PyPI package `gguf` makes of them.

    pip install gguf==0.19.0 && make_vectors.py

For each type a line "NAME type values bytes", then the blocks, then the values as little-endian f32. Scales are
random halves of moderate size; quants, sub-scales and high bits are random bytes.
"""
import os
import random
import struct

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import quants

# name: bytes of a block, offsets of its halves
KINDS = {"Q4_0": (18, [0]), "Q4_1": (20, [0, 2]), "Q5_0": (22, [0]), "Q5_1": (24, [0, 2]), "Q8_0": (34, [0]), "Q2_K": (84, [80, 82]),
         "Q3_K": (110, [108]), "Q4_K": (144, [0, 2]), "Q5_K": (176, [0, 2]), "Q6_K": (210, [208])}
r = random.Random(5)
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "vectors.bin"), "wb") as f:
    for name, (size, halves) in KINDS.items():
        raw = bytearray()
        for _ in range(2 if size > 34 else 4):
            block = bytearray(r.randbytes(size))
            for at in halves:
                block[at : at + 2] = struct.pack("<e", r.choice([-1, 1]) * 10 ** r.uniform(-4, 0))
            raw += block
        values = quants.dequantize(np.frombuffer(bytes(raw), np.uint8), T[name]).astype("<f4").reshape(-1)
        f.write(f"{name} {int(T[name])} {values.size} {len(raw)}\n".encode() + bytes(raw) + values.tobytes())
