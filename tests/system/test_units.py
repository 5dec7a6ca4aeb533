"""The units as files: systemd takes them without a word, their exposure is at most 1.2, and the manual and completions that the
programs' tables give are well formed."""
import os
import re
import shutil
import subprocess

import pytest

from conftest import BIN, ROOT

UNITS = ROOT / "deploy" / "systemd"
SERVICES = ("redraft-serve.service", "redraft-learn.service", "redraftd.service")

needs_analyze = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")


@pytest.fixture(scope="module")
def units(tmp_path_factory):
    """The unit files as `make install` writes them, naming programs that exist."""
    folder = tmp_path_factory.mktemp("units")
    for f in UNITS.iterdir():
        text = f.read_text().replace("@bindir@", str(BIN)).replace("@sysconfdir@", "/etc")
        assert not re.search(r"@\w+@", text), f.name
        (folder / f.name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def docs(tmp_path_factory):
    out = tmp_path_factory.mktemp("docs")
    subprocess.run([ROOT / "deploy" / "docs", BIN, out], check=True)
    return out


@needs_analyze
def test_systemd_says_nothing(units):
    """A misspelt key only warns and returns 0: so nothing may be said at all."""
    r = subprocess.run(["systemd-analyze", "verify", "--man=no", *sorted(map(str, units.iterdir()))], capture_output=True, text=True, timeout=60, check=False)
    assert (r.returncode, r.stderr) == (0, "")


@needs_analyze
@pytest.mark.parametrize("service", SERVICES)
def test_exposure(units, service):
    r = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=12", units / service], capture_output=True, text=True, timeout=60,
                       check=False)
    assert r.returncode == 0, r.stdout[-400:] + r.stderr


@pytest.mark.parametrize("service", SERVICES)
def test_what_must_be_in_every_service(service):
    text = (UNITS / service).read_text()
    for line in ("Type=notify", "WatchdogSec=", "Restart=always", "StartLimitIntervalSec=0", "MemoryDenyWriteExecute=yes", "User=redraft", "ExecReload="):
        assert re.search(f"^{re.escape(line)}", text, re.M), line


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("systemd-sysusers"), reason="systemd-sysusers --root needs root")
def test_users_and_folders(tmp_path):
    def names(file):
        return {line.split(":")[0] for line in (tmp_path / "etc" / file).read_text().splitlines()}
    (tmp_path / "etc").mkdir()
    subprocess.run(["systemd-sysusers", f"--root={tmp_path}", ROOT / "deploy" / "sysusers.d" / "redraft.conf"], check=True, capture_output=True)
    assert "redraft" in names("passwd") and {"redraft", "redraft-admin", "redraft-monitor"} <= names("group")
    subprocess.run(["systemd-tmpfiles", f"--root={tmp_path}", "--create", ROOT / "deploy" / "tmpfiles.d" / "redraft.conf"], check=True, capture_output=True)
    assert (tmp_path / "run" / "redraft" / "daemon").is_dir()


def test_manual(docs):
    pages = sorted((docs / "man").iterdir())
    assert [p.name for p in pages] == ["redraft-learn.8", "redraft-serve.8", "redraft.conf.5", "redraftctl.1", "redraftd.8"]
    assert r"\fBgate.alpha\fR" in (docs / "man" / "redraft.conf.5").read_text() and r"\fBrollback\fR" in (docs / "man" / "redraftctl.1").read_text()
    for page in pages:
        if shutil.which("mandoc"):
            r = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", page], capture_output=True, text=True, check=False)
            assert (r.returncode, r.stdout + r.stderr) == (0, ""), page.name
        elif shutil.which("man"):
            r = subprocess.run(["man", "--warnings=w", "-l", page], capture_output=True, text=True, check=False)
            assert r.stderr == "", page.name


def test_completion_of_bash(docs):
    def complete(program, *words):
        script = f"source {docs / 'bash' / program}; COMP_WORDS=({program} {' '.join(words)}); COMP_CWORD={len(words)}; _{program.replace('-', '_')}; echo \"${{COMPREPLY[@]}}\""
        return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert complete("redraftctl", "ro") == ["rollback"]
    assert complete("redraft-serve", "--capture.sa") == ["--capture.sample"]
    assert complete("redraft-serve", "--isa", "av") == ["avx2", "avx512", "avx512-bf16"]


def test_written_settings_are_good(docs, tmp_path):
    """The files that the package installs pass the programs' own check; a wrong one does not, and says where."""
    model = tmp_path / "serve.conf"
    model.write_text("model = /srv/m.gguf\n" + (docs / "etc" / "serve.conf").read_text())
    for program, file in (("serve", model), ("learn", docs / "etc" / "learn.conf"), ("redraftd", docs / "etc" / "redraftd.conf")):
        r = subprocess.run([BIN / "redraftctl", "config", "check", file, "--for", program], capture_output=True, text=True, check=False)
        assert (r.returncode, r.stderr) == (0, ""), r
    bad = tmp_path / "bad.conf"
    bad.write_text("[gate]\nalpa = 1\n")
    r = subprocess.run([BIN / "redraftctl", "config", "check", bad, "--for", "redraftd"], capture_output=True, text=True, check=False)
    assert r.returncode == 2 and "bad.conf:2" in r.stderr and "gate.alpha" in r.stderr, r.stderr
