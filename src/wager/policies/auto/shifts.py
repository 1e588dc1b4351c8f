"""How far drafters are from their cards, in part all alike and in part each for itself."""

from collections.abc import Collection, Iterator, Sequence
from math import exp, sqrt

from wager.policies.auto.config import AutoConfig
from wager.policies.auto.moments import learned_variance
from wager.policies.base import Learner

NOTICED = 0.01  # log odds by which a drafter has to move for anything to follow


class Shift(Learner):
    """By how much the log odds of all of a drafter's chains and trees differ from those on its card."""

    __slots__ = (
        *("common", "config", "deviation", "evidence", "factor", "information", "kind"),
        *("long_evidence", "long_information", "own", "start", "value", "variance"),
    )
    learned = ("start", "evidence", "information", "long_evidence", "long_information", "kind")

    def __init__(self, config: AutoConfig) -> None:
        self.config = config
        self.kind = 0.0  # of that, what the card says of texts of the present kind
        self.start = 0.0  # of the rest: at first, or at the last change
        # Since then: the sum of p (1 - p) over tokens, and the same with each times the move from the start that it
        # shows; both fade.
        self.information = self.evidence = 0.0
        # The same of more tokens, of each of which a part counts (``drafter_share``).
        self.long_information = self.long_evidence = 0.0
        self.variance = 0.0  # of what is the drafter's own; 0: there is no other drafter with a card
        self.place(0.0, 0.0, 0.0)

    def place(self, moved: float, own: float, common: float) -> None:
        """How far it is from the start, and the deviations of its own part and of what is common to all drafters."""
        self.value, self.own, self.common = self.start + moved, own, common
        self.factor = exp(self.value + self.kind)  # on all odds
        self.deviation = sqrt(own * own + common * common)

    def follow(self, by: float) -> None:
        """The text is of a kind that the card says so much more of, in log odds."""
        self.kind += by
        self.factor = exp(self.value + self.kind)

    def learn(self, card: Sequence[float], tried: Sequence[float], kept: Sequence[float]) -> None:
        """Of tokens with these odds on the card so many were tried at each position, and so many kept."""
        surplus = information = 0.0
        for at, n in enumerate(tried):
            x = card[min(at, len(card) - 1)] * self.factor
            chance = x / (1.0 + x)
            surplus += (kept[at] if at < len(kept) else 0.0) - n * chance
            information += n * chance * (1.0 - chance)
        evidence, share = surplus + information * (self.value - self.start), self.config.drafter_share
        self.evidence += evidence
        self.information += information
        self.long_evidence += share * evidence
        self.long_information += share * information

    def fade(self, tokens: float) -> None:
        """So many tokens of the text later."""
        keep = 1.0 - tokens / (tokens + self.config.count_memory)
        self.evidence, self.information = keep * self.evidence, keep * self.information
        keep = 1.0 - tokens / (tokens + self.config.long_count_memory)
        self.long_evidence, self.long_information = keep * self.long_evidence, keep * self.long_information

    def begin(self) -> None:
        """Something has changed: it is as little known as at first."""
        self.start, self.evidence, self.information = self.value, 0.0, 0.0
        self.long_evidence = self.long_information = 0.0


def card_information(config: AutoConfig) -> float:
    """Information that cards are worth: they tell of many texts, so twice as many tokens as other evidence. A token is
    worth p (1 - p), a quarter at most."""
    return 2.0 * config.shrinkage / 4.0


def relate(shifts: Collection[Shift], between_drafter_variance: float, config: AutoConfig) -> None:
    """Place all shifts: texts are harder or easier than those on the cards, which is common to all drafters, and beyond
    that each drafter differs from its card by itself (random effects).

    The move of drafter i from its start is c + o[i], with c of variance 1 / `card_information`. The variance of o[i] is
    the one that cards tell, or a larger one that the drafters have shown. c is of the latest texts. o[i] is of more of
    them: one drafter was run in harder texts than another, and tokens of one text are alike, so it takes many texts to
    tell drafters apart. How certain o[i] is counts by the latest tokens, or idle models would read more than that pays.
    """
    variance = 0.0
    if len(shifts) > 1:
        told = max(between_drafter_variance, 4.0 / config.count_memory)  # no less than can be known of one of them
        variance = max(told, learned_variance(told, config.short_memory, _compared(shifts), config)[0])
    certain, common, information = _in_common([(s.evidence, s.information) for s in shifts], variance, config)
    weights, usual, _ = _in_common([(s.long_evidence, s.long_information) for s in shifts], variance, config)
    for shift, weight, known in zip(shifts, weights, certain, strict=True):
        own = variance * weight * (shift.long_evidence - usual * shift.long_information)
        shift.variance = variance  # where a drafter's own evidence decides, what is common matters little
        shift.place(common + own, sqrt(variance * known), known / sqrt(information))


def _in_common(
    shown: Sequence[tuple[float, float]], variance: float, config: AutoConfig
) -> tuple[list[float], float, float]:
    """From each drafter's evidence and information: how far what is common decides its move, that, and the information
    on it."""
    weights = [1.0 / (1.0 + variance * information) for _, information in shown]
    known = card_information(config) + sum(w * information for w, (_, information) in zip(weights, shown, strict=True))
    return weights, sum(w * evidence for w, (evidence, _) in zip(weights, shown, strict=True)) / known, known


def _compared(shifts: Collection[Shift]) -> Iterator[tuple[float, float]]:
    """Every drafter beside the one that is known best: the variance by these two alone, and what is by chance."""
    best = max(shifts, key=lambda shift: shift.long_information)
    for shift in shifts:
        if shift is not best and shift.long_information > 0.0:
            chance = 1.0 / shift.long_information + 1.0 / best.long_information
            difference = shift.long_evidence / shift.long_information - best.long_evidence / best.long_information
            yield 0.5 * (difference * difference - chance), chance
