"""Which kind of text is written, of those that drafters' cards tell apart: by the prompt, and by what is accepted.

A card tells by how much more or less a drafter's tokens are accepted in each kind of text, in log odds. Every token
that a drafter was scored at makes the kinds likelier in which it would have fared so.
"""

from collections.abc import Mapping, Sequence
from math import exp, log
from operator import mul

from wager.policies.auto.config import AutoConfig
from wager.policies.base import Learner

LEAST_LIKELY = 1e-3  # probability of a kind, at least: no prompt rules one out


class TextKind(Learner):
    """The kind of the present text, as probabilities."""

    learned = ("kinds", "prior", "evidence", "usual")

    def __init__(self, config: AutoConfig) -> None:
        self.config = config
        self.kinds: list[str] = []  # the order of everything below
        # drafter -> by kind, the log odds of its tokens there beyond those of all kinds, by its card
        self.told: dict[str, list[float]] = {}
        self.prior: list[float] = []  # by kind, the logarithm of its probability by the prompt alone
        self.evidence: list[float] = []  # the same of what was accepted since, which fades
        # Drafter or tree -> odds at each position in texts of all kinds together, as they were before this text: what
        # this text shows of its kind is not to be taken for the drafter's own.
        self.usual: Mapping[str, Sequence[float]] = {}
        self.settle()

    def expect(self, told: Mapping[str, Mapping[str, float]]) -> None:
        """What the cards of drafters tell."""
        known = sorted(set().union(*told.values()))
        self.told = {name: [own.get(kind, 0.0) for kind in known] for name, own in told.items()}
        if known != self.kinds:
            self.kinds = known
            self.begin({}, {})

    def begin(self, chances: Mapping[str, float], usual: Mapping[str, Sequence[float]]) -> None:
        """A text begins, of these kinds with these probabilities by its prompt; without any, each is as likely."""
        self.prior = [log(max(LEAST_LIKELY, chances.get(kind, 0.0) if chances else 1.0)) for kind in self.kinds]
        self.evidence, self.usual = [0.0] * len(self.kinds), usual
        self.settle()

    def settle(self) -> None:
        self._misses: dict[tuple[str, int], list[float]] = {}
        self._weigh()

    def _weigh(self) -> None:
        """How likely each kind is by now."""
        known = [exp(x + y) for x, y in zip(self.prior, self.evidence, strict=True)]
        total = sum(known)
        self.chances = [x / total for x in known]

    def shift(self, drafter: str) -> float:
        """By how much a drafter's log odds differ in this text from those in all, as far as its kind says."""
        told = self.told.get(drafter)
        return sum(map(mul, told, self.chances)) if told else 0.0

    def fade(self, tokens: int) -> None:
        """So many more tokens of the text were scored, by one drafter or by several."""
        keep = 1.0 - tokens / (tokens + self.config.round_memory)
        self.evidence = [keep * x for x in self.evidence]

    def learn(self, key: str, hits: Sequence[float], *, first: bool = False) -> None:
        """A drafter's chain or tree was scored at these tokens; ``first``: each is the first one of a draft."""
        told, usual = self.told.get(key.partition("@")[0]), self.usual.get(key)
        if not told or not usual or not hits:
            return
        count, weight = len(hits) if first else min(len(hits), len(usual)), self.config.kind_share
        # Tokens of one text are alike, so they count for less than as many that have nothing to do with each other.
        kept, each = weight * sum(hits[:count]), weight * count if first else weight
        missed = self._missed(key, 1 if first else count)
        found = [x + kept * y - each * z for x, y, z in zip(self.evidence, told, missed, strict=True)]
        highest = max(found)
        self.evidence = [x - highest for x in found]
        self._weigh()

    def _missed(self, key: str, count: int) -> list[float]:
        """By kind, the negative logarithm of the probability that none of so many tokens is accepted.

        With that of odds x, which is log(1 + x), the logarithm of the probability of a hit is log(x) less the same.
        What of log(x) is common to all kinds tells nothing.
        """
        known = self._misses.get((key, count))
        if known is None:
            before = self._missed(key, count - 1) if count > 1 else [0.0] * len(self.kinds)
            told, x = self.told[key.partition("@")[0]], self.usual[key][count - 1]
            known = [z + log(1.0 + x * exp(y)) for z, y in zip(before, told, strict=True)]
            self._misses[key, count] = known
        return known
