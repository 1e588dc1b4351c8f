"""Acceptance of drafters that say nothing before they draft: counts by position, and Thompson draws.

Such a drafter has to be run to be known. Its acceptance is drawn from what its counts allow (Thompson sampling), so
one that is little known is tried, and one that is well known and worse is not. When its latest drafts contradict all
before them, those are dropped, and the counts of the other drafters are cut down to be tried again.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, sqrt
from typing import Any

import numpy as np

from wager.policies.auto.config import AutoConfig

DRAWS = 256  # random numbers drawn at a time


class AcceptanceCounts:
    """Of one drafter's chains, or of one of its trees."""

    __slots__ = ("deviation", "kept", "latest_kept", "latest_tried", "odds", "rate", "shrinkage", "total", "tried")

    def __init__(self, shrinkage: float) -> None:
        self.shrinkage = shrinkage
        self.tried: list[float] = []  # tokens verified by position, all before them accepted
        self.kept: list[float] = []  # of those, accepted
        self.latest_tried = self.latest_kept = 0.0  # the same over all positions, in the latest rounds
        self.settle()

    def settle(self) -> None:
        """What follows from the counts: each position's odds, drawn towards the mean over all."""
        self.total = total = sum(self.tried)
        self.rate = rate = (sum(self.kept) + 1.0) / (total + 2.0)
        self.deviation = 1.0 / sqrt((total + 2.0) * rate * (1.0 - rate))  # of the log odds
        prior, more = self.shrinkage * rate, self.shrinkage
        self.odds = [(k + prior) / (n - k + more - prior) for k, n in zip(self.kept, self.tried, strict=True)]

    def fade(self, keep: float) -> None:
        """Leave so much of the evidence."""
        self.tried = [x * keep for x in self.tried]
        self.kept = [x * keep for x in self.kept]

    def state(self) -> list[Any]:
        """The counts."""
        return [self.tried, self.kept, self.latest_tried, self.latest_kept]


class PositionalAcceptance:
    """Acceptance by position of every drafter that was run without a hint."""

    def __init__(self, rng: np.random.Generator, config: AutoConfig) -> None:
        self.rng, self.config = rng, config
        self.counts: dict[str, AcceptanceCounts] = {}
        self._draws: list[float] = []

    def tokens(self, key: str, length: int) -> list[float]:
        """Tokens a round emits with drafts of 0, 1, … ``length`` tokens, by one Thompson draw."""
        own = self.of(key)
        if not self._draws:
            self._draws = self.rng.standard_normal(DRAWS).tolist()
        shift = exp(self._draws.pop() * own.deviation)  # moves the log odds of all positions alike
        most, reach, total, out = self.config.max_acceptance, 1.0, 1.0, [1.0]
        odds = own.odds
        if len(odds) < length:
            odds = odds + [own.rate / (1.0 - own.rate)] * (length - len(odds))
        for j in range(length):
            x = odds[j] * shift
            x /= 1.0 + x
            reach *= x if x < most else most
            total += reach
            out.append(total)
        return out

    def rate(self, key: str) -> float:
        """Share of this drafter's tokens that are accepted."""
        return self.of(key).rate

    def learn(self, key: str, accepted: int, drafted: int) -> None:
        """A draft of so many tokens was accepted so far."""
        scored = min(accepted + 1, drafted)
        self._add(key, [1.0] * scored, [1.0] * accepted)

    def learn_batch(self, key: str, accepted: int, rejected: int, length: int) -> None:
        """Drafts of a batch of which only totals are known, as if every token had been as likely as every other.

        Its requests are of one moment, so they count for no more tokens than a change is judged by.
        """
        trials = accepted + rejected
        if trials:
            rate = accepted / trials
            shares = [1.0]
            for _ in range(length - 1):
                shares.append(shares[-1] * rate)
            scale = min(trials, self.config.change_memory) / sum(shares)
            tried = [share * scale for share in shares]
            self._add(key, tried, [n * rate for n in tried])

    def _add(self, key: str, tried: list[float], kept: list[float]) -> None:
        own, config = self.of(key), self.config
        before = own.rate
        more = len(tried) - len(own.tried)
        if more > 0:
            own.tried += [0.0] * more
            own.kept += [0.0] * more
        for j, n in enumerate(tried):
            own.tried[j] += n
        for j, n in enumerate(kept):
            own.kept[j] += n
        keep = 1.0 - 1.0 / config.change_memory
        own.latest_tried = n = keep * own.latest_tried + sum(tried)
        own.latest_kept = hits = keep * own.latest_kept + sum(kept)
        total = sum(own.tried)
        deviations = config.change_deviations
        if total > 2 * n > config.shrinkage and (hits - before * n) ** 2 > deviations**2 * before * (1 - before) * n:
            # Half of the latest evidence stays: some of it is older than the change.
            own.tried = [0.5 * x * n / total for x in own.tried]
            own.kept = [x * hits / n for x in own.tried]
            own.latest_tried, own.latest_kept = 0.5 * n, 0.5 * hits
            for other in self.counts.values():
                if other is not own and other.total > config.shrinkage:
                    other.fade(config.shrinkage / other.total)
                    other.settle()
        elif total > config.count_memory:
            own.fade(config.count_memory / total)
        own.settle()

    def of(self, key: str) -> AcceptanceCounts:
        """The counts of a drafter or tree."""
        own = self.counts.get(key)
        if own is None:
            own = self.counts[key] = AcceptanceCounts(self.config.shrinkage)
        return own

    def state_dict(self) -> dict[str, Any]:
        """Everything learned."""
        return {"counts": {key: own.state() for key, own in self.counts.items()}, "draws": list(self._draws)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what was learned."""
        self._draws, self.counts = list(state["draws"]), {}
        for key, (tried, kept, latest_tried, latest_kept) in state["counts"].items():
            own = self.of(key)
            own.tried, own.kept, own.latest_tried, own.latest_kept = tried, kept, latest_tried, latest_kept
            own.settle()
