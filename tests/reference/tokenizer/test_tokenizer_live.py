"""serve/tokenizer.c, asked over HTTP, equals `tokenizers` on random texts of a new seed each time.

Needs a running server and its model file: REDRAFT_URL (http://127.0.0.1:8080) and
REDRAFT_MODEL; skipped without, or without the package. The seed is printed; REDRAFT_SEED repeats one.
"""
import json
import os
import pathlib
import random
import sys
import urllib.request

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
pytest.importorskip("tokenizers")
import oracle
import texts

URL, MODEL = os.environ.get("REDRAFT_URL"), os.environ.get("REDRAFT_MODEL")


def tokenize(text):
    body = json.dumps({"prompt": text}).encode()
    with urllib.request.urlopen(urllib.request.Request(URL + "/tokenize", data=body), timeout=30) as r:
        return json.load(r)["tokens"]


@pytest.mark.skipif(not URL or not MODEL, reason="REDRAFT_URL or REDRAFT_MODEL is not set")
def test_equal_on_random_texts():
    seed = int(os.environ.get("REDRAFT_SEED", random.randrange(1 << 30)))
    print("seed", seed)
    lines = texts.randoms(seed, 500)
    for text, want in zip(lines, oracle.ids(oracle.build(oracle.gguf_metadata(MODEL), True), lines)):
        assert tokenize(text) == want, repr(text)
