#!/usr/bin/env python3
"""SpecForge's TTT training core on this machine, at bench_ttt's shape: the peer of its figures.

    python3 -m venv V && V/bin/pip install torch transformers safetensors && V/bin/pip install --no-deps specforge==0.2.0
    V/bin/python tests/bench/specforge_peer.py [ROWS THREADS [fp32|bf16 [VOCABULARY]]]

Runs OnlineEagle3Model (7 steps, decay 0.8) with the "sdpa" backend, AdamW and clipping, and
prints tokens/s and peak memory in bench_ttt's JSON. Stand-ins: the
loss is the package's own torch reference, as its Triton kernel has no CPU; the
compiled helpers run eagerly; the teacher is given (bench_ttt is given one too).
Without arguments it runs each shape in a process of its own.
"""
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import types

os.environ["TORCHDYNAMO_DISABLE"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")

H, I, HEADS, KV, D, V, V_D, STEPS = 576, 1536, 9, 3, 64, 49152, 8192, 7


def stand_in_for_triton():
    """specforge.core.loss decorates kernels at import; on a CPU they are never launched."""
    try:
        import triton  # noqa: F401
        return
    except ImportError:
        pass
    t, lang = types.ModuleType("triton"), types.ModuleType("triton.language")
    t.jit, t.language, lang.constexpr = (lambda f: f), lang, int
    sys.modules.update({"triton": t, "triton.language": lang})


def build(torch, dtype):
    stand_in_for_triton()
    from transformers import LlamaConfig

    import specforge.algorithms.eagle3.model as ttt
    import specforge.core.loss as loss
    from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3

    class TorchLoss:
        @staticmethod
        def apply(logits, target_p, position_mask):
            return loss._compute_loss(logits, target_p, position_mask)

    ttt.LogSoftmaxLoss = TorchLoss
    config = LlamaConfig(hidden_size=H, intermediate_size=I, num_attention_heads=HEADS, num_key_value_heads=KV, head_dim=D, num_hidden_layers=1,
                         vocab_size=V, rms_norm_eps=1e-5, max_position_embeddings=8192, pad_token_id=0, hidden_act="silu")
    config.draft_vocab_size = V_D
    for key, value in (("rope_theta", 10000.0), ("rope_scaling", None), ("attention_bias", False), ("pretraining_tp", 1)):
        if not hasattr(config, key) or key == "rope_scaling":
            setattr(config, key, value)
    draft = LlamaForCausalLMEagle3(config, attention_backend="sdpa").to(dtype)
    draft.freeze_embedding()
    draft.t2d[V_D:] = False
    return ttt, ttt.OnlineEagle3Model(draft, length=STEPS, attention_backend="sdpa")


def run(rows, threads, kind):
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    dtype = torch.float32 if kind == "fp32" else torch.bfloat16
    ttt, model = build(torch, dtype)
    ids = torch.randint(0, V, (1, rows))
    features = torch.randn(1, rows, 3 * H, dtype=dtype)
    y = ids % V_D
    p = torch.full((1, rows + STEPS, V_D), 0.25 / V_D)
    p[0, torch.arange(rows), y[0]] += 0.75
    y = torch.nn.functional.pad(y, (0, STEPS))
    ones = torch.ones(1, rows, 1, dtype=torch.int)
    ttt._compute_target_p_padded = lambda **_: (p, p, y, ones)
    trained = [w for w in model.parameters() if w.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.0)

    def step():
        losses = model(input_ids=ids, attention_mask=torch.ones(1, rows, dtype=torch.bool), target=None, loss_mask=ones, hidden_states=features)[0]
        sum(0.8**k * x for k, x in enumerate(losses)).backward()
        torch.nn.utils.clip_grad_norm_(trained, 0.5)
        optimizer.step()
        optimizer.zero_grad()

    # BENCH_CPU_TIME as in bench_ttt: processor seconds, for one thread on a machine that is not quiet
    clock = time.process_time if os.environ.get("BENCH_CPU_TIME") else time.monotonic
    step()
    took, begin = [], time.monotonic()
    while len(took) < 3 or (len(took) < 15 and time.monotonic() - begin < 20):
        t = clock()
        step()
        took.append(clock() - t)
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        cpu = next((x.split(":", 1)[1].strip() for x in f if x.startswith("model name")), "unknown")
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    for figure, value, unit, ci in ((f"specforge_tokens_per_s_{rows}_{kind}", rows / statistics.median(took), "tok/s", [rows / max(took), rows / min(took)]),
                                    (f"specforge_peak_memory_{rows}_{kind}", mib, "MiB", [mib, mib])):
        print(json.dumps({"figure": figure, "value": value, "unit": unit, "against": None, "ratio": None, "ci": ci, "threads": threads,
                          "commit": "specforge 0.2.0, torch " + torch.__version__, "cpu": cpu}), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 4:
        V_D = int(sys.argv[4])
    if len(sys.argv) >= 3:
        run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "fp32")
    else:
        for shape in ("512", "2048"):
            for n in ("1", "2"):
                subprocess.run([sys.executable, __file__, shape, n], check=True)
