"""The law on the real model: 100 prompts of SmolLM2, drafted and plain, greedy and sampled, across promotions and a rollback."""
import random
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import prompts
from conftest import DATA, poll

N = 100


def test_drafted_equals_plain(stack, kafka, real_model):
    library = prompts.load(str(DATA), seed=9, max_tokens=110)
    some = library["code"][:N]
    if len(some) < N:
        some = (some * N)[:N]
    stack.start_serve(real_model, kafka.address, threads=2, draft_k=3)
    stack.start_daemon(kafka.address, rollout__interval_s=3, rollout__first_min_al=1.0, gate__min_requests=2)
    stack.start_learn(kafka.address, train__draft_vocab=2048, publish__interval_s=6, publish__min_steps=1)
    rng = random.Random(9)
    print("seed 9", file=sys.stderr)

    def ask(i):
        how = {"max_tokens": 12, "temperature": 0.0} if i % 2 == 0 else {"max_tokens": 12, "temperature": 0.9, "top_p": 0.95, "seed": i}
        return some[i], how, stack.chat(messages=some[i].as_messages(), domain="code", **how)

    # the first requests feed a first version; from then on answers are drafted
    deadline_live = lambda: stack.status("serve").get("live", 0) > 0
    with ThreadPoolExecutor(4) as pool:
        warm = list(pool.map(ask, range(12)))
        poll(60, deadline_live, 0.5)
        asked = warm + list(pool.map(ask, range(12, 60)))
        rc, out, err = stack.ctl("rollback")
        assert rc == 0, (out, err)
        asked += list(pool.map(ask, range(60, N)))
    failed = [a.error for _, _, a in asked if not a.ok]
    assert not failed, failed[:3]
    with ThreadPoolExecutor(6) as pool:
        plain = list(pool.map(lambda x: stack.chat(messages=x[0].as_messages(), draft=False, trace=False, **x[1]), asked))
    different = [(x[0].name, x[2].text, p.text) for x, p in zip(asked, plain) if not x[2].same_text(p)]
    assert not different, different[:2]
    drafted = sum(x[2].proposing > 0 for x in asked)
    assert drafted >= 30, f"only {drafted} of {N} were drafted: live {stack.status('serve').get('live')}"
    del rng
    assert pytest
