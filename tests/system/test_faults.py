"""What happens when something dies: the learner, the daemon, the broker. Serving goes on; what was promised holds."""
import http.client
import json
import os
import signal
import threading
import time

from conftest import poll
from test_loop import LEARN, Clients, check_store, live, start, versions


def test_broker_gone_serving_unchanged(stack, kafka):
    stack.start_serve(stack.toy(31), kafka.address, capture__queue_mb=1, capture__ring_mb=1)
    reference = [stack.chat(f"Item {i}?", temperature=0.5, seed=i, trace=False, draft=False) for i in range(20)]
    dropped = lambda: sum(v for k, v in stack.status("serve")["records"].items() if k.startswith("dropped"))
    for fault, mend in ((kafka.pause, kafka.resume), (kafka.kill, kafka.start)):
        fault()
        try:
            slowest, n = 0.0, 0
            end = time.monotonic() + 25
            was = dropped()
            while time.monotonic() < end and (n < 20 or dropped() == was):
                a = stack.chat(f"Item {n % 20}?", temperature=0.5, seed=n % 20)
                assert a.same_text(reference[n % 20]), (a.error, a.text)
                slowest = max(slowest, a.done - a.sent)
                n += 1
            assert slowest < 5, slowest
            assert dropped() > was, (fault.__name__, n, stack.status("serve")["records"])
        finally:
            mend()
        delivered = stack.status("serve")["records"].get("delivered", 0)
        def flows():
            assert stack.chat("Is it back?").ok
            return stack.status("serve")["records"].get("delivered", 0) > delivered
        assert poll(60, flows, 0.5), stack.status("serve")["records"]


def test_serving_starts_without_a_broker(stack):
    stack.start_serve(stack.toy(32), "127.0.0.1:1")
    assert stack.chat().ok
    assert stack.status("serve")["records"] is not None


def test_last_answer_is_whole_when_the_server_is_stopped(stack):
    child = stack.start_serve(stack.toy(36))
    answers = []

    def ask():
        body = {"prompt": "A long one", "max_tokens": 480, "ignore_eos": True}
        connection = http.client.HTTPConnection(stack.address, timeout=20)
        connection.request("POST", "/v1/completions", json.dumps(body))
        answers.append(json.loads(connection.getresponse().read()))

    asks = [threading.Thread(target=ask) for _ in range(4)]
    for a in asks:
        a.start()
    assert poll(60, lambda: stack.status("serve").get("running") == 4, 0.005)
    assert child.stop(20) == 0
    for a in asks:
        a.join(20)
    assert [a["usage"]["completion_tokens"] for a in answers] == [480] * 4


def test_daemon_killed_while_versions_are_made(stack, kafka):
    start(stack, kafka, 33)
    clients = Clients(stack)
    stack.wait("a version serves", 150, lambda: live(stack) >= 1, "learn")
    for i in range(4):
        # at an arbitrary moment between two submissions
        time.sleep(0.37 + 0.61 * i)
        stack.children["daemon"].kill()
        serving = live(stack)
        assert serving > 0
        stack.again("daemon")
        stack.wait_status("daemon")
        check_store(stack)
        assert stack.call("daemon", "Status")["live"] == live(stack) or poll(60, lambda: stack.call("daemon", "Status")["live"] == live(stack))
    n = max(versions(stack))
    stack.wait("a new version is made", 60, lambda: max(versions(stack)) > n, "learn")
    clients.stop()
    clients.check(60)
    check_store(stack)


def test_server_killed_comes_back_with_the_live_version(stack, kafka):
    start(stack, kafka, 34)
    clients = Clients(stack)
    stack.wait("a version serves", 150, lambda: live(stack) >= 1, "learn")
    clients.stop()
    stack.children["learn"].signal(signal.SIGSTOP)  # no new versions meanwhile
    n = live(stack)
    stack.children["serve"].kill()
    stack.again("serve")
    stack.wait_serve()
    assert poll(60, lambda: live(stack) == n), (live(stack), n)
    assert stack.chat(draft=True).same_text(stack.chat(draft=False))


def test_bad_records_are_counted_and_skipped(stack, kafka):
    import kcat_reader
    start(stack, kafka, 35)
    for junk in (b"", b"junk", b"\xff" * 64, os.urandom(5000), (8).to_bytes(8, "little") + b'{"a": 1}'):
        kcat_reader.produce(kafka.address, "redraft.traces", junk)
    clients = Clients(stack)
    stack.wait("a version serves", 150, lambda: live(stack) >= 1, "learn")
    clients.stop()
    records = stack.status("learn")["records"]
    assert sum(v for k, v in records.items() if isinstance(v, int) and ("bad" in k or "aside" in k or "reject" in k)) >= 4, records
    assert stack.children["learn"].running()


def test_killed_learner_resumes_exactly(stack, kafka):
    """Killed twice without warning, it must have trained what its journal, followed by an unbroken run, trains."""
    start(stack, kafka, 36, **{"checkpoint__interval_s": 2})
    clients = Clients(stack)
    stack.wait("training runs", 150, lambda: stack.status("learn").get("step", 0) >= 10, "learn")
    for i in range(2):
        time.sleep(0.9 + i)
        stack.children["learn"].kill()
        step = last_step(stack)
        stack.again("learn")
        stack.wait_status("learn", 30)
        stack.wait("training goes on", 60, lambda: stack.status("learn").get("step", 0) >= step + 8, "learn")
    clients.stop()
    stack.children["learn"].stop(20)
    follow = stack.start_learn(kafka.address, name="follow", wait=False, follow_journal=stack.dir / "learn-state" / "journal",
                               **{**LEARN, "checkpoint__interval_s": 2})
    stack.wait("the journal was followed", 120, lambda: not follow.running())
    assert follow.poll() == 0, follow.tail()
    assert weights(stack, "learn") == weights(stack, "follow")


def last_step(stack):
    import re
    text = (stack.dir / "learn-state" / "journal").read_text("utf-8", "replace")
    steps = re.findall(r"^step\D+(\d+)", text, re.M | re.I)
    return int(steps[-1]) if steps else 0


def weights(stack, name):
    """SHA-256 of the f32 masters in the newest checkpoint."""
    import hashlib
    import safetensors_reader
    newest = max((stack.dir / f"{name}-state" / "checkpoint").iterdir(), key=lambda p: p.name)
    _, tensors = safetensors_reader.read(newest.read_bytes())
    return hashlib.sha256(tensors["params"].data).hexdigest(), hashlib.sha256(tensors["moments"].data).hexdigest()
