"""An answer that was timed, and what follows from many: speed-ups with intervals, MAT, regret. No model needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wager.core import Round

RESAMPLES = 2000
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Answer:
    """One method's answer to one prompt."""

    tokens: list[int]
    seconds: float  # the whole call, the prompt's own forward included
    forwards: int  # of the target, that one included
    rounds: Sequence[Round] = ()  # wager's own methods: how it came about
    own: float = 0.0  # seconds that were neither prompt nor drafter nor target
    prefill_seconds: float = 0.0  # until the first token was there


def tokens_per_second(answers: Sequence[Answer]) -> float:
    """Tokens of all answers over their seconds."""
    return sum(len(a.tokens) for a in answers) / sum(a.seconds for a in answers)


def ratio(ours: Sequence[Answer], theirs: Sequence[Answer]) -> float:
    """Tokens a second of ours over theirs."""
    return tokens_per_second(ours) / tokens_per_second(theirs)


def mat(answers: Sequence[Answer]) -> float:
    """Tokens per forward after the prompt's own, which gives the first."""
    rounds = sum(a.forwards - 1 for a in answers)
    return sum(len(a.tokens) - 1 for a in answers) / rounds if rounds else 1.0


def regret(ours: Sequence[Answer], best: Sequence[Answer]) -> float:
    """Seconds beyond those that ``best`` would have taken for as many tokens."""
    return sum(a.seconds for a in ours) - sum(len(a.tokens) for a in ours) / tokens_per_second(best)


def ratio_interval(ours: Sequence[Answer], theirs: Sequence[Answer], *, seed: int = 0) -> Interval | None:
    """The 95 % interval of the ratio, by bootstrap over prompts; None for a single one, which tells no spread."""
    a, b = _resampled(ours, theirs, seed=seed)
    return _middle((a[0] / a[1]) / (b[0] / b[1])) if len(ours) > 1 else None


def regret_interval(
    ours: Sequence[Answer], best: Sequence[Answer], *, seed: int = 0, among: int = 1
) -> Interval | None:
    """The 95 % interval of the regret, by bootstrap over prompts; None for a single one.

    ``best`` was picked ``among`` so many by these very answers, and the luckiest of many looks better than it is: the
    interval is as wide as it takes to hold for all of them at once (Bonferroni).
    """
    a, b = _resampled(ours, best, seed=seed)
    return _middle(a[1] - a[0] * b[1] / b[0], among) if len(ours) > 1 else None


def _resampled(*methods: Sequence[Answer], seed: int) -> list[np.ndarray]:
    """For each method (tokens, seconds) summed over prompts drawn with replacement, the same draws for all."""
    count = len(methods[0])
    draws = np.random.default_rng(seed).integers(0, count, (RESAMPLES, count))
    sums = []
    for answers in methods:
        known = np.array([[len(a.tokens) for a in answers], [a.seconds for a in answers]], dtype=float)
        sums.append(known[:, draws].sum(axis=2))
    return sums


def _middle(values: np.ndarray, among: int = 1) -> Interval:
    tail = 0.025 / among
    low, high = np.quantile(values, (tail, 1 - tail))
    return float(low), float(high)
