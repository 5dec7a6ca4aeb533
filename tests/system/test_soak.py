"""Two minutes of make soak, and half a minute of clients that mean harm: nothing leaks, nobody else notices."""
import os
import random
import subprocess
import sys
import threading

from conftest import BIN, ROOT, poll

sys.path.insert(0, str(ROOT / "tests" / "soak"))

import hostile  # noqa: E402
from soak import Report, Soak, fit  # noqa: E402

MINUTES = float(os.environ.get("SOAK_MINUTES", "2"))


def test_the_judges_can_say_no():
    rng = random.Random(3)
    noisy = [(i / 2, 30 + rng.gauss(0, 1)) for i in range(240)]
    rise, allowed, _ = fit(noisy)
    assert rise <= allowed
    rise, allowed, _ = fit([(t, m + 0.1 * t) for t, m in noisy])  # 6 MiB over the second half
    assert rise > allowed
    good = dict(answers=100, drafted=50, accepted=9, switches=3, fds=(9, 9))
    assert not Report(**good).faults()
    for bad in ({"answers": 3}, {"accepted": 0}, {"changed": ["x"]}, {"failed": ["x"]}, {"fds": (9, 30)}, {"growth": (6.0, 2.0, 0.0)}, {"growth": (float("nan"), 2.0, 0.0)}, {"heap": (6.0, 2.0, 0.0)},
                {"ended": -11}, {"held": 0.25}, {"held": float("nan")}):
        assert len(Report(**{**good, **bad}).faults()) == 1, bad
    judge = lambda reply, due="whole", closed=True: hostile.judge("kind", b"raw", due, reply, closed)
    fine = b'HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n\r\n{"error":{"message":"max_tokens must be a number."}}'
    assert not judge(fine) and not judge(b"") and not judge(b"", "part", False)
    for bad in (b"garbage", fine.replace(b" 400 ", b" 500 "), fine.replace(b"a number", b"a\\nnumber"), fine.replace(b'"error"', b'"other"')):
        assert judge(bad), bad
    assert judge(b"", "whole", False)


def test_soak(toy, tmp_path):
    head = tmp_path / "toy.safetensors"
    subprocess.run([sys.executable, str(ROOT / "tests" / "fixtures" / "toy_model.py"), str(tmp_path / "toy.gguf"), "--seed", "1", "--hf", str(head)], check=True)
    report = Soak(BIN, tmp_path / "toy.gguf", "toy", head, MINUTES).go()
    print(report.text())
    assert not report.faults(), report.faults()


def test_hostile_clients_hurt_nobody(stack):
    child = stack.start_serve(max_context=512)
    ask = lambda i: stack.chat(f"Item {i}?", temperature=0.5 * (i % 2), seed=i, max_tokens=24)
    before = [ask(i) for i in range(12)]
    assert all(a.ok for a in before)
    fds = lambda: len(os.listdir(f"/proc/{child.pid}/fd"))
    idle = fds()
    ending, different, asked = threading.Event(), [], [0]

    def honest(first):
        i = first
        while not ending.is_set():
            a = ask(i % 12)
            asked[0] += 1
            if a.status != 429 and not a.same_text(before[i % 12]):
                different.append((i % 12, a.status, a.error, a.text))
            i += 1
    threads = [threading.Thread(target=honest, args=(3 * i,)) for i in range(4)]
    for t in threads:
        t.start()
    seen = hostile.hostile(stack.address, 30)
    ending.set()
    for t in threads:
        t.join()
    print(f"{seen.sent}\n{seen.statuses}\n{asked[0]} honest requests")
    assert child.running(), child.tail(40)
    assert not different, different[:3]
    assert asked[0] >= 8
    assert not seen.faults(), seen.faults()
    assert poll(60, lambda: stack.status("serve").get("running") == 0 and fds() <= idle + 2), (fds(), idle, stack.status("serve"))
