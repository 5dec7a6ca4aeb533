"""A machine of its own for a test: systemd as PID 1 of a container, over an overlay of this very system.

What is installed there, started there and removed there never reaches the system below: the writable layer is a tmpfs that
goes with the container. Needs root and systemd-container; `why_not()` says what is missing, in one sentence.
"""
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

BOOT_S = 60


class NoMachine(Exception):
    """It cannot be had here; the text says why."""


def why_not():
    if os.geteuid() != 0:
        return "booting systemd in a container needs root"
    for program in ("systemd-nspawn", "nsenter", "dpkg-deb"):
        if not shutil.which(program):
            return f"{program} is not installed"
    return ""


class Machine:
    def __init__(self):
        self.dir = Path(tempfile.mkdtemp(prefix="rdm-"))
        self.root = self.dir / "m"
        self.nspawn = self.leader = None

    def __enter__(self):
        try:
            self._mount()
            self._prepare()
            self._boot()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _mount(self):
        def mount(*argv):
            r = subprocess.run(["mount", *map(str, argv)], capture_output=True, text=True, check=False)
            if r.returncode:
                raise NoMachine(f"mount -t {argv[1]}: {r.stderr.strip()}")
        mount("-t", "tmpfs", "tmpfs", self.dir)
        for name in "uwm":
            (self.dir / name).mkdir()
        mount("-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={self.dir}/u,workdir={self.dir}/w", self.root)

    def _prepare(self):
        """A bare boot: none of the services that the system below has enabled, and nothing that forbids starting ours."""
        (self.root / "usr/sbin/policy-rc.d").unlink(missing_ok=True)
        self.write("/etc/fstab", "")
        self.write("/etc/systemd/system/test.target", "[Unit]\nRequires=basic.target dbus.service\nAfter=basic.target dbus.service\nAllowIsolate=yes\n")

    def _boot(self):
        argv = ["systemd-nspawn", "-q", "-D", str(self.root), "-b", f"--machine=rdm-{os.getpid()}", "--private-network", "--register=no", "--keep-unit",
                "--console=pipe", "systemd.unit=test.target"]
        with open(self.dir / "console", "wb") as console:
            self.nspawn = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True)
        end = time.monotonic() + BOOT_S
        while time.monotonic() < end:
            if self.nspawn.poll() is not None:
                raise NoMachine(f"systemd-nspawn ended with status {self.nspawn.poll()}: {self.console()}")
            children = Path(f"/proc/{self.nspawn.pid}/task/{self.nspawn.pid}/children").read_text().split()
            self.leader = children[0] if children else None
            if self.leader and self.run("systemctl", "is-active", "-q", "test.target", check=False).returncode == 0:
                return
            time.sleep(0.1)
        raise NoMachine(f"systemd did not come up within {BOOT_S} s: {self.console()}")

    def console(self):
        return (self.dir / "console").read_text("utf-8", "replace")[-600:].strip() or "nothing on its console"

    def path(self, path):
        return self.root / str(path).lstrip("/")

    def write(self, path, text):
        p = self.path(path)
        p.parent.mkdir(parents=True, exist_ok=True)
        p.write_text(text)

    def run(self, *argv, check=True, timeout=60):
        """A program inside, as root, with its output as text."""
        r = subprocess.run(["nsenter", "-t", str(self.leader), "-m", "-u", "-i", "-n", "-p", "-r", "-w", "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
                            "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", *map(str, argv)],
                           capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, check=False)
        if check and r.returncode:
            raise AssertionError(f"{' '.join(map(str, argv))}: status {r.returncode}\n{r.stdout}{r.stderr}")
        return r

    def show(self, unit, name):
        return self.run("systemctl", "show", "-p", name, "--value", unit).stdout.strip()

    def journal(self, unit):
        return self.run("journalctl", "-q", "--no-pager", "-o", "cat", "-u", unit).stdout

    def wait(self, what, seconds, check, step=0.2):
        end = time.monotonic() + seconds
        while True:
            value = check()
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError(f"{what}: not within {seconds} s\n{self.state()}")
            time.sleep(step)

    def state(self):
        units = ("redraft-serve", "redraft-learn", "redraftd")
        return "\n".join(f"--- {u}\n" + "\n".join(self.journal(u).splitlines()[-15:]) for u in units) if self.leader else self.console()

    def __exit__(self, *_):
        if self.nspawn and self.nspawn.poll() is None:
            self.nspawn.send_signal(signal.SIGTERM)  # asks PID 1 to power off
            try:
                self.nspawn.wait(20)
            except subprocess.TimeoutExpired:
                self.nspawn.kill()
                self.nspawn.wait()
        for path in (self.root, self.dir):
            subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)
        shutil.rmtree(self.dir, ignore_errors=True)
        return False
