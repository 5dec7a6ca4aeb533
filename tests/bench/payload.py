#!/usr/bin/env python3
"""Size, time and accept length of every kind of payload, on recorded requests.

    tests/bench/run payload                                             records of its own, rows into build/bench.jsonl
    make build/release/bench/bench_payload; tests/bench/payload.py POOL STORE [--tokens 8000] [--records 60] [--judge 30] [--threads 1]

POOL: a folder of records (redraft-learn collect, or a learner's state_dir/pool); STORE: the store with the target's frozen file. bench_payload
writes the first --records records again in every kind; the same training (seed, order, steps) then runs on each kind and is judged on the
last --judge records, which stay as they came and are never trained. Each kind's accept length stands beside the difference from bf16's
on the same requests, with a 95 % interval. Training time is the processor time of the whole training, arms in turn.
"""
import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

KINDS = ["bf16", "planes", "fp8", "int8"]
HEAD = ("payload", "B a row", "of bf16", "without last_hidden", "encode us a row", "decode us a row", "rms error", "training us a row", "of bf16", "accept length", "against bf16's")


def cpu_of(argv):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    r = subprocess.run([str(x) for x in argv], capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if r.returncode:
        raise RuntimeError(f"{argv[0]} {argv[1]}: {r.stderr.strip()[-300:]}")
    return r.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def split(binary, pool, work, n, judge):
    """The pool's records as files in work/train (the first n) and work/judge (the last)."""
    cpu_of([binary / "redraft-learn", "export-records", "--from_pool", pool, "--out", work / "all"])
    files = sorted((work / "all").iterdir())
    judge = min(judge, len(files) // 2)
    for part, some in (("train", files[: min(n, len(files) - judge)]), ("judge", files[len(files) - judge :])):
        (work / part).mkdir()
        for f in some:
            os.symlink(f, work / part / f.name)
    return len(list((work / "train").iterdir())), judge


def measure(binary, pool, store, work, tokens=8000, records=60, judge=30, threads=1, from_draft=""):
    """A row a kind: what bench_payload says of it, cpu_us_row, accept_length, against_bf16 [difference, low, high]."""
    work = Path(work)
    n, judge = split(binary, pool, work, records, judge)
    out, _ = cpu_of([binary.parent / "bench" / "bench_payload", work / "train", work / "kinds"])
    rows = {x["kind"]: x | {"records": n, "judged": judge} for x in map(json.loads, out.splitlines())}

    def train(*more):
        return cpu_of([binary / "redraft-learn", "train", "--json", "--store", store, "--threads", threads, "--epochs", "8", "--eval.tokens", "0", "--train.ttt_steps", "4",
                       "--seed", "1", "--nice", "0", *(["--from_draft", from_draft] if from_draft else []), *more])

    train("--from_files", f"{work}/judge/*", "--out", work / "pool", "--tokens", "1")  # the judge's records become a pool once
    for kind in KINDS:
        text, cpu = train("--from_files", f"{work}/kinds/{kind}/*", "--judge_pool", work / "pool.records", "--out", work / f"draft-{kind}", "--tokens", tokens)
        last = json.loads(text.splitlines()[-1])
        pair, _ = cpu_of([binary / "redraft-learn", "replay", "--json", "on", "--store", store, "--threads", threads, "--from_pool", work / "pool.records",
                          "--draft", work / f"draft-{kind}", "--against_draft", work / "draft-bf16"])
        every = next(x for x in json.loads(pair)["rows"] if x["domain"] == "all" and x["context"] == "any")
        rows[kind] |= {"tokens": last["tokens"], "cpu_us_row": cpu * 1e6 / last["tokens"], "accept_length": every["accept_length"], "low": every["low"], "high": every["high"],
                       "against_bf16": [every["difference"], every["difference_low"], every["difference_high"]]}
    return [rows[k] for k in KINDS]


def table(rows):
    base = rows[0]
    yield "| " + " | ".join(HEAD) + " |"
    yield "|" + "---|" * len(HEAD)
    for r in rows:
        d = r["against_bf16"]
        yield (f"| {r['kind']} | {r['bytes_row']:.0f} | {r['bytes_row'] / base['bytes_row']:.3f} | {r['bytes_row_without_hidden'] / base['bytes_row']:.3f} | {r['encode_us_row']:.1f} "
               f"| {r['decode_us_row']:.1f} | {r['rms_error']:.4f} | {r['cpu_us_row']:.0f} | {r['cpu_us_row'] / base['cpu_us_row']:.3f} "
               f"| {r['accept_length']:.3f} [{r['low']:.3f}, {r['high']:.3f}] | {d[0]:+.3f} [{d[1]:+.3f}, {d[2]:+.3f}] |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("pool")
    p.add_argument("store")
    p.add_argument("--tokens", type=int, default=8000)
    p.add_argument("--records", type=int, default=60)
    p.add_argument("--judge", type=int, default=30, help="records that are judged by, taken from the end")
    p.add_argument("--from_draft", default="", help="a draft to go on from, so that a short training says something")
    p.add_argument("--threads", default="1")
    p.add_argument("--bin", type=Path, default=Path("build/release/bin"))
    a = p.parse_args()
    work = tempfile.mkdtemp(prefix="redraft-payload-")
    try:
        rows = measure(a.bin, a.pool, a.store, work, a.tokens, a.records, a.judge, a.threads, a.from_draft)
    except RuntimeError as e:
        sys.exit(str(e))
    finally:
        shutil.rmtree(work)
    print(f"{rows[0]['records']} records, {rows[0]['rows']:.0f} rows, {rows[0]['tokens']} tokens trained, judged by {rows[0]['judged']} records, seed 1")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
