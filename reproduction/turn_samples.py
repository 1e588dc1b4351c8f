"""Whether two engines sample from one distribution: chi-square tests of their first tokens."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

Texts = Sequence[tuple[Sequence[int], int]]  # token ids, and how often they were sampled
LEAST = 5.0  # samples that a cell must be expected to have in both; rarer ones are pooled
TOGETHER = (2, 3, 6)  # first tokens that are also tested as a whole
SIGNIFICANT = 0.001  # chance of a false alarm in one comparison, over all of its tests


class Test(NamedTuple):
    """One chi-square test."""

    what: str
    statistic: float
    freedom: int
    p: float


def two_sample(what: str, one: Counter[Any], other: Counter[Any], least: float = LEAST) -> Test:
    """Pearson's test that both are counts of samples from one distribution; p by Wilson and Hilferty's cube root."""
    cells = sorted(one.keys() | other.keys())
    seen = np.array([[own[cell] for cell in cells] for own in (one, other)], float)
    share = seen.sum(1, keepdims=True) / max(1.0, seen.sum())
    rare = (share * seen.sum(0)).min(0) < least
    seen = np.column_stack([seen[:, ~rare], seen[:, rare].sum(1)])
    seen = seen[:, seen.sum(0) > 0]
    due, freedom = share * seen.sum(0), max(0, seen.shape[1] - 1)
    if not freedom or not due.all():
        return Test(what, 0.0, 0, 1.0)
    statistic = float(((seen - due) ** 2 / due).sum())
    spread = 2 / (9 * freedom)
    normal = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return Test(what, statistic, freedom, 0.5 * math.erfc(normal / math.sqrt(2)))


def tests(one: Texts, other: Texts) -> list[Test]:
    """The token at every position, and the first few together."""
    longest = max((len(text) for text, _ in (*one, *other)), default=0)
    cuts = {f"token {n + 1}": slice(n, n + 1) for n in range(longest)}
    cuts |= {f"tokens 1 to {n}": slice(0, n) for n in TOGETHER if n <= longest}
    return [two_sample(what, _counted(one, cut), _counted(other, cut)) for what, cut in cuts.items()]


def _counted(texts: Texts, cut: slice) -> Counter[tuple[int, ...]]:
    counts: Counter[tuple[int, ...]] = Counter()
    for text, count in texts:
        counts[tuple(text[cut])] += count
    return counts


def compared(one: Texts, other: Texts) -> dict[str, Any]:
    """All tests, and the chance of so small a smallest p under one distribution (Bonferroni's bound)."""
    made = tests(one, other)
    p = min((test.p for test in made), default=1.0)
    most = min(1.0, p * max(1, len(made)))
    return {
        "samples": [sum(count for _, count in texts) for texts in (one, other)],
        "p": most, "differ": most < SIGNIFICANT, "tests": [test._asdict() for test in made],
    }  # fmt: skip


def merged(every: Iterable[Texts]) -> Texts:
    """The samples of several engines as one."""
    counts: Counter[tuple[int, ...]] = Counter()
    for texts in every:
        counts += _counted(texts, slice(None))
    return list(counts.items())
