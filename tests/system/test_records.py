"""What the tap writes to a real Kafka, read by kcat and a safetensors reader that shares no code with ours."""
import json
import math
import subprocess
import time

import kcat_reader
import safetensors_reader
from conftest import BIN, poll

H_T = 64  # of the toy model


def began(minutes=3):
    """Records of earlier tests need not be read again."""
    return time.time() - 60 * minutes


def traces(kafka, target_fp):
    """Records of one target, decoded, in the order of request and run."""
    out = []
    for m in kcat_reader.read(kafka.address, "redraft.traces", began()):
        if m.headers.get("target_fp") != target_fp:
            continue
        meta, tensors = safetensors_reader.read(m.value, align=64)
        if meta["target_fp"] == target_fp:
            out.append((m, meta, tensors))
    return sorted(out, key=lambda x: (x[1]["request"], int(x[1]["run"])))


def rounds(kafka, target_fp):
    return [r for r in (json.loads(m.value) for m in kcat_reader.read(kafka.address, "redraft.rounds", began())) if r["target_fp"] == target_fp]


def wait_for_requests(kafka, fp, n, seconds=60):
    def whole():
        done = [r for r in traces(kafka, fp) if r[1]["last"] in ("1", "true")]
        return done if len(done) >= n else None
    assert poll(seconds, whole, 0.5), "the records did not arrive"
    return traces(kafka, fp)


def test_records_are_what_the_contract_says(stack, kafka):
    stack.start_serve(stack.toy(11), kafka.address)
    fp = stack.status("serve")["target_fp"]
    answers = [stack.chat(f"Question {i}: what is the weather in Berlin?", domain="tools", conversation=f"c{i}", temperature=0.8 * (i % 2), seed=i)
               for i in range(6)]
    assert all(a.ok for a in answers)
    records = wait_for_requests(kafka, fp, 6)
    by_request = {}
    for m, meta, tensors in records:
        check_record(m, meta, tensors, fp)
        by_request.setdefault(meta["request"], []).append((meta, tensors))
    assert len(by_request) == 6
    assert sorted(len(r) for r in by_request.values())[0] >= 1
    totals = []
    for parts in by_request.values():
        check_request(parts)
        totals.append(sum(sum(t["loss_mask"].values()) for _, t in parts))
    # generated rows have a feature except the last token, which was emitted but never fed back
    for a in answers:
        assert any(a.tokens - 2 <= n <= a.tokens for n in totals), (a.tokens, totals)
    assert stack.status("serve")["records"]
    train_from_topic(stack, kafka, fp, len(records))


def train_from_topic(stack, kafka, fp, n):
    """The same records, trained from where they lie; a topic without any is refused in one sentence."""
    def train(topic, out):
        argv = [BIN / "redraft-learn", "train", "--from_topic", topic, "--brokers", kafka.address, "--store", stack.store, "--target_fp", fp, "--out", out, "--threads", 1,
                "--train.draft_vocab", 64, "--train.ttt_steps", 2, "--epochs", 1, "--eval.tokens", 0, "--json", "on"]
        return subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL, check=False)
    done = train("redraft.traces", stack.dir / "draft")
    assert done.returncode == 0, done.stderr
    assert f" rows in {n} records of redraft.traces" in done.stderr and (stack.dir / "draft" / "model.safetensors").exists()
    assert "all" in json.loads(done.stdout.splitlines()[-1])["domains"] and json.loads(done.stdout.splitlines()[-1])["step"] > 0
    none = train("redraft.rounds", stack.dir / "none")
    assert none.returncode == 2 and "holds no record of this target" in none.stderr, none.stderr


def check_record(m, meta, t, fp):
    assert len(m.value) <= 900_000
    assert meta["schema"] == "1" and m.key == meta["conversation"]
    for name in ("ce_specversion", "ce_type", "ce_source", "ce_id", "ce_time", "content-type"):
        assert name in m.headers, m.headers
    assert m.headers["ce_type"] == "io.redraft.trace.v1" and m.headers["target_fp"] == fp and m.headers["schema"] == "1"
    rows = t["token_ids"].shape[0]
    assert t["positions"].shape == (rows,) and t["loss_mask"].shape == (rows,) and t["next_token"].shape == (1,)
    if "features" in t:  # where planes would not have been smaller
        assert t["features"].dtype == "BF16" and t["features"].shape == (rows, 3, H_T)
        assert all(math.isfinite(v) for v in t["features"].values())
    else:
        assert t["features_lo"].dtype == "U8" and t["features_lo"].shape == (rows, 3, H_T)
        assert bytes(t["features_hi_zstd"].values()[:4]) == b"\x28\xb5\x2f\xfd"
    positions = t["positions"].values()
    assert positions == list(range(positions[0], positions[0] + rows))
    generated = sum(t["loss_mask"].values())
    if generated:
        k = t["topk_ids"].shape[1]
        assert t["topk_ids"].shape == (generated, k) == t["topk_logprob"].shape
        lp = t["topk_logprob"].values()
        for i in range(generated):
            row = lp[i * k:(i + 1) * k]
            assert row == sorted(row, reverse=True) and row[0] <= 0
            assert sum(math.exp(v) for v in row) <= 1.01
    if "last_hidden" in t:
        assert t["last_hidden"].shape == (rows - generated, H_T)


def check_request(parts):
    """Records of one request follow each other without gap, and next_token is the first token of the next."""
    for i, (meta, t) in enumerate(parts):
        assert int(meta["run"]) == i
        assert (meta["last"] in ("1", "true")) == (i == len(parts) - 1)
        if i + 1 < len(parts):
            after = parts[i + 1][1]
            assert after["positions"].values()[0] == t["positions"].values()[-1] + 1
            assert after["token_ids"].values()[0] == t["next_token"].values()[0]
    assert parts[0][1]["positions"].values()[0] == 0
    seqs = [int(meta["seq"]) for meta, _ in parts]
    assert seqs == sorted(seqs)


def test_opt_out_sends_rounds_but_no_trace(stack, kafka):
    stack.start_serve(stack.toy(12), kafka.address)
    fp = stack.status("serve")["target_fp"]
    assert stack.chat("Do not keep this.", trace=False, domain="code").ok
    assert stack.chat("You may keep this.", domain="code").ok
    records = wait_for_requests(kafka, fp, 1)
    assert len({meta["request"] for _, meta, _ in records}) == 1
    assert poll(60, lambda: len(rounds(kafka, fp)) >= 2, 0.5)
    for r in rounds(kafka, fp):
        assert r["domain"] == "code" and r["version"] == 0 and r["tokens"] > 0
        assert r["proposed"] == [0] * r["k"]


def test_domain_outside_the_list_is_other(stack, kafka):
    stack.start_serve(stack.toy(13), kafka.address)
    fp = stack.status("serve")["target_fp"]
    assert stack.chat("Which domain is this?", domain="made-up-domain").ok
    records = wait_for_requests(kafka, fp, 1)
    assert {meta["domain"] for _, meta, _ in records} <= {"other", "chat"}
