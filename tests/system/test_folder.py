"""redraft-serve on Hugging Face folders answers as `transformers` does (tests/reference/targets), and with drafts as without."""
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
        answer = ask(stack.address, "/v1/completions", {"prompt": x["prompt"], "max_tokens": 12, "temperature": 0, "return_token_ids": True})
        choice = answer["choices"][0]
        assert answer["usage"]["prompt_tokens"] == len(x["prompt_ids"])
        want = x["ids"]
        got = choice["token_ids"]
        if want[-1] in (0, 2):  # the end itself is not shown
            assert choice["finish_reason"] == "stop"
            want = [i for i in want if i not in (0, 2)]
            got = [i for i in got if i not in (0, 2)]
        assert got == want, x["prompt"]
