"""Intervals and verdicts: paired differences over prompts or seeds, and what they decide.

A claim that one method is better than another is tested on one number a unit (a prompt, a seed): the difference of the
two methods on it. The 95 % interval of the mean of those numbers is the bootstrap's percentile interval, widened as
Student's t is wider than the normal distribution, which keeps its coverage in small samples.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"
LEVEL = 0.95
DRAWS = 8000
LEAST = {"prompts": 20, "seeds": 5}  # units below which nothing is decided
Values = Sequence[float] | np.ndarray


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and the two ends of its interval."""

    mean: float
    low: float
    high: float

    def decide(self, least: float = 0.0) -> str:
        """Whether the mean is above ``least``: the whole interval is, none of it is, or it cannot be told."""
        return HOLDS if self.low > least else FAILS if self.high <= least else UNDECIDED

    def decide_within(self, most: float) -> str:
        """Whether the mean is no further from 0 than ``most``."""
        if -most <= self.low and self.high <= most:
            return HOLDS
        return FAILS if self.low > most or self.high < -most else UNDECIDED


def interval(values: Values, *, seed: int = 0) -> Interval:
    """The bootstrap interval of a mean over units; of a single unit it is without bounds."""
    own = np.asarray(values, dtype=float)
    if len(own) < 2:
        return Interval(float(own.mean()) if len(own) else math.nan, -math.inf, math.inf)
    means = own @ _weights(len(own), seed)
    low, high = np.quantile(means, (_tail(len(own)), 1 - _tail(len(own))))
    return Interval(float(own.mean()), float(low), float(high))


def difference(one: Values, other: Values, *, seed: int = 0) -> Interval:
    """The interval of the difference of two means over units that are not the same, such as prompts of two tasks."""
    first, second = np.asarray(one, dtype=float), np.asarray(other, dtype=float)
    least = min(len(first), len(second))
    if least < 2:
        return Interval(math.nan, -math.inf, math.inf)
    means = first @ _weights(len(first), seed) - second @ _weights(len(second), seed + 1)
    low, high = np.quantile(means, (_tail(least), 1 - _tail(least)))
    return Interval(float(first.mean() - second.mean()), float(low), float(high))


@lru_cache(maxsize=16)
def _weights(count: int, seed: int) -> np.ndarray:
    """The share that each unit has in each resample, (count, draws)."""
    drawn = np.random.default_rng([seed, count]).multinomial(count, np.full(count, 1 / count), size=DRAWS)
    return (drawn / count).T


def _tail(count: int) -> float:
    """Share of resamples beyond each end that makes a percentile interval as wide as Student's t (Hesterberg 2015)."""
    z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
    n = count - 1  # degrees of freedom; t by its Cornish-Fisher expansion
    t = z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
    t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    return NormalDist().cdf(-t * math.sqrt(count / n))


@dataclass(frozen=True, slots=True)
class Sample:
    """How much a figure rests on; None: does not apply."""

    prompts: int | None = None
    seeds: int | None = None

    @property
    def enough(self) -> bool:
        return all(n is None or n >= LEAST[kind] for kind, n in (("prompts", self.prompts), ("seeds", self.seeds)))

    def __str__(self) -> str:
        return ", ".join(
            f"{n} {kind}" for kind, n in (("prompts", self.prompts), ("seeds", self.seeds)) if n is not None
        )


def row_verdict(parts: Sequence[str]) -> str:
    """A claim of several parts: yes where all hold, in part where most do, no where most cannot, else undecided."""
    held, failed = parts.count(HOLDS), parts.count(FAILS)
    if parts and held == len(parts):
        return HOLDS
    if 2 * held > len(parts):
        return "in part"
    # even if every undecided part turned out in favour, most would not hold
    return FAILS if parts and 2 * (len(parts) - failed) <= len(parts) else UNDECIDED
