"""How far drafts of a drafter that says nothing beforehand are accepted: counts, and a draw of luck.

Such a drafter has to be played to be known, so what is expected of it is drawn from what is possible (Thompson's
rule): one that is little known is tried now and then, one that is well known and worse is not. When the latest drafts
contradict all before them, those are forgotten, and what is known of other drafters is doubted.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np

WINDOW = 1000.0  # tokens a curve remembers
STEP = 20.0  # tokens that a step of a batch counts for at most: its requests are of one moment
SHRINK = 8.0  # tokens of evidence its mean is worth at every position
RECENT = 0.95  # of the latest evidence, from round to round
SURPRISE = 3.2  # standard deviations between the latest evidence and all of it that are taken for a change
DOUBT = 10.0  # tokens of evidence that other drafters keep when one is found to have changed
SURE = 0.99
DRAWS = 256
TRUST = 0.5  # of the latest evidence that stays when it contradicts the rest: some is older than the change


@dataclass(slots=True)
class AcceptanceCounts:
    """One drafter's, or one drafter's tree's."""

    tried: list[float] = field(default_factory=list)  # tokens verified by position, all before them accepted
    kept: list[float] = field(default_factory=list)  # of those, accepted
    latest: list[float] = field(default_factory=lambda: [0.0, 0.0])  # the same over all positions, of late

    def fade(self, keep: float) -> None:
        """Leave so much of the evidence."""
        self.tried = [x * keep for x in self.tried]
        self.kept = [x * keep for x in self.kept]


class PositionalAcceptance:
    """Acceptance by position of every drafter that was played without a hint."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.known: dict[str, AcceptanceCounts] = {}
        self._thompson_draws: list[float] = []

    def tokens(self, key: str, length: int, *, mean: bool = False) -> list[float]:
        """Tokens a round emits with drafts of 0, 1, … ``length`` tokens, by one draw of what is possible.

        mean: what is to be expected instead, without luck.
        """
        curve = self._of(key)
        tried, kept = sum(curve.tried), sum(curve.kept)
        rate = (kept + 1.0) / (tried + 2.0)
        shift = 0.0
        if not mean:
            if not self._thompson_draws:
                self._thompson_draws = self.rng.standard_normal(DRAWS).tolist()
            shift = self._thompson_draws.pop() / math.sqrt((tried + 2.0) * rate * (1.0 - rate))
        alive = total = 1.0
        out = [1.0]
        for j in range(length):
            chance = rate
            if j < len(curve.tried):
                chance = (curve.kept[j] + SHRINK * rate) / (curve.tried[j] + SHRINK)
            # the draw moves all positions alike, on the scale of log odds
            odds = chance / (1.0 - chance) * math.exp(shift)
            chance = odds / (1.0 + odds)
            alive *= chance if chance < SURE else SURE
            total += alive
            out.append(total)
        return out

    def learn(self, key: str, accepted: int, drafted: int) -> None:
        """A draft of so many tokens was accepted so far."""
        scored = min(accepted + 1, drafted)
        self._add(key, [1.0] * scored, [1.0] * accepted)

    def learn_all(self, key: str, accepted: int, rejected: int, length: int) -> None:
        """Drafts of a batch of which only totals are known, as if every token had been as likely as every other."""
        trials = accepted + rejected
        if trials:
            rate = accepted / trials
            shares = [rate**j for j in range(length)]
            tried = [min(trials, STEP) * share / sum(shares) for share in shares]
            self._add(key, tried, [n * rate for n in tried])

    def _add(self, key: str, tried: list[float], kept: list[float]) -> None:
        curve = self._of(key)
        while len(curve.tried) < len(tried):
            curve.tried.append(0.0)
            curve.kept.append(0.0)
        before = (sum(curve.kept) + 1.0) / (sum(curve.tried) + 2.0)
        for j, n in enumerate(tried):
            curve.tried[j] += n
        for j, n in enumerate(kept):
            curve.kept[j] += n
        curve.latest = [RECENT * curve.latest[0] + sum(tried), RECENT * curve.latest[1] + sum(kept)]
        total, (n, hits) = sum(curve.tried), curve.latest
        if total > 2 * n > 8 and abs(hits - before * n) > SURPRISE * math.sqrt(before * (1 - before) * n):
            # what was known before no longer holds: the latest evidence is all there is
            curve.tried = [x * TRUST * n / total for x in curve.tried]
            curve.kept = [x * hits / n for x in curve.tried]
            curve.latest = [TRUST * n, TRUST * hits]
            fade = 1.0
            for other in self.known.values():
                if other is not curve:
                    other.fade(min(1.0, DOUBT / max(1.0, sum(other.tried))))
        else:
            fade = min(1.0, WINDOW / total)
        if fade < 1.0:
            curve.fade(fade)

    def _of(self, key: str) -> AcceptanceCounts:
        return self.known.setdefault(key, AcceptanceCounts())

    @property
    def saved(self) -> dict[str, Any]:
        """Everything learned, in lists."""
        known = {key: list(astuple(curve)) for key, curve in self.known.items()}
        return {"known": known, "thompson_draws": list(self._thompson_draws)}

    @saved.setter
    def saved(self, saved: dict[str, Any]) -> None:
        self.known = {key: AcceptanceCounts(*parts) for key, parts in saved["known"].items()}
        self._thompson_draws = list(saved["thompson_draws"])
