"""Bad flags, files and ports: one sentence, exit status 2, nothing half-written."""
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from conftest import BIN
from procs import free_port


def run(program, *argv, timeout=20):
    r = subprocess.run([str(BIN / program), *map(str, argv)], capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    return r.returncode, r.stdout, r.stderr


@pytest.mark.parametrize("program", ["redraft-serve", "redraft-learn", "redraftd", "redraftctl"])
def test_help(program):
    rc, out, _ = run(program, "--help")
    assert rc == 0 and program in out and "--" in out


@pytest.mark.parametrize("program, wrong, right", [
    ("redraft-serve", "--modle", "model"),
    ("redraft-serve", "--draft_q", "draft_k"),
    ("redraft-learn", "--stroe", "store"),
    ("redraftd", "--rollout.intervals", "rollout.interval_s"),
])
def test_unknown_flag_names_the_nearest(program, wrong, right):
    rc, _, err = run(program, wrong, "x")
    assert rc == 2, err
    assert wrong.lstrip("-") in err and right in err, err


@pytest.mark.parametrize("word", ["replay", "export"])
def test_a_version_is_named_as_the_manual_says(tmp_path, word):
    rc, out, err = run("redraft-learn", word, "--version", "12", "--store", tmp_path)
    assert rc != 0 and not out and err, (rc, out, err)  # it goes on to what else is missing


def test_unknown_key_in_a_file_names_the_nearest(tmp_path):
    conf = tmp_path / "serve.ini"
    conf.write_text("[capture]\nbrokrs = x\n")
    rc, _, err = run("redraft-serve", "--config", conf, "--model", "x")
    assert rc == 2 and "capture.brokers" in err, err


def test_value_out_of_range(tmp_path):
    rc, _, err = run("redraft-serve", "--model", "x", "--draft_k", "99", "--run_dir", tmp_path, "--store", tmp_path)
    assert rc == 2 and "draft_k" in err, err


@pytest.mark.parametrize("program, line, words", [
    ("redraft-serve", "listen = 8080", "must be host:port"),
    ("redraft-serve", "listen = :80:80", "must be host:port"),
    ("redraft-serve", "listen_unix = " + "x" * 200, "longer than"),
    ("redraft-serve", "threads = 256", "0 to 255"),
    ("redraft-serve", "capture.conf = sasl.mechanism", "key=value"),
    ("redraft-serve", "capture.conf = linger.mz=3", "linger.mz"),
    ("redraftd", "listen_metrics = 9464", "expected host:port"),
    ("redraftd", "listen_metrics = localhost:99999", "0 to 65535"),
    ("redraftd", "watch.conf = fetch.min.bites=1", "fetch.min.bites"),
    ("redraft-learn", "source.conf = check.crcs=perhaps", "check.crcs"),
    ("redraftd", "rollout.interval_s = 5\0", "NUL"),
])
def test_check_finds_what_the_start_would(tmp_path, program, line, words):
    conf = tmp_path / "some.conf"
    conf.write_text(("model = x\n" if program == "redraft-serve" else "") + line + "\n")
    rc, _, err = run(program, "--config", conf, "--check")
    assert rc == 2 and words in err and err.count("\n") == 1, err


def test_a_file_with_a_byte_order_mark(tmp_path):
    conf = tmp_path / "some.conf"
    conf.write_text("model = x\r\nthreads = 1\r\n", encoding="utf-8-sig", newline="")
    assert run("redraft-serve", "--config", conf, "--check")[0] == 0


def test_missing_model(tmp_path):
    rc, _, err = run("redraft-serve", "--model", tmp_path / "none.gguf", "--run_dir", tmp_path, "--store", tmp_path, "--listen", f"127.0.0.1:{free_port()}")
    assert rc == 2 and "none.gguf" in err, err


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all" * 100])
def test_file_that_is_no_model(tmp_path, content):
    path = tmp_path / "wrong.gguf"
    path.write_bytes(content)
    rc, _, err = run("redraft-serve", "--model", path, "--run_dir", tmp_path, "--store", tmp_path, "--listen", f"127.0.0.1:{free_port()}")
    assert rc == 2 and "wrong.gguf" in err, err


def test_truncated_model(tmp_path, toy):
    path = tmp_path / "cut.gguf"
    data = toy(1).read_bytes()
    path.write_bytes(data[:len(data) * 2 // 3])
    rc, _, err = run("redraft-serve", "--model", path, "--run_dir", tmp_path, "--store", tmp_path, "--listen", f"127.0.0.1:{free_port()}")
    assert rc == 2 and err.strip(), err


def test_port_taken(tmp_path, toy):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        rc, _, err = run("redraft-serve", "--model", toy(1), "--run_dir", tmp_path, "--store", tmp_path, "--listen", f"127.0.0.1:{port}")
    assert rc == 2 and str(port) in err, err


def test_run_dir_taken(stack):
    stack.start_serve()
    rc, _, err = run("redraft-serve", "--model", stack.model, "--run_dir", stack.dir / "serve", "--store", stack.store, "--listen", f"127.0.0.1:{free_port()}")
    assert rc == 2 and err.strip(), err
    assert stack.chat().ok


def ignores_sigpipe(pid):
    """The first thing that a program's loop does."""
    ignored = [x.split()[1] for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("SigIgn")]
    return int(ignored[0], 16) >> (signal.SIGPIPE - 1) & 1


def test_a_reload_that_comes_too_early_ends_nothing(tmp_path):
    log = tmp_path / "log"
    with open(log, "wb") as f:
        p = subprocess.Popen([str(BIN / "redraftd"), "--store", str(tmp_path / "s"), "--run_dir", str(tmp_path / "r"), "--listen_metrics", ""], stderr=f)
    try:
        end = time.monotonic() + 60
        while not ignores_sigpipe(p.pid) and time.monotonic() < end:
            pass
        p.send_signal(signal.SIGHUP)
        while "reloaded" not in log.read_text() and p.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        assert p.poll() is None and "reloaded" in log.read_text(), (p.poll(), log.read_text())
        p.send_signal(signal.SIGTERM)
        assert p.wait(60) == 0
    finally:
        p.kill()
        p.wait()


def test_ctl_usage_and_nobody_there(tmp_path):
    assert run("redraftctl", "no-such-verb")[0] == 2
    assert run("redraftctl", "show")[0] == 2
    rc, _, err = run("redraftctl", "--socket", tmp_path / "a.sock", "--serve-socket", tmp_path / "b.sock", "status")
    assert rc == 3 and err.strip(), err
