"""Acceptance of drafters that say nothing before they draft: counts by position, and Thompson draws.

Such a drafter has to be run to be known. Its acceptance is drawn from what its counts allow (Thompson sampling), so
one that is little known is tried, and one that is well known and worse is not. When its latest drafts contradict all
before them, those are dropped, and the counts of the other drafters are cut down so that they are tried again.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, repeat
from math import sqrt
from operator import mul
from typing import ClassVar

import numpy as np

from wager.core import Round
from wager.policies.auto.config import AutoConfig
from wager.policies.base import Learner

DRAWS = 256  # random numbers drawn at a time


class AcceptanceCounts(Learner):
    """Of one drafter's chains, or of one of its trees."""

    __slots__ = ("deviation", "kept", "latest", "odds", "rate", "shrinkage", "total", "tried")
    learned = ("tried", "kept", "latest")

    def __init__(self, config: AutoConfig) -> None:
        self.shrinkage = config.shrinkage
        self.tried: list[float] = []  # tokens verified by position, all before them accepted
        self.kept: list[float] = []  # of those, accepted
        self.latest = (0.0, 0.0)  # tokens tried and kept over all positions in the latest rounds
        self.settle()

    def settle(self) -> None:
        """What follows from the counts: the odds at each position, drawn towards the rate over all."""
        self.total = total = sum(self.tried)
        self.rate = rate = (sum(self.kept) + 1.0) / (total + 2.0)
        self.deviation = 1.0 / sqrt((total + 2.0) * rate * (1.0 - rate))  # of the log odds
        hits, misses = self.shrinkage * rate, self.shrinkage * (1.0 - rate)
        self.odds = [(k + hits) / (n - k + misses) for k, n in zip(self.kept, self.tried, strict=True)]

    def fade(self, tokens: float) -> None:
        """Leave so many tokens of evidence."""
        keep = tokens / self.total
        self.tried, self.kept = [x * keep for x in self.tried], [x * keep for x in self.kept]


class PositionalAcceptance(Learner):
    """Acceptance by position of every drafter that was run without a hint."""

    learned = ("counts", "draws")
    elements: ClassVar = {"counts": AcceptanceCounts}

    def __init__(self, rng: np.random.Generator, config: AutoConfig) -> None:
        self.rng, self.config = rng, config
        self.counts: dict[str, AcceptanceCounts] = {}
        self.draws: list[float] = []

    def of(self, key: str, length: int) -> AcceptanceCounts:
        """The counts of a drafter or tree, for drafts of at most so many tokens."""
        own = self.counts.get(key)
        if own is None:
            own = self.counts[key] = AcceptanceCounts(self.config)
        more = length - len(own.tried)
        if more > 0:
            own.tried += [0.0] * more
            own.kept += [0.0] * more
            own.settle()
        return own

    def expect(self, key: str, rates: Sequence[float]) -> None:
        """Start from published acceptance, as from few drafts; what was learned already stays."""
        own = self.of(key, len(rates))
        if not own.total:
            reach, tokens = list(accumulate(rates, mul, initial=1.0))[: len(rates)], self.config.shrinkage
            own.tried[: len(rates)] = [tokens * x / sum(reach) for x in reach]
            own.kept[: len(rates)] = [n * rate for n, rate in zip(own.tried, rates, strict=False)]
            own.settle()

    def draws_for(self, count: int) -> list[float]:
        """Standard normal numbers to take from the end of, at least so many.

        ``exp(draw * deviation)`` is then a factor on the odds of all positions.
        """
        if len(self.draws) < count:
            self.draws = self.rng.standard_normal(DRAWS + count).tolist()
        return self.draws

    def read(self, key: str, hits: Sequence[float]) -> list[float]:
        """At tokens that a drafter read without drafting each would have been accepted, or not; the chance of each, by
        all that is known.

        At which position of a draft they would have been is not known: they count for all of them, as often as tokens
        were verified there, and leave the positions' proportions as they are.
        """
        own, config, count = self.of(key, 1), self.config, len(hits)
        chances = [x / (1.0 + x) for x in own.odds]
        at = own.tried if own.total else list(accumulate(chances[:-1], mul, initial=1.0))
        total, expected = sum(at), sum(n * p for n, p in zip(at, chances, strict=True))
        for j, (n, p) in enumerate(zip(list(at), chances, strict=True)):
            own.tried[j] += count * n / total
            own.kept[j] += min(count * n / total, sum(hits) * n * p / expected)
        own.settle()
        if own.total > 1.1 * config.count_memory:
            own.fade(config.count_memory)
            own.settle()
        return [own.rate] * count

    def tokens(self, odds: Sequence[float], factor: float) -> list[float]:
        """Tokens a round emits with drafts of 0, 1, … tokens, given the odds and a draw."""
        chances = [x * factor / (1.0 + x * factor) for x in odds]
        return list(accumulate(accumulate(chances, mul, initial=1.0)))

    def learn(self, key: str, accepted: int, drafted: int) -> bool:
        """A draft of so many tokens was accepted so far; whether acceptance has changed."""
        return self._add(key, drafted, [1.0] * min(accepted + 1, drafted), repeat(1.0, accepted))

    def learn_batch(self, key: str, round: Round, length: int) -> None:
        """Drafts of a batch; of which only totals are known, as if every token had been as likely as every other.

        Its requests are of one moment, so they count for no more tokens than a change is judged by.
        """
        trials = round.accepted + round.rejected
        if not trials:
            return
        if round.survivors:
            tried = [float(n) for n in (round.batch, *round.survivors[:-1])]
            kept = [float(n) for n in round.survivors]
        else:
            rate = round.accepted / trials
            tried = [rate**n for n in range(length)]
            kept = [rate * n for n in tried]
        scale = min(trials, 2 * self.config.short_memory) / sum(tried)
        self._add(key, length, [scale * n for n in tried], [scale * n for n in kept])

    def _add(self, key: str, length: int, tried: Sequence[float], kept: Iterable[float]) -> bool:
        own, config = self.of(key, length), self.config
        rate, keep = own.rate, 1.0 - 0.5 / config.short_memory
        n, hits = own.latest[0] * keep, own.latest[1] * keep
        counts = own.tried
        for j, x in enumerate(tried):
            counts[j] += x
            n += x
        counts = own.kept
        for j, x in enumerate(kept):
            counts[j] += x
            hits += x
        own.latest = n, hits
        own.settle()
        total = own.total
        if total > 2 * n > config.shrinkage:
            if (hits - rate * n) ** 2 > config.change_deviations**2 * rate * (1 - rate) * n:
                self._changed(own)
                return True
            if total > 1.1 * config.count_memory:
                own.fade(config.count_memory)
        return False

    def _changed(self, own: AcceptanceCounts) -> None:
        """Drop what was known before the latest rounds, of which half stays: some of it is older than the change."""
        n, hits = own.latest
        own.tried = [0.5 * x * n / own.total for x in own.tried]
        own.kept = [x * hits / n for x in own.tried]
        own.latest = 0.5 * n, 0.5 * hits
        own.settle()
        for other in self.counts.values():
            if other is not own and other.total > self.config.shrinkage:
                other.fade(self.config.shrinkage)
                other.settle()
