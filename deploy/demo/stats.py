"""Accept length over groups of requests, and how sure we are of it.

Accept length = tokens a target forward emits in a round that proposed something, bonus token included:
1 + accepted / proposing rounds, as a ratio of sums. Requests are the independent units, so the
interval is a percentile bootstrap over requests.
"""
import random


def accept_length(answers):
    """None when no round proposed anything."""
    rounds = sum(a.proposing for a in answers)
    return 1 + sum(a.accepted for a in answers) / rounds if rounds else None


def _draws(answers, rng, n):
    pairs = [(a.proposing, a.accepted) for a in answers]
    for _ in range(n):
        some = rng.choices(pairs, k=len(pairs))
        rounds = sum(p for p, _ in some)
        yield 1 + sum(x for _, x in some) / rounds if rounds else 1.0


def _interval(values, level):
    v = sorted(values)
    cut = (1 - level) / 2
    return v[int(cut * (len(v) - 1))], v[int((1 - cut) * (len(v) - 1))]


def with_interval(answers, level=0.95, n=2000, seed=1):
    """(value, low, high), or None."""
    value = accept_length(answers)
    if value is None:
        return None
    return (value, *_interval(_draws(answers, random.Random(seed), n), level))


def rise(start, end, level=0.95, n=2000, seed=2):
    """(end - start, low, high) of two groups of requests, or None."""
    a, b = accept_length(start), accept_length(end)
    if a is None or b is None:
        return None
    rng = random.Random(seed)
    diffs = [y - x for x, y in zip(_draws(start, rng, n), _draws(end, rng, n))]
    return (b - a, *_interval(diffs, level))


def mean_rise(pairs, level=0.95, n=2000, seed=3):
    """The mean over domains of their rises: pairs is a list of (start answers, end answers)."""
    pairs = [(s, e) for s, e in pairs if accept_length(s) is not None and accept_length(e) is not None]
    if not pairs:
        return None
    rng = random.Random(seed)
    value = sum(accept_length(e) - accept_length(s) for s, e in pairs) / len(pairs)
    columns = [[y - x for x, y in zip(_draws(s, rng, n), _draws(e, rng, n))] for s, e in pairs]
    return (value, *_interval([sum(c) / len(pairs) for c in zip(*columns)], level))
