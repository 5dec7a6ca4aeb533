"""The end of the demo: the table, the JSON summary, the HTML report, and the exit status with its reasons."""
import json
import os
import platform

import report
import stats

ACCEPTED = ("gated", "canary", "live", "previous", "retired", "quarantined")


def record_counts(serve, learn):
    """Produced, consumed and dropped trace records as server and learner report them."""
    made, read = serve.get("records") or {}, learn.get("records") or {}
    return {"produced": made.get("records", made.get("produced", 0)),
            "consumed": read.get("consumed", read.get("records", 0)),
            "dropped": sum(v for k, v in made.items() if k.startswith("dropped"))}


def interval_text(x):
    return "–" if x is None else f"{x[0]:+.2f} [{x[1]:+.2f}, {x[2]:+.2f}]"


def value_text(x):
    return "–" if x is None else f"{x[0]:.2f} [{x[1]:.2f}, {x[2]:.2f}]"


def ends(sent, domain, n):
    """The first and the last n drafted requests of a domain; fewer when there are not 2n."""
    mine = [s.answer for s in sent if s.domain == domain and s.drafted() and not s.during]  # not those of the rollback step
    n = min(n, len(mine) // 2)
    return mine[:n], mine[len(mine) - n:] if n else []


class Outcome:
    def __init__(self, demo):
        self.demo = demo
        self.sent = [s for s in demo.traffic.snapshot()]
        self.failed = [s for s in self.sent if not s.answer.ok]
        self.n = 24 if demo.minutes >= 6 else 12
        self.domains = [d for d in demo.traffic.library if any(s.domain == d for s in self.sent)]
        self.ends = {d: ends(self.sent, d, self.n) for d in self.domains}
        self.rise = stats.mean_rise(list(self.ends.values()))
        self.counts = record_counts(demo.status["serve"], demo.status["learn"])

    def checks(self):
        """[(what, met)]: the mechanics, and from 8 minutes on the rise of a draft that began with nothing."""
        d, rb, bench = self.demo, self.demo.rollback, self.demo.bench
        states = [v["state"] for v in d.status["versions"]]
        out = [
            ("no request failed", not self.failed),
            ("records were produced and consumed", self.counts["produced"] > 0 and self.counts["consumed"] > 0),
            ("training steps were taken", d.status["learn"].get("step", 0) > 0),
            ("a version was made, accepted and served", any(s in ACCEPTED for s in states) and any(w["version"] for w in d.switches)),
            ("rollback worked, no request failed, no answer changed", rb.ran and rb.before > 0 and rb.after != rb.before
             and rb.failed == 0 and rb.changed == 0 and rb.checked > 0),
            ("outputs identical to plain decoding", bench.identical and not d.differing and d.compared > 0),
        ]
        if d.start == "base":  # it is good at both domains from the start: what a few minutes may do is not spoil it
            out.append(("a version of the learner's own was judged", any(v["version"] > 1 and v["state"] != "candidate" for v in d.status["versions"])))
            if d.minutes >= 8:  # the first and the last prompts differ too, so a little is no fall
                out.append(("accept length held (no sure fall by 0.1)", self.rise is not None and self.rise[2] > -0.1))
        elif d.minutes >= 8:
            out.append(("accept length rose (lower bound above 0)", self.rise is not None and self.rise[1] > 0))
        return out

    def domain_rows(self):
        rows = []
        for d in self.domains:
            start, end = self.ends[d]
            drafted = sum(s.domain == d and s.drafted() for s in self.sent)
            rows.append([d, f"{sum(s.domain == d for s in self.sent)} ({drafted} drafted)", value_text(stats.with_interval(start)),
                         value_text(stats.with_interval(end)), interval_text(stats.rise(start, end))])
        return rows

    def table(self):
        d, rb, b = self.demo, self.demo.rollback, self.demo.bench
        states = [v["state"] for v in d.status["versions"]]
        learn = d.status["learn"]
        return [
            ["requests", f"{len(self.sent)} served, {len(self.failed)} failed"],
            ["mean rise of accept length (95 %)", interval_text(self.rise)],
            ["versions", f"{len(states)} made, {sum(s in ACCEPTED for s in states)} accepted, {states.count('rejected')} rejected; {len(d.switches)} switches"],
            ["training", f"{learn.get('step', 0)} steps, {learn.get('trained_tokens', 0)} tokens, loss {learn.get('loss') or float('nan'):.3f}"],
            ["trace records", f"{self.counts['produced']} produced, {self.counts['consumed']} consumed, {self.counts['dropped']} dropped"],
            ["rollback under load", f"version {rb.before} to {rb.after or 'plain decoding'}: {rb.failed} failed, {rb.changed} of {rb.checked} answers changed, "
             f"longest gap between pieces of text {rb.longest_gap_ms:.0f} ms"],
            ["tokens/s plain, drafted (batch 1, learner paused)", f"{b.plain_tok_s:.1f}, {b.drafted_tok_s:.1f} ({b.ratio():.2f} x; version {b.version}, "
             f"accept length {b.accept_length:.2f}, {b.prompts} prompts)"],
            ["outputs identical to plain decoding", f"{'yes' if b.identical and not d.differing else 'NO'} ({b.prompts} in the bench, {d.compared} of the run)"],
        ]

    def summary(self):
        d = self.demo
        return {
            "what": f"SmolLM2-135M-Instruct, {d.minutes:g} minutes, broker {d.args.broker}, {d.args.clients} clients, {os.cpu_count()} CPUs "
                    f"({platform.machine()}), draft length 3",
            "minutes": d.minutes, "domains": self.domains, "table": self.table(), "domain_table": self.domain_rows(), "events": d.events,
            "switches": d.switches, "training": d.training, "checks": [[w, bool(m)] for w, m in self.checks()], "rise": self.rise,
            "bench": {"plain_tok_s": d.bench.plain_tok_s, "drafted_tok_s": d.bench.drafted_tok_s, "ratio": d.bench.ratio(),
                      "accept_length": d.bench.accept_length, "prompts": d.bench.prompts},
            "records": self.counts,
            "version_table": [[v["version"], v["state"], v.get("reason", ""), v.get("created", "")[11:19]] for v in d.status["versions"]],
            "requests": [{"n": i + 1, "domain": s.domain, "at": round(s.at, 2), "tokens": s.answer.tokens, "versions": s.answer.versions,
                          "proposing": s.answer.proposing, "accepted": s.answer.accepted, "ok": s.answer.ok} for i, s in enumerate(self.sent)],
            "differing": [{"prompt": s.prompt.name, "served": s.answer.text, "plain": p.text, "error": p.error, "params": s.params} for s, p in d.differing]
            + [{"prompt": n, "plain": p, "drafted": t, "error": e} for n, p, t, e in d.bench.differing],
        }


def print_table(outcome):
    print("\naccept length by domain: first and last requests that were drafted, with 95 % intervals")
    print(f"  {'domain':<8}{'requests':<22}{'start':<22}{'end':<22}rise")
    for row in outcome.domain_rows():
        print(f"  {row[0]:<8}{row[1]:<22}{row[2]:<22}{row[3]:<22}{row[4]}")
    print()
    for name, value in outcome.table():
        print(f"  {name:<52}{value}")
    print()
    for what, met in outcome.checks():
        print(f"  {'yes' if met else 'NO ':<4} {what}")


def finish(demo):
    """Prints, writes, and returns the exit status."""
    o = Outcome(demo)
    demo.display.draw(demo.view())
    print_table(o)
    for s in o.failed[:5]:
        print(f"  failed: {s.prompt.name}: {s.answer.error}")
    summary = o.summary()
    with open(os.path.join(demo.out, "summary.json"), "w", encoding="utf-8") as f:
        json.dump(summary, f, indent=1)
    path = os.path.join(demo.out, "report.html")
    with open(path, "w", encoding="utf-8") as f:
        f.write(report.render(summary))
    print(f"\n  report   {path}\n  summary  {os.path.join(demo.out, 'summary.json')}")
    return 0 if all(met for _, met in o.checks()) else 1
