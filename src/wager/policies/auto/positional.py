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
from wager.policies.auto.kinds import TextKind
from wager.policies.auto.moments import learned_variance
from wager.policies.auto.shifts import NOTICED, Shift, card_information, relate
from wager.policies.base import Learner

DRAWS = 256  # random numbers drawn at a time


class AcceptanceCounts(Learner):
    """Of one drafter's chains, or of one of its trees."""

    __slots__ = (
        *("card", "config", "deviation", "factor", "kept", "latest", "odds"),
        *("own", "rate", "relative", "share", "shift", "total", "tried"),
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
        # Of a token that counts: a part where drafters are compared that were run in other texts (`relate`).
        self.share = share = self.config.drafter_share if self.shift is not None and self.shift.variance else 1.0
        self.factor = 0.0  # of the shift that this follows from
        if self.card and self.shift is not None:
            shift = self.shift
            self.factor = shift.factor
            chances = self.chances(shift.factor)
            weight = self.card_prior_tokens(chances, shift.variance)
            self.own = 1.0 / sqrt((total + weight * len(self.card)) * variance)  # of the log odds beside all others
            self.deviation = sqrt(self.own**2 + shift.deviation**2)  # of the log odds
            self.relative = sqrt(self.own**2 + shift.own**2)  # beside those of other drafters
        else:
            chances = [rate] * len(self.tried)
            self.own = self.deviation = self.relative = 1.0 / sqrt((total + 2.0) * variance)
        self.odds = [
            (share * k + weight * p) / (share * (n - k) + weight * (1.0 - p))
            for k, n, p in zip(self.kept, self.tried, chances, strict=True)
        ]

    def card_prior_tokens(self, chances: Sequence[float], variance: float) -> float:
        """Tokens of evidence, at each position, that these chances, by the card, are worth.

        Of several drafters they are worth more, the less these differ from their cards (by this ``variance``), for what
        differs at a position is no larger: a few unlucky tokens must not tell them apart. As far as the counts differ
        by more than chance, they are worth less again.
        """
        config = self.config
        if not variance:
            return config.card_prior_tokens
        compared = []
        for k, n, p in zip(self.kept, self.tried, chances, strict=True):
            if n:
                each = 1.0 / (n * p * (1.0 - p))
                move, chance = (k - n * p) * each, each / self.share
                compared.append((move * move - chance, chance))
        seen, _ = learned_variance(variance, config.short_memory, compared, config)
        return max(config.card_prior_tokens, 4.0 / max(seen, 4.0 / config.count_memory))

    def chances(self, factor: float) -> list[float]:
        """Of tokens at each position, by the card with this factor on all odds; its last odds go on."""
        card, count = self.card, len(self.tried)
        known = [1.0 - 1.0 / (1.0 + x * factor) for x in (card if len(card) == count else card[:count])]
        return known if len(known) == count else known + known[-1:] * (count - len(known))

    def move(self, by: float) -> None:
        """What was learned holds with so much more log odds: the text is of another kind."""
        factor = exp(by)
        self.kept = [_moved(k, n, factor) for k, n in zip(self.kept, self.tried, strict=True)]
        self.latest = self.latest[0], _moved(self.latest[1], self.latest[0], factor)
        self.factor = 0.0

    def fade(self, tokens: float) -> None:
        """Leave so many tokens of evidence."""
        keep = tokens / self.total
        self.tried, self.kept = [x * keep for x in self.tried], [x * keep for x in self.kept]

    def forget(self) -> None:
        """Let the oldest tokens fade; of which a part counts, more are remembered."""
        memory = self.config.count_memory if self.share == 1.0 else self.config.long_count_memory
        if self.total > 1.1 * memory:
            self.fade(memory)
            self.settle()


def _moved(kept: float, tried: float, factor: float) -> float:
    """Of the tokens tried, those kept with this factor on the odds."""
    return tried * kept * factor / (tried - kept + kept * factor) if kept else 0.0


def reached(odds: Sequence[float], factor: float) -> list[float]:
    """Probability that the 1st, 2nd, … token is accepted and all before it, given the odds and a draw."""
    return list(accumulate((x * factor / (1.0 + x * factor) for x in odds), mul))


class PositionalAcceptance(Learner):
    """Acceptance by position of every drafter that was run without a hint."""

    learned = ("shifts", "between_drafter_variance", "counts", "draws", "drawn")
    elements: ClassVar = {"counts": AcceptanceCounts, "shifts": Shift}

    def __init__(self, rng: np.random.Generator, config: AutoConfig) -> None:
        self.rng, self.config = rng, config
        self.shifts: dict[str, Shift] = {}  # of drafters with a card
        # the variance of what is not common to the shifts of several drafters, as their cards tell it
        self.between_drafter_variance = 1.0 / card_information(config)
        self.counts: dict[str, AcceptanceCounts] = {}
        self.draws: list[float] = []
        self.drawn: dict[str, float] = {}  # the present Thompson draws of what has a card
        self.unsettled: set[str] = set()  # whose drafter's shift has changed

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
        certain = 1.0 / self.config.card_prior_tokens  # no position of a card is
        own.card = [x / (1.0 - x) for x in (min(1.0 - certain, max(certain, rate)) for rate in rates)]
        own.shift = self.shifts.setdefault(drafter, Shift(self.config))
        self.settle()
        if not own.total:
            reach, tokens = list(accumulate(rates, mul, initial=1.0))[: len(rates)], self.config.shrinkage
            own.tried[: len(rates)] = [tokens * x / sum(reach) for x in reach]
            own.kept[: len(rates)] = [n * rate for n, rate in zip(own.tried, rates, strict=False)]
            own.settle()

    def follow(self, kind: TextKind) -> None:
        """What is known of drafters holds with the log odds that their cards tell of this kind of text."""
        for drafter, shift in self.shifts.items():
            by = kind.shift(drafter) - shift.kind
            if abs(by) > NOTICED:
                shift.follow(by)
                for key, own in self.counts.items():
                    if own.shift is shift:
                        own.move(by)
                        self.unsettled.add(key)

    def in_all_kinds(self) -> dict[str, list[float]]:
        """The odds of what has a card, as they are in texts of all kinds together."""
        self.settle_learned()
        known = [(key, own.odds, own.shift) for key, own in self.counts.items()]
        return {key: [x * exp(-shift.kind) for x in odds] for key, odds, shift in known if shift is not None}

    def settle(self) -> None:
        for key, own in self.counts.items():
            own.shift = self.shifts.get(key.partition("@")[0]) if own.card else None
        self.relate()
        for own in self.counts.values():
            own.settle()

    def relate(self) -> None:
        """Work out how far drafters are from their cards."""
        relate(self.shifts.values(), self.between_drafter_variance, self.config)

    def draws_for(self, count: int) -> list[float]:
        """Standard normal numbers to take from the end of, at least so many."""
        if len(self.draws) < count:
            self.draws = self.rng.standard_normal(DRAWS + count).tolist()
        return self.draws

    def settle_learned(self) -> None:
        """Work out what follows for those that something noticeable was learned of."""
        for key in self.unsettled:
            own = self.counts[key]
            if own.shift is None or abs(own.shift.factor - own.factor) > NOTICED * own.factor:
                own.settle()
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
        were verified there, and leave the positions' proportions as they are. Several may have read the same tokens, so
        nothing fades by this.
        """
        own, count = self.of(key, 1), len(hits)
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
        own.forget()
        return [own.rate] * count

    def fade(self, tokens: float) -> None:
        """The text went on by so many tokens that some drafter with a card is scored at: what was shown before them of
        how far drafters are from their cards counts for less."""
        for shift in self.shifts.values():
            shift.fade(tokens)

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
        if own.shift is not None:
            self.fade(sum(tried))
        self._shift(key, own, tried, kept)
        own.settle()
        total = own.total
        if total > 2 * n > config.shrinkage:
            if (hits - rate * n) ** 2 > config.change_deviations**2 * rate * (1 - rate) * n:
                self._changed(own)
                return True
            own.forget()
        return False

    def _shift(self, key: str, own: AcceptanceCounts, tried: Sequence[float], kept: Sequence[float]) -> None:
        """Let all other chains and trees with a card know of this."""
        if own.shift is not None:
            own.shift.learn(own.card, tried, kept)
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
