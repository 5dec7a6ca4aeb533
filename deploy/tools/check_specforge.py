#!/usr/bin/env python3
"""SpecForge's own model class loads a draft of ours: every name and shape, nothing missing but the embedding, nothing over.

    PEER_VENV/bin/python deploy/tools/check_specforge.py VERSION_FOLDER       (tests/reference/peer/SOURCE.md says how the venv is made)

The computation on such weights is compared in tests/unit/learn/test_peer.c; here it is run once, on random input, to see that it is finite.
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "reference", "peer"))
import make_vectors  # noqa: E402

if len(sys.argv) != 2:
    sys.exit(__doc__)
make_vectors.load_peer()
import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3  # noqa: E402
from transformers import AutoConfig  # noqa: E402

folder = sys.argv[1]
config = AutoConfig.from_pretrained(folder)
draft = LlamaForCausalLMEagle3(config, attention_backend="sdpa").bfloat16()
weights = load_file(os.path.join(folder, "model.safetensors"))
missing, unexpected = draft.load_state_dict(weights, strict=False)
if set(missing) - {"embed_tokens.weight"} or unexpected:
    sys.exit(f"missing {missing}, unexpected {unexpected}")
for name, want in weights.items():
    if not torch.equal(draft.state_dict()[name], want):
        sys.exit(f"{name} is not what the file holds")
if int(draft.t2d.sum()) != config.draft_vocab_size or not draft.t2d[draft.d2t + torch.arange(config.draft_vocab_size)].all():
    sys.exit("d2t and t2d do not agree")
h = draft(torch.randn(1, 8, 3 * draft.target_hidden_size).bfloat16(), torch.randn(1, 8, config.hidden_size).bfloat16(), ttt_length=2)
assert torch.isfinite(draft.lm_head(h).float()).all()
print(f"{folder}: {len(weights)} tensors loaded by SpecForge's {type(draft).__name__}")
