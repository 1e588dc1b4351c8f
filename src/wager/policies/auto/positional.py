"""Acceptance of drafters that say nothing before they draft: counts by position, and Thompson draws.

Such a drafter has to be run to be known. Its acceptance is drawn from what its counts allow (Thompson sampling), so
one that is little known is tried, and one that is well known and worse is not. When its latest drafts contradict all
before them, those are dropped, and the counts of the other drafters are cut down so that they are tried again.

What a head's card says of its chains and trees holds in proportion: where one of them is accepted more often than
there, so are the others, by about the same log odds. So what was not run in a text is known from what was.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import exp, sqrt
from operator import mul
from typing import ClassVar

import numpy as np

from wager.core import Round
from wager.policies.auto.config import AutoConfig
from wager.policies.base import Learner

DRAWS = 256  # random numbers drawn at a time


class Shift(Learner):
    """By how much the log odds of all of a drafter's chains and trees differ from those on its card."""

    __slots__ = (
        *("common", "config", "deviation", "evidence"),
        *("factor", "information", "kinship", "own", "start", "value"),
    )
    learned = ("start", "evidence", "information")

    def __init__(self, config: AutoConfig) -> None:
        self.config = config
        self.start = 0.0  # at first, or at the last change
        # Since then: the sum of p (1 - p) over tokens, and the same with each times the move from the start that it
        # shows; both fade.
        self.information = self.evidence = 0.0
        self.kinship = config.kinship  # tokens of evidence, at each position, that the card's proportions are worth
        self.place(0.0, 0.0, 0.0)

    def place(self, moved: float, own: float, common: float) -> None:
        """How far it is from the start, and the deviations of its own part and of what is common to all drafters."""
        self.value, self.own, self.common = self.start + moved, own, common
        self.factor = exp(self.value)  # on all odds
        self.deviation = sqrt(own * own + common * common)

    def learn(self, card: Sequence[float], tried: Sequence[float], kept: Sequence[float]) -> None:
        """Of tokens with these odds on the card so many were tried at each position, and so many kept."""
        surplus = information = 0.0
        for at, n in enumerate(tried):
            x = card[min(at, len(card) - 1)] * self.factor
            chance = x / (1.0 + x)
            surplus += (kept[at] if at < len(kept) else 0.0) - n * chance
            information += n * chance * (1.0 - chance)
        self.evidence += surplus + information * (self.value - self.start)
        self.information += information

    def fade(self, tokens: float) -> None:
        """So many tokens later."""
        keep = 1.0 - tokens / (tokens + self.config.count_memory)
        self.evidence, self.information = keep * self.evidence, keep * self.information

    def begin(self) -> None:
        """Something has changed: it is as little known as at first."""
        self.start, self.evidence, self.information = self.value, 0.0, 0.0


class AcceptanceCounts(Learner):
    """Of one drafter's chains, or of one of its trees."""

    __slots__ = (
        *("card", "config", "deviation", "kept", "latest", "odds"),
        *("own", "rate", "relative", "shift", "total", "tried"),
    )
    learned = ("tried", "kept", "latest", "card")

    def __init__(self, config: AutoConfig) -> None:
        self.config = config
        self.tried: list[float] = []  # tokens verified by position, all before them accepted
        self.kept: list[float] = []  # of those, accepted
        self.latest = (0.0, 0.0)  # tokens tried and kept over all positions in the latest rounds
        self.card: list[float] = []  # odds at each position that its card tells; none: it has no card
        self.shift: Shift | None = None  # of its drafter, where it has a card
        self.settle()

    def settle(self) -> None:
        """What follows from the counts: the odds at each position, drawn towards the card, or the rate over all."""
        self.total = total = sum(self.tried)
        self.rate = rate = (sum(self.kept) + 1.0) / (total + 2.0)
        weight, variance = self.config.shrinkage, rate * (1.0 - rate)
        if self.card and self.shift is not None:
            weight, shift = self.shift.kinship, self.shift
            chances = self.chances(shift.factor)
            self.own = 1.0 / sqrt((total + weight * len(self.card)) * variance)  # of the log odds beside all others
            self.deviation = sqrt(self.own**2 + shift.deviation**2)  # of the log odds
            self.relative = sqrt(self.own**2 + shift.own**2)  # beside those of other drafters
        else:
            chances = [rate] * len(self.tried)
            self.own = self.deviation = self.relative = 1.0 / sqrt((total + 2.0) * variance)
        self.odds = [
            (k + weight * p) / (n - k + weight * (1.0 - p))
            for k, n, p in zip(self.kept, self.tried, chances, strict=True)
        ]

    def chances(self, factor: float) -> list[float]:
        """Of tokens at each position, by the card with this factor on all odds."""
        card = self.card
        return [1.0 - 1.0 / (1.0 + card[min(j, len(card) - 1)] * factor) for j in range(len(self.tried))]

    def fade(self, tokens: float) -> None:
        """Leave so many tokens of evidence."""
        keep = tokens / self.total
        self.tried, self.kept = [x * keep for x in self.tried], [x * keep for x in self.kept]


def reached(odds: Sequence[float], factor: float) -> list[float]:
    """Probability that the 1st, 2nd, … token is accepted and all before it, given the odds and a draw."""
    return list(accumulate((x * factor / (1.0 + x * factor) for x in odds), mul))


class PositionalAcceptance(Learner):
    """Acceptance by position of every drafter that was run without a hint."""

    learned = ("shifts", "apart", "counts", "draws", "drawn")
    elements: ClassVar = {"counts": AcceptanceCounts, "shifts": Shift}

    def __init__(self, rng: np.random.Generator, config: AutoConfig) -> None:
        self.rng, self.config = rng, config
        self.shifts: dict[str, Shift] = {}  # of drafters with a card
        self.apart = 1.0 / self.trust  # the variance of what is not common to the shifts of several drafters
        self.counts: dict[str, AcceptanceCounts] = {}
        self.draws: list[float] = []
        self.drawn: dict[str, float] = {}  # the present Thompson draws of what has a card
        self.unsettled: set[str] = set()  # whose drafter's shift has changed

    @property
    def trust(self) -> float:
        """Information that the cards are worth: they tell of many texts, so twice as many tokens as other evidence.
        One is worth p (1 - p), a quarter at most."""
        return 2.0 * self.config.shrinkage / 4.0

    def relate(self) -> None:
        """How far drafters are from their cards: in part all alike, for texts are harder or easier than those on the
        cards, and in part each for itself (random effects).

        The move of drafter i from its start is c + o[i], with c of variance 1 / trust and o[i] of variance ``apart``.
        Of c it shows as much as ``weight * information`` says; o[i] follows from what is left.
        """
        several, config = len(self.shifts) > 1, self.config
        apart = self.apart if several else 0.0
        # What is one drafter's own is no larger at a position than over all: counts say more only once they are many.
        kinship = max(config.kinship, 4.0 / max(apart, 4.0 / config.count_memory)) if several else config.kinship
        weights = [1.0 / (1.0 + apart * shift.information) for shift in self.shifts.values()]
        known = list(zip(self.shifts.values(), weights, strict=True))
        information = self.trust + sum(weight * shift.information for shift, weight in known)
        common = sum(weight * shift.evidence for shift, weight in known) / information
        for shift, weight in known:  # where a drafter's own evidence decides, what is common matters little
            own = apart * weight * (shift.evidence - common * shift.information)
            shift.kinship = kinship
            shift.place(common + own, sqrt(apart * weight), weight / sqrt(information))

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
        own, drafter = self.of(key, len(rates)), key.partition("@")[0]
        certain = 1.0 / self.config.kinship  # no position of a card is
        own.card = [x / (1.0 - x) for x in (min(1.0 - certain, max(certain, rate)) for rate in rates)]
        own.shift = self.shifts.setdefault(drafter, Shift(self.config))
        self.settle()
        if not own.total:
            reach, tokens = list(accumulate(rates, mul, initial=1.0))[: len(rates)], self.config.shrinkage
            own.tried[: len(rates)] = [tokens * x / sum(reach) for x in reach]
            own.kept[: len(rates)] = [n * rate for n, rate in zip(own.tried, rates, strict=False)]
            own.settle()

    def settle(self) -> None:
        for key, own in self.counts.items():
            own.shift = self.shifts.get(key.partition("@")[0]) if own.card else None
        self.relate()
        for own in self.counts.values():
            own.settle()

    def draws_for(self, count: int) -> list[float]:
        """Standard normal numbers to take from the end of, at least so many."""
        if len(self.draws) < count:
            self.draws = self.rng.standard_normal(DRAWS + count).tolist()
        return self.draws

    def settle_learned(self) -> None:
        """Work out what follows for those that something was learned of."""
        for key in self.unsettled:
            self.counts[key].settle()
        self.unsettled.clear()

    def draw(self, keys: Sequence[str], *, anew: bool) -> dict[str, float]:
        """For each a factor on the odds of all positions, drawn from what its counts allow.

        Of what has a card one part is drawn for all drafters together, one for its drafter's chains and trees, and one
        for itself; this one fades into another over some choices, unless it is to be drawn ``anew``: a shape that is
        tried because of it is tried more than once, for the first draft of another shape takes longer.
        """
        self.settle_learned()
        keep = 0.0 if anew else 1.0 - 1.0 / self.config.draw_memory
        more, width, factors, shared = sqrt(1.0 - keep * keep), self.config.draw_width, {}, dict[str, float]()
        fresh = self.draws_for(len(keys) + len(self.shifts) + (len(self.shifts) > 1))
        common: float | None = None
        for key in keys:
            own, drawn = self.counts[key], fresh.pop()
            if own.shift is None:
                factors[key] = exp(drawn * own.deviation)
                continue
            if key in self.drawn:
                drawn = keep * self.drawn[key] + more * drawn
            self.drawn[key], drafter = drawn, key.partition("@")[0]
            if common is None:
                common = fresh.pop()
            if drafter not in shared:
                each = own.shift.own * fresh.pop() if own.shift.own else 0.0
                shared[drafter] = each + own.shift.common * common
            factors[key] = exp(width * (drawn * own.own + shared[drafter]))
        return factors

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
        tried = [count * n / total for n in at]
        kept = [min(n, sum(hits) * x * p / expected) for n, x, p in zip(tried, at, chances, strict=True)]
        for j, (n, k) in enumerate(zip(tried, kept, strict=True)):
            own.tried[j] += n
            own.kept[j] += k
        self._shift(key, own, tried, kept)
        own.settle()
        if own.total > 1.1 * config.count_memory:
            own.fade(config.count_memory)
            own.settle()
        return [own.rate] * count

    def tokens(self, odds: Sequence[float], factor: float) -> list[float]:
        """Tokens a round emits with drafts of 0, 1, … tokens, given the odds and a draw."""
        return list(accumulate(reached(odds, factor), initial=1.0))

    def learn(self, key: str, accepted: int, drafted: int) -> bool:
        """A draft of so many tokens was accepted so far; whether acceptance has changed."""
        return self._add(key, drafted, [1.0] * min(accepted + 1, drafted), [1.0] * accepted)

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

    def _add(self, key: str, length: int, tried: Sequence[float], kept: Sequence[float]) -> bool:
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
        self._shift(key, own, tried, kept)
        own.settle()
        total = own.total
        if total > 2 * n > config.shrinkage:
            if (hits - rate * n) ** 2 > config.change_deviations**2 * rate * (1 - rate) * n:
                self._changed(own)
                return True
            if total > 1.1 * config.count_memory:
                own.fade(config.count_memory)
                own.settle()
        return False

    def _shift(self, key: str, own: AcceptanceCounts, tried: Sequence[float], kept: Sequence[float]) -> None:
        """Let all other chains and trees with a card know of this."""
        if own.shift is not None:
            own.shift.learn(own.card, tried, kept)
            for shift in self.shifts.values():
                shift.fade(sum(tried))
            self.relate()
            self.unsettled.update(name for name, other in self.counts.items() if other.shift is not None)
            self.unsettled.discard(key)

    def _changed(self, own: AcceptanceCounts) -> None:
        """Drop what was known before the latest rounds, of which half stays: some of it is older than the change."""
        n, hits = own.latest
        own.tried = [0.5 * x * n / own.total for x in own.tried]
        own.kept = [x * hits / n for x in own.tried]
        own.latest = 0.5 * n, 0.5 * hits
        for other in self.counts.values():
            if other is not own and other.total > self.config.shrinkage:
                other.fade(self.config.shrinkage)
        for shift in self.shifts.values():
            shift.begin()
        self.settle()
