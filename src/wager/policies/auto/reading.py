"""Several drafters that are models, in one text: how their acceptance differs from the usual, and when idle ones read.

A model that reads tokens it missed predicts each of them after the true text, so its acceptance there is known without
drafting. Reading takes seconds; an idle model reads when not knowing it has cost as much, as far as can be expected.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from math import exp, sqrt
from typing import ClassVar

from wager.core.round import MOST_SCORED
from wager.policies.auto.config import AutoConfig
from wager.policies.auto.moments import learned_variance
from wager.policies.base import Learner

# Of the rule of five points, those beyond the mean: standard deviations, and the weight of each side.
POINTS = (
    (sqrt(5.0 - sqrt(10.0)), (7.0 + 2.0 * sqrt(10.0)) / 60.0),
    (sqrt(5.0 + sqrt(10.0)), (7.0 - 2.0 * sqrt(10.0)) / 60.0),
)


class DrafterInText(Learner):
    """What is known of one drafter in this text."""

    __slots__ = ("information", "missed", "surplus")
    learned = ("surplus", "information", "missed")

    def __init__(self, config: AutoConfig) -> None:
        self.surplus = 0.0  # accepted tokens beyond those expected of its usual acceptance
        self.information = 0.0  # the variance of that, were it as usual: by it one unit of log odds changes the surplus
        self.missed = 0  # tokens that it neither read nor drafted for


class TextAcceptance(Learner):
    """The shift of every model drafter's log odds of acceptance in this text beyond that of all of them.

    Both are one Newton step from 0 in a logistic model, with the prior of a ridge. What is common to all says how hard
    the text is, not which drafter is the right one: it is taken out, and not used.
    """

    learned = ("drafters", "readable", "aside", "wait", "current", "credit", "variance", "weight", "familiar")
    elements: ClassVar = {"drafters": DrafterInText}

    def __init__(self, config: AutoConfig) -> None:
        self.config = config
        # The variance of a drafter's shift in a text, learned from the texts before, and how many comparisons it is
        # from. At first it is large: then idle drafters read soon, and it is learned.
        self.variance, self.weight = 4.0 / config.shrinkage, 1.0
        self.common = config.shrinkage / 4.0  # and that the text is as usual: texts differ more than drafters do
        self.familiar: set[str] = set()  # drafters whose usual acceptance is known from other texts
        self.drafters: dict[str, DrafterInText] = {}
        # drafters that were scored at tokens that they read: they need not be run to be known
        self.readable: set[str] = set()
        self.reads: bool | None = None  # whether idle drafters read in this engine; None: that is not known yet
        self.factors: dict[str, float] = {}  # drafter -> on its odds; empty: nobody reads here
        # Of the last tokens, whether a drafter with hints drafted for them: such tokens are easier than those that
        # models are run for, and tell nothing of these.
        self.aside: list[bool] = []
        self.current = ""  # the drafter of the last draft
        self.credit: dict[str, float] = {}  # drafter -> tokens that it would have brought beyond what was run
        self.wait = 0  # rounds until it is considered again who reads

    @property
    def prior(self) -> float:
        """Information, p (1 - p) a token, that drafters differ as usual; no more than can be known of one of them."""
        return 1.0 / max(self.variance, 4.0 / self.config.count_memory)

    def expect(self, variance: float, drafters: Iterable[str]) -> None:
        """Start from the variance of shifts that the cards of drafters tell, unless it was learned already."""
        self.familiar.update(drafters)
        if self.weight <= 1.0:
            self.variance, self.weight = variance, self.config.short_memory

    def begin(self) -> None:
        """A new text, or another kind of text."""
        if self.readable:
            self._compare_drafters()
        self.familiar.update(name for name, own in self.drafters.items() if own.information > 0.0)
        self.drafters.clear()
        self.factors, self.credit, self.aside, self.current, self.wait = {}, {}, [], "", 0

    def _compare_drafters(self) -> None:
        """Learn the variance of shifts from the text that ends: from each drafter beside the one that is known best.

        The difference of two shifts has twice that variance, and the variance by chance of both estimates.
        """
        known = [own for name, own in self.drafters.items() if name in self.familiar and own.information > 0.0]
        known.sort(key=lambda own: -own.information)
        compared = []
        for best, own in product(known[:1], known[1:]):
            chance = 1.0 / own.information + 1.0 / best.information
            difference = own.surplus / own.information - best.surplus / best.information
            compared.append((0.5 * (difference * difference - chance), chance))
        self.variance, self.weight = learned_variance(self.variance, self.weight, compared, self.config)

    def of(self, drafter: str) -> DrafterInText:
        """What is known of the drafter."""
        own = self.drafters.get(drafter)
        if own is None:
            own = self.drafters[drafter] = DrafterInText(self.config)
        return own

    @property
    def unseen(self) -> int:
        """The latest tokens of the text that none of the drafters drafted for or read."""
        return min((own.missed for own in self.drafters.values()), default=0)

    def learn(self, drafter: str, chances: Sequence[float], accepted: float) -> None:
        """Of tokens with these usual chances so many were accepted; what is known fades, for the text may change."""
        own, keep = self.of(drafter), 1.0 - len(chances) / (len(chances) + self.config.count_memory)
        own.surplus = keep * own.surplus + accepted - sum(chances)
        own.information = keep * own.information + sum(p * (1.0 - p) for p in chances)

    def scored(self, known: Sequence[float]) -> list[float]:
        """Of what is known of the last tokens, the part that tells something."""
        return [hit for hit, aside in zip(reversed(known), reversed(self.aside), strict=False) if not aside]

    def pass_by(self, emitted: int, drafters: Iterable[str], *, aside: bool) -> None:
        """The text went on; ``aside``: by a drafter with hints."""
        self.aside = [*self.aside, *([aside] * emitted)][-MOST_SCORED:]
        for name in drafters:
            self.of(name).missed += 0 if aside else emitted

    def compare(self, values: Mapping[str, float], run: float, drafter: str) -> None:
        """What one round of every drafter was expected to be worth, and what the round that was run was; ``drafter``:
        that drafted in it, if any.

        A drafter that has to catch up is taken when it would have brought as much more as that costs: never more than
        twice what knowing the future would (ski rental).
        """
        if drafter and drafter != self.current:
            self.current, self.credit = drafter, {}
            return
        credit = self.credit
        self.credit = {name: max(0.0, credit.get(name, 0.0) + value - run) for name, value in values.items()}

    def settle(self) -> None:
        known, prior = self.drafters, self.prior
        if not self.readable:
            return
        together = sum(own.surplus for own in known.values()) / (
            sum(own.information for own in known.values()) + self.common
        )
        self.factors = {
            name: exp((own.surplus - together * own.information) / (own.information + prior))
            for name, own in known.items()
        }

    def deviation(self, drafter: str, chance: float, usual: float) -> float:
        """How far reading what it missed is expected to move its log odds, one standard deviation.

        chance: of a token to be accepted; usual: the deviation of its usual log odds.
        """
        own = self.of(drafter)
        variance = usual * usual + 1.0 / (own.information + self.prior)
        told = variance * min(own.missed, MOST_SCORED) * chance * (1.0 - chance)
        return sqrt(variance * told / (1.0 + told))


def expected_gain(best: float, value: float, moved: Callable[[float], float]) -> float:
    """What it is worth to learn a value beside the best of the others: the mean of the larger of the two, less the
    larger as things stand (the knowledge gradient, Frazier et al. 2008).

    moved: the value if its estimate moves by so many standard deviations of a normal distribution, whose mean is taken
    over the points of Gauss and Hermite that may change the choice.
    """
    side = 1.0 if value <= best else -1.0
    return sum(weight * max(0.0, side * (moved(side * at) - best)) for at, weight in POINTS)
