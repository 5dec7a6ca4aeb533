"""Seven engine faults, injected into the real server (make faults, serve/fault.h), and what redraftd calls them: each one decay; the
engine without a fault, and after each one, nothing.

The programs are real; the target is a toy that a draft can foretell (toy_model.py --echo: accept length near 3), because a check
that compares acceptance sees nothing where nothing is accepted. The checks look every second or two here; by default once an hour, and the probes every ten minutes.
"""
import random
import re
import subprocess
import sys
import threading
import time

from broker import MockBroker
from conftest import BIN, ROOT, poll

sys.path.insert(0, str(ROOT / "tests" / "fixtures"))
import random_draft  # noqa: E402

WORDS = ["price", "city", "function", "target", "token", "draft", "answer", "weather", "order", "number", "list", "store"]
N = 70  # more than the newest that a comparison looks at, and than a domain's last requests
SERVED, LOST, FEATURES, PROBED = "was served at accept length", "lost their draft", "probes moved: features of", "probes moved: accept length"
# Whichever looks first raises the alarm. Probes draft with base, which goes on drafting rightly where only the version after it is wrong.
FAULTS = {
    "stale-page": (SERVED, PROBED),
    "wrong-boundary": (FEATURES,),
    "shifted-features": (FEATURES,),
    "wrong-weights": (SERVED, PROBED),
    "corrupt-d2t": (SERVED, PROBED),
    "overflow": (LOST, PROBED),
    "not-updated": (SERVED,),
}


def submit(stack, seed, target, wrong):
    folder = random_draft.submission(stack.store, stack.status("serve")["target_fp"], seed, head=target, wrong=wrong)
    return stack.call("daemon", "Submit", path=folder)["version"]


def question(i):
    """Two words often, some others once: what the answer is made of."""
    r = random.Random(i)
    often, seldom = r.sample(WORDS, 2)
    words = [often] * 24 + [seldom] * 12 + r.sample(WORDS, 8)
    r.shuffle(words)
    return [{"role": "system", "content": f"{i} asks"}, {"role": "user", "content": " ".join(words)}]  # no page is another request's


class Traffic:
    """Requests, four at a time; none may fail, whatever the draft does."""

    def __init__(self, stack):
        self.stack, self.sent = stack, 0

    def send(self, n):
        first, failed = self.sent, []

        def work(k):
            for i in range(first + k, first + n, 4):
                a = self.stack.chat(messages=question(i), conversation=f"c{i}", domain="code", max_tokens=24, temperature=0.9, seed=i)
                if not a.ok:
                    failed.append(a.error)
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        assert not failed, failed[:3]
        self.sent += n


def alarm(stack):
    return stack.call("daemon", "Drift")["decay"]


def promote(stack, version):
    rc, out, err = stack.ctl("promote", version)
    assert rc == 0, (out, err)


def looked(stack, compared, probed):
    """A function: has each check looked so often since?"""
    def count(what):
        return len(re.findall(what, (stack.dir / "daemon.log").read_text()))
    compare, probe = "served against replayed: version", "probes( moved)?: "
    compared, probed = count(compare) + compared, count(probe) + probed
    return lambda: count(compare) >= compared and count(probe) >= probed


def injected(stack, traffic, fault):
    """What is said of it, with how many requests and in what time."""
    start, first = time.monotonic(), traffic.sent
    while not poll(2, lambda: alarm(stack)) and traffic.sent < first + 6 * N:
        traffic.send(N // 2)
    said = alarm(stack)
    print(f"{fault:16} {traffic.sent - first:4} requests {time.monotonic() - start:5.1f} s  {said or 'nothing'}")
    return said


def well_again(stack, traffic):
    """Other requests are the newest, the alarm is taken back, and none comes."""
    traffic.send(N)
    assert poll(60, looked(stack, 2, 0))
    assert stack.ctl("release")[0] == 0
    quiet = looked(stack, 1, 1)
    poll(30, lambda: alarm(stack) or quiet())
    return not alarm(stack)


def test_seven_faults_are_called_decay(stack, monkeypatch, tmp_path):
    subprocess.run(["make", "-s", "faults"], cwd=ROOT, check=True)
    switch, model, tensors = tmp_path / "fault", tmp_path / "echo.gguf", tmp_path / "echo.safetensors"
    switch.write_text("none")
    monkeypatch.setenv("REDRAFT_FAULT_FILE", str(switch))
    stack.bins["redraft-serve"] = ROOT / "build" / "release" / "faults" / "bin" / "redraft-serve"
    subprocess.run([sys.executable, str(ROOT / "tests" / "fixtures" / "toy_model.py"), str(model), "--seed", "41", "--echo", "--hf", str(tensors)], check=True)
    broker = MockBroker(stack.family, BIN / "redraft-mock-broker", str(stack.dir))  # nothing here is read twice
    stack.start_serve(model, broker.address, max_seqs=4, draft_k=3, draft__mode="chain")
    stack.start_daemon(broker.address, probe__interval_s=2, drift__compare_s=1, gate__retry_s=60)
    good, other = submit(stack, 1, tensors, 0.01), submit(stack, 2, tensors, 0.05)
    promote(stack, other)
    promote(stack, good)
    stack.start_learn(broker.address, publish__interval_s=100000, train__draft_vocab=256, train__max_epochs=1)
    traffic, said = Traffic(stack), {}
    assert well_again(stack, traffic), alarm(stack)
    tokens = stack.status("serve")["tokens"]
    assert 1 + tokens["accepted"] / tokens["proposing_rounds"] > 2.5, tokens
    for fault in FAULTS:
        if fault == "not-updated":  # a switch, and the version before goes on drafting
            promote(stack, other)
        switch.write_text(fault)
        said[fault] = injected(stack, traffic, fault)
        if fault == "overflow":
            assert poll(60, lambda: stack.call("learn", "Status")["paused"] and stack.call("daemon", "Status")["hold"])
        switch.write_text("none")
        assert well_again(stack, traffic), (fault, alarm(stack))
    missed = {f: x for f, x in said.items() if not any(w in x for w in FAULTS[f])}
    assert not missed, missed
