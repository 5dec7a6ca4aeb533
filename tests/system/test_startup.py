"""Bad flags, files and ports: one sentence, exit status 2, nothing half-written."""
import socket
import subprocess

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


def test_unknown_key_in_a_file_names_the_nearest(tmp_path):
    conf = tmp_path / "serve.ini"
    conf.write_text("[capture]\nbrokrs = x\n")
    rc, _, err = run("redraft-serve", "--config", conf, "--model", "x")
    assert rc == 2 and "capture.brokers" in err, err


def test_value_out_of_range(tmp_path):
    rc, _, err = run("redraft-serve", "--model", "x", "--draft_k", "99", "--run_dir", tmp_path, "--store", tmp_path)
    assert rc == 2 and "draft_k" in err, err


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


def test_ctl_usage_and_nobody_there(tmp_path):
    assert run("redraftctl", "no-such-verb")[0] == 2
    assert run("redraftctl", "show")[0] == 2
    rc, _, err = run("redraftctl", "--socket", tmp_path / "a.sock", "--serve-socket", tmp_path / "b.sock", "status")
    assert rc == 3 and err.strip(), err
