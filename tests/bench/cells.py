"""The cells of make bench that load a whole server over HTTP. Each is one function (args, results) with an honest name."""
import contextlib
import os
import statistics
from pathlib import Path

import loader
from loader import Load, alternate
from operate import measure as measure_operating
from server import LlamaServer, Server

STATS = ("mean", "p50", "p95", "p99")


def add_all(results, cell, row, threads, metrics=("ttft_ms", "tpot_ms"), stats=STATS):
    """Every statistic of a label as a figure of its own, '<cell>: tpot p99'; shown on one line."""
    shown = f"  {cell:<40}"
    for m in metrics:
        for s in stats:
            v, low, high = row[m][s]
            results.add(f"{cell}: {m[:-3]} {s}", v, "ms", threads, ci=(low, high), quiet=True)
        shown += f"  {m[:-3]} " + " ".join(f"{row[m][s][0]:8.1f}" for s in stats)
    print(f"{shown} ms  ({', '.join(stats)})", flush=True)


def ratio(results, figure, value, unit, threads, against, r):
    results.add(figure, value, unit, threads, against, r[0], (r[1], r[2]))


def concurrency(args, results):
    """1, 8 and 32 clients, plain and drafted, capture off and capture on with a learner training beside: twelve cells, four arms a server."""
    arms = ["plain,off draft=off", "drafted,off", "plain,training draft=off", "drafted,training"]
    for clients, requests, tokens, repeats in ((1, 3, 40, 2), (8, 12, 32, 2), (32, 32, 16, 2)):
        with Server(args, 2, broker=True, max_seqs=32, max_context=1024) as s:
            which = s.activate_some_draft()
            s.start_learner()

            def set_arm(line, s=s):
                s.capture("training" in line)
                s.train("training" in line)
            flags = {"file": args.prompts, "domain": "code", "clients": clients, "requests": requests, "max_tokens": tokens, "max_chars": 340}
            with Load(args, s.address, **flags) as load:
                s.capture(True)
                load.slice("warmup")
                alternate(load, arms, repeats, set_arm)
        for line in arms:
            label = line.split()[0]
            row, cell = load.labels[label], f"{clients} clients, {label.replace(',', ', ')}"
            add_all(results, cell, row, 2)
            r = load.ratios.get(label)
            results.add(f"{cell}: all clients", row["tokens_per_s"][0], "tok/s", 2, r and "plain, off", r and r["tokens_per_s"][0],
                        (r["tokens_per_s"] if r else row["tokens_per_s"])[-2:])
        print(f"  ({which}; accepted {load.labels['drafted,off']['accepted']} of {load.labels['drafted,off']['proposed']} proposals)")


def drafting_choices(args, results):
    """The same draft under fixed shapes of proposals and under the server's own choice (draft.mode auto), at 1, 8 and 32 clients: each over auto; servers in turn, three times from the start: auto learns costs anew."""
    shapes = {"auto": {"draft_k": 5, "draft.mode": "auto"}} | {f"chain-{k}": {"draft_k": k, "draft.mode": "chain"} for k in (1, 3, 5)} | {
        "tree-12": {"draft_k": 5, "draft.nodes": 12, "draft.mode": "tree"}}
    seen = {}  # (clients, label) -> [(tok/s, over auto, tokens a round)] of each start
    for _ in range(1 if args.smoke else 3):
        which = choices_once(args, shapes, seen)
    for (clients, label), rows in seen.items():
        rates, ratios, lengths = zip(*rows)
        over = [r for r in ratios if r]
        results.add(f"{clients} clients, {label}, {statistics.median(lengths):.2f} tokens a round: all clients", statistics.median(rates), "tok/s", 2, "auto" if over else None,
                    statistics.median(over) if over else None, (min(over), max(over)) if over else (min(rates), max(rates)))
    print(f"  ({which}; in brackets the starts' least and most)")


def choices_once(args, shapes, seen):
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(Server(args, 2, max_seqs=32, max_context=1024, kv_tokens=16384, **flags)) for name, flags in shapes.items()}
        which = [s.activate_some_draft() for s in servers.values()][0]
        first = next(iter(servers.values()))
        arms = [f"{name} at={s.address}" for name, s in servers.items()] + [f"plain draft=off at={first.address}"]
        for clients, requests in ((1, 3), (8, 12), (32, 32)):
            flags = {"file": args.prompts, "domain": "code", "clients": clients, "requests": requests, "max_tokens": 40, "max_chars": 340}
            with Load(args, first.address, **flags) as load:
                for _ in range(2):  # the controller learns what things cost here
                    load.slice("warmup")
                alternate(load, arms, 2)
            for label in [arm.split()[0] for arm in arms]:
                row, r = load.labels[label], load.ratios.get(label)
                seen.setdefault((clients, label), []).append((row["tokens_per_s"][0], r and r["tokens_per_s"][0], row["tokens"] / max(1, row["rounds"])))
        return which


def long_prompts_arriving(args, results):
    """8 clients decode while prompts of about 4,000 tokens arrive one after the other: P99 of the clients' time per token over its median."""
    flags = {"file": args.prompts, "domain": "code", "max_chars": 340, "clients": 8, "seconds": 2 if args.smoke else 25,
             "max_tokens": 64, "arrivals": "even", "beside": "long", "beside__rate": 2 if args.smoke else 0.1, "beside__long_tokens": 400 if args.smoke else 4000,
             "timeout_s": 300}
    with Server(args, 2, max_seqs=12, max_context=4608, kv_tokens=24576) as s:
        with Load(args, s.address, **flags) as load:
            alternate(load, ["calm draft=off beside=off", "arriving draft=off"], 1)
    calm, arriving = load.labels["calm"], load.labels["arriving"]
    for name, row in (("calm", calm), ("4k prompts arriving", arriving)):
        add_all(results, f"8 clients, {name}", row, 2, ("tpot_ms", "gap_ms"), ("p50", "p99"))
    for m in ("tpot_ms", "gap_ms"):
        t = arriving[m]["p99/p50"]
        results.add(f"8 clients, 4k prompts arriving: {m[:-3]} P99", arriving[m]["p99"][0], "ms", 2, "its median", t[0], (t[1], t[2]))
    beside = load.labels.get("arriving, beside")
    if beside:
        results.add(f"the long prompts ({beside['prompt_tokens']:.0f} tokens): ttft mean", beside["ttft_ms"]["mean"][0], "ms", 2)


def prefix_reuse(args, results):
    """The second and the eighth round of an agent's dialogue: time to the first token when the history was just served, against the same request with a beginning of its own. What is left is what the round adds."""
    for n in (2, 8):
        flags = {"traffic": "agent", "file": args.prompts, "rounds": n, "clients": 1, "requests": 3, "max_tokens": 24, "only_round": n, "max_chars": 1400, "context": 3072}
        with Server(args, 2, max_context=3072) as s:
            with Load(args, s.address, **flags) as load:
                load.slice("warmup")
                alternate(load, ["cold cold=on draft=off", "warm draft=off"], 3 if n == 2 else 1)
        warm = load.labels["warm"]
        ratio(results, f"round {n} of a dialogue, {warm['prompt_tokens']:.0f} tokens: ttft mean", warm["ttft_ms"]["mean"][0], "ms", 2, "cold", load.ratios["warm"]["ttft_ms"]["mean"])


def capture_cost(args, results):
    """Capture on against off, toggled in one running server between slices of a few seconds; "off again" against "off" shows what the method cannot see below.

    One server and not two: two processes differ by where their memory lies, which is a constant that no number of slices averages away. The tap's
    queue is drained before an "off" slice. What this leaves out: a build without any tap (its ring and thread exist in both arms).
    """
    arms = ["off", "on", "off-again"]
    flags = {"file": args.prompts, "domain": "code", "max_chars": 340, "clients": 4, "requests": 4, "max_tokens": 40}
    with Server(args, 1, broker=True, max_context=1024) as s:
        with Load(args, s.address, **flags) as load:
            s.capture(True)
            load.slice("warmup")
            alternate(load, arms, args.pairs, lambda line: s.capture(line == "on"))
        records = s.status()["records"]
    for label, name in (("on", "capture on"), ("off-again", "capture off again (the noise)")):
        for m, stat in (("tpot_ms", "mean"), ("tpot_ms", "p95"), ("tpot_ms", "p99"), ("ttft_ms", "mean"), ("ttft_ms", "p95")):
            ratio(results, f"{name}: {m[:-3]} {stat}, 4 clients", load.labels[label][m][stat][0], "ms", 1, "capture off", load.ratios[label][m][stat])
    print(f"  (capture produced {records.get('records')} records, {records.get('bytes', 0) / 1e6:.1f} MB)")


def peer_server(args, results):
    """All tokens a second of 16 clients against llama.cpp's server with as many slots, both up, loaded in turn: plain, and with a draft (draft.mode auto)."""
    if not LlamaServer.program():
        print("  peer_server: skipped, no llama-server on PATH or in $LLAMA_SERVER")
        return
    model = Path(os.environ.get("LLAMA_MODEL", str(args.model)))
    flags = {"file": args.prompts, "domain": "code", "max_chars": 340, "clients": 16, "requests": 16, "max_tokens": 32, "token_ids": "off"}
    with Server(args, 2, max_seqs=16, max_context=1024, draft_k=5, draft__mode="auto") as s, LlamaServer(model, 2, 16, 1024) as peer:
        print(f"  (llama-server {' '.join(str(f) for f in peer.flags)}, {model.name}; {s.activate_some_draft()})")
        with Load(args, s.address, **flags) as load:
            load.slice("warmup")
            alternate(load, [f"llama at={peer.address}", "plain draft=off", "drafted"], 2 if args.smoke else 6)
    for label in ("plain", "drafted"):
        row, r = load.labels[label], load.ratios[label]
        ratio(results, f"16 clients, {label}: all clients", row["tokens_per_s"][0], "tok/s", 2, "llama-server", r["tokens_per_s"])
        ratio(results, f"16 clients, {label}: tpot p99", row["tpot_ms"]["p99"][0], "ms", 2, "llama-server", r["tpot_ms"]["p99"])


def start_to_ready(args, results):
    """From exec to the first 200 of /health, the model in the file cache."""
    took = []
    for i in range(4):
        with Server(args, 2) as s:
            if i > 0:
                took.append(s.start_s)
    results.add("start to ready", statistics.median(took), "s", 2, ci=(min(took), max(took)))


def operate(args, results):
    """What operating costs, on the toy model: redraftctl status, 1,000 rollbacks under load (200 with --smoke), switches under 16 clients, an idle daemon (operate.py)."""
    row = measure_operating(args.bin, 200 if args.smoke else 1000, 4 if args.smoke else 20, 10 if args.smoke else 60)
    results.add("redraftctl status, P99", row["status_ms"]["p99"], "ms", 1)
    for what in ("stored", "answered"):
        results.add(f"rollback under 4 clients until {what}, P99", row["rollback"][f"{what}_ms"]["p99"], "ms", 1)
    results.add("requests failed, answers changed by rollbacks", row["rollback"]["failed"] + row["rollback"]["changed"], f"of {row['rollback']['answers']}", 1)
    swap = row["swap"]
    results.add("switches under 16 clients: P99 of time per token, more than without", swap["added_p99_ms"], "ms", 1, "a round", swap["added_p99_ms"] / swap["round_ms_p50"])
    results.add("idle redraftd, processor", row["idle"]["cpu_percent"], "%", 1)
    results.add("idle redraftd, memory", row["idle"]["rss_mib"], "MiB", 1)


# SmolLM2-135M: 134.48 M matrix weights in bf16; keys and values of 30 layers of 3 heads of 64, bf16 as the target keeps them; per token also the
# draft layer's for each of four slots, and features at three boundaries
TARGET_MIB, KV_BYTES, DRAFT_MIB = 134.48e6 * 2 / 2**20, 30 * 2 * 3 * 64 * 2, 8.8e6 * 2 / 2**20
SLOTS_BYTES, FEATURE_BYTES = 4 * 2 * 3 * 64 * 2, 3 * 576 * 2


def memory(args, results):
    """Resident memory under load against the sum of what must be there: target, a draft, keys and values of both, features.

    For each token that can be kept there are the target's keys and values, the draft layer's for each of four slots, and the features, which go with
    its pages so that a reused prefix stays trainable."""
    kv_tokens = 16384
    with Server(args, 2, max_seqs=16, max_context=1024, kv_tokens=kv_tokens) as s:
        s.activate_some_draft()
        loader.once(args, s.address, file=args.prompts, domain="code", max_chars=1200, clients=16, requests=24, max_tokens=16)
        resident, files = s.resident_mib()
    weights, kv, slots, features = TARGET_MIB + DRAFT_MIB, *(kv_tokens * x / 2**20 for x in (KV_BYTES, SLOTS_BYTES, FEATURE_BYTES))
    parts = weights + kv + slots + features
    results.add("resident memory, 16 clients, 16,384 tokens of KV", resident, "MiB", 2, f"target + draft + slots + KV + features ({parts:.0f} MiB)", resident / parts)
    print(f"  of target + draft + the target's KV alone, {weights + kv:.0f} MiB: {resident / (weights + kv):.2f} x")
    print(f"  ({files:.0f} MiB of it are pages of mapped files)")


def plain_decode(args, results, peer):
    """One client over HTTP; peer(threads) gives llama-bench's (decode, prefill) or None."""
    for threads in (1, 2):
        other = peer(threads)
        with Server(args, threads) as s:
            flags = {"file": args.prompts, "domain": "code", "max_chars": 340, "clients": 1, "requests": 6, "max_tokens": 96}
            row = loader.once(args, s.address, "plain draft=off trace=off", **flags)
            v, low, high = (1000 / x for x in row["tpot_ms"]["mean"])
            results.add("plain decode, batch 1", v, "tok/s", threads, other and "llama.cpp", other and v / other[0], (high, low))
            row = loader.once(args, s.address, "plain draft=off trace=off", traffic="long", long_tokens=440, clients=1, requests=5, max_tokens=1)
            v, low, high = (1000 * row["prompt_tokens"] / x for x in row["ttft_ms"]["mean"])
            results.add(f"prefill, {row['prompt_tokens']:.0f} tokens", v, "tok/s", threads, other and "llama.cpp", other and v / other[1], (high, low))


def real_dialogues(args, results):
    """ShareGPT's people at Poisson arrivals, three rounds each: the latencies a mixed public would see, measured from when they should have been sent."""
    flags = {"traffic": "dialogues", "file": args.dialogues, "rounds": 3, "clients": 0, "rate": 0.25, "seconds": 8 if args.smoke else 40, "max_tokens": 48, "max_chars": 1500,
             "ignore_eos": "off", "think_ms": 1000}
    with Server(args, 2, max_seqs=16) as s:
        row = loader.once(args, s.address, "dialogues", **flags)
    add_all(results, "dialogues, open loop 0.25/s", row, 2)
