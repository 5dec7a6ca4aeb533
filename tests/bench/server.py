"""The servers that the bench loads, each for the length of a with block: redraft-serve with what belongs to it, and llama.cpp's."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "deploy" / "demo"), str(ROOT / "tests" / "fixtures")]

import client  # noqa: E402
import random_draft  # noqa: E402
import varlink  # noqa: E402
from broker import MockBroker  # noqa: E402
from procs import Child, Family, StartError, free_port, wait_until  # noqa: E402


class Server:
    """redraft-serve on args.model; broker: with the embedded broker; flags: its settings, dots as two underscores."""

    def __init__(self, args, threads, store=None, broker=False, **flags):
        self.args, self.threads, self.store, self.broker = args, threads, store, broker
        self.flags = {k.replace("__", "."): v for k, v in flags.items()}
        self.learner = None

    def __enter__(self):
        self.dir = Path(tempfile.mkdtemp(prefix="rdb-"))
        self.family = Family()
        self.address = f"127.0.0.1:{free_port()}"
        for name in ("serve", "learn"):
            (self.dir / name).mkdir()
        if self.store is None:
            self.store = self.dir / "store"
        self.store.mkdir(exist_ok=True)
        argv = [self.args.bin / "redraft-serve", "--model", self.args.model, "--listen", self.address, "--run_dir", self.dir / "serve",
                "--store", self.store, "--threads", self.threads]
        if self.broker:
            self.brokers = MockBroker(self.family, self.args.bin / "redraft-mock-broker", str(self.dir)).address
            argv += ["--capture.brokers", self.brokers]
        for k, v in self.flags.items():
            argv += [f"--{k}", v]
        began = time.monotonic()
        self.child = self.family.start(Child("redraft-serve", argv, str(self.dir / "log")))
        wait_until("it was ready", 120, lambda: client.get(self.address, "/health")[0] == 200, self.child, 0.005)
        self.start_s = time.monotonic() - began
        return self

    def __exit__(self, *_):
        if self.learner:
            self.learner.signal(signal.SIGCONT)
        self.family.stop()
        shutil.rmtree(self.dir, ignore_errors=True)

    def call(self, method, **parameters):
        return varlink.call(self.dir / "serve" / "control.sock", "io.redraft.Serve." + method, 60, **parameters)

    def status(self):
        return self.call("Status")

    def activate(self, n):
        """Makes version n of the store live; its manifest names its hash."""
        sha = json.loads((self.store / "versions" / str(n) / "manifest.json").read_text())["weights_sha"]
        self.activate_folder(n, self.store / "versions" / str(n), sha)

    def activate_folder(self, n, folder, sha):
        try:
            self.call("Load", version=n, path=str(folder), weights_sha=sha)
        except varlink.VarlinkError as e:
            if "already" not in str(e):
                raise
        self.call("Activate", version=n, move="new", source="operator")

    def activate_some_draft(self):
        """The newest version a demo left in build/demo/store, else the draft of the tree; with --smoke one of random weights. Says which."""
        kept = ROOT / "build" / "demo" / "store"
        for n in [] if self.args.smoke else store_versions(kept):
            folder = self.dir / f"version-{n}"
            shutil.copytree(kept / "versions" / str(n), folder)
            try:
                self.activate_folder(n, folder, json.loads((folder / "manifest.json").read_text())["weights_sha"])
                return f"the demo's version {n}"
            except varlink.VarlinkError:
                continue  # of another target
        if not self.args.smoke:
            self.activate_folder(1, self.dir / "base", unpack_base(self.args, self.dir / "base"))
            return "the draft of the tree"
        folder = self.dir / "random"
        self.activate_folder(1, folder, random_draft.write(folder, self.args.shape))
        return "a draft of random weights"

    def start_learner(self):
        """A learner that trains on what this server captures; train(False) stops it in its tracks."""
        argv = [self.args.bin / "redraft-learn", "--store", self.store, "--state_dir", self.dir / "learn-state", "--run_dir", self.dir / "learn",
                "--brokers", self.brokers, "--threads", 1, "--train.draft_vocab", 2048, "--init.min_tokens", 600]
        self.learner = self.family.start(Child("redraft-learn", argv, str(self.dir / "learn.log"), nice=10))
        return self.learner

    def train(self, on):
        self.learner.signal(signal.SIGCONT if on else signal.SIGSTOP)

    def capture(self, on):
        """Off: waits until what was captured is delivered, so that none of it is paid for in the next slice."""
        self.call("SetCapture", enabled=on)
        end = time.monotonic() + 3
        while not on and time.monotonic() < end:
            r = self.status()["records"]
            if r.get("delivered", 0) + sum(v for k, v in r.items() if k.startswith("dropped")) >= r.get("records", 0):
                return
            time.sleep(0.05)

    def resident_mib(self):
        """(all, of it mapped files), MiB."""
        with open(f"/proc/{self.child.pid}/status", encoding="utf-8") as f:
            found = {x.split(":")[0]: int(x.split()[1]) / 1024 for x in f if x.startswith(("VmRSS", "RssFile"))}
        return found["VmRSS"], found["RssFile"]


def unpack_base(args, folder):
    """The draft that comes with the tree as a standard folder; its hash."""
    done = subprocess.run([args.bin / "redraft-learn", "unpack", "--file", ROOT / "deploy" / "demo" / "base-draft.safetensors", "--out", folder],
                          capture_output=True, text=True, check=False)
    if done.returncode:
        raise StartError(f"the base draft cannot be expanded: {done.stderr.strip()}")
    return json.loads((folder / "submit.json").read_text())["weights_sha"]


def store_versions(store):
    """Numbers of the store's versions, newest first."""
    try:
        state = json.loads((store / "state.json").read_text())
    except (OSError, ValueError):
        return []
    numbers = sorted((v.get("number", v.get("version")) for v in state.get("versions", [])), reverse=True)
    return [n for n in numbers if (store / "versions" / str(n) / "model.safetensors").exists()]


class LlamaServer:
    """llama.cpp's server ($LLAMA_SERVER or on PATH) on the same weights, for comparison."""

    def __init__(self, model, threads, slots, context):
        self.model, self.threads, self.slots, self.context = model, threads, slots, context
        known = subprocess.run([self.program(), "--help"], capture_output=True, text=True, check=False).stdout
        unmapped = ["--load-mode", "none"] if "--load-mode" in known else ["--no-mmap"]  # the newer name first
        self.flags = ["-t", threads, "-np", slots, "-c", slots * context, "-b", 2048, *unmapped, "--no-webui"]

    @staticmethod
    def program():
        return os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")

    def __enter__(self):
        self.dir = Path(tempfile.mkdtemp(prefix="rdb-"))
        self.family = Family()
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        argv = [self.program(), "-m", self.model, "--host", "127.0.0.1", "--port", self.port, *self.flags]
        self.child = self.family.start(Child("llama-server", argv, str(self.dir / "log")))
        wait_until("it was ready", 120, lambda: client.get(self.address, "/health")[0] == 200, self.child)
        return self

    def __exit__(self, *_):
        self.family.stop()
        shutil.rmtree(self.dir, ignore_errors=True)
