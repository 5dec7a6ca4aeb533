#!/usr/bin/env python3
"""Reference vectors for EAGLE-3 TTT training, its optimizers and RoPE tables.

An independent PyTorch model of one draft layer, its seven-step unrolled loss and
the optimizers. Nothing is shared with the C code: attention is one dense softmax
over [trunk scores | diagonal scores], packed runs are run one by one, gradients
come from autograd. Run with torch >= 1.13:

    python3 make_vectors.py            # rewrites *.bin and *.txt beside this file

Each case is two files: NAME.bin (little-endian arrays, back to back) and NAME.txt,
one line an array or number:
    array  <name> <f32|u32|i64|u16|u8> <byte offset> <count>
    number <name> <value>
"""
import math
import os

import numpy as np
import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
torch.set_num_threads(1)

# Order of the flat parameter array.
TENSORS = ["fc", "norm_in", "norm_hidden", "q", "k", "v", "o", "norm_post", "gate", "up", "down", "norm", "head"]
FLAGS = ["norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"]  # eagle3.md §1.4; with either of the two of fc there is one tensor more, norm_fc


class Out:
    def __init__(self, name):
        self.name, self.blob, self.lines = name, bytearray(), []

    def array(self, name, a, kind):
        a = np.ascontiguousarray(a.detach().numpy() if torch.is_tensor(a) else a)
        a = a.astype({"f32": "<f4", "u32": "<u4", "i64": "<i8", "u16": "<u2", "u8": "u1"}[kind])
        while len(self.blob) % 8:
            self.blob.append(0)
        self.lines.append(f"array {name} {kind} {len(self.blob)} {a.size}")
        self.blob += a.tobytes()

    def number(self, name, x):
        self.lines.append(f"number {name} {float(x):.17g}")

    def close(self):
        with open(os.path.join(HERE, self.name + ".bin"), "wb") as f:
            f.write(self.blob)
        with open(os.path.join(HERE, self.name + ".txt"), "w") as f:
            f.write("\n".join(self.lines) + "\n")


# ---------------------------------------------------------------- RoPE
def inv_freq(cfg):
    d, theta, r = cfg["d"], cfg["theta"], cfg.get("rope", {})
    base = theta ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    kind, m = r.get("kind", "default"), 1.0
    if kind == "default":
        return base, m
    if kind == "linear":
        return base / r["factor"], m
    if kind == "llama3":
        out = []
        for f in base.tolist():
            lam = 2 * math.pi / f
            low, high = r["orig"] / r["low"], r["orig"] / r["high"]
            if lam < high:
                out.append(f)
            elif lam > low:
                out.append(f / r["factor"])
            else:
                s = (r["orig"] / lam - r["low"]) / (r["high"] - r["low"])
                out.append(f * ((1 - s) / r["factor"] + s))
        return torch.tensor(out, dtype=torch.float64), m
    assert kind == "yarn"

    def dim(rot):
        return d * math.log(r["orig"] / (rot * 2 * math.pi)) / (2 * math.log(theta))

    lo = max(math.floor(dim(r["beta_fast"])), 0)
    hi = min(math.ceil(dim(r["beta_slow"])), d - 1)
    if lo == hi:
        hi += 0.001
    ramp = ((torch.arange(d // 2, dtype=torch.float64) - lo) / (hi - lo)).clamp(0, 1)

    def ms(s, c):
        return 1.0 if s <= 1 else 0.1 * c * math.log(s) + 1.0

    m = ms(r["factor"], r["mscale"]) / ms(r["factor"], r["mscale_all"])
    return base / r["factor"] * ramp + base * (1 - ramp), m


def rope(x, pos, cfg):  # x [n, heads, d]
    f, m = inv_freq(cfg)
    a = pos.to(torch.float64)[:, None] * f[None, :]
    c = (torch.cos(a) * m).to(x.dtype)[:, None, :]
    s = (torch.sin(a) * m).to(x.dtype)[:, None, :]
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat([x1 * c - x2 * s, x2 * c + x1 * s], dim=-1)


# ---------------------------------------------------------------- model
def rms(x, w, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def run_segment(P, emb, seg, cfg, L):
    """Logits of every step of one run: list of [n_k rows = n-k, V_d]."""
    ids, pos, feats = seg["ids"], seg["pos"], seg["features"]
    n, H, nh, nkv, d, eps = len(pos), cfg["H"], cfg["nh"], cfg["nkv"], cfg["d"], cfg["eps"]
    if cfg.get("norm_before_fc"):
        feats = rms(feats, P["norm_fc"], eps)
    if cfg.get("fc_norm"):
        feats = torch.cat([rms(f, w, eps) for f, w in zip(feats.chunk(3, -1), P["norm_fc"].chunk(3))], dim=-1)
    g = feats @ P["fc"].T
    Ks, Vs, logits = [], [], []
    causal = torch.ones(n, n).tril().bool()
    for k in range(L):
        tok = torch.zeros(n, dtype=torch.long)  # id 0 beyond the end
        if k < n:
            tok[: n - k] = ids[1 + k : 1 + n]
        e = emb[tok]
        x = torch.cat([rms(e, P["norm_in"], eps), rms(g, P["norm_hidden"], eps)], dim=-1)
        q = rope((x @ P["q"].T).view(n, nh, d), pos + k, cfg)
        kk = rope((x @ P["k"].T).view(n, nkv, d), pos + k, cfg)
        vv = (x @ P["v"].T).view(n, nkv, d)
        rep = nh // nkv
        Ks.append(kk.repeat_interleave(rep, dim=1))
        Vs.append(vv.repeat_interleave(rep, dim=1))
        trunk = torch.einsum("thd,shd->hts", q, Ks[0]).masked_fill(~causal, float("-inf"))
        scores = [trunk] + [torch.einsum("thd,thd->ht", q, Ks[j])[:, :, None] for j in range(1, k + 1)]
        p = torch.softmax(torch.cat(scores, dim=-1) / math.sqrt(d), dim=-1)
        o = torch.einsum("hts,shd->thd", p[:, :, :n], Vs[0])
        for j in range(1, k + 1):
            o = o + p[:, :, n + j - 1].T[:, :, None] * Vs[j]
        h = (rms(g, P["norm_hidden"], eps) if cfg.get("norm_before_residual") else g) + o.reshape(n, nh * d) @ P["o"].T
        y = rms(h, P["norm_post"], eps)
        h = h + (F.silu(y @ P["gate"].T) * (y @ P["up"].T)) @ P["down"].T
        top = rms(h, P["norm"], eps)
        logits.append(top @ P["head"].T)
        g = top if cfg.get("norm_output") else h
    return logits


def ttt(P, emb, segs, cfg, L, decay):
    N = sum(len(s["pos"]) for s in segs)
    loss = [torch.zeros((), dtype=emb.dtype) for _ in range(L)]
    hit, den = [0] * L, [0] * L
    alpha, kap = [0.0] * L, [0] * L
    for s in segs:
        n = len(s["pos"])
        logits = run_segment(P, emb, s, cfg, L)
        s["logits"] = logits
        for k in range(L):
            for t in range(n - k):
                j = t + k
                row = logits[k][t]
                lq = torch.log_softmax(row, dim=-1)
                if s["mask"][j]:
                    den[k] += 1
                    hit[k] += int(s["used"][int(row.argmax())] == int(s["y"][j]))
                if s["mask"][j] and s["in_vocab"][j]:
                    loss[k] = loss[k] - (s["Q"][j] * lq).sum() / N
                    kap[k] += 1
                    alpha[k] += float(torch.minimum(s["Q"][j], lq.exp()).sum())
    total = sum(decay**k * loss[k] for k in range(L))
    acc = [h / d if d else 0.0 for h, d in zip(hit, den)]
    al = [a / c if c else 0.0 for a, c in zip(alpha, kap)]
    return total, loss, acc, al


def shapes(c):
    H, q, kv = c["H"], c["nh"] * c["d"], c["nkv"] * c["d"]
    return {
        "fc": (H, 3 * c["Ht"]), "norm_in": (H,), "norm_hidden": (H,), "q": (q, 2 * H), "k": (kv, 2 * H), "v": (kv, 2 * H),
        "o": (H, q), "norm_post": (H,), "gate": (c["I"], H), "up": (c["I"], H), "down": (H, c["I"]), "norm": (H,), "head": (c["Vd"], H),
    } | ({"norm_fc": (3 * c["Ht"],)} if c.get("norm_before_fc") or c.get("fc_norm") else {})


def params(c, gen, scale=0.25):
    P = {}
    for name, s in shapes(c).items():
        r = torch.randn(s, generator=gen)
        P[name] = (1 + 0.2 * r if len(s) == 1 else scale * r).requires_grad_(True)
    return P


def flat(P):
    return torch.cat([w.detach().reshape(-1) for w in P.values()])  # made in the order of TENSORS, norm_fc last


def bf16_bits(x):
    return (x.bfloat16().float().numpy().view(np.uint32) >> 16).astype(np.uint16)


def case(name, cfg, lens, starts, L, decay, topk, seed):
    gen = torch.Generator().manual_seed(seed)
    V, Vd = cfg["V"], cfg["Vd"]
    P = params(cfg, gen)
    emb = (0.5 * torch.randn(V, cfg["H"], generator=gen)).bfloat16().float()
    used = torch.randperm(V, generator=gen)[:Vd].sort().values
    mask_used = torch.zeros(V, dtype=torch.bool)
    mask_used[used] = True
    segs = []
    n_all = sum(lens)
    # The packed run's ids are one array of n+1: row t embeds ids[t+1]. So the last
    # row of a run and the first of the next meet at one id; draw them as one array.
    ids_all = torch.randint(0, V, (n_all + 1,), generator=gen)
    r0 = 0
    for n, p0 in zip(lens, starts):
        ids, pos, feats = ids_all[r0 : r0 + n + 1], torch.arange(p0, p0 + n), torch.randn(n, 3 * cfg["Ht"], generator=gen)
        ell = 2.5 * torch.randn(n, V, generator=gen)
        # On about half the rows the target agrees with what this draft says at some
        # step, or no accuracy would differ from zero.
        with torch.no_grad():
            says = run_segment(P, emb, dict(ids=ids, pos=pos, features=feats), cfg, L)
        for j in range(n):
            if torch.rand((), generator=gen) < 0.5:
                k = int(torch.randint(0, min(j + 1, L), (), generator=gen))
                ell[j, used[int(says[k][j - k].argmax())]] = ell[j].max() + 1
        y = ell.argmax(-1)
        sub = ell[:, used]
        if topk:
            top = sub.topk(topk, dim=-1)
            pr = torch.softmax(top.values, dim=-1)
            Q = torch.zeros(n, Vd).scatter_(1, top.indices, pr)
        else:
            top, pr = None, None
            Q = torch.softmax(sub, dim=-1)
        m = (torch.rand(n, generator=gen) < 0.8).long()
        segs.append(dict(ids=ids, pos=pos, features=feats, mask=m, Q=Q, y=y, in_vocab=mask_used[y].long(), used=used,
                         t_ids=top.indices if topk else None, t_p=pr, first=r0))
        r0 += n
    # Once in float32, as the law is worded, and once in float64: the second is written
    # down (the float32 C code and the double build are both held to it), the first
    # shows on the console how far float32 torch itself is from it.
    single = ttt(P, emb, segs, cfg, L, decay)
    single[0].backward()
    G32 = {t: w.grad for t, w in P.items()}
    P = {t: w.detach().double().requires_grad_(True) for t, w in P.items()}
    for s in segs:
        s["features"], s["Q"] = s["features"].double(), s["Q"].double()
    total, loss, acc, alpha = ttt(P, emb.double(), segs, cfg, L, decay)
    total.backward()
    G = {t: w.grad for t, w in P.items()}
    own = max(float((G[t] - G32[t]).abs().max() / G[t].abs().max()) for t in G)
    assert acc == single[2], "an argmax hangs on rounding: take another seed"
    norm = math.sqrt(sum(float(g.double().pow(2).sum()) for g in G.values()))

    o = Out(name)
    for key in ("H", "Ht", "I", "nh", "nkv", "d", "V", "Vd", "eps", "theta"):
        o.number(key, cfg[key])
    r = cfg.get("rope", {})
    o.number("rope_kind", ["default", "linear", "llama3", "yarn"].index(r.get("kind", "default")))
    for key in ("factor", "low", "high", "orig", "beta_fast", "beta_slow", "mscale", "mscale_all"):
        o.number("rope_" + key, r.get(key, 0))
    for key in FLAGS:
        if key in cfg:
            o.number(key, cfg[key])
    o.number("n", n_all)
    o.number("L", L)
    o.number("decay", decay)
    o.number("topk", topk)
    o.number("total", total)
    o.number("grad_norm", norm)
    for k in range(L):
        o.number(f"loss_{k}", loss[k])
        o.number(f"acc_{k}", acc[k])
        o.number(f"alpha_{k}", alpha[k])
    f, ms = inv_freq(cfg)
    o.number("rope_mscale_out", ms)
    o.array("inv_freq", f, "f32")
    o.array("params", flat(P), "f32")
    o.array("embedding", bf16_bits(emb), "u16")
    o.array("d2t", used - torch.arange(Vd), "i64")
    o.array("ids", ids_all, "u32")
    cat = lambda key: torch.cat([s[key] for s in segs])
    o.array("pos", cat("pos"), "u32")
    o.array("seg", torch.cat([torch.full((len(s["pos"]),), s["first"]) for s in segs]), "u32")
    o.array("features", cat("features"), "f32")
    o.array("mask", cat("mask"), "u8")
    o.array("y", cat("y"), "u32")
    o.array("in_vocab", cat("in_vocab"), "u8")
    if topk:
        o.array("teacher_ids", cat("t_ids"), "u32")
        o.array("teacher_p", cat("t_p"), "f32")
    else:
        o.array("teacher_p", cat("Q"), "f32")
    o.array("grads", torch.cat([g.reshape(-1) for g in G.values()]), "f32")
    for k in range(L):  # rows t < n-k of each run, run after run
        rows = [s["logits"][k][: max(len(s["pos"]) - k, 0)] for s in segs]
        o.array(f"logits_{k}", torch.cat(rows), "f32")
    o.close()
    print(f"{name}: total {float(total):.6f}, acc {[round(a, 3) for a in acc]}, norm {norm:.4f}; torch float32 is off by {own:.2g}")


# ---------------------------------------------------------------- optimizers
def newton_schulz(g):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / (g.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(5):
        s = x @ x.T
        x = a * x + (b * s + c * (s @ s)) @ x
    return x.T if tall else x


def optim_case(name, kind, cfg, seed, steps=40, warmup=5, total=60, clip=0.5, lr=1e-2, muon_lr=0.02):
    gen = torch.Generator().manual_seed(seed)
    P = params(cfg, gen)
    w0 = flat(P)
    matrices = [t for t in TENSORS if P[t].dim() == 2 and t != "head"] if kind == "muon" else []
    adam = torch.optim.AdamW([P[t] for t in TENSORS if t not in matrices], lr=lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    buf = {t: torch.zeros_like(P[t]) for t in matrices}
    grads, lrs, out = [], [], {}
    for i in range(steps):
        # gradients of very different size, so that clipping acts on some steps and not on others
        size = 10.0 ** float(torch.rand((), generator=gen) * 3 - 3)
        for t in TENSORS:
            P[t].grad = size * torch.randn(P[t].shape, generator=gen)
        grads.append(torch.cat([P[t].grad.reshape(-1) for t in TENSORS]))
        if i < warmup:
            f = (i + 1) / warmup
        else:
            f = 0.5 * (1 + math.cos(math.pi * (i - warmup) / (total - warmup)))
        lrs.append(f)
        torch.nn.utils.clip_grad_norm_(list(P.values()), clip)
        for grp in adam.param_groups:
            grp["lr"] = lr * f
        adam.step()
        with torch.no_grad():
            for t in matrices:
                g = P[t].grad
                buf[t] = 0.95 * buf[t] + 0.05 * g
                u = 0.05 * g + 0.95 * buf[t]
                r, c = u.shape
                P[t] -= muon_lr * f * math.sqrt(max(1.0, r / c)) * newton_schulz(u)
        if i in (0, steps - 1):
            out[i] = flat(P)
    o = Out(name)
    for key in ("H", "Ht", "I", "nh", "nkv", "d", "V", "Vd", "eps", "theta"):
        o.number(key, cfg[key])
    for key, x in (("steps", steps), ("warmup", warmup), ("total", total), ("clip", clip), ("lr", lr), ("muon_lr", muon_lr)):
        o.number(key, x)
    for i, f in enumerate(lrs):
        o.number(f"factor_{i}", f)
    o.array("w0", w0, "f32")
    o.array("grads", torch.stack(grads), "f32")
    o.array("w_first", out[0], "f32")
    o.array("w_last", out[steps - 1], "f32")
    o.close()
    print(name, float((out[steps - 1] - w0).abs().max()))


if __name__ == "__main__":
    base = dict(H=32, Ht=24, I=48, nh=4, nkv=2, d=8, V=50, Vd=20, eps=1e-5, theta=10000.0)
    case("plain", base, [13], [0], 7, 0.8, 0, 7)
    case("packed", dict(base, nh=6, nkv=3, theta=500000.0,
                        rope=dict(kind="llama3", factor=8.0, low=1.0, high=4.0, orig=64)), [11, 4, 14], [0, 3, 90], 7, 0.8, 6, 2)
    case("yarn", dict(base, H=40, nh=2, nkv=1, d=16, I=24, Vd=50, eps=1e-6,
                      rope=dict(kind="yarn", factor=4.0, orig=32, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all=0.0)),
         [9], [5], 5, 0.7, 0, 3)
    case("norms", dict(base, fc_norm=1, norm_output=1), [8, 5], [0, 20], 6, 0.8, 0, 11)
    case("norms_fc", dict(base, norm_before_fc=1, norm_before_residual=1), [12], [3], 7, 0.8, 5, 12)
    tiny = dict(H=8, Ht=6, I=12, nh=2, nkv=1, d=4, V=14, Vd=10, eps=1e-5, theta=10000.0)
    optim_case("adamw", "adamw", tiny, 4)
    optim_case("muon", "muon", tiny, 5)
