"""What the demo shows while it runs: some fifteen lines redrawn in place on a terminal, one line every few seconds elsewhere."""
import shutil
import sys
import time

import stats

BAR = "▁▂▃▄▅▆▇█"


def sparkline(values, low, high):
    span = max(high - low, 1e-9)
    return "".join(BAR[min(7, max(0, int((v - low) / span * 8)))] for v in values)


def chunked_accept_lengths(sent, parts):
    """Accept length over consecutive groups of requests, at most `parts` of them."""
    if not sent:
        return []
    size = max(4, -(-len(sent) // parts))
    values = [stats.accept_length([s.answer for s in sent[i:i + size]]) for i in range(0, len(sent), size)]
    return [v for v in values if v is not None]


def number(value, form="{:.2f}", none="–"):
    return none if value is None else form.format(value)


def clock(seconds):
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class Display:
    """draw(view) takes a plain dict; see demo.View. On a terminal it overwrites what it drew last."""

    def __init__(self, out=sys.stdout, every=5.0):
        self.out, self.every = out, every
        self.tty = out.isatty()
        self.drawn = 0
        self.last = 0.0

    def say(self, text):
        """A lasting line; the view is drawn below it next time."""
        if self.tty and self.drawn:
            self.out.write(f"\x1b[{self.drawn}A\x1b[J")
            self.drawn = 0
        self.out.write(text + "\n")
        self.out.flush()

    def draw(self, view):
        now = time.monotonic()
        if not self.tty:
            if now - self.last >= self.every:
                self.last = now
                self.out.write(self.line(view) + "\n")
                self.out.flush()
            return
        width = shutil.get_terminal_size().columns - 1  # a wrapped line would spoil the next redraw
        lines = [line[:width] for line in self.screen(view)]
        if self.drawn:
            self.out.write(f"\x1b[{self.drawn}A")
        self.out.write("".join(f"\x1b[2K{line}\n" for line in lines) + "\x1b[J")
        self.out.flush()
        self.drawn = len(lines)

    @staticmethod
    def line(v):
        domains = " ".join(f"{d} {number(x['recent'])}" for d, x in v["domains"].items())
        return (f"{clock(v['elapsed'])} {v['phase']:<8} requests {v['done']} failed {v['failed']} | accept length {domains} | "
                f"serving v{v['live']} | steps {v['steps']} loss {number(v['loss'])} | "
                f"records {v['produced']}/{v['consumed']} dropped {v['dropped']}")

    @staticmethod
    def screen(v):
        out = [f"redraft demo  {clock(v['elapsed'])} of {clock(v['total'])}   {v['phase']}", ""]
        out.append(f"  requests   {v['done']} done, {v['running']} running, {v['failed']} failed   {v['tok_s']:.0f} tok/s")
        out.append("  accept length (1.00 = the draft never helps)")
        for domain, x in v["domains"].items():
            out.append(f"    {domain:<7} now {number(x['recent'])}   start {number(x['start'])}   "
                       f"{sparkline(x['curve'], 1.0, max(2.0, *x['curve'], 2.0))[-48:]}")
        out.append(f"  serving    version {v['live'] or 'none: plain decoding'}   previous {v['previous'] or '–'}")
        out.append(f"  learner    {v['steps']} steps, {v['trained']} tokens   loss {number(v['loss'])}"
                   f"{'   paused' if v['paused'] else ''}")
        out.append(f"  versions   made {v['made']}, accepted {v['accepted']}, rejected {v['rejected']}   switches {v['switches']}")
        out.append(f"  records    produced {v['produced']}, consumed {v['consumed']}, dropped {v['dropped']}")
        out.append("")
        out.extend(f"  {e}" for e in v["events"][-5:])
        return out
