"""What torch reaches in bench_gpu's shapes, as the same lines with "torch" before each name. --cpu: tiny, to see that it runs. Without torch or
its CUDA: one line that says so."""
import json
import sys
import time

try:
    import torch
except ImportError:
    print(json.dumps({"what": "torch", "skipped": "it is not installed"}))
    sys.exit(0)

small = "--cpu" in sys.argv
if not small and not torch.cuda.is_available():
    print(json.dumps({"what": "torch", "skipped": "it sees no CUDA device"}))
    sys.exit(0)
device, shrink = ("cpu", 64) if small else ("cuda", 1)


def best_of(times, fn):
    """Seconds of one call: the best of three runs of `times`."""
    def wait():
        if not small:
            torch.cuda.synchronize()
    times = 1 if small else times
    fn()
    wait()
    best = 1e30
    for _ in range(3):
        t = time.perf_counter()
        for _ in range(times):
            fn()
        wait()
        best = min(best, (time.perf_counter() - t) / times)
    return best


def say(what, value, unit):
    print(json.dumps({"what": f"torch {what}", "value": float(f"{value:.4g}"), "unit": unit}), flush=True)


print(json.dumps({"device": f"torch {torch.__version__} {device}"}))
bf16 = torch.bfloat16
x = torch.zeros((1 << 28) // shrink ** 2, device=device)
y = torch.empty_like(x)
say("copy", 2 * x.numel() * 4 / best_of(10, lambda: y.copy_(x)) / 1e9, "GB/s")
del x, y
n = 8192 // shrink
a, b = torch.zeros(n, n, device=device, dtype=bf16), torch.zeros(n, n, device=device, dtype=bf16)
say("gemm, bf16 inside", 2 * n ** 3 / best_of(5, lambda: a @ b) / 1e12, "TFLOP/s")
N, K = 28672 // shrink, 4096 // shrink
w = torch.zeros(N, K, device=device, dtype=bf16)
for m in (1, 5, 64, 512, 2048):
    h = torch.zeros(m, K, device=device, dtype=bf16)
    t = best_of(20, lambda: torch.nn.functional.linear(h, w))
    say(f"linear, {m} rows", w.numel() * 2 / t / 1e9 if m < 64 else 2 * m * N * K / t / 1e12, "GB/s" if m < 64 else "TFLOP/s")
if hasattr(torch.nn.functional, "scaled_dot_product_attention"):  # torch 2
    n = 32768 // shrink
    k = torch.zeros(1, 32, n, 128, device=device, dtype=bf16)  # keys of the 8 heads, repeated: more to read than ours
    q = torch.zeros(1, 32, 1, 128, device=device, dtype=bf16)
    t = best_of(20, lambda: torch.nn.functional.scaled_dot_product_attention(q, k, k))
    say("decode attention, one row of 32 whole heads", 2 * k.numel() * 2 / t / 1e9, "GB/s")
    m = 512 // shrink
    q = torch.zeros(1, 32, m, 128, device=device, dtype=bf16)  # every row sees every key: a little more than ours
    t = best_of(3, lambda: torch.nn.functional.scaled_dot_product_attention(q, k, k))
    say("prefill attention", 4 * m * n * 4096 / t / 1e12, "TFLOP/s")
