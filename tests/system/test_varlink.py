"""Every method of every control socket, asked by an independent client (PyPI varlink): what is declared is what is answered, replies and errors alike."""
import json
import subprocess
import sys

from conftest import ROOT
from test_operate import submit

READER = ROOT / "tests" / "system" / "varlink_reader.py"


def read(calls):
    r = subprocess.run([sys.executable, str(READER)], input=json.dumps({str(k): v for k, v in calls.items()}), capture_output=True, text=True, timeout=120, check=False, cwd="/")
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout)


def test_every_method_is_what_its_interface_says(stack):
    s = stack
    s.start_serve()
    s.start_daemon(rollout__interval_s=0)
    s.start_learn("", train__auto_init="off")
    one, two = submit(s, 1), submit(s, 2, 1)
    for n in (one, two):
        assert s.ctl("promote", n)[0] == 0
    s.wait("the learner is known", 60, lambda: s.status("daemon")["learn"].get("up"), "daemon")
    s.wait("the learner has begun", 60, lambda: s.status("learn").get("base_version", 0) > 0, "learn")
    nowhere = {"version": 9, "path": "/nonexistent", "weights_sha": ""}
    tenant = {"tenant": "abcdef0123"}
    calls = {
        s.socket("daemon"): [
            ["Status", {}, None], ["Versions", {}, None], ["Show", {"version": one}, None], ["Show", {"version": 99}, "BadVersion"], ["Explain", {"version": two}, None],
            ["Diff", {"a": one, "b": two}, None], ["Drift", {}, None], ["Config", {}, None], ["Tail", {"last": 5}, None], ["Audit", {"last": 5}, None], ["Topics", {}, "Failed"],
            ["Submit", {"path": "/etc"}, "BadVersion"], ["Promote", {"version": 99}, "BadVersion"], ["Promote", {"version": one, "expected_generation": 99}, "GenerationMismatch"],
            ["Pin", {}, None], ["Unpin", {}, None], ["Hold", {"reason": "varlink"}, None], ["Release", {}, None], ["PauseRollout", {}, None], ["ResumeRollout", {}, None], ["Probe", {"record": True}, None],
            ["Replay", {"version": one}, "NotEnough"], ["Purge", tenant, None], ["Rollback", {"request_id": "v"}, None], ["Promote", {"version": two}, None]],
        s.socket("daemon", "status"): [["Status", {}, None], ["Rollback", {}, "PermissionDenied"]],
        s.socket("learn"): [
            ["Status", {}, None], ["Config", {}, None], ["SetDrift", {"level": 0}, None], ["PauseTraining", {}, None], ["ResumeTraining", {}, None], ["Purge", tenant, None],
            ["Verdict", {"version": one, "verdict": "accepted", "reason": "x"}, None], ["Publish", {}, None], ["Replay", {"version": one}, "NotEnough"],
            ["Evaluate", {"candidate": one, "live": 0, "pinned": True}, "NotEnough"], ["CompareServed", {"version": one}, "NotEnough"], ["Rebase", {"version": 99}, "BadVersion"]],
        s.socket("serve"): [
            ["Status", {}, None], ["Config", {}, None], ["SetCapture", {"enabled": False}, None], ["Load", nowhere, "BadVersion"], ["Unload", {"version": 9}, "BadVersion"],
            ["Probe", {"version": one, "prompts": ["Who?"], "max_tokens": 4}, None], ["Canary", {"version": one, "permille": 50, "salt": "s"}, None], ["Canary", {"version": 0}, None],
            ["Activate", {"version": 9, "move": "all"}, "BadVersion"], ["Activate", {"version": two, "move": "new", "request_id": "a"}, None], ["Rollback", {"request_id": "a"}, None],
            ["Rollback", {}, None]],
        s.socket("learn", "status"): [["SetDrift", {"level": 0}, "PermissionDenied"]],
        s.socket("serve", "status"): [["Unload", {"version": 1}, "PermissionDenied"]],
    }
    told = read(calls)
    for path, x in told.items():
        if path.endswith("control.sock"):
            assert {name for name, _ in x["said"]} == set(x["methods"]), path
            idl = ROOT / "schemas" / "admin" / f"{x['interface']}.varlink"
            assert all(f"method {name}(" in idl.read_text() for name in x["methods"])
