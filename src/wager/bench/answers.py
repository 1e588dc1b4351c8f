"""An answer that was timed, and what follows from many: speed-ups with intervals, MAT, regret. No model needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

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
    (tokens, seconds), (other_tokens, other_seconds) = (_resampled(answers, seed) for answers in (ours, theirs))
    return _middle((tokens / seconds) / (other_tokens / other_seconds)) if len(ours) > 1 else None


def regret_interval(
    ours: Sequence[Answer], best: Sequence[Answer], *, seed: int = 0, among: int = 1
) -> Interval | None:
    """The 95 % interval of the regret, by bootstrap over prompts; None for a single one.

    ``best`` was picked ``among`` so many by these very answers, and the luckiest of many looks better than it is: the
    interval is as wide as it takes to hold for all of them at once (Bonferroni).
    """
    (tokens, seconds), (best_tokens, best_seconds) = (_resampled(answers, seed) for answers in (ours, best))
    return _middle(seconds - tokens * best_seconds / best_tokens, among) if len(ours) > 1 else None


def _resampled(answers: Sequence[Answer], seed: int) -> np.ndarray:
    """Tokens and seconds summed over prompts drawn with replacement, (2, resamples); the same draws for all methods."""
    known = np.array([[len(a.tokens) for a in answers], [a.seconds for a in answers]], dtype=float)
    sums: np.ndarray = known @ _times_drawn(len(answers), seed)
    return sums


@lru_cache(maxsize=4)
def _times_drawn(count: int, seed: int) -> np.ndarray:
    """How often each prompt is drawn in each resample, (count, resamples)."""
    draws = np.random.default_rng(seed).integers(0, count, (RESAMPLES, count))
    places = draws + count * np.arange(RESAMPLES)[:, None]
    return np.bincount(places.ravel(), minlength=RESAMPLES * count).reshape(RESAMPLES, count).T.astype(float)


def _middle(values: np.ndarray, among: int = 1) -> Interval:
    low, high = np.quantile(values, (0.025 / among, 1 - 0.025 / among))
    return float(low), float(high)
