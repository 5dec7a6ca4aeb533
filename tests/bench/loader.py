"""The load generator (tests/bench/load) as the bench drives it: slices in alternating order, what is toggled between them.

Why slices: a figure of a few per cent drowns in what else the machine does. So both arms run in one server (or two that are up at the same
time), in short slices, A B B A, over the same dialogues, and the interval is a bootstrap over pairs of slices. What is left
of the machine shows in the interval; what the order does cancels.
"""
import json
import subprocess


class LoadError(Exception):
    """The generator ended, or requests failed where none may."""


class Load:
    """with Load(args, address, clients=8, ...) as load: load.slice("plain draft=off"); then load.labels, load.ratios."""

    def __init__(self, args, address, **flags):
        self.argv = [args.bin.parent / "bench" / "load", "--target", address, "--slices", "on"]
        for k, v in flags.items():
            self.argv += [f"--{k.replace('__', '.')}", v]
        self.table_path = args.out / "load.txt"
        self.labels, self.ratios = {}, {}

    def __enter__(self):
        with open(self.table_path, "ab") as table:
            self.proc = subprocess.Popen([str(a) for a in self.argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=table, text=True)
        return self

    def slice(self, line):
        self.proc.stdin.write(line + "\n")
        self.proc.stdin.flush()
        answer = self.proc.stdout.readline()
        if '"ended"' not in answer:
            self.proc.stdin.close()
            raise LoadError(f"the load generator ended with {self.proc.wait(10)}; see {self.table_path}")

    def __exit__(self, kind, *_):
        if kind is not None:
            self.proc.kill()
            self.proc.wait()
            return
        out, _ = self.proc.communicate()
        for line in out.splitlines():
            row = json.loads(line)
            if "against" in row:
                self.ratios[row["label"]] = row["ratio"]
            elif "label" in row:
                self.labels[row["label"]] = row
        if self.proc.returncode != 0:
            failed = {k: v["failed"] for k, v in self.labels.items() if v["failed"]}
            raise LoadError(f"requests failed: {failed or self.proc.returncode}; see {self.table_path}")


def once(args, address, label="run", **flags):
    """One label in one slice: its row."""
    with Load(args, address, **flags) as load:
        load.slice(label)
    return load.labels[label.split()[0]]


def alternate(load, arms, repeats, before=None):
    """Runs the arms (slice lines) in turn, every second time backwards; before(line) sets what an arm needs."""
    for i in range(repeats):
        for line in (arms if i % 2 == 0 else arms[::-1]):
            if before:
                before(line)
            load.slice(line)
