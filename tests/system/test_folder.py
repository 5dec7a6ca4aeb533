"""redraft-serve on Hugging Face folders answers as `transformers` does (tests/reference/targets)."""
import json
import subprocess
import sys
import urllib.request

import pytest

from conftest import ROOT

GREEDY = json.loads((ROOT / "tests" / "reference" / "targets" / "greedy.json").read_text())


def ask(address, path, body=None):
    request = urllib.request.Request(f"http://{address}{path}", data=body and json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=30) as r:
        return json.load(r)


@pytest.mark.parametrize("arch, shards", [("llama", 1), ("qwen2", 3), ("qwen3", 1)])
def test_folder_is_served_as_transformers_runs_it(stack, tmp_path, arch, shards):
    folder = tmp_path / arch
    subprocess.run([sys.executable, str(ROOT / "tests" / "fixtures" / "toy_folder.py"), str(folder), "--arch", arch, "--shards", str(shards)], check=True)
    stack.start_serve(model=folder)
    assert ask(stack.address, "/v1/models")["data"][0]["id"] == arch
    rows = [x for x in GREEDY if x["arch"] == arch]
    assert rows
    for x in rows:
        answer = ask(stack.address, "/v1/completions",
                     {"prompt": x["prompt"], "max_tokens": len(x["ids"]), "temperature": 0, "ignore_eos": True, "return_token_ids": True})
        assert answer["usage"]["prompt_tokens"] == len(x["prompt_ids"])
        got, want = answer["choices"][0]["token_ids"], x["ids"]
        assert got == want, x["prompt"]
