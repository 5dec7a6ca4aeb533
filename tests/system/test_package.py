"""The Debian package on a machine of its own, from installing to purging: what an operator does, in the order in which one does it.

One machine for the file; each test goes on where the one before ended. The broker is the embedded one, as a unit.
"""
import json
import re
import shutil
import subprocess
import time

import pytest

import machine
from conftest import BIN, ROOT

PROGRAMS = ("redraft-serve", "redraft-learn", "redraftd")
SOCKETS = ("/run/redraft/serve", "/run/redraft/learn", "/run/redraft/daemon")
HTTP = "http://127.0.0.1:8080"
BROKER = """[Service]
Type=exec
ExecStart=/usr/libexec/redraft/redraft-mock-broker --address-file /run/broker
"""
SERVE = """model = /srv/toy.gguf
model_name = toy
threads = 1
max_context = 512
draft_k = {k}
[capture]
brokers = {broker}
"""
LEARN = """threads = 1
brokers = {broker}
[train]
draft_vocab = 256
[init]
min_tokens = 600
[publish]
interval_s = 1
min_steps = 1
"""
DAEMON = """brokers = {broker}
[rollout]
first_min_al = 1.0
interval_s = {interval}
"""
# The watchdog of the shipped units is long; here it is short, so that the test is.
DROP_IN = "[Service]\nWatchdogSec=6s\nRestartSec=200ms\n"


def build(folder, toy):
    """Two packages: the tree's, and the same under a higher version."""
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEB_COMPRESSION": "0"}
    r = subprocess.run([ROOT / "deploy" / "deb" / "build", "1.0", "build/release", folder], capture_output=True, text=True, env=env, check=False)
    assert r.returncode == 0, r.stdout + r.stderr
    one = folder / r.stdout.split()[-1].split("/")[-1]
    subprocess.run(["dpkg-deb", "-R", one, folder / "two"], check=True)
    control = folder / "two" / "DEBIAN" / "control"
    control.write_text(control.read_text().replace("Version: 1.0", "Version: 1.1"))
    two = folder / one.name.replace("1.0", "1.1")
    subprocess.run(["dpkg-deb", "-Zxz", "-z0", "-b", folder / "two", two], check=True, capture_output=True)
    return one, two


@pytest.fixture(scope="module")
def m(tmp_path_factory, toy):
    reason = machine.why_not() or ("" if shutil.which("dpkg-shlibdeps") else "dpkg-dev is not installed")
    if reason:
        pytest.skip(reason)
    if BIN != ROOT / "build" / "release" / "bin":
        pytest.skip("the package is made of the release build")
    one, two = build(tmp_path_factory.mktemp("deb"), toy)
    try:
        with machine.Machine() as box:
            for name, file in (("one.deb", one), ("two.deb", two), ("toy.gguf", toy(1))):
                shutil.copy(file, box.path(f"/srv/{name}"))
                box.path(f"/srv/{name}").chmod(0o644)
            yield box
    except machine.NoMachine as e:
        pytest.skip(f"no container can be booted here: {e}")


def install(m, deb):
    m.run("dpkg", "--no-triggers", "--force-confold", "-i", f"/srv/{deb}")


def active(m, *units):
    return m.run("systemctl", "is-active", *units, check=False).stdout.split() == ["active"] * len(units)


def pids(m):
    return [int(m.show(p, "MainPID")) for p in PROGRAMS]


def ask(m, text="What is the weather in Berlin?", seconds=30):
    """A chat; the versions that served it. A server that says it is loading is asked again; one that refuses the connection is an error."""
    body = json.dumps({"model": "toy", "messages": [{"role": "user", "content": text}], "max_tokens": 24})
    end = time.monotonic() + seconds
    while True:
        r = m.run("curl", "-sS", "-m", seconds, "-H", "Content-Type: application/json", "-d", body, f"{HTTP}/v1/chat/completions")
        reply = json.loads(r.stdout)
        if reply.get("error", {}).get("code") != "loading" or time.monotonic() > end:
            break
        time.sleep(0.2)
    assert "usage" in reply, r.stdout
    return reply["usage"]["redraft"]["versions"]


def metric(m, line, port=8080):
    text = m.run("curl", "-sS", f"http://127.0.0.1:{port}/metrics").stdout
    found = re.search(rf"^{re.escape(line)} (\S+)$", text, re.M)
    return float(found.group(1)) if found else 0.0


def ctl(m, *words, check=True):
    return m.run("redraftctl", *words, check=check)


def write(m, program, text):
    """Settings, as an editor leaves them; checked with the command for it."""
    file = f"/etc/redraft/{program}.conf"
    m.write(file, text)
    return m.run("redraftctl", "config", "check", file, "--for", program, check=False)


def test_install(m):
    install(m, "one.deb")
    assert m.run("systemctl", "is-enabled", "redraft.target", check=False).stdout.strip() == "disabled"
    assert m.run("systemctl", "is-active", *PROGRAMS, check=False).stdout.split() == ["inactive"] * 3
    for file in ("/etc/redraft/serve.conf", "/usr/share/man/man8/redraftd.8.gz", "/usr/share/bash-completion/completions/redraftctl",
                 "/usr/share/doc/redraft/examples/kafka-sasl.conf"):
        assert m.path(file).exists(), file
    assert "redraft-admin" in m.run("getent", "group", "redraft-admin").stdout
    r = m.run("redraftctl", "config", "check", "/etc/redraft/serve.conf", "--for", "serve", check=False)
    assert r.returncode == 2 and "model" in r.stderr, r.stderr


def test_start(m):
    m.write("/etc/systemd/system/broker.service", BROKER)
    for p in PROGRAMS:
        m.write(f"/etc/systemd/system/{p}.service.d/test.conf", DROP_IN)
    m.run("systemctl", "daemon-reload")
    m.run("systemctl", "start", "broker")
    m.broker = m.wait("the broker's address", 60, lambda: m.run("cat", "/run/broker", check=False).stdout.strip())
    for program, text in (("serve", SERVE.format(broker=m.broker, k=3)), ("learn", LEARN.format(broker=m.broker)),
                          ("redraftd", DAEMON.format(broker=m.broker, interval=3600))):
        r = write(m, program, text)
        assert r.returncode == 0, r.stderr
    m.run("systemctl", "enable", "-q", "--now", "redraft.target")
    m.wait("all three are active", 60, lambda: active(m, *PROGRAMS))
    assert ask(m) == [0]
    # operators command, monitors read
    for folder in SOCKETS:
        modes = m.run("stat", "-c", "%G %a", f"{folder}/control.sock", f"{folder}/status.sock").stdout.split()
        assert modes == ["redraft-admin", "660", "redraft-monitor", "660"], (folder, modes)
    nobody = ("setpriv", "--reuid", "nobody", "--regid", "nogroup")
    assert m.run(*nobody, "--groups", "redraft-monitor", "redraftctl", "status", check=False).returncode == 0
    assert m.run(*nobody, "--groups", "redraft-monitor", "redraftctl", "rollback", check=False).returncode != 0
    assert m.run(*nobody, "--groups", "redraft-admin", "redraftctl", "unpin", check=False).returncode == 0
    assert m.run(*nobody, "--clear-groups", "redraftctl", "status", check=False).returncode == 3


def test_what_the_manager_sees(m):
    assert "serving toy" in m.show("redraft-serve", "StatusText")
    m.wait("the learner's status", 60, lambda: "step" in m.show("redraft-learn", "StatusText"))
    assert m.show("redraft-serve", "ControlGroup") == "/redraft.slice/redraft-serving.slice/redraft-serve.service"
    assert int(m.show("redraft-serving.slice", "CPUWeight")) >= 10 * int(m.show("redraft-learning.slice", "CPUWeight"))
    for p, pid in zip(PROGRAMS, pids(m)):
        status = m.run("cat", f"/proc/{pid}/status").stdout
        assert re.search(r"^NoNewPrivs:\s+1$", status, re.M) and re.search(r"^Seccomp:\s+2$", status, re.M) and re.search(r"^CapBnd:\s+0+$", status, re.M), p
    assert int(m.run("cat", f"/proc/{pids(m)[1]}/oom_score_adj").stdout) > int(m.run("cat", f"/proc/{pids(m)[0]}/oom_score_adj").stdout)


def test_a_version_goes_live(m):
    for i in range(16):
        ask(m, f"Question {i}: what is the price of item number {i % 7} in Berlin?")

    def first():
        ask(m, f"Is it {time.monotonic()} o'clock?")
        return json.loads(ctl(m, "versions", "--json").stdout)["versions"]
    versions = m.wait("a first version", 60, first, 0.5)
    if json.loads(ctl(m, "status", "--json").stdout)["live"] == 0:
        ctl(m, "promote", versions[0]["version"])
    m.live = json.loads(ctl(m, "status", "--json").stdout)["live"]
    assert m.live >= 1 and ask(m) == [m.live]
    ctl(m, "pin")  # so that it is still this one below
    lines = m.run("journalctl", "-q", "-o", "json", "REDRAFT_EVENT=audit", "REDRAFT_WHAT=Submit").stdout.splitlines()  # found by its fields
    assert lines and json.loads(lines[0])["_SYSTEMD_UNIT"] == "redraftd.service" and "Submit" in json.loads(lines[0])["MESSAGE"], lines
    assert m.run("journalctl", "-q", "REDRAFT_EVENT=rollout").stdout


def test_killed(m):
    """kill -9 of each: all come back by themselves, the server with the draft that was live."""
    before = pids(m)
    for pid in before:
        m.run("kill", "-9", pid)
    m.wait("all are back", 60, lambda: active(m, *PROGRAMS) and not set(pids(m)) & set(before))
    assert ask(m) == [m.live]
    m.wait("the learner resumed", 60, lambda: "resumed" in m.journal("redraft-learn") or "at step" in m.journal("redraft-learn"))


def test_stuck(m):
    """A program that does not move any more is restarted by the watchdog."""
    before = pids(m)
    for pid in before:
        m.run("kill", "-STOP", pid)
    m.wait("the watchdog restarted all", 60, lambda: active(m, *PROGRAMS) and not set(pids(m)) & set(before))
    assert all("watchdog" in m.journal(p).lower() for p in PROGRAMS)
    assert ask(m) == [m.live]


def test_reload(m):
    before = pids(m)
    assert write(m, "serve", SERVE.format(broker=m.broker, k=2).replace("threads = 1", "threads = 2")).returncode == 0
    assert write(m, "redraftd", DAEMON.format(broker=m.broker, interval=60)).returncode == 0
    assert write(m, "learn", LEARN.format(broker=m.broker).replace("interval_s = 1", "interval_s = 7")).returncode == 0
    m.run("systemctl", "reload", *PROGRAMS)
    m.wait("the server took it up", 60, lambda: metric(m, "redraft_draft_k") == 2)
    assert "reloaded: draft_k; after a restart: threads" in m.journal("redraft-serve")
    m.wait("the daemon took it up", 60, lambda: "reloaded: rollout.interval_s" in m.journal("redraftd"))
    m.wait("the learner took it up", 60, lambda: "reloaded: publish.interval_s" in m.journal("redraft-learn"))

    good = SERVE.format(broker=m.broker, k=2)
    r = write(m, "serve", good.replace("draft_k = 2", "draft_k = 4\ndraft_q = 1"))
    assert r.returncode == 2 and "draft_k" in r.stderr
    r = m.run("systemctl", "reload", "redraft-serve", check=False)  # refused before the server hears of it
    assert r.returncode != 0
    m.run("kill", "-HUP", pids(m)[0])  # and by the server itself
    m.wait("the server refused it", 60, lambda: metric(m, 'redraft_reloads_total{result="refused"}') == 1)
    assert "not reloaded, the running configuration stands" in m.journal("redraft-serve")
    assert metric(m, "redraft_draft_k") == 2 and active(m, *PROGRAMS) and pids(m) == before
    assert write(m, "serve", good).returncode == 0
    assert ask(m) == [m.live]


def test_rollback_while_the_daemon_cannot_start(m):
    """Its socket takes calls and nobody answers: the server is asked, within seconds; the daemon adopts it when it is back."""
    good = DAEMON.format(broker=m.broker, interval=60)
    write(m, "redraftd", good + "no_such_key = 1\n")
    m.run("kill", "-9", pids(m)[2])
    m.wait("it fails to start", 60, lambda: "no_such_key" in m.journal("redraftd"))
    start = time.monotonic()
    r = ctl(m, "rollback")
    assert time.monotonic() - start < 10 and "asking the server itself" in r.stderr, r.stderr
    assert ask(m) == [0]
    write(m, "redraftd", good)
    m.wait("the daemon is back by itself", 60, lambda: active(m, "redraftd"))
    m.wait("it adopted the rollback", 60, lambda: json.loads(ctl(m, "status", "--json").stdout)["live"] == 0)
    ctl(m, "promote", m.live)
    assert ask(m) == [m.live]


def test_sockets_outlive_their_programs(m):
    """redraftd is started by a call; with redraft-serve.socket no connection is refused while the server restarts."""
    m.run("systemctl", "stop", "redraftd.service")
    assert ctl(m, "status").returncode == 0 and active(m, "redraftd")
    m.run("systemctl", "stop", "redraft-serve.service")
    m.run("systemctl", "enable", "-q", "--now", "redraft-serve.socket")
    assert ask(m) == [m.live]  # this call started it
    m.run("systemctl", "kill", "-s", "KILL", "redraft-serve")
    assert ask(m) == [m.live]  # nobody was refused


def test_upgrade_and_downgrade(m):
    for deb, version in (("two.deb", "1.1"), ("one.deb", "1.0")):
        before = pids(m)
        install(m, deb)
        assert m.run("dpkg-query", "-W", "-f", "${Version}", "redraft").stdout == version
        m.wait(f"all run {version}", 60, lambda: active(m, *PROGRAMS) and not set(pids(m)) & set(before))
        assert "draft_k = 2" in m.path("/etc/redraft/serve.conf").read_text()
        assert ask(m) == [m.live]


def test_remove_keeps_data_and_purge_does_not(m):
    m.run("dpkg", "--no-triggers", "-r", "redraft")
    assert m.run("systemctl", "is-active", *PROGRAMS, "redraftd.socket", "redraft-serve.socket", check=False).stdout.split() == ["inactive"] * 5
    assert m.path(f"/var/lib/redraft/store/versions/{m.live}/manifest.json").exists() and m.path("/etc/redraft/serve.conf").exists()
    assert not m.path("/usr/bin/redraftd").exists()
    install(m, "one.deb")  # it is all as it was
    m.run("systemctl", "start", "redraft.target")
    m.wait("all are active", 60, lambda: active(m, *PROGRAMS))
    assert ask(m) == [m.live]
    m.run("dpkg", "--no-triggers", "-P", "redraft")
    for path in ("/var/lib/redraft", "/etc/redraft", "/run/redraft"):
        assert m.run("test", "-e", path, check=False).returncode != 0, path
