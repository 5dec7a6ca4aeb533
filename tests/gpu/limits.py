"""The lines of make bench-gpu against the limits that are aimed at: a table for people; nothing fails here, since a figure is a figure."""
import json
import sys

rows = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8") if line.startswith("{")]
by = {r["what"]: r for r in rows if "what" in r}


def line(what, got, want):
    print(f"  {what:62} {got:6.1%}   (limit {want:.0%}) {'' if got >= want else '  below'}")


def training(step, tflops):
    """Share of the bf16 product's rate that a whole TTT step reaches: its products' operations, forward and twice backward, in its seconds."""
    n, H, k, I, V_d = int(step["figure"].rsplit("_", 1)[1]), step["wide"], step["steps"], 2 * step["wide"], 512
    products = k * (3 * H * H + H * H + 3 * H * I + H * V_d) + 3 * H * H + 3 * H * H
    return 3 * 2 * n * products / step["value"] / 1e12 / tflops


print("against the limits, of what this GPU did in this run:")
for math in ("strict", "fast"):
    r = by.get(f"linear {math}, 1 rows")
    if r:
        line(f"decode: weights read at one row, {math}, of a copy's rate", r["of_limit"], 0.7)
if "prefill attention" in by:
    line("prefill attention, fast, of a bf16 product", by["prefill attention"]["of_limit"], 0.15)
if "TTT attention forward and backward" in by:  # what a whole step needs of it: kernels/cuda/README.md
    line("TTT attention, of a bf16 product", by["TTT attention forward and backward"]["of_limit"], 0.15)
for r in rows:
    if r.get("figure", "").startswith("ranks_step_") and "gemm, bf16 inside" in by:
        line(f"training: {r['figure'].rsplit('_', 1)[1]} rows, {r['steps']} steps, attention in its time, of a bf16 product", training(r, by["gemm, bf16 inside"]["value"]), 0.4)


def bound(what, name, most, unit):
    """A figure that must not be larger."""
    if name in by:
        got, q = by[name]["value"], by[name].get("quartiles")
        print(f"  {what:62} {got:6.2f}{' [%.2f, %.2f]' % tuple(q) if q else ''} {unit} (limit {most:.2f}) {'' if got <= most else '  above'}")


bound("capture: time per token, of without", "capture on, time per token against off", 1.03, "x")
bound("  what the method sees of nothing: off, of off", "capture off again, against off", 1.03, "x")
bound("  requests that lost rows", "capture, requests dropped", 0, "")
if "longest gap without switches" in by:  # a switch falls between two rounds: a client may wait for one round more
    most = by["longest gap without switches"]["value"] + 1
    bound("switching every 50 ms: a client's longest gap", "longest gap while versions are switched", most, "rounds")
    bound("loading and activating a version: a client's longest gap", "longest gap while a version is loaded and activated", most, "rounds")
bound("answers that were not plain decoding's", "answers that were not plain decoding's", 0, "")
for name in sorted(b for b in by if b.startswith("torch ") and "value" in by[b]):
    for math in ("fast ", ""):
        ours = by.get(name.replace("torch linear", f"linear {math}".strip()) if "linear" in name else name[6:])
        if ours and ours["unit"] == by[name]["unit"]:
            print(f"  {name[6:]:62} {ours['value'] / by[name]['value']:6.2f} x torch")
            break
