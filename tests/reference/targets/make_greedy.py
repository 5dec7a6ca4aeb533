#!/usr/bin/env python3
"""Writes greedy.json: greedy continuations of the toy folders by Hugging Face `transformers`.

    pip install torch transformers tokenizers      (made with torch 2.7.1 on the CPU, transformers 5.8.1, tokenizers 0.22.2)
    make_greedy.py > greedy.json

Each toy folder of tests/fixtures/toy_folder.py is loaded as it lies (bf16 weights, fp32 arithmetic); prompts are encoded by its
tokenizer.json, special tokens added. A continuation ends before the first token whose
two best logits are less than 0.5 apart (the server holds keys and values in bf16, which moves logits of this model by
up to 0.3); kept are those of 4 tokens and more. tests/system/test_folder.py asks redraft-serve for the same.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).resolve().parent
TOOL = HERE.parent.parent / "fixtures" / "toy_folder.py"
PROMPTS = ["Hello world", "What is the weather in Berlin?", "def f(x):\n    return x", "1 2 3 1234567", "The quick brown fox", "caf\u00e9 cafe\u0301 \u212b",
           "{\"a\": [1, 2]}", "I'M you'Re", "x\n\n\ny  z", "\u4f60\u597d", "aaaa bbbb", "SELECT * FROM t;"]
TOKENS, GAP = 12, 0.5

torch.set_grad_enabled(False)
torch.set_num_threads(1)
out = []
for arch in ("llama", "qwen2", "qwen3"):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, str(TOOL), folder, "--arch", arch], check=True)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        tok = Tokenizer.from_file(folder + "/tokenizer.json")
        for prompt in PROMPTS:
            if sum(x["arch"] == arch for x in out) == 3:
                break
            ids = tok.encode(prompt).ids
            seq = list(ids)
            while len(seq) < len(ids) + TOKENS and (len(seq) == len(ids) or seq[-1] not in (0, 2)):
                top = model(torch.tensor([seq])).logits[0, -1].topk(2)
                if float(top.values[0] - top.values[1]) < GAP:
                    break
                seq.append(int(top.indices[0]))
            if len(seq) - len(ids) >= 4:
                out.append({"arch": arch, "prompt": prompt, "prompt_ids": ids, "ids": seq[len(ids):]})
print(json.dumps(out, indent=1))
