"""Kafka as production runs it: TLS, a login for each program, rules of who may do what. Server, learner and daemon work through it
end to end with credentials from files; without a rule, or with a wrong password, each says so and serving goes on. Then what can happen to a
broker and its topics: gone and back, a topic deleted and made anew, retention passed; each is an event with its consequence."""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

import pytest
from broker import PARTITIONS, Kafka, allow, create_topic, delete_records, delete_topic, set_quota
from conftest import ROOT, poll
from procs import Family
from test_loop import LEARN, Clients

USERS = {"serve": "serve-secret", "learn": "learn-secret", "daemon": "daemon-secret", "nobody": "nobody-secret"}
TOPICS = ("redraft.traces", "redraft.rounds", "redraft.audit")
NEWER = ROOT / "deploy" / "kafka" / "librdkafka"


@pytest.fixture(scope="module")
def secured():
    folder, family = tempfile.mkdtemp(prefix="rdk-"), Family()
    try:
        yield Kafka(family, folder, users=USERS, topics=())
    finally:
        family.stop()
        shutil.rmtree(folder, ignore_errors=True)


def library(mechanism):
    """LD_LIBRARY_PATH for it, "" for the system's own; skips where there is none that can."""
    if not mechanism.startswith("SCRAM") or subprocess.run([NEWER, "--needed"], check=False).returncode:
        return ""
    lib = subprocess.run([NEWER, "--dir"], check=True, capture_output=True, text=True).stdout.strip()
    if not os.path.exists(os.path.join(os.path.dirname(lib), ".done")):
        pytest.skip("the system's librdkafka is older than 2.6 and no newer one was built (deploy/kafka/librdkafka needs npm)")
    return lib


def with_login(stack, monkeypatch, secured, user, mechanism, password=None):
    """The environment of the next program: its credential, as the service manager would hand it over."""
    folder = stack.dir / f"credentials-{user}"
    folder.mkdir(exist_ok=True)
    (folder / "kafka.conf").write_text(f"security.protocol = SASL_SSL\nsasl.mechanism = {mechanism}\nsasl.username = {user}\n"
                                       f"sasl.password = {password or USERS[user]}\nssl.ca.location = {secured.ca}\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(folder))
    monkeypatch.setenv("LD_LIBRARY_PATH", library(mechanism))


def events(stack):
    return [e["text"] for e in stack.call("daemon", "Tail", last=200)["events"] if e["kind"] == "kafka"]


def said(stack, word, seconds=60):
    assert poll(seconds, lambda: any(word in t for t in events(stack)), 0.5), (word, events(stack))


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_end_to_end_with_tls_login_and_rules(stack, secured, monkeypatch, mechanism):
    for name in TOPICS:
        if name != "redraft.audit":
            create_topic(secured.address, name, 8)
    with_login(stack, monkeypatch, secured, "daemon", mechanism)
    daemon = stack.start_daemon(secured.secure, rollout__interval_s=0, rollout__first_min_al=1.0, gate__min_requests=4)
    if mechanism.startswith("SCRAM"):  # before there are rules
        said(stack, "does not let us")
        rc, out, err = stack.ctl("topics")
        assert rc == 1 and "redraft.rounds" in out, (out, err)
    allow(secured.address, "daemon", 2, "redraft.rounds", "Read", "Describe", "DescribeConfigs")
    allow(secured.address, "daemon", 2, "redraft.audit", "Write", "Describe", "DescribeConfigs", "Create")
    allow(secured.address, "daemon", 2, "redraft.traces", "Describe", "DescribeConfigs")
    for topic in TOPICS[:2]:
        allow(secured.address, "serve", 2, topic, "Write", "Describe")
    allow(secured.address, "learn", 2, "redraft.traces", "Read", "Describe")
    said(stack, "answers")
    stack.ctl("topics", "--create", "--reason", "first day")  # makes redraft.audit, which was not there
    rc, out, err = stack.ctl("--json", "topics")
    made = {t["topic"]: t for t in json.loads(out)["topics"]}
    assert all(t["exists"] for t in made.values()), made
    assert made["redraft.audit"]["config"]["cleanup.policy"] == "delete"
    with_login(stack, monkeypatch, secured, "serve", mechanism)
    stack.start_serve(stack.toy(61), secured.secure)
    with_login(stack, monkeypatch, secured, "learn", mechanism)
    stack.start_learn(secured.secure, **LEARN)
    clients = Clients(stack)
    try:
        stack.wait("a version serves", 150, lambda: stack.status("serve").get("live", 0) >= 1, "learn")
    finally:
        clients.stop()
    clients.check()
    status = stack.call("daemon", "Status")
    assert status["watch"]["up"] and status["watch"]["partitions"] == 8 and status["domains"], status["watch"]
    assert status["learn"]["records"]["consumed"] > 0 and status["learn"]["records"]["lag"] >= 0
    rc, out, err = stack.ctl("replay", stack.status("serve")["live"], "--requests", "16")
    assert rc == 0 and "accept length" in out.lower(), (out, err)
    assert drained(stack)  # what comes after a purge is new
    rc, out, err = stack.ctl("purge", "--tenant", "anonymous", "--reason", "asked for")
    assert rc == 0 and "What the weights have learned stays" in out.replace("\n", " "), (out, err)
    assert b"anonymous" not in b"".join(p.read_bytes() for p in (stack.dir / "learn-state" / "pool").glob("*.seg"))
    assert stack.children["learn"].running() and "Purge" in [r["what"] for r in stack.ctl_json("audit")["records"]]
    # the file has every line; the topic those that the broker took, and it may refuse the first after its rules have changed
    assert any(r["what"] == "TopicsCreate" and r["why"] == "first day" for r in stack.ctl_json("audit")["records"])
    chain = lambda: [json.loads(x.split(" ", 1)[1]) for x in audit_topic(secured)]
    whole = lambda: {"Switch", "Purge"} <= {r["what"] for r in chain()}
    assert poll(60, whole, 1), [(r["what"], r.get("why")) for r in chain()]
    for secret in USERS.values():
        assert secret not in stack.logs() and secret not in json.dumps(status)
    assert daemon.running()


def drained(stack):
    """The learner has had what was served: nothing in the broker, and nothing new for a while."""
    last, since, end = None, time.monotonic(), time.monotonic() + 60
    while time.monotonic() < end:
        r = stack.status("learn")["records"]
        now = (r["consumed"], r["lag"])
        if now != last:
            last, since = now, time.monotonic()
        elif now[1] == 0 and time.monotonic() - since > 4:
            return True
        time.sleep(0.2)
    return False


def audit_topic(secured):
    r = subprocess.run(["kcat", "-b", secured.address, "-C", "-t", "redraft.audit", "-o", "beginning", "-e", "-q"], capture_output=True, text=True, timeout=30, check=True)
    return [x for x in r.stdout.split("\n") if x]


def test_a_wrong_password_is_said_and_costs_nothing(stack, secured, monkeypatch):
    with_login(stack, monkeypatch, secured, "serve", "PLAIN", "wrong")
    stack.start_serve(stack.toy(62), secured.secure)
    with_login(stack, monkeypatch, secured, "daemon", "PLAIN", "wrong")
    stack.start_daemon(secured.secure)
    assert stack.chat().ok
    said(stack, "refuses our login")
    assert not stack.call("daemon", "Status")["watch"]["up"]
    assert stack.ctl("rollback")[0] == 0  # needs nobody
    assert "wrong" not in stack.logs().replace("wrong password", "")


def test_what_happens_to_broker_and_topics(stack, secured):
    topic, p = "rounds.events", 2
    create_topic(secured.address, topic, p)
    stack.start_serve(stack.toy(63))
    stack.start_daemon(secured.address, watch__topic=topic)
    said(stack, "answers")
    assert poll(60, lambda: stack.call("daemon", "Status")["watch"]["partitions"] == p)

    def produce(n):
        subprocess.run(["kcat", "-b", secured.address, "-P", "-t", topic, "-p", "0"], input="\n".join(["{}"] * n), text=True, timeout=30, check=True)
    bad = lambda: stack.call("daemon", "Status")["watch"]["bad"]
    assert poll(60, lambda: (produce(1), bad() >= 1)[1], 1), stack.call("daemon", "Status")["watch"]
    secured.kill()
    said(stack, "does not answer")
    assert stack.chat().ok and stack.ctl("rollback")[0] == 0
    secured.start()
    before = bad()
    assert poll(60, lambda: (produce(1), bad() > before)[1], 1), stack.call("daemon", "Status")["watch"]
    assert poll(60, lambda: [t for t in events(stack) if "answers" in t][1:], 0.5), events(stack)
    # retention passes while the daemon holds still
    stack.children["daemon"].signal(signal.SIGSTOP)
    try:
        for n in (1, 1, 50):  # the first answers the fetch that is out, and lies in the socket; no other one is sent
            produce(n)
        delete_records(secured.address, topic, {0: -1})
    finally:
        stack.children["daemon"].signal(signal.SIGCONT)
    said(stack, "passed retention before they were read")
    watch = stack.call("daemon", "Status")["watch"]
    assert watch["gaps"] >= 1 and 0 < watch["lost"] <= 52, watch
    before = bad()
    assert poll(60, lambda: (produce(1), bad() > before)[1], 1), stack.call("daemon", "Status")["watch"]
    delete_topic(secured.address, topic)
    assert poll(60, lambda: not topic_there(secured, topic), 0.5)
    create_topic(secured.address, topic, p)
    produce(1)
    assert poll(90, lambda: any("anew" in t or "deleted" in t for t in events(stack)), 1), events(stack)
    # made anew while the daemon holds still, and longer than what it has read: no offset tells
    before = bad()
    assert poll(60, lambda: (produce(1), bad() > before)[1], 1), stack.call("daemon", "Status")["watch"]
    stack.children["daemon"].signal(signal.SIGSTOP)
    try:
        stopped = time.monotonic()
        delete_topic(secured.address, topic)
        assert poll(60, lambda: not topic_there(secured, topic), 0.5)
        create_topic(secured.address, topic, p)
        produce(400)
        time.sleep(max(0, 12 - (time.monotonic() - stopped)))  # a stop this long is noticed at once; a shorter one within a minute
    finally:
        stack.children["daemon"].signal(signal.SIGCONT)
    said(stack, "holds another record")
    assert poll(60, lambda: bad() >= before + 400, 0.5), stack.call("daemon", "Status")["watch"]


def test_what_the_learner_did_not_read_in_time(stack, secured):
    """Retention passes the traces while the learner is away: from where to where, and how it goes on, is said by the learner and by the daemon; it reads on."""
    for name in TOPICS[:2]:
        create_topic(secured.address, name, PARTITIONS)
    stack.start_serve(stack.toy(64), secured.address)
    stack.start_daemon(secured.address)
    learner = stack.start_learn(secured.address, **LEARN)
    records = lambda: stack.status("learn").get("records", {})
    delivered = lambda: stack.status("serve")["records"]["delivered"]
    assert poll(60, lambda: (stack.chat(), records().get("rows", 0) > 0)[1], 0.3), records()
    assert drained(stack)
    stack.wait("the daemon knows it", 60, lambda: stack.call("daemon", "Status")["learn"].get("records"), "daemon")
    learner.stop(30)
    had = delivered()
    for i in range(24):
        assert stack.chat(f"And in Paris, for the {i}th time?").ok
    stack.wait("the records are there", 60, lambda: delivered() >= had + 24, "serve")
    delete_records(secured.address, "redraft.traces", {p: -1 for p in range(PARTITIONS)})
    stack.again("learn")
    assert poll(60, lambda: records().get("lost", 0) > 0), records()
    assert "passed retention" in records()["last_gap"] and "reading on at" in records()["last_gap"]
    said(stack, "never learned from")
    rows = records()["rows"]
    assert poll(60, lambda: (stack.chat(), records().get("rows", 0) > rows)[1], 0.3), records()
    assert "passed retention" in (stack.dir / "learn.log").read_text()


def test_a_quota_slows_records_and_nobody_else(stack, secured):
    """The broker holds the server to a few kB/s: answers come as ever, records wait and then are dropped and counted; without the quota they come again."""
    for name in TOPICS[:2]:
        create_topic(secured.address, name, PARTITIONS)
    stack.start_serve(stack.toy(65), secured.address, capture__queue_mb=1)
    tap = lambda: stack.status("serve")["records"]
    settled = lambda: tap()["delivered"] + sum(v for k, v in tap().items() if k.startswith("dropped"))
    assert poll(60, lambda: (stack.chat(), tap()["delivered"] > 0)[1], 0.3), tap()
    usual = min(timed(stack) for _ in range(3))
    set_quota(secured.address, "redraft-serve", "producer_byte_rate", 2000.0)
    try:
        assert poll(60, lambda: (timed(stack), tap()["records"] + tap()["rounds"] - settled() > 10)[1], 0), tap()  # they wait
        assert min(timed(stack) for _ in range(5)) < 5 * usual + 0.5  # and nobody waits for them
    finally:
        set_quota(secured.address, "redraft-serve", "producer_byte_rate", None)
    before = tap()["delivered"]
    assert poll(90, lambda: (stack.chat(), tap()["delivered"] > before + 5)[1], 0.5), tap()


def timed(stack):
    began = time.monotonic()
    assert stack.chat().ok
    return time.monotonic() - began


def topic_there(secured, topic):
    r = subprocess.run(["kcat", "-b", secured.address, "-L", "-J"], capture_output=True, text=True, timeout=30, check=True)
    return any(t["topic"] == topic for t in json.loads(r.stdout)["topics"])
