#!/usr/bin/env python3
"""SpecForge's own TTT losses, accuracies and gradients, as vectors for the C trainer.

    python3 -m venv V && V/bin/pip install torch transformers safetensors && V/bin/pip install --no-deps specforge==0.2.0
    V/bin/python tests/reference/peer/make_vectors.py [--out DIR] [--seed N]

Runs OnlineEagle3Model ("sdpa" backend, float32) as published, on a CPU. Stand-ins: its Triton loss is replaced by
the package's own torch reference of the same file; torch.compile is off. Every case is one padded batch (or not), one
kind of loss, one RoPE; written in the format of ../ttt/make_vectors.py. Without --seed the committed seeds are
used; with it every case gets another, for the live comparison of tests/unit/learn/test_peer.c.

The package shifts ids and target by one before its loop, and counts the mean over all rows of the padded
batch; ours packs the runs without padding, so its losses and gradients are scaled by padded/packed rows here, except
where its mean is over the weighted rows alone.
"""
import argparse
import os
import sys
import types

os.environ["TORCHDYNAMO_DISABLE"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")

HERE = os.path.dirname(os.path.abspath(__file__))
TENSORS = {"fc": "fc.weight", "norm_in": "midlayer.input_layernorm.weight", "norm_hidden": "midlayer.hidden_norm.weight", "q": "midlayer.self_attn.q_proj.weight",
           "k": "midlayer.self_attn.k_proj.weight", "v": "midlayer.self_attn.v_proj.weight", "o": "midlayer.self_attn.o_proj.weight",
           "norm_post": "midlayer.post_attention_layernorm.weight", "gate": "midlayer.mlp.gate_proj.weight", "up": "midlayer.mlp.up_proj.weight",
           "down": "midlayer.mlp.down_proj.weight", "norm": "norm.weight", "head": "lm_head.weight"}
ROPE_KINDS = {"default": 0, "linear": 1, "llama3": 2, "yarn": 3}


def load_peer():
    try:
        import triton  # noqa: F401
    except ImportError:
        t, lang = types.ModuleType("triton"), types.ModuleType("triton.language")
        t.jit, t.language, lang.constexpr = (lambda f: f), lang, int
        sys.modules.update({"triton": t, "triton.language": lang})
    import specforge.algorithms.eagle3.model as ttt
    import specforge.core.loss as loss

    class TorchLoss:
        @staticmethod
        def apply(logits, target_p, position_mask):
            return loss._compute_loss(logits, target_p, position_mask)

    ttt.LogSoftmaxLoss = TorchLoss
    return ttt


def make_config(c):
    from transformers import LlamaConfig
    rope = {"rope_type": "default", "rope_theta": c["theta"]}
    r = c.get("rope", {})
    if r:
        rope = {"rope_type": r["kind"], "rope_theta": c["theta"], "factor": r["factor"]}
        if r["kind"] == "llama3":
            rope |= {"low_freq_factor": r["low"], "high_freq_factor": r["high"], "original_max_position_embeddings": r["orig"]}
        if r["kind"] == "yarn":
            rope |= {"original_max_position_embeddings": r["orig"], "beta_fast": r["beta_fast"], "beta_slow": r["beta_slow"], "mscale": r["mscale"],
                     "mscale_all_dim": r["mscale_all"]}
    config = LlamaConfig(hidden_size=c["H"], intermediate_size=c["I"], num_attention_heads=c["nh"], num_key_value_heads=c["nkv"], head_dim=c["d"],
                         num_hidden_layers=1, vocab_size=c["V"], rms_norm_eps=c["eps"], max_position_embeddings=512, pad_token_id=0, hidden_act="silu",
                         rope_parameters=rope)
    config.draft_vocab_size, config.target_hidden_size = c["Vd"], c["Ht"]
    config.fc_norm = bool(c.get("fc_norm"))
    for key, value in (("attention_bias", False), ("pretraining_tp", 1)):
        if not hasattr(config, key):
            setattr(config, key, value)
    return config


def case(torch, ttt, out_class, name, c, lens, seed, loss=None, states=False, L=7, decay=0.8):
    from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3
    gen = torch.Generator().manual_seed(seed)
    V, Vd, H, Ht, B, N = c["V"], c["Vd"], c["H"], c["Ht"], len(lens), max(lens)

    def rand(*shape):
        return torch.randn(*shape, generator=gen)

    torch.manual_seed(seed)
    draft = LlamaForCausalLMEagle3(make_config(c), attention_backend="sdpa").float()
    used = torch.randperm(V, generator=gen)[:Vd].sort().values
    with torch.no_grad():
        for w in draft.parameters():
            w.copy_(1 + 0.2 * rand(*w.shape) if w.dim() == 1 else 0.25 * rand(*w.shape))
        draft.embed_tokens.weight.copy_((0.5 * rand(V, H)).bfloat16().float())
        draft.t2d.zero_()
        draft.t2d[used] = True
        draft.d2t.copy_(used - torch.arange(Vd))
    draft.freeze_embedding()
    model = ttt.OnlineEagle3Model(draft, length=L, attention_backend="sdpa", lk_loss_type=loss)

    ids = torch.randint(0, V, (B, N), generator=gen)  # shifted already: row t embeds ids[t]
    features = rand(B, N, 3 * Ht)
    loss_mask = (torch.rand(B, N, 1, generator=gen) < 0.85).int()
    attention = torch.zeros(B, N, dtype=torch.bool)
    for b, n in enumerate(lens):
        attention[b, :n] = True
        loss_mask[b, n:] = 0
    head = 0.9 * rand(V, Ht)
    z = rand(B, N, Ht)
    target = z @ head.T
    # on about half of the rows the target agrees with what this draft says somewhere, or no accuracy would differ from zero
    if not states:
        says = []
        compute = draft.compute_logits
        draft.compute_logits = lambda h: says.append(compute(h).argmax(-1)) or compute(h)
        with torch.no_grad():
            model(input_ids=ids, attention_mask=attention, target=target, loss_mask=loss_mask, hidden_states=features)
        draft.compute_logits = compute
        for b, n in enumerate(lens):
            for j in range(n):
                if torch.rand((), generator=gen) < 0.5:
                    k = int(torch.randint(0, min(j + 1, L), (), generator=gen))
                    target[b, j, used[int(says[k][b, j - k])]] = target[b, j].max() + 1
    teacher = dict(target=None, target_hidden_for_compact=z, target_head_weight=head) if states else dict(target=target)
    losses, alphas, accs = model(input_ids=ids, attention_mask=attention, loss_mask=loss_mask, hidden_states=features, **teacher)[:3]
    rows = sum(lens)
    scale = 1.0 if loss else B * N / rows
    assert loss != "lambda" or B * N == rows, "the mix needs both means to agree"
    total = sum(decay**k * x for k, x in enumerate(losses)) * scale
    total.backward()

    weights = dict(draft.named_parameters())
    names = [*TENSORS.values(), *(f"fc_norm.{i}.weight" for i in range(3 if c.get("fc_norm") else 0))]
    grads = torch.cat([weights[n].grad.reshape(-1) for n in names])
    o = out_class(name)
    o.array("params", torch.cat([weights[n].detach().reshape(-1) for n in names]), "f32")
    o.array("grads", grads, "f32")
    o.array("embedding", (draft.embed_tokens.weight.detach().numpy().view("uint32") >> 16).astype("uint16"), "u16")
    o.array("d2t", draft.d2t, "i64")

    def pack(x):
        return torch.cat([x[b, :n] for b, n in enumerate(lens)])

    o.array("ids", torch.cat([torch.zeros(1, dtype=torch.long), pack(ids)]), "u32")
    o.array("pos", torch.cat([torch.arange(n) for n in lens]), "u32")
    o.array("seg", torch.cat([torch.full((n,), sum(lens[:b])) for b, n in enumerate(lens)]), "u32")
    o.array("features", pack(features), "f32")
    o.array("mask", pack(loss_mask)[:, 0], "u8")
    logits = pack(target)
    y = logits.argmax(-1)
    o.array("y", y, "u32")
    o.array("in_vocab", draft.t2d[y], "u8")
    o.array("teacher_p", torch.softmax(logits[:, used], -1), "f32")
    o.array("teacher_mass", torch.exp(torch.logsumexp(logits[:, used], -1) - torch.logsumexp(logits, -1)), "f32")
    if states:
        o.array("teacher_z", pack(z), "f32")
        o.array("teacher_head", head[used], "f32")
    r = c.get("rope", {})
    numbers = dict(n=rows, L=L, decay=decay, topk=0, loss={None: 0, "alpha": 4, "lambda": 5}[loss], states=states, H=H, Ht=Ht, I=c["I"], nh=c["nh"], nkv=c["nkv"],
                   d=c["d"], V=V, Vd=Vd, eps=c["eps"], theta=c["theta"], rope_kind=ROPE_KINDS[r.get("kind", "default")], rope_factor=r.get("factor", 1),
                   rope_low=r.get("low", 0), rope_high=r.get("high", 0), rope_orig=r.get("orig", 0), rope_beta_fast=r.get("beta_fast", 0),
                   rope_beta_slow=r.get("beta_slow", 0), rope_mscale=r.get("mscale", 0), rope_mscale_all=r.get("mscale_all", 0),
                   total=total.item(), grad_norm=grads.double().norm().item())
    if c.get("fc_norm"):
        numbers["fc_norm"] = 1
    for key, value in numbers.items():
        o.number(key, value)
    for k in range(L):
        o.number(f"loss_{k}", losses[k].item() * scale)
        o.number(f"acc_{k}", float(accs[k]))
        o.number(f"alpha_{k}", float(alphas[k]))
    o.close()
    print(f"{name}: total {total.item():.6f}, accuracies {' '.join(f'{float(a):.2f}' for a in accs)}")


BASE = dict(H=32, Ht=24, I=48, nh=4, nkv=2, d=8, V=50, Vd=20, eps=1e-5, theta=10000.0)
WIDE = BASE | dict(H=36, Ht=32, nh=6, nkv=3, d=10, I=40, theta=500000.0, V=70, Vd=33)
LLAMA3 = dict(kind="llama3", factor=4.0, low=1.0, high=4.0, orig=16)
YARN = dict(kind="yarn", factor=4.0, orig=16, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all=0.0)
CASES = [
    ("kl", BASE, [13, 9], 1, {}),
    ("kl_alone", BASE, [24], 2, {}),
    ("kl_llama3", WIDE | {"rope": LLAMA3}, [12, 5, 17], 3, {}),
    ("kl_yarn", BASE | {"nkv": 1, "Vd": 50, "rope": YARN}, [15], 4, {"L": 5, "decay": 0.7}),
    ("kl_states", WIDE, [16, 10], 5, {"states": True}),
    ("kl_fc_norm", WIDE | {"fc_norm": 1}, [14, 9], 10, {}),
    ("lk_alpha", BASE, [13, 9], 6, {"loss": "alpha"}),
    ("lk_alpha_wide", WIDE | {"rope": {"kind": "linear", "factor": 2.0}}, [19], 7, {"loss": "alpha"}),
    ("lk_lambda", BASE, [14], 8, {"loss": "lambda"}),
    ("lk_lambda_states", WIDE, [11, 11], 9, {"loss": "lambda", "states": True}),
]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--out", default=HERE)
    p.add_argument("--seed", type=int)
    args = p.parse_args()
    import torch

    sys.path.insert(0, os.path.join(HERE, "..", "ttt"))
    import make_vectors as reference
    reference.HERE = args.out
    torch.set_num_threads(1)
    ttt = load_peer()
    for i, (name, c, lens, seed, more) in enumerate(CASES):
        case(torch, ttt, reference.Out, name, c, lens, seed if args.seed is None else args.seed * 100 + i, **more)


if __name__ == "__main__":
    main()
