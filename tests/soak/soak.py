"""A server under everything at once, for long: does anything leak, does any answer change?

32 clients ask a fixed set of questions, greedy and sampled, streamed; one of six hangs up in the middle. Every 10 s the live version
is switched (three drafts) or rolled back. The broker goes away and comes back (its connections cut, or stopped so that
it hangs). Every whole answer is compared with the same request decoded plainly before any draft was loaded. At the end, idle again:
neither resident memory nor what the server holds of its allocator's (redraft_heap_bytes) may rise over the second half
beyond their own noise, and no descriptor and no page may be left behind.
Standard library only; used by make soak (tests/soak/run) and, for two minutes, by the system tests.
"""
import http.client
import json
import math
import os
import random
import re
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "deploy" / "demo"), str(ROOT / "tests" / "fixtures")]

import client  # noqa: E402
import random_draft  # noqa: E402
import varlink  # noqa: E402
from broker import MockBroker  # noqa: E402
from procs import Child, Family, free_port, wait_until  # noqa: E402

WORDS = "weather Berlin function price order list item count return model draft target token store client request version number".split()


@dataclass
class Question:
    messages: list
    params: dict
    plain: client.Answer = None


@dataclass
class Report:
    minutes: float = 0
    answers: int = 0
    drafted: int = 0
    random_drafts: bool = False  # that are never right
    accepted: int = 0
    changed: list = field(default_factory=list)
    failed: list = field(default_factory=list)
    hangups: int = 0
    switches: int = 0
    outages: int = 0
    records: dict = field(default_factory=dict)
    memory: list = field(default_factory=list)  # (seconds, MiB)
    growth: tuple = (0.0, 0.0, 0.0)  # MiB over the second half: fitted, what its noise allows, twice the error of the fit
    heap: tuple = (0.0, 0.0, 0.0)  # the same of the allocator's memory in use
    fds: tuple = (0, 0)
    held: float = None  # share of the pages of keys and values that requests hold, idle at the end; None: the server does not tell
    ended: int = 0  # the server's exit status

    def faults(self):
        """What is wrong, one sentence each; none is a pass."""
        out = []
        if self.answers < 50:
            out.append(f"only {self.answers} answers: too few to say anything")
        if not self.drafted or not (self.accepted or self.random_drafts) or self.switches < 2:
            out.append(f"{self.drafted} answers were drafted, {self.accepted} proposals taken, {self.switches} switches made: drafts were not exercised")
        if self.changed:
            out.append(f"{len(self.changed)} answers differ from plain decoding, the first: {self.changed[0]}")
        if self.failed:
            out.append(f"{len(self.failed)} requests failed, the first: {self.failed[0]}")
        for what, grown in (("resident memory", self.growth), ("memory in use", self.heap)):
            if not grown[0] <= grown[1]:
                out.append(f"{what} rose by {grown[0]:.2f} MiB over the second half; its noise allows {grown[1]:.2f}")
        if self.fds[1] > self.fds[0] + 4:  # connections to the broker may differ by a few
            out.append(f"{self.fds[1]} descriptors are open, idle, at the end; {self.fds[0]} were at the start")
        if self.held is not None and not self.held == 0:
            out.append(f"{self.held:.4f} of the pages of keys and values are held, and by no request")
        if self.ended != 0:
            out.append(f"the server ended with status {self.ended}")
        return out

    def text(self):
        first, last = self.memory[len(self.memory) // 2][1], self.memory[-1][1]
        rise = lambda g: f"{g[0]:+.2f} [{g[0] - g[2]:+.2f}, {g[0] + g[2]:+.2f}] MiB"
        return "\n".join((
            f"  {self.minutes:.1f} minutes: {self.answers} answers compared, {len(self.changed)} changed, {len(self.failed)} failed; {self.hangups} hang-ups",
            f"  {self.drafted} of them drafted, {self.accepted} proposals taken; {self.switches} switches, {self.outages} outages of the broker",
            f"  records {self.records}",
            f"  resident memory {first:.1f} MiB at half time, {last:.1f} at the end; fitted rise over the second half {rise(self.growth)}, of memory in use {rise(self.heap)}",
            f"  descriptors {self.fds[0]} before, {self.fds[1]} after; pages still held: {'not told' if self.held is None else self.held}",
        ))


def questions(seed, n=40, max_tokens=40):
    rng, out = random.Random(seed), []
    for i in range(n):
        system = "You are a server of " + " ".join(rng.choices(WORDS, k=12 + 20 * (i % 3)))  # some share a beginning, some are long
        messages = [{"role": "system", "content": system if i % 2 else "Be brief."}, {"role": "user", "content": " ".join(rng.choices(WORDS, k=rng.randint(2, 40))) + "?"}]
        if i % 4 == 3:
            messages += [{"role": "assistant", "content": " ".join(rng.choices(WORDS, k=20))}, {"role": "user", "content": "And then?"}]
        params = {"max_tokens": rng.randint(4, max_tokens), "temperature": 0.0}
        if i % 3 == 2:
            params |= {"temperature": 0.8, "top_p": 0.95, "seed": 100 + i}
        out.append(Question(messages, params))
    return out


def fit(memory, slack=2.0):
    """(rise over the second half, rise that its noise allows, noise): a line through the means of twelve blocks; noise is twice the
    error of its slope, slack MiB is allowed beside it."""
    half = memory[len(memory) // 2:]
    size = max(1, len(half) // 12)
    blocks = [statistics.fmean(m for _, m in half[i:i + size]) for i in range(0, size * (len(half) // size), size)]
    n = len(blocks)
    if n < 3:
        return 0.0, slack, 0.0
    xs = [i - (n - 1) / 2 for i in range(n)]
    sxx = sum(x * x for x in xs)
    mean = statistics.fmean(blocks)
    slope = sum(x * y for x, y in zip(xs, blocks)) / sxx
    residual = sum((y - mean - slope * x) ** 2 for x, y in zip(xs, blocks))
    error = math.sqrt(residual / (n - 2) / sxx)
    noise = 2 * error * (n - 1)
    return slope * (n - 1), noise + slack, noise


class Soak:
    """model: a GGUF file of shape target; head: the Hugging Face file of its weights, for drafts that are right now and then."""

    def __init__(self, bin_dir, model, target="toy", head=None, minutes=2.0, seed=1, clients=32, threads=1, say=lambda text: None):
        self.bin, self.model, self.target, self.head, self.minutes, self.seed = Path(bin_dir), model, target, head, minutes, seed
        self.clients, self.threads, self.say = clients, threads, say
        self.rng, self.lock, self.ending = random.Random(seed), threading.Lock(), threading.Event()
        self.report = Report(minutes=minutes, random_drafts=head is None)
        self.family = Family()
        self.dir = Path(tempfile.mkdtemp(prefix="rdk-"))

    # --- the stack

    def start(self):
        for name in ("run", "store"):
            (self.dir / name).mkdir()
        self.broker = MockBroker(self.family, self.bin / "redraft-mock-broker", str(self.dir))
        self.address = f"127.0.0.1:{free_port()}"
        argv = [self.bin / "redraft-serve", "--model", self.model, "--listen", self.address, "--run_dir", self.dir / "run", "--store", self.dir / "store",
                "--threads", self.threads, "--max_context", 512, "--max_seqs", 16, "--kv_tokens", 4096, "--capture.brokers", self.broker.address,
                "--capture.ring_mb", 2, "--capture.queue_mb", 1]  # small, so that they fill early
        self.server = self.family.start(Child("redraft-serve", argv, str(self.dir / "serve.log")))
        wait_until("it was ready", 120, lambda: client.get(self.address, "/health")[0] == 200, self.server)
        self.drafts = {n: random_draft.write(self.dir / f"draft-{n}", self.target, self.seed * 10 + n, self.head) for n in (1, 2, 3)}

    def call(self, method, **parameters):
        return varlink.call(self.dir / "run" / "control.sock", "io.redraft.Serve." + method, 60, **parameters)

    def rss_mib(self):
        return self.server.rss_mb() * 1e6 / 2**20

    def fds(self):
        return len(os.listdir(f"/proc/{self.server.pid}/fd"))

    # --- the clients

    def ask_plain(self):
        self.questions = questions(self.seed)
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda q: client.chat(self.address, q.messages, draft=False, trace=False, **q.params), self.questions))
        for q, a in zip(self.questions, answers):
            if not a.ok:
                raise RuntimeError(f"a plain answer failed before anything was done to the server: {a.error}")
            q.plain = a

    def work(self, number):
        rng = random.Random(f"{self.seed}/{number}")
        while not self.ending.is_set():
            q = rng.choice(self.questions)
            if rng.random() < 1 / 6:
                self.hang_up(q, rng)
                continue
            a = client.chat(self.address, q.messages, conversation=f"c{rng.randint(0, 50)}", **q.params)
            with self.lock:
                if a.status == 429:  # a full queue says so; that is its duty
                    continue
                self.report.answers += 1
                self.report.drafted += a.proposing > 0
                self.report.accepted += a.accepted
                if not a.ok:
                    self.report.failed.append(a.error)
                elif not a.same_text(q.plain):
                    self.report.changed.append(f"{q.messages} {q.params}: {q.plain.text!r} became {a.text!r} (versions {a.versions})")

    def hang_up(self, q, rng):
        """Reads a little of the stream, or nothing, and is gone."""
        body = json.dumps({"messages": q.messages, "stream": True, **q.params, "max_tokens": 200})
        connection = http.client.HTTPConnection(self.address, timeout=30)
        try:
            connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
            if rng.random() < 0.7:
                connection.getresponse().read(rng.randint(1, 3000))
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        with self.lock:
            self.report.hangups += 1

    # --- what is done to it

    def switch(self):
        """Load what is not there, make it live; or go back."""
        n = self.rng.choice((1, 2, 3))
        if self.rng.random() < 0.3:
            self.call("Rollback")
        else:
            self.call("Load", version=n, path=str(self.dir / f"draft-{n}"), weights_sha=self.drafts[n])
            self.call("Activate", version=n, move=self.rng.choice(("new", "all")), source="operator")
        self.report.switches += 1

    def switch_forever(self):
        while not self.ending.is_set():
            try:
                self.switch()
            except varlink.VarlinkError as e:
                with self.lock:
                    self.report.failed.append(f"a switch: {e}")
            self.ending.wait(10)

    def break_broker_forever(self):
        """Off the network, or there and silent; then back."""
        while not self.ending.wait(self.rng.uniform(4, 10)):
            away, back = self.rng.choice(((signal.SIGUSR1, signal.SIGUSR2), (signal.SIGSTOP, signal.SIGCONT)))
            self.broker.child.signal(away)
            self.ending.wait(self.rng.uniform(2, 8))
            self.broker.child.signal(back)
            self.report.outages += 1

    # --- the order of events

    def gauge(self, name, labels=""):
        """A value of /metrics, or None."""
        _, text = client.get(self.address, "/metrics")
        found = re.search(rf"^{name}\{{[^}}]*{labels}[^}}]*\}} (\S+)", text, re.M)
        return float(found[1]) if found else None

    def held(self):
        """vllm:kv_cache_usage_perc: pages that wait for reuse are not held."""
        return self.gauge("vllm:kv_cache_usage_perc")

    def go(self):
        """Runs it all and returns the report; closes what it started."""
        r = self.report
        try:
            self.start()
            self.ask_plain()
            r.fds = (self.fds(), 0)
            threads = [threading.Thread(target=self.work, args=(i,), daemon=True) for i in range(self.clients)]
            threads += [threading.Thread(target=f, daemon=True) for f in (self.switch_forever, self.break_broker_forever)]
            for t in threads:
                t.start()
            began, told, heap = time.monotonic(), 0, []
            while time.monotonic() - began < 60 * self.minutes and self.server.running():
                r.memory.append((time.monotonic() - began, self.rss_mib()))
                if len(r.memory) % 4 == 0 and (used := self.gauge("redraft_heap_bytes", 'state="used"')) is not None:
                    heap.append((r.memory[-1][0], used / 2**20))
                time.sleep(0.5)
                if time.monotonic() - began > told + 60:
                    told += 60
                    self.say(f"  {told // 60} min: {r.answers} answers, {len(r.changed)} changed, {len(r.failed)} failed, {r.memory[-1][1]:.1f} MiB")
            self.ending.set()
            for t in threads:
                t.join(60)
            r.heap = fit(heap) if heap else (math.nan, 0.0, 0.0)  # a server that does not tell has not held still
            self.settle()
        finally:
            self.ending.set()
            self.close()
        return r

    def settle(self):
        r = self.report
        if not self.server.running():
            return
        end = time.monotonic() + 20
        while time.monotonic() < end and (self.call("Status")["running"] or self.fds() > r.fds[0] + 4):
            time.sleep(0.2)
        r.fds = (r.fds[0], self.fds())
        r.held, r.growth = self.held(), fit(r.memory)
        r.records = {k: v for k, v in self.call("Status")["records"].items() if k in ("records", "delivered") or k.startswith("dropped") and v}

    def close(self):
        if hasattr(self, "broker"):
            self.broker.child.signal(signal.SIGCONT)
        if hasattr(self, "server"):
            self.report.ended = self.server.stop(20)
            if self.report.ended != 0:
                self.say(self.server.tail(30))
        self.family.stop()
        shutil.rmtree(self.dir, ignore_errors=True)
