"""The whole loop on the toy model and a real Kafka: traffic, records, first version, training, gate, switch, rollback, all
while requests run, of which none may fail and none may change."""
import json
import signal
import threading

import pytest

import client
from conftest import poll

# A toy target's text is near random, so the gate may stay undecided about later versions; the first is let in.
DAEMON = {"rollout__interval_s": 1, "rollout__first_min_al": 1.0, "gate__min_requests": 4, "gate__retry_s": 0.5,
          "canary__steps": "500", "canary__step_s": 2}
LEARN = {"train__draft_vocab": 256, "publish__interval_s": 2, "publish__min_steps": 4, "train__ttt_steps": 5, "init__min_tokens": 3000}


class Clients:
    """Workers that keep asking; every answer is kept with its question."""

    def __init__(self, stack, workers=3, max_tokens=24):
        self.stack, self.max_tokens = stack, max_tokens
        self.asked, self.lock, self.ending, self.number = [], threading.Lock(), threading.Event(), 0
        self.threads = [threading.Thread(target=self.work, daemon=True) for _ in range(workers)]
        for t in self.threads:
            t.start()

    def work(self):
        while not self.ending.is_set():
            with self.lock:
                i = self.number
                self.number += 1
            how = {"max_tokens": self.max_tokens, "temperature": 0.0 if i % 3 else 0.9, "seed": i}
            text = f"Question {i % 40}: what is the price of item number {i % 7} in Berlin?"
            answer = self.stack.chat(text, domain="tools" if i % 2 else "code", conversation=f"c{i}", **how)
            with self.lock:
                self.asked.append((text, how, answer))
            if not answer.ok:
                self.ending.wait(0.2)

    def stop(self):
        self.ending.set()
        for t in self.threads:
            t.join(60)
        return self.asked

    def check(self, limit=150):
        """No request failed, and plain decoding says the same for all (up to limit, newest first)."""
        failed = [a.error for _, _, a in self.asked if not a.ok]
        assert not failed, (len(failed), failed[:3])
        for text, how, answer in self.asked[-limit:]:
            plain = self.stack.chat(text, draft=False, trace=False, **how)
            assert plain.same_text(answer), (text, how, plain.error, plain.text, answer.text, answer.versions)


def start(stack, kafka, seed, **learn):
    stack.start_serve(stack.toy(seed), kafka.address, max_seqs=4, draft_k=3, draft__mode="chain")
    stack.start_daemon(kafka.address, **DAEMON)
    stack.start_learn(kafka.address, **{**LEARN, **learn})


def live(stack):
    return stack.status("serve").get("live", 0)


def test_the_loop_turns_and_rolls_back(stack, kafka):
    start(stack, kafka, 21)
    clients = Clients(stack)
    stack.wait("a version serves", 150, lambda: live(stack) >= 1, "learn")
    first = live(stack)
    stack.wait("a later version is made", 100, lambda: max(versions(stack)) > first, "learn")
    if not poll(5, lambda: live(stack) > first):
        rc, out, err = stack.ctl("promote", max(versions(stack)))
        assert rc == 0, (out, err)
    stack.wait("a later version serves", 60, lambda: live(stack) > first)
    check_served_equals_replayed(stack, first)
    before = live(stack)
    rc, out, err = stack.ctl("rollback")
    assert rc == 0, (out, err)
    after = live(stack)
    assert after < before
    stack.wait("requests ran on", 60, lambda: any(a.sent > 0 for _, _, a in clients.asked[-5:]) and len(clients.asked) > 40)
    assert versions(stack)[before]["state"] == "quarantined"
    rc, out, err = stack.ctl("promote", before)
    assert rc == 0, (out, err)
    assert live(stack) == before
    # twice in a row: to the next older one that is not quarantined, in the end to none at all
    seen = [before]
    for _ in range(12):
        rc, out, err = stack.ctl("rollback")
        assert rc == 0, (out, err)
        seen.append(live(stack))
        if seen[-1] == 0:
            break
    assert seen[-1] == 0 and len(set(seen)) == len(seen), seen
    asked = clients.stop()
    clients.check()
    used = {v for _, _, a in asked for v in a.versions}
    assert {first, before} <= used, used
    learn = stack.status("learn")
    assert learn["step"] > 0 and learn["trained_tokens"] > 0
    check_store(stack)


def check_served_equals_replayed(stack, version):
    """The engine does what the weights say: the rounds that were served, replayed by the learner, have as many accepted."""
    x = stack.call("learn", "CompareServed", version=version, requests=40)
    assert x["requests"] >= 2 and x["rounds"] >= 20, x
    assert abs(x["served_al"] - x["replayed_al"]) <= 0.02, x


def versions(stack):
    return {v["version"]: v for v in stack.call("daemon", "Versions")["versions"]}


def check_store(stack):
    """Every numbered folder is whole, and says of its files what they are."""
    import hashlib
    for n in versions(stack):
        folder = stack.store / "versions" / str(n)
        manifest = json.loads((folder / "manifest.json").read_text())
        assert manifest["number"] == n
        hashes = {hashlib.sha256((folder / f).read_bytes()).hexdigest() for f in ("model.safetensors", "config.json")}
        assert hashes <= set(json.dumps(manifest).replace('"', " ").split()), manifest
    assert not list((stack.store / "versions").glob("*.tmp*"))


def test_ctl_speaks_json_and_prose(stack, kafka):
    start(stack, kafka, 22)
    clients = Clients(stack)
    stack.wait("a version serves", 150, lambda: live(stack) >= 1, "learn")
    clients.stop()
    status = stack.ctl_json("status")
    assert status["live"] == live(stack)
    table = stack.ctl_json("versions")
    assert table["versions"][0]["version"] >= 1
    shown = stack.ctl_json("show", status["live"])
    assert shown["version"]["version"] == status["live"] and shown["manifest"]
    rc, out, _ = stack.ctl("status")
    assert rc == 0 and str(status["live"]) in out
    assert stack.ctl("show", "999")[0] == 1
    assert stack.ctl("pin")[0] == 0 and stack.ctl_json("status")["pin"] == status["live"]
    assert stack.ctl("unpin")[0] == 0 and stack.ctl_json("status")["pin"] == 0


def test_hold_release_and_drift(stack, kafka):
    start(stack, kafka, 29)
    for verb, held in (("hold", True), ("release", False)):
        rc, out, err = stack.ctl(verb)
        assert rc == 0 and "done" in out, (out, err)
        assert stack.call("daemon", "Status")["hold"] is held
    rc, out, err = stack.ctl("drift")
    assert rc == 0 and "no drift" in out, (out, err)
    rc, out, err = stack.ctl("--json", "drift")
    assert json.loads(out)["level"] == 0 and json.loads(out)["decay"] == ""


def test_rollback_without_the_daemon(stack, kafka):
    start(stack, kafka, 23)
    clients = Clients(stack)
    stack.wait("a version serves", 150, lambda: live(stack) >= 1, "learn")
    stack.children["daemon"].kill()
    before = live(stack)
    rc, out, err = stack.ctl("rollback")
    assert rc == 0, (out, err)
    assert live(stack) != before
    assert stack.ctl("versions")[0] == 3
    # the server was started with the override in its store: it holds across a restart
    chosen = live(stack)
    clients.stop()
    clients.check(40)
    stack.children["serve"].stop()
    stack.again("serve")
    stack.wait_serve()
    assert live(stack) == chosen
    # a daemon that returns adopts the operator's word, and does not promote over it
    stack.again("daemon")
    stack.wait_status("daemon")
    assert poll(60, lambda: stack.call("daemon", "Status")["live"] == chosen)
    assert poll(60, lambda: versions(stack)[before]["state"] == "quarantined")


def test_draft_of_another_target_is_refused(stack, kafka, toy):
    start(stack, kafka, 24)
    clients = Clients(stack)
    stack.wait("a version serves", 150, lambda: live(stack) >= 1, "learn")
    clients.stop()
    n = live(stack)
    folder = stack.store / "versions" / str(n)
    manifest = json.loads((folder / "manifest.json").read_text())
    other = type(stack)(stack.folder, toy)
    try:
        other.start_serve(toy(25))
        import varlink
        with pytest.raises(varlink.VarlinkError) as e:
            other.call("serve", "Load", version=n, path=str(folder), weights_sha=manifest["weights_sha"])
        assert "target" in e.value.message or "fingerprint" in e.value.message, e.value
        assert other.chat().ok and other.status("serve")["live"] == 0
        # the right target, the wrong hash: the answer carries what was read, and it is not kept
        held = stack.call("serve", "Load", version=n + 1000, path=str(folder), weights_sha="0" * 64)
        assert held["weights_sha"] == manifest["weights_sha"]
        assert n + 1000 not in [s["version"] for s in stack.status("serve")["slots"]]
    finally:
        other.close()
    assert client.get(stack.address, "/health")[0] == 200


def test_metrics_of_the_daemon(stack, kafka):
    (stack.dir / "learn.conf").write_text("")
    start(stack, kafka, 26, config=stack.dir / "learn.conf", train__max_epochs=1000)
    clients = Clients(stack)
    stack.wait("a version serves", 150, lambda: live(stack) >= 1, "learn")
    clients.stop()
    assert poll(60, lambda: "redraft_" in client.get(stack.metrics, "/metrics")[1])
    text = client.get(stack.metrics, "/metrics")[1]
    assert "accept" in text, text[:2000]
    text = client.get(stack.address, "/metrics")[1]
    for name in ("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"):
        assert name in text, text[:3000]
    check_pace(stack)


def check_pace(stack):
    """An objective that nothing can meet, taken up while it runs: the learner pauses for as long as somebody is served and says why;
    then it goes on. It is in its status and in the daemon's metrics."""
    def pace():
        return stack.status("learn").get("pace", {})

    assert pace()["state"] == "full" and "no objective" in pace()["why"], pace()
    (stack.dir / "learn.conf").write_text("[slo]\ntpot_p95_ms = 0.001\n")
    stack.children["learn"].signal(signal.SIGHUP)
    clients = Clients(stack)
    stack.wait("learning pauses", 60, lambda: pace()["state"] == "paused", "learn")
    assert "P95" in pace()["why"] and pace()["tpot_p95_ms"] > pace()["objective_ms"] > 0, pace()
    step = stack.status("learn")["step"]
    assert poll(60, lambda: 'redraft_learn_pace_state{state="paused"} 1' in client.get(stack.metrics, "/metrics")[1])
    assert stack.status("learn")["step"] <= step + 1 or pace()["state"] != "paused"
    clients.stop()
    stack.wait("learning goes on", 60, lambda: pace()["state"] == "full" and "nobody" in pace()["why"], "learn")
    stack.wait("steps are taken", 60, lambda: stack.status("learn")["step"] > step + 1, "learn")
    text = client.get(stack.metrics, "/metrics")[1]
    assert 'redraft_learn_left_out{reason="scale"} 0' in text and "redraft_learn_steps " in text, text[-3000:]
