#!/usr/bin/env python3
"""Size, time and accept length of every kind of payload, on recorded requests.

    make build/release/bench/bench_payload; tests/bench/payload.py RECORDS STORE [--tokens 8000] [--records 60] [--judge 30] [--threads 1] [--out FILE] [--bin DIR]

RECORDS: a folder of record files, as `redraft-learn export-records` writes them; STORE: the store with the target's frozen file.
bench_payload writes the records again in every kind; then the same training (seed, order, steps) runs on each
kind and is judged on the same requests, which stay bf16 and are never trained. Step time is the processor time of the whole
training, arms in turn. A table on the terminal, a JSON object a line to --out (build/bench.jsonl).
"""
import argparse
import glob
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile

KINDS = ["bf16", "planes", "fp8", "int8"]


def cpu_of(argv):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    r = subprocess.run(argv, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if r.returncode:
        sys.exit(f"{' '.join(argv)}\n{r.stderr[-2000:]}")
    return r.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("records")
    p.add_argument("store")
    p.add_argument("--tokens", type=int, default=8000)
    p.add_argument("--records", dest="n", type=int, default=60)
    p.add_argument("--judge", type=int, default=30, help="records that are judged by, taken from the end")
    p.add_argument("--from_draft", default="", help="a draft to go on from, so that a short training says something")
    p.add_argument("--threads", default="1")
    p.add_argument("--bin", default="build/release/bin")
    p.add_argument("--out", default="build/bench.jsonl")
    a = p.parse_args()
    work = tempfile.mkdtemp(prefix="redraft-payload-")
    files = sorted(glob.glob(os.path.join(a.records, "*")))
    for part, some in (("train", files[: a.n]), ("judge", files[len(files) - a.judge:])):
        os.makedirs(os.path.join(work, part))
        for f in some:
            os.symlink(os.path.abspath(f), os.path.join(work, part, os.path.basename(f)))
    out, _ = cpu_of([os.path.join(os.path.dirname(a.bin), "bench", "bench_payload"), f"{work}/train", f"{work}/kinds"])
    size = {x["kind"]: x for x in map(json.loads, out.splitlines())}

    def train(*more):
        return [os.path.join(a.bin, "redraft-learn"), "train", "--json", "--store", a.store, "--threads", a.threads, "--tokens", str(a.tokens), "--epochs", "8",
                "--eval.tokens", "0", "--train.ttt_steps", "5", "--seed", "1", "--from_draft", a.from_draft, *more]

    # the judge's records become a pool once
    cpu_of(train("--from_files", f"{work}/judge/*", "--out", f"{work}/pool", "--tokens", "1"))
    judge = f"{work}/pool.records"
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    rows = []
    for kind in KINDS:
        text, cpu = cpu_of(train("--from_files", f"{work}/kinds/{kind}/*", "--judge_pool", judge, "--out", f"{work}/draft-{kind}"))
        rows.append((kind, json.loads(text.splitlines()[-1]), cpu))
        print(f"{kind}: {text.splitlines()[-1]}", file=sys.stderr)
    print(f"{a.n} records, {size['bf16']['rows']:.0f} rows, {a.tokens} tokens trained, seed 1, commit {commit}")
    print("| payload | B a row | of bf16 | without last_hidden | encode us a row | decode us a row | rms error | processor s of training | accept length |")
    print("|---|---|---|---|---|---|---|---|---|")
    with open(a.out, "a", encoding="utf-8") as f:
        for kind, r, cpu in rows:
            s = size[kind]
            al = r["domains"]["all"]["accept_length"]
            base = size["bf16"]["bytes_row"]
            print(f"| {kind} | {s['bytes_row']:.0f} | {s['bytes_row'] / base:.3f} | {s['bytes_row_without_hidden'] / base:.3f} | {s['encode_us_row']:.1f} | {s['decode_us_row']:.1f} "
                  f"| {s['rms_error']:.4f} | {cpu:.1f} | {al:.3f} |")
            f.write(json.dumps({"figure": f"payload_{kind}", "value": s["bytes_row"], "unit": "B/row", "against": "bf16", "ratio": s["bytes_row"] / base, "ci": None,
                                "threads": int(a.threads), "commit": commit, "cpu": None, "encode_us_row": s["encode_us_row"], "decode_us_row": s["decode_us_row"],
                                "training_cpu_s": cpu, "accept_length": al}) + "\n")
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
