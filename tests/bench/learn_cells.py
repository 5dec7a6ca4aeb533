"""The cells of make bench about the learner: what a payload costs it, and what its governor spares the server. As in cells.py."""
import json
import os
import re
import shutil
import signal
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import client
import payload as payload_bench
import prompts
import random_draft
import varlink
from loader import Load
from procs import Child, wait_until
from server import Server, unpack_base


def record(args, server, asked, folder, max_tokens):
    """What the server captures of these prompts, as a folder of records (redraft-learn collect)."""
    argv = [args.bin / "redraft-learn", "collect", "--store", server.store, "--out", folder, "--brokers", server.brokers, "--idle_s", 1000000]
    collect = server.family.start(Child("collect", argv, str(server.dir / "collect.log")))
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda p: client.chat(server.address, p.as_messages(), domain=p.domain, max_tokens=max_tokens), asked))
    failed = [a.error for a in answers if not a.ok]
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed: {failed[0]}")
    want = server.status()["records"]["records"]
    sent = lambda: server.status()["records"].get("delivered", 0) >= want
    wait_until("records were delivered", 60, sent, collect)
    sizes = [0]

    def still():  # and are on disk
        sizes.append(sum(f.stat().st_size for f in folder.glob("*.seg")))
        return sizes[-1] == sizes[-2] > 0
    wait_until("what was collected grew no more", 120, still, collect, 1.5)
    collect.stop(30)


def payload(args, results):
    """Every kind of capture.payload: bytes and processor time a row, and accept length after equal training from the draft of the tree, each against bf16 (payload.py).

    $REDRAFT_RECORDS: a pool to use, its store in $REDRAFT_STORE.
    """
    work = Path(tempfile.mkdtemp(prefix="rdb-payload-"))
    tokens, records, judge = (600, 20, 10) if args.smoke else (1000 * args.pairs, 90, 60)
    try:
        pool, store = os.environ.get("REDRAFT_RECORDS"), os.environ.get("REDRAFT_STORE")
        if not pool or not store:
            pool, store = work / "records", work / "store"
            pool.mkdir()
            asked = [p for pair in zip(*(ring[: 12 if args.smoke else 70] for ring in prompts.load(args.data, 11, 420).values())) for p in pair]
            with Server(args, 2, store, broker=True, max_seqs=4, max_context=1024, capture__payload="bf16") as s:
                record(args, s, asked, pool, 32 if args.smoke else 80)
        draft = work / "base"
        if args.smoke:
            random_draft.write(draft, args.shape)
        else:
            unpack_base(args, draft)
        rows = payload_bench.measure(args.bin, pool, store, work / "bench", tokens, records, judge, 1, draft)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    base = rows[0]
    for r in rows:
        kind, d = r["kind"], r["against_bf16"]
        results.add(f"payload {kind}: size", r["bytes_row"], "B/row", 1, "bf16", r["bytes_row"] / base["bytes_row"])
        results.add(f"payload {kind}: size without last_hidden", r["bytes_row_without_hidden"], "B/row", 1, "bf16 with it", r["bytes_row_without_hidden"] / base["bytes_row"])
        results.add(f"payload {kind}: encoding", r["encode_us_row"], "us/row", 1, "bf16", r["encode_us_row"] / base["encode_us_row"])
        results.add(f"payload {kind}: training, reading included", r["cpu_us_row"], "us/row", 1, "bf16", r["cpu_us_row"] / base["cpu_us_row"])
        al = r["accept_length"]
        results.add(f"payload {kind}: accept length after {r['tokens']} tokens", al, "tokens", 1, "bf16", al / (al - d[0]), (1 + d[1] / (al - d[0]), 1 + d[2] / (al - d[0])))
    print("\n".join("  " + line for line in payload_bench.table(rows)))


def replay(args, results):
    """Rows a processor second that replay goes through (k = 5) against those that training does, on the same records: an epoch and a replay of all of them, in turn."""
    work = Path(tempfile.mkdtemp(prefix="rdb-replay-"))
    n, repeats = (4, 1) if args.smoke else (24, max(2, args.pairs // 3))
    rates = {"train": [], "replay": []}
    try:
        pool, draft = work / "records", work / "base"
        pool.mkdir()
        asked = [p for pair in zip(*(ring[: n // 2] for ring in prompts.load(args.data, 12, 420).values())) for p in pair]
        with Server(args, 2, work / "store", broker=True, max_seqs=4, max_context=1024) as s:
            record(args, s, asked, pool, 32 if args.smoke else 80)
        random_draft.write(draft, args.shape) if args.smoke else unpack_base(args, draft)
        common = ["--store", work / "store", "--from_pool", pool, "--threads", 1]
        for i in range(repeats):
            text, cpu = payload_bench.cpu_of([args.bin / "redraft-learn", "train", "--json", "--from_draft", draft, "--out", work / f"out{i}", "--epochs", 1, "--eval.tokens", 0,
                                              "--heldout.domain_max", 1, "--nice", 0, *common])
            rows = json.loads(text.splitlines()[-1])["tokens"]
            rates["train"].append(rows / cpu)
            _, cpu = payload_bench.cpu_of([args.bin / "redraft-learn", "replay", "--json", "on", "--draft", draft, *common])
            rates["replay"].append(rows / cpu)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    each = [b / a for a, b in zip(rates["train"], rates["replay"])]
    results.add("replay, k = 5, starting and reading included", statistics.median(rates["replay"]), "rows/cpu s", 1, "training", statistics.median(each), (min(each), max(each)))


class Governed:
    """A learner beside a server, with as many threads as it; its pace is set by SIGHUP."""

    def __init__(self, args, server):
        self.s, self.conf, self.sock = server, server.dir / "learn.conf", server.dir / "learn" / "status.sock"
        self.write(0)
        argv = [args.bin / "redraft-learn", "--config", self.conf, "--store", server.store, "--state_dir", server.dir / "learn-state", "--run_dir", server.dir / "learn", "--brokers",
                server.brokers, "--serve_socket", server.dir / "serve" / "status.sock", "--threads", server.threads, "--train.draft_vocab", 256 if args.smoke else 2048,
                "--train.max_epochs", 1000, "--init.min_tokens", 600]
        self.child = server.family.start(Child("redraft-learn", argv, str(server.dir / "learn.log"), nice=10))
        server.learner = self.child

    def write(self, objective_ms):
        self.conf.write_text(f"[slo]\ntpot_p95_ms = {objective_ms:.3f}\n", encoding="utf-8")

    def step(self):
        try:
            return self.status()["step"]
        except varlink.VarlinkError:
            return 0  # not up yet

    def status(self):
        return varlink.call(self.sock, "io.redraft.Learn.Status", 60)

    def set(self, arm, objective_ms):
        """alone: stopped in its tracks. free: as hard as it can. governed: within the objective."""
        if arm == "alone":
            self.child.signal(signal.SIGSTOP)
            return
        self.child.signal(signal.SIGCONT)
        self.write(objective_ms if arm == "governed" else 0)
        self.child.signal(signal.SIGHUP)
        want = objective_ms if arm == "governed" else 0
        wait_until("the pace was taken up", 60, lambda: abs(self.status()["pace"]["objective_ms"] - want) < 0.01, self.child)


def settled(load, arm):
    """Slices until the governor has done what it does: it looks once a second and halves or doubles each time."""
    for _ in range(1 if arm == "alone" else 2):
        load.slice("warmup draft=off")


def governor(args, results):
    """Time per token of 4 clients with no learner, with one as hard as it can on the same processors, and with one under slo.tpot_p95_ms = 1.1 x the first; arms in turn in one server; and what each trains."""
    threads, repeats, requests = 2, 1 if args.smoke else max(2, args.pairs // 3), 4 if args.smoke else 12
    flags = {"file": args.prompts, "domain": "code", "max_chars": 340, "clients": 4, "requests": requests, "max_tokens": 40}
    trained, seconds = {"free": 0, "governed": 0}, {"free": 0.0, "governed": 0.0}
    with Server(args, threads, broker=True, max_context=1024) as s:
        learner = Governed(args, s)
        with Load(args, s.address, **flags) as load:
            wait_until("the learner trained", 600, lambda: learner.step() >= 2 or load.slice("warmup draft=off"), learner.child, 0)
            learner.set("alone", 0)
            objective = 1.1 * quiet_p95(s, load)
            for i in range(repeats):
                for arm in ("alone", "free", "governed")[:: 1 if i % 2 == 0 else -1]:
                    learner.set(arm, objective)
                    before, began = arm != "alone" and learner.status()["trained_tokens"], time.monotonic()
                    settled(load, arm)
                    load.slice(f"{arm} draft=off")
                    if arm != "alone":
                        seconds[arm] += time.monotonic() - began
                        trained[arm] += learner.status()["trained_tokens"] - before
                        print(f"  ({arm}: {learner.status()['pace']['why']})", flush=True)
            learner.set("free", 0)
    base = load.labels["alone"]["tpot_ms"]
    rate = {a: trained[a] / max(seconds[a], 1e-9) for a in trained}
    of_free = rate["governed"] / rate["free"] if rate["free"] > 0 else None
    for arm, against, ratio in (("free", None, None), ("governed", "free", of_free)):
        for stat in ("mean", "p95"):
            v = load.labels[arm]["tpot_ms"][stat]
            r = load.ratios[arm]["tpot_ms"][stat] if arm in load.ratios else [v[0] / base[stat][0], None, None]
            results.add(f"learner {arm}: tpot {stat}, 4 clients", v[0], "ms", threads, "no learner", r[0], (r[1], r[2]))
        results.add(f"learner {arm}: trained beside 4 clients", rate[arm], "tok/s", threads, against, ratio)
    print(f"  (objective {objective:.1f} ms)")


def checkpoint(args, results):
    """For how long a checkpoint (masters, moments, average, anchor) and a candidate keep the learner from training, and when a checkpoint is durable: one a second while 2 clients ask, by its own log."""
    with Server(args, 1, broker=True, max_context=1024) as s:
        argv = [args.bin / "redraft-learn", "--store", s.store, "--state_dir", s.dir / "learn-state", "--run_dir", s.dir / "learn", "--brokers", s.brokers, "--threads", 1,
                "--log_level", "debug", "--checkpoint.interval_s", 1, "--publish.interval_s", 10, "--publish.min_steps", 1, "--init.min_tokens", 600, "--train.max_epochs", 1000,
                "--train.draft_vocab", 256 if args.smoke else 8192]
        s.family.start(Child("redraft-learn", argv, str(s.dir / "learn.log"), nice=10))
        found = lambda pattern: [[float(x) for x in m.groups()] for m in re.finditer(pattern, (s.dir / "learn.log").read_text(encoding="utf-8"))]
        of = lambda what: found(what + r" at step \d+: (\d+) MiB, training stood still for (\d+) ms \((\d+) of processor time\), durable after (\d+) ms")
        flags = {"file": args.prompts, "domain": "code", "max_chars": 340, "clients": 2, "requests": 6, "max_tokens": 40}
        with Load(args, s.address, **flags) as load:
            until = time.monotonic() + 600
            while len(of("checkpoint")) < (2 if args.smoke else 20) and time.monotonic() < until:
                load.slice("asking draft=off")
        seen = {what: of(what) for what in ("checkpoint", "candidate")}
    if not seen["checkpoint"]:
        raise RuntimeError("no checkpoint was written in ten minutes")
    for what, rows in seen.items():
        for name, ms in zip((f"training stalled by a {what} of {max((r[0] for r in rows), default=0):.0f} MiB", "the same, processor time", "until it is durable"), list(zip(*rows))[1:]):
            results.add(name, statistics.median(ms), "ms", 1, ci=(min(ms), max(ms)))


def quiet_p95(server, load):
    """Serving's tail as the governor sees it: of the last rounds, and a round is a token of each client here (nothing is drafted), ms. The least
    of four slices: what else the machine does must not set the objective."""
    seen = []
    for _ in range(4):
        load.slice("warmup draft=off")
        seen.append(float(server.status()["latency"]["recent_ms_p95"]))
    return min(seen)
