"""Drafters that are models in this text: how their acceptance differs from the usual, and when idle ones read it.

A model that reads tokens it missed predicts each of them after the true text, so its acceptance there is known without
drafting. Reading takes seconds; it is worth them while it may show that another drafter is the better one here.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import exp, sqrt
from typing import ClassVar

from wager.core.round import MOST_SCORED
from wager.policies.auto.config import AutoConfig
from wager.policies.base import Learner


class DrafterInText(Learner):
    """What is known of one drafter in this text."""

    __slots__ = ("information", "missed", "surplus")
    learned = ("surplus", "information", "missed")

    def __init__(self, config: AutoConfig) -> None:
        self.surplus = 0.0  # accepted tokens beyond those expected of its usual acceptance
        self.information = 0.0  # the variance of that, were it as usual: by it one unit of log odds changes the surplus
        self.missed = 0  # tokens that it neither read nor drafted for


class TextAcceptance(Learner):
    """The shift of every model drafter's log odds of acceptance in this text, common to all and its own.

    Both are one Newton step from 0 in a logistic model, with the prior of a ridge: as if ``shrinkage`` tokens of even
    odds had been as usual.
    """

    learned = ("drafters", "slower")
    elements: ClassVar = {"drafters": DrafterInText}

    def __init__(self, config: AutoConfig) -> None:
        self.config = config
        self.prior = config.shrinkage  # information, p (1 - p) a token, that drafters differ as usual
        self.common = config.shrinkage / 4.0  # and that the text is as usual: texts differ more than drafters do
        self.drafters: dict[str, DrafterInText] = {}
        self.slower: dict[str, float] = {}  # drafter -> times the seconds expected that reading takes
        self.factors: dict[str, float] = {}  # drafter -> on its odds

    def begin(self) -> None:
        """A new text."""
        self.drafters.clear()
        self.factors = {}

    def of(self, drafter: str) -> DrafterInText:
        """What is known of the drafter."""
        own = self.drafters.get(drafter)
        if own is None:
            own = self.drafters[drafter] = DrafterInText(self.config)
        return own

    def learn(self, drafter: str, chances: Sequence[float], accepted: float) -> None:
        """Of tokens with these usual chances so many were accepted; what is known fades, for the text may change."""
        own, keep = self.of(drafter), 1.0 - len(chances) / (len(chances) + self.config.count_memory)
        own.surplus = keep * own.surplus + accepted - sum(chances)
        own.information = keep * own.information + sum(p * (1.0 - p) for p in chances)

    def pass_by(self, emitted: int, followed: Iterable[str], drafters: Iterable[str]) -> None:
        """The text went on; which drafters have read all of it, or drafted for it."""
        for name in drafters:
            self.of(name).missed += emitted
        for name in followed:
            self.of(name).missed = 0
        self.settle()

    def settle(self) -> None:
        known, prior = self.drafters, self.prior
        together = sum(own.surplus for own in known.values()) / (
            sum(o.information for o in known.values()) + self.common
        )
        self.factors = {
            name: exp(together + (own.surplus - together * own.information) / (own.information + prior))
            for name, own in known.items()
        }

    def deviation(self, drafter: str, chance: float) -> float:
        """How far reading what it missed is expected to move its log odds, one standard deviation."""
        own, prior = self.of(drafter), self.prior
        more = min(own.missed, MOST_SCORED) * chance * (1.0 - chance)
        return sqrt(1.0 / (own.information + prior) - 1.0 / (own.information + more + prior))

    def took(self, seconds: Mapping[str, float], expected: Mapping[str, float]) -> None:
        """Reading took so long, where so much was expected."""
        for name, taken in seconds.items():
            if taken > 0.0 and (usual := expected.get(name, 0.0)) > 0.0:
                ratio = min(taken / usual, self.config.outlier)
                before = self.slower.get(name, ratio)
                self.slower[name] = before + (ratio - before) / self.config.repeats
