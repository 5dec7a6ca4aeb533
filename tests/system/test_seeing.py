"""What is seen from outside: every metric that the dashboard and the alerts name is one that the programs have; /metrics is valid in both formats, as
an independent parser reads it; each alert has its page; the rules do what their tests say (where promtool is)."""
import json
import os
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest
from conftest import ROOT, poll
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain
from test_operate import submit

RULES, TESTS = ROOT / "deploy" / "prometheus" / "redraft.rules.yml", ROOT / "deploy" / "prometheus" / "redraft.test.yml"
DASHBOARD, RUNBOOKS = ROOT / "deploy" / "grafana" / "redraft.json", ROOT / "deploy" / "runbooks"
# Series that come into being with what they count; that the programs know them is seen in their text.
LATER = {"redraft_drift_alarm", "redraft_drift_evidence", "redraft_accept_length", "redraft_learn_loss"}


def named(text):
    return {re.sub(r"_(bucket|sum|count)$", "", n) for n in re.findall(r"\b(?:redraft_|vllm:)[a-z_:]*[a-z]", text)}


def fetch(address, accept):
    request = urllib.request.Request(f"http://{address}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as r:
        return r.headers["Content-Type"], r.read().decode()


def test_metrics_are_valid_and_are_those_that_are_named(stack):
    stack.start_serve()
    stack.start_daemon("127.0.0.1:1", rollout__interval_s=0)
    stack.start_learn("", train__auto_init="off")
    number = submit(stack, 1)
    assert stack.ctl("promote", number)[0] == 0 and stack.chat().ok
    stack.wait("the learner is seen", 60, lambda: "redraft_learn_lag_seconds" in fetch(stack.metrics, "*/*")[1], "daemon")
    have = set()
    for address in (stack.address, stack.metrics):
        kind, text = fetch(address, "text/plain")
        assert kind.startswith("text/plain")
        families = {f.name for f in plain(text)}
        kind, strict = fetch(address, "application/openmetrics-text; version=1.0.0")
        assert kind.startswith("application/openmetrics-text") and strict.endswith("# EOF\n")
        seen = list(openmetrics(strict))
        assert len(seen) == len(families) and sum(len(f.samples) for f in seen) > 20
        for f in seen:
            assert f.documentation and f.type != "unknown", f
        have |= {re.sub(r"_(bucket|sum|count)$", "", s.name) for f in seen for s in f.samples}
    sources = "".join(p.read_text() for folder in ("daemon", "serve") for p in (ROOT / folder).rglob("*.c"))
    for name in LATER:
        assert f'"{name}"' in sources, name
    wanted = named(RULES.read_text()) | {n for p in json.loads(DASHBOARD.read_text())["panels"] for t in p["targets"] for n in named(t["expr"])}
    assert wanted - have - LATER == set()


def test_each_alert_has_a_page():
    alerts = re.findall(r"alert: (\w+)", RULES.read_text())
    assert alerts and len(set(alerts)) == len(alerts)
    assert {p.stem for p in RUNBOOKS.glob("*.md")} - {"README"} == set(alerts)
    for name in alerts:
        text = (RUNBOOKS / f"{name}.md").read_text()
        assert f"/runbooks/{name}.md" in RULES.read_text()
        assert all(f"\n## {part}\n" in text for part in ("Look", "Do", "Wake somebody?")), name
        assert name in TESTS.read_text(), f"no test fires {name}"


def test_rules_do_what_their_tests_say():
    promtool = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if not promtool:
        pytest.skip("promtool is not here (Debian package prometheus, 19 MB); PROMTOOL=path runs it")
    for words in (["check", "rules", RULES], ["test", "rules", TESTS]):
        r = subprocess.run([promtool, *map(str, words)], capture_output=True, text=True, timeout=120, check=False, cwd=Path(RULES).parent)
        assert r.returncode == 0, r.stdout + r.stderr
