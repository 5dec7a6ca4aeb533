"""A wall clock that is set forward and back by hours under server and daemon: one clear sentence each time, and nothing else. What waits goes on
waiting for as long as before, records are read, nothing is removed for its age, orders are carried out, and the audit log stays whole."""
import struct
import subprocess

import pytest
from broker import MockBroker
from conftest import BIN, ROOT, poll
from test_operate import submit

HOUR = 3600 * 1000


@pytest.fixture
def clock(tmp_path, monkeypatch):
    """clock(ms): from now on the programs' wall clock is so far off the real one."""
    shim, file = tmp_path / "clock_shim.so", tmp_path / "clock"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", shim, ROOT / "tests" / "fixtures" / "clock_shim.c", "-ldl"], check=True)
    file.write_bytes(struct.pack("<q", 0))
    monkeypatch.setenv("REDRAFT_TEST_CLOCK", str(file))
    monkeypatch.setenv("LD_PRELOAD", str(shim))

    def jump(ms):
        with open(file, "r+b") as f:  # in place: it is mapped
            f.write(struct.pack("<q", ms))
    yield jump


@pytest.mark.skipif("asan" in str(BIN), reason="a sanitizer wants to be the first library")
def test_the_clock_jumps(stack, clock, monkeypatch):
    s, broker = stack, MockBroker(stack.family, str(BIN / "redraft-mock-broker"), str(stack.dir))
    s.start_serve(brokers=broker.address)
    s.start_daemon(broker.address, rollout__interval_s=0, rollout__freeze="", store__max_age_s=3600, store__keep=100)
    monkeypatch.delenv("LD_PRELOAD")
    s.wait("the topic is read", 60, lambda: s.status("daemon")["watch"]["partitions"] > 0, "daemon")
    numbers = [submit(s, 1), submit(s, 2)]
    for n in numbers:
        assert s.ctl("promote", n)[0] == 0
    seen = lambda: sum(d["requests"] for d in s.status("daemon")["domains"].values())
    said = lambda word: [e["text"] for e in s.call("daemon", "Tail", last=200)["events"] if word in e["text"]]

    def all_is_well():
        before = seen()
        assert poll(60, lambda: (s.chat(headers={"X-Redraft-Deadline-Ms": "60000"}).ok, seen() > before)[1], 0.3), s.status("daemon")["watch"]
        numbers.append(submit(s, len(numbers) + 1, numbers[-1]))
        assert s.ctl("promote", numbers[-1])[0] == 0  # after which the store is looked through for what is too old
        assert [v["version"] for v in s.ctl_json("versions")["versions"]] == numbers
        assert s.status("serve")["live"] == numbers[-1]
    all_is_well()
    clock(5 * HOUR)
    s.wait("it is said", 60, lambda: said("the clock was set forward by 300 min"), "daemon")
    all_is_well()
    clock(-5 * HOUR)
    s.wait("it is said", 60, lambda: said("the clock was set back by 600 min"), "daemon")
    all_is_well()
    left = numbers[-1]
    assert s.ctl("rollback")[0] == 0 and s.status("daemon")["live"] == numbers[-2]
    clock(0)
    s.wait("it is said", 60, lambda: len(said("the clock was set")) == 3, "daemon")
    audit = s.ctl_json("audit", "--verify", "--last", 200)
    assert audit["whole"] and [r["what"] for r in audit["records"]].count("Clock") == 3
    assert s.status("daemon")["uptime_s"] < 3600 and s.status("serve")["uptime_s"] < 3600
    states = {v["version"]: v["state"] for v in s.ctl_json("versions")["versions"]}
    assert states[left] == "quarantined" and states[numbers[-2]] == "live", states
    assert s.children["daemon"].stop(30) == 0 and s.children["serve"].stop(30) == 0
