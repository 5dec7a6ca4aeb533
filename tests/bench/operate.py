#!/usr/bin/env python3
"""What operating costs, on the toy model: tests/bench/operate.py [--bin DIR] [--rollbacks 1000] [--idle 60]

  status    redraftctl status as a process, start to exit, 200 times
  rollback  from the daemon's socket to its answer, while 4 clients ask; every answer is compared with plain decoding. "stored": until the server's
            own log says that the version is live (what the issue bounds); "answered": until the caller knows, state.json on disk
  swap      P99 of the time per token of 16 clients while versions are switched four times a second, less the same without, in alternating slices (A B B A);
            the issue's bound is one round, which is given beside it
  idle      memory and processor share of a redraftd that nobody asks, with a server there, no broker

One JSON object a line, then a table.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
for folder in ("deploy/demo", "tests/fixtures"):
    sys.path.insert(0, str(ROOT / folder))
import client  # noqa: E402
import random_draft  # noqa: E402
import varlink  # noqa: E402
from procs import Child, Family, free_port, wait_until  # noqa: E402


class Pair:
    """A server on the toy model and a daemon, with two versions handed in by hand."""

    def __init__(self, bin_, dir_):
        self.bin, self.dir, self.family = Path(bin_), Path(dir_), Family()
        toy = self.dir / "toy.gguf"
        subprocess.run([sys.executable, str(ROOT / "tests/fixtures/toy_model.py"), str(toy), "--seed", "1"], check=True)
        for p in ("serve", "daemon", "store"):
            (self.dir / p).mkdir()
        self.address = f"127.0.0.1:{free_port()}"
        self.sockets = {p: str(self.dir / p / "control.sock") for p in ("serve", "daemon")}
        self.server = self.run("redraft-serve", model=toy, listen=self.address, run_dir=self.dir / "serve", store=self.dir / "store", threads=1, max_context=512)
        wait_until("the server was ready", 60, lambda: client.get(self.address, "/health")[0] == 200, self.server)
        self.daemon = self.run("redraftd", store=self.dir / "store", run_dir=self.dir / "daemon", serve_socket=self.sockets["serve"], learn_socket=self.dir / "none",
                               listen_metrics="127.0.0.1:0")
        wait_until("the daemon answered", 20, lambda: (varlink.try_call(self.sockets["daemon"], "io.redraft.Daemon.Status") or {}).get("serve", {}).get("up"), self.daemon)
        self.versions = [self.submit(n) for n in (1, 2)]

    def run(self, program, **flags):
        argv = [self.bin / program] + [w for k, v in flags.items() for w in (f"--{k}", v)]
        return self.family.start(Child(program, argv, str(self.dir / f"{program}.log")))

    def ask(self, method, **parameters):
        return varlink.call(self.sockets["daemon"], f"io.redraft.Daemon.{method}", 30.0, **parameters)

    def submit(self, seed):
        fp = varlink.call(self.sockets["serve"], "io.redraft.Serve.Status")["target_fp"]
        number = self.ask("Submit", path=random_draft.submission(self.dir / "store", fp, seed))["version"]
        self.ask("Promote", version=number)
        return number


def quantiles(ms):
    ms = sorted(ms)
    return {"n": len(ms), "p50": round(statistics.median(ms), 2), "p99": round(ms[int(0.99 * (len(ms) - 1))], 2), "most": round(ms[-1], 2)}


def status(pair):
    argv, took = [str(pair.bin / "redraftctl"), "--socket", pair.sockets["daemon"], "status"], []
    for _ in range(200):
        began = time.perf_counter()
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        took.append(1e3 * (time.perf_counter() - began))
    return quantiles(took)


def idle(pair, seconds):
    def cpu():
        tasks = Path(f"/proc/{pair.daemon.pid}/task").iterdir()  # by the scheduler's own count: a tick of 10 ms is too coarse
        return sum(int((t / "schedstat").read_text().split()[0]) for t in tasks) / 1e9
    def memory(key):
        return int(re.search(rf"{key}:\s+(\d+)", Path(f"/proc/{pair.daemon.pid}/smaps_rollup").read_text()).group(1)) / 1024
    time.sleep(2)
    began, was = time.monotonic(), cpu()
    time.sleep(seconds)
    return {"cpu_percent": round(100 * (cpu() - was) / (time.monotonic() - began), 4), "rss_mib": round(memory("Rss"), 1), "own_mib": round(memory("Private_Dirty"), 1)}


def rollbacks(pair, n):
    one, two = pair.versions
    chat = lambda i, **kw: client.chat(pair.address, [{"role": "user", "content": f"Item {i % 8}?"}], temperature=0.5, seed=i % 8, max_tokens=16, **kw)
    plain, answers, stop = [chat(i, draft=False) for i in range(8)], [], threading.Event()
    stored, answered = [], []

    def work(k):
        while not stop.is_set():
            answers.append((k % 8, chat(k)))
            k += 1
    workers = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(4)]
    for w in workers:
        w.start()
    log = open(pair.server.log, encoding="utf-8", errors="replace")
    log.seek(0, os.SEEK_END)
    seen = threading.Event()
    when = [0.0]

    def follow():  # the server says "version N is live" once it is stored
        line = ""
        while not stop.is_set():
            line += log.readline()
            if not line.endswith("\n"):  # nothing, or a line that is being written
                time.sleep(0.0002)
                continue
            if f"version {one} is live" in line:
                when[0] = time.perf_counter()
                seen.set()
            line = ""
    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    for _ in range(n):
        seen.clear()
        began = time.perf_counter()
        pair.ask("Rollback")
        answered.append(1e3 * (time.perf_counter() - began))
        if not seen.wait(5):
            raise RuntimeError("the server has not said in 5 s that the rollback is stored")
        stored.append(1e3 * (when[0] - began))
        pair.ask("Promote", version=two)
    stop.set()
    for w in workers:
        w.join()
    return {"stored_ms": quantiles(stored), "answered_ms": quantiles(answered), "answers": len(answers), "failed": sum(not a.ok for _, a in answers),
            "changed": sum(not a.same_text(plain[i]) for i, a in answers)}


def swap(pair, pairs, slice_s=3.0, clients=16):
    one, two = pair.versions
    done, stop, lock = [], threading.Event(), threading.Lock()

    def work(k):
        while not stop.is_set():
            a = client.chat(pair.address, [{"role": "user", "content": f"Item {k % 8}?"}], temperature=0.5, seed=k % 8, max_tokens=32)
            with lock:
                done.append(a)
            k += 1
    workers = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(clients)]
    for w in workers:
        w.start()
    time.sleep(slice_s)
    tpot, switches = {False: [], True: []}, 0
    for i in range(2 * pairs):
        switching = i % 4 in (1, 2)
        with lock:
            done.clear()
        end = time.monotonic() + slice_s
        while time.monotonic() < end:
            if switching:
                pair.ask("Promote", version=(one, two)[switches % 2])
                switches += 1
            time.sleep(0.25)
        with lock:
            tpot[switching] += [1e3 / a.decode_tok_s() for a in done if a.ok and a.tokens > 8]
    round_ms = varlink.call(pair.sockets["serve"], "io.redraft.Serve.Status")["latency"]["round_ms_p50"]
    stop.set()
    for w in workers:
        w.join()
    still, moved = quantiles(tpot[False]), quantiles(tpot[True])
    return {"switches": switches, "tpot_ms": still, "tpot_ms_switching": moved, "added_p99_ms": round(moved["p99"] - still["p99"], 2), "round_ms_p50": round(round_ms, 2)}


def measure(bin_, n_rollbacks, n_pairs, idle_s):
    with tempfile.TemporaryDirectory(prefix="rdo-") as dir_:
        pair = Pair(bin_, dir_)
        try:
            return {"status_ms": status(pair), "rollback": rollbacks(pair, n_rollbacks), "swap": swap(pair, n_pairs), "idle": idle(pair, idle_s)}
        finally:
            pair.family.stop()


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--bin", default=str(ROOT / "build/release/bin"))
    p.add_argument("--rollbacks", type=int, default=1000)
    p.add_argument("--pairs", type=int, default=20, help="of slices, with and without switches")
    p.add_argument("--idle", type=float, default=60)
    a = p.parse_args()
    for name, figures in measure(a.bin, a.rollbacks, a.pairs, a.idle).items():
        print(json.dumps({"what": name, **figures}), flush=True)


if __name__ == "__main__":
    main()
