"""Load and what came of it: closed-loop clients on the chat API, time to first token, time per output token, longest gap."""
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "deploy" / "demo"))

import client  # noqa: E402


def percentile(values, q):
    v = sorted(values)
    return v[min(len(v) - 1, int(q * len(v)))] if v else float("nan")


def interval(values):
    """(mean, low, high): mean and its 95 % interval by the normal approximation."""
    m = statistics.fmean(values)
    if len(values) < 2:
        return m, m, m
    half = 1.96 * statistics.stdev(values) / len(values) ** 0.5
    return m, m - half, m + half


def ttft_ms(a):
    return 1000 * (a.first - a.sent)


def tpot_ms(a):
    return 1000 * (a.done - a.first) / (a.tokens - 1) if a.tokens > 1 else float("nan")


def run(address, prompts, clients=1, **how):
    """Every prompt once, `clients` at a time; the answers in order. Raises on a failed request."""
    with ThreadPoolExecutor(clients) as pool:
        answers = list(pool.map(lambda p: client.chat(address, p.as_messages(), domain=p.domain, **how), prompts))
    failed = [a.error for a in answers if not a.ok]
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed: {failed[0]}")
    return answers


def alternate(arms, repeats):
    """Runs the arms (name: function returning a list of numbers) in turn, so that drift of the machine hits all alike."""
    out = {name: [] for name in arms}
    for i in range(repeats):
        for name in (list(arms) if i % 2 == 0 else list(arms)[::-1]):
            out[name] += arms[name]()
    return out


def ratio_interval(a, b):
    """Ratio of means a / b with a 95 % interval by the delta method."""
    ma, la, ha = interval(a)
    mb, lb, hb = interval(b)
    r = ma / mb
    half = r * (((ha - la) / 2 / ma) ** 2 + ((hb - lb) / 2 / mb) ** 2) ** 0.5
    return r, r - half, r + half


def stopwatch():
    start = time.monotonic()
    return lambda: time.monotonic() - start
