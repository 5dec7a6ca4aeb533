#!/usr/bin/python3
"""Vectors for kernels/model: a tiny Llama and EAGLE-3 layer in PyTorch fp32.

Written from eagle3.md's formulas alone. Writes vectors.bin: for each case a header
line of text, then little-endian f32. The weights are a formula of (name, index) that the C test
evaluates too, so that only inputs and outputs are stored.

    make_vectors.py [OUT]        torch 1.13, CPU, double accumulate where torch does
"""
import math
import os
import sys

import numpy as np
import torch

torch.set_grad_enabled(False)
torch.set_num_threads(1)
OUT = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "vectors.bin")


def fnv(name):
    h = 2166136261
    for c in name.encode():
        h = ((h ^ c) * 16777619) & 0xFFFFFFFF
    return h


def weight(name, *shape):
    """w[i] = scale * ((mix(fnv(name) + i) / 2^32) - 0.5); norms are 1 + that."""
    n = int(np.prod(shape))
    x = (np.arange(n, dtype=np.uint64) + fnv(name)) & 0xFFFFFFFF
    x = (x * 2654435761) & 0xFFFFFFFF
    x ^= x >> 15
    x = (x * 2246822519) & 0xFFFFFFFF
    x ^= x >> 13
    v = x.astype(np.float64) / 2.0**32 - 0.5
    v = 1 + 0.4 * v if "norm" in name else v * 2 / math.sqrt(shape[-1]) * 1.7
    return torch.from_numpy(v.astype(np.float32).reshape(shape))


def rope_table(kind, d, theta):
    i = np.arange(0, d, 2, dtype=np.float64)
    inv = theta ** (-i / d)
    m = 1.0
    if kind == "linear":
        inv = inv / 4.0
    if kind == "llama3":
        factor, lo, hi, orig = 8.0, 1.0, 4.0, 64.0
        out = []
        for f in inv:
            lam = 2 * math.pi / f
            if lam < orig / hi:
                out.append(f)
            elif lam > orig / lo:
                out.append(f / factor)
            else:
                s = (orig / lam - lo) / (hi - lo)
                out.append((1 - s) * f / factor + s * f)
        inv = np.array(out)
    if kind == "yarn":
        factor, orig, fast, slow = 4.0, 64.0, 32.0, 1.0

        def dim(rot):
            return d * math.log(orig / (rot * 2 * math.pi)) / (2 * math.log(theta))

        low, high = max(math.floor(dim(fast)), 0), min(math.ceil(dim(slow)), d - 1)
        high = high + 0.001 if low == high else high
        ramp = np.clip((np.arange(d // 2) - low) / (high - low), 0, 1)
        inv = inv / factor * ramp + inv * (1 - ramp)
        m = 0.1 * 1.0 * math.log(factor) + 1
    return torch.from_numpy(inv), m


def rope(x, pos, inv, m):
    """x [n, heads, d], rotate-half"""
    a = pos[:, None].double() * inv[None, :]
    cos, sin = (torch.cos(a) * m).float()[:, None, :], (torch.sin(a) * m).float()[:, None, :]
    h = x.shape[-1] // 2
    x1, x2 = x[..., :h], x[..., h:]
    return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], -1)


def rms(x, g, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * g


def attention(x, p, nh, nkv, d, pos, inv, m):
    n = x.shape[0]
    q = rope((x @ weight(p + "q_proj.weight", nh * d, x.shape[1]).T).view(n, nh, d), pos, inv, m)
    k = rope((x @ weight(p + "k_proj.weight", nkv * d, x.shape[1]).T).view(n, nkv, d), pos, inv, m)
    v = (x @ weight(p + "v_proj.weight", nkv * d, x.shape[1]).T).view(n, nkv, d)
    k, v = k.repeat_interleave(nh // nkv, 1), v.repeat_interleave(nh // nkv, 1)
    s = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(d)
    s = s.masked_fill(torch.triu(torch.ones(n, n, dtype=torch.bool), 1), float("-inf"))
    return torch.einsum("hij,jhd->ihd", s.softmax(-1), v).reshape(n, nh * d)


def mlp(x, p, H, F):
    g, u = x @ weight(p + "gate_proj.weight", F, H).T, x @ weight(p + "up_proj.weight", F, H).T
    return (torch.nn.functional.silu(g) * u) @ weight(p + "down_proj.weight", H, F).T


def llama(kind, ids, H=48, F=80, L=4, nh=6, nkv=2, d=12, V=96, eps=1e-5, bounds=(1, 2, 4), theta=500.0, tied=False):
    inv, m = rope_table(kind, d, theta)
    pos = torch.arange(len(ids))
    E = weight("model.embed_tokens.weight", V, H)
    x, feats = E[ids], []
    for i in range(L):
        if i in bounds:
            feats.append(x)
        p = f"model.layers.{i}."
        y = rms(x, weight(p + "input_layernorm.weight", H), eps)
        x = x + attention(y, p + "self_attn.", nh, nkv, d, pos, inv, m) @ weight(p + "self_attn.o_proj.weight", H, nh * d).T
        x = x + mlp(rms(x, weight(p + "post_attention_layernorm.weight", H), eps), p + "mlp.", H, F)
    if L in bounds:
        feats.append(x)
    hidden = rms(x, weight("model.norm.weight", H), eps)
    head = E if tied else weight("lm_head.weight", V, H)
    return torch.stack(feats, 1).reshape(len(ids), -1), hidden, hidden @ head.T


def eagle3(a, g, pos, H=48, F=64, nh=4, nkv=2, d=16, V=96, Vd=40, eps=1e-5, theta=10000.0):
    """rows (token a, feature stream g [n,H]) of one causal run: (feedback, logits)"""
    inv, m = rope_table("default", d, theta)
    e = weight("model.embed_tokens.weight", V, H)[a]
    x = torch.cat([rms(e, weight("midlayer.input_layernorm.weight", H), eps), rms(g, weight("midlayer.hidden_norm.weight", H), eps)], -1)
    h = g + attention(x, "midlayer.self_attn.", nh, nkv, d, pos, inv, m) @ weight("midlayer.self_attn.o_proj.weight", H, nh * d).T
    h = h + mlp(rms(h, weight("midlayer.post_attention_layernorm.weight", H), eps), "midlayer.mlp.", H, F)
    return h, rms(h, weight("norm.weight", H), eps) @ weight("lm_head.weight", Vd, H).T


def chain(ids, feats, steps, H=48):
    """Rows 0..n-2 real, then `steps` further draft steps, each on its own feedback; every step's (feedback, logits)."""
    fc = weight("fc.weight", H, feats.shape[1])
    g, a = feats[:-1] @ fc.T, ids[1:]
    out = []
    for _ in range(steps + 1):
        h, logits = eagle3(a, g, torch.arange(len(a)))
        out += [h[-1], logits[-1]]
        best = int(logits[-1].argmax())
        a = torch.cat([a, torch.tensor([2 * best + 1])])  # d2t: draft id i stands for 2i+1
        g = torch.cat([g, h[-1:]])
    return out


def put(f, name, t):
    v = np.ascontiguousarray(t.numpy(), dtype="<f4").reshape(-1)
    f.write(f"{name} {v.size}\n".encode())
    f.write(v.tobytes())


with open(OUT, "wb") as f:
    ids = torch.tensor([(7 * i * i + 3 * i + 5) % 96 for i in range(21)])
    for kind in ("default", "linear", "llama3", "yarn"):
        feats, hidden, logits = llama(kind, ids, tied=kind == "linear")
        put(f, f"{kind}.features", feats)
        put(f, f"{kind}.hidden", hidden)
        put(f, f"{kind}.logits", logits)
        if kind == "default":
            keep = feats
    for i, t in enumerate(chain(ids, keep, 4)):
        put(f, f"chain.{'logits' if i % 2 else 'feedback'}.{i // 2}", t)
print(f"{os.path.getsize(OUT)} bytes")
