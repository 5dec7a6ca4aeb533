#!/usr/bin/env python3
"""Vectors for kernels/model from Hugging Face `transformers`: the three kinds of target.

    pip install torch transformers        (made with torch 2.7.1 CPU, transformers 5.8.1)
    make_transformers.py [OUT]            writes transformers.bin beside this file

For each of llama (llama3 RoPE), qwen2 (biases) and qwen3 (q/k norms, heads wider than H / n_head) a
model of 4 blocks with weights from the formula of make_vectors.py, run in fp32 on 21 tokens: features at
boundaries 1, 2, 4, logits, and 8 tokens of greedy continuation
after one token more. Same file layout as vectors.bin.
"""
import math
import os
import sys

import numpy as np
import torch
import transformers

torch.set_grad_enabled(False)
torch.set_num_threads(1)
OUT = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "transformers.bin")
H, I, L, NH, NKV, V, N, MORE, FIRST = 48, 80, 4, 6, 2, 96, 21, 8, 11


def fnv(name):
    h = 2166136261
    for c in name.encode():
        h = ((h ^ c) * 16777619) & 0xFFFFFFFF
    return h


def weight(name, shape):
    x = (np.arange(int(np.prod(shape)), dtype=np.uint64) + fnv(name)) & 0xFFFFFFFF
    x = (x * 2654435761) & 0xFFFFFFFF
    x ^= x >> 15
    x = (x * 2246822519) & 0xFFFFFFFF
    x ^= x >> 13
    v = x.astype(np.float64) / 2.0**32 - 0.5
    v = 1 + 0.4 * v if "norm" in name else v * 2 / math.sqrt(shape[-1]) * 1.7
    return torch.from_numpy(v.astype(np.float32).reshape(shape))


def models():
    same = dict(hidden_size=H, intermediate_size=I, num_hidden_layers=L, num_attention_heads=NH, num_key_value_heads=NKV, vocab_size=V,
                max_position_embeddings=128, rms_norm_eps=1e-5, attn_implementation="eager", pad_token_id=None, bos_token_id=0, eos_token_id=0)
    llama3 = dict(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
    plain = dict(rope_type="default", rope_theta=500.0)
    yield "hf_llama", transformers.LlamaForCausalLM, transformers.LlamaConfig(**same, head_dim=12, rope_parameters=llama3, tie_word_embeddings=True)
    yield "hf_qwen2", transformers.Qwen2ForCausalLM, transformers.Qwen2Config(**same, head_dim=8, rope_parameters=plain, tie_word_embeddings=True)
    yield "hf_qwen3", transformers.Qwen3ForCausalLM, transformers.Qwen3Config(**same, head_dim=12, rope_parameters=plain, tie_word_embeddings=False)


def put(f, name, values):
    v = np.ascontiguousarray(values, dtype="<f4").reshape(-1)
    f.write(f"{name} {v.size}\n".encode())
    f.write(v.tobytes())


with open(OUT, "wb") as f:
    ids = torch.tensor([[(7 * i * i + 3 * i + 5) % V for i in range(N)]])
    for name, kind, config in models():
        model = kind(config).eval()
        for key, p in model.named_parameters():
            p.copy_(weight(key, tuple(p.shape)))
        out = model(ids, output_hidden_states=True)
        # hidden_states[b] is what block b reads, except the last, which is past the final norm: take that one before it
        before = []
        hook = model.model.norm.register_forward_pre_hook(lambda _m, x: before.append(x[0].clone()))
        model(ids)
        hook.remove()
        feats = torch.cat([out.hidden_states[1], out.hidden_states[2], before[0]], -1)
        put(f, name + ".features", feats[0].numpy())
        put(f, name + ".logits", out.logits[0].numpy())
        seq = torch.cat([ids, torch.tensor([[FIRST]])], 1)
        for _ in range(MORE):
            last = model(seq).logits[0, -1]
            top = last.topk(2).values
            assert top[0] - top[1] > 1e-4, f"a tie: {top} choose other tokens"
            seq = torch.cat([seq, last.argmax().view(1, 1)], 1)
        put(f, name + ".greedy", seq[0, N + 1 :].numpy())
