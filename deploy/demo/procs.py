"""Child processes that cannot outlive the one that started them.

Each child is a session of its own, so Ctrl-C in the terminal reaches only the demo, which then stops them
in order; and each asks the kernel to be killed when its parent dies, so a demo that is itself killed leaves
nothing running. Standard library only; used by the demo, the bench and the system tests.
"""
import os
import shutil
import signal
import socket
import subprocess
import time


class StartError(Exception):
    """A program did not come up; the text says which, why, and holds the end of its log."""


def free_port():
    """A TCP port on loopback that nobody listens on now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def free_port_pair():
    """Two ports in a row: Kafka's client and controller listeners."""
    for _ in range(100):
        port = free_port()
        try:
            with socket.socket() as s:
                s.bind(("127.0.0.1", port + 1))
            return port
        except OSError:
            continue
    raise StartError("no two free ports in a row")


def wait_until(what, seconds, check, child=None, step=0.1):
    """Poll check() until it returns something true, and return that. A child that ends meanwhile is an error."""
    end = time.monotonic() + seconds
    while True:
        value = check()
        if value:
            return value
        if child is not None and child.poll() is not None:
            raise StartError(f"{child.name} ended with status {child.poll()} before {what}:\n{child.tail()}")
        if time.monotonic() > end:
            tail = "" if child is None else "\n" + child.tail()
            raise StartError(f"{what}: not within {seconds} s{tail}")
        time.sleep(step)


class Child:
    """One program, its log file, and the ways to stop it."""

    def __init__(self, name, argv, log, nice=0, env=None, cwd=None):
        self.name, self.argv, self.log, self.nice, self.env, self.cwd = name, [str(a) for a in argv], log, nice, env, cwd
        self.proc = None

    def start(self):
        argv = self.argv
        if self.nice:
            argv = ["nice", "-n", str(self.nice), *argv]
        if shutil.which("setpriv"):  # util-linux; execs the program, so the process id stays
            argv = ["setpriv", "--pdeathsig", "KILL", *argv]
        with open(self.log, "ab") as log:
            self.proc = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                                         env=self.env, cwd=self.cwd)
        return self

    @property
    def pid(self):
        return self.proc.pid

    def poll(self):
        return self.proc.poll() if self.proc else None

    def running(self):
        return self.proc is not None and self.proc.poll() is None

    def signal(self, number):
        if self.running():
            os.killpg(self.proc.pid, number)

    def stop(self, seconds=10):
        """TERM, then KILL. Returns the exit status, negative for a signal."""
        if self.proc is None:
            return None
        for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, 5)):
            self.signal(signal.SIGCONT)
            self.signal(number)
            try:
                return self.proc.wait(patience)
            except subprocess.TimeoutExpired:
                continue
        return self.proc.poll()

    def kill(self):
        self.signal(signal.SIGKILL)
        return self.proc.wait(10)

    def tail(self, lines=12):
        try:
            with open(self.log, "rb") as f:
                f.seek(max(0, os.path.getsize(self.log) - 8192))
                text = f.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return ""
        return "\n".join(f"  | {line}" for line in text[-lines:])

    def rss_mb(self):
        try:
            with open(f"/proc/{self.proc.pid}/statm") as f:
                return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
        except (OSError, AttributeError, IndexError):
            return 0.0


class Family:
    """All children of one run; stopping goes against the order of starting."""

    def __init__(self):
        self.children = []

    def start(self, child):
        self.children.append(child)
        return child.start()

    def stop(self):
        for child in reversed(self.children):
            child.stop()
        self.children.clear()
