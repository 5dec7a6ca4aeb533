"""The demo's three proofs, after or under its traffic: rollback while requests run, the bench, and answers against plain decoding.

Plain decoding is the same server with X-Redraft-Draft: off, one request at a time in the bench and a few
together in the comparison: what shares a batch never changes an answer.
"""
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import client
import varlink


@dataclass
class Rollback:
    ran: bool = False
    said: str = ""
    before: int = 0
    after: int = 0
    back: bool = False  # the version was promoted again
    failed: int = 0
    affected: list = field(default_factory=list)  # Sent: those that ran while it happened, and some after
    changed: int = 0
    checked: int = 0
    longest_gap_ms: float = 0.0


@dataclass
class Bench:
    prompts: int = 0
    plain_tok_s: float = 0.0
    drafted_tok_s: float = 0.0
    accept_length: float = 0.0
    identical: bool = True
    version: int = 0
    differing: list = field(default_factory=list)

    def ratio(self):
        return self.drafted_tok_s / self.plain_tok_s if self.plain_tok_s else 0.0


def ctl(programs, sockets, *words, timeout=60):
    """redraftctl with both sockets; (exit status, what it said)."""
    argv = [programs["redraftctl"], "--socket", sockets["daemon"], "--serve-socket", sockets["serve"], *map(str, words)]
    r = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    return r.returncode, (r.stdout + r.stderr).strip()


def live_version(sockets):
    status = varlink.try_call(sockets["serve"], "io.redraft.Serve.Status")
    return None if status is None else status.get("live", 0)


def rollback(programs, sockets, traffic, tick, patience=25.0, wanted=6):
    """redraftctl rollback under traffic, then promote the version again. tick() redraws the screen."""
    out = Rollback(before=live_version(sockets) or 0)
    began = time.monotonic()
    traffic.set_during("rollback")
    rc, out.said = ctl(programs, sockets, "rollback")
    out.ran = rc == 0
    after = time.monotonic()
    end = after + 10
    while out.ran and out.before and live_version(sockets) == out.before and time.monotonic() < end:
        time.sleep(0.05)
    out.after = live_version(sockets) or 0
    ended_since = lambda: [s for s in traffic.snapshot() if s.answer.done > after or (s.answer.sent > began and not s.answer.ok)]
    end = time.monotonic() + patience
    while len(ended_since()) < wanted and time.monotonic() < end:
        tick()
        time.sleep(0.2)
    if out.before:
        rc, said = ctl(programs, sockets, "promote", out.before)
        out.back = rc == 0
        out.said += f"; {said}"
    traffic.set_during("")
    out.affected = ended_since()
    out.failed = sum(not s.answer.ok for s in out.affected)
    out.longest_gap_ms = 1000 * max((s.answer.longest_gap for s in out.affected), default=0.0)
    return out


def plain(address, sent):
    """The same question again, decoded plainly and kept out of the traces."""
    return client.chat(address, sent.prompt.as_messages(), domain=sent.domain, draft=False, trace=False, **sent.params)


def compare_with_plain(address, some, tick, together=6):
    """[(sent, plain answer)] whose texts differ, for requests served earlier."""
    with ThreadPoolExecutor(together) as pool:
        futures = [(s, pool.submit(plain, address, s)) for s in some]
        while not all(f.done() for _, f in futures):
            tick()
            time.sleep(0.2)
    return [(s, f.result()) for s, f in futures if not s.answer.same_text(f.result())]


def spread(items, n):
    """n of the items, evenly over their order."""
    if len(items) <= n:
        return list(items)
    return [items[i * (len(items) - 1) // (n - 1)] for i in range(n)]


def bench(address, some, sockets, tick, max_tokens=80):
    """Greedy, one request at a time, plain and drafted alternating, the learner paused. some: prompts."""
    out = Bench(prompts=len(some), version=live_version(sockets) or 0)
    spent = {True: 0.0, False: 0.0}
    tokens = {True: 0, False: 0}
    accepted = proposing = 0
    for i, prompt in enumerate(some):
        answers = {}
        for draft in ((False, True) if i % 2 == 0 else (True, False)):
            a = client.chat(address, prompt.as_messages(), domain=prompt.domain, draft=draft, trace=False, max_tokens=max_tokens, temperature=0.0)
            answers[draft] = a
            if a.ok and a.tokens > 1:
                spent[draft] += a.done - a.first
                tokens[draft] += a.tokens - 1
            tick()
        accepted += answers[True].accepted
        proposing += answers[True].proposing
        if not answers[True].same_text(answers[False]):
            out.identical = False
            out.differing.append((prompt.name, answers[False].text, answers[True].text, answers[False].error or answers[True].error))
    out.plain_tok_s = tokens[False] / spent[False] if spent[False] else 0.0
    out.drafted_tok_s = tokens[True] / spent[True] if spent[True] else 0.0
    out.accept_length = 1 + accepted / proposing if proposing else 1.0
    return out
