"""Which kind of text is written, of those that drafters' cards tell apart: by the prompt, and by what is accepted.

A card tells by how much more or less a drafter's tokens are accepted in each kind of text, in log odds. Every token
that a drafter was scored at makes the kinds likelier in which it would have fared so.
"""

from collections.abc import Mapping, Sequence
from math import exp, log

from wager.policies.auto.config import AutoConfig
from wager.policies.base import Learner

LEAST = 1e-3  # probability of a kind, at least: no prompt rules one out
NOTICED = 0.01  # log odds by which a text's kind has to move for anything to follow


class TextKind(Learner):
    """The kind of the present text, as probabilities."""

    learned = ("prior", "evidence", "usual")

    def __init__(self, config: AutoConfig) -> None:
        self.config = config
        # drafter -> kind -> log odds of its tokens there beyond those of all kinds, by its card
        self.told: Mapping[str, Mapping[str, float]] = {}
        self.prior: dict[str, float] = {}  # kind -> logarithm of its probability, by the prompt alone
        self.evidence: dict[str, float] = {}  # kind -> the same of what was accepted since, which fades
        # Drafter or tree -> odds at each position in texts of all kinds together, as they were before this text: what
        # this text shows of its kind is not to be taken for the drafter's own.
        self.usual: dict[str, list[float]] = {}
        self.settle()

    def expect(self, told: Mapping[str, Mapping[str, float]]) -> None:
        """What the cards of drafters tell."""
        self.told = told
        if self.prior.keys() != set().union(*told.values()):
            self.begin({})

    def begin(self, chances: Mapping[str, float]) -> None:
        """A text begins, of these kinds with these probabilities by its prompt; without any, each is as likely."""
        known = sorted(set().union(*self.told.values()))
        self.prior = {kind: log(max(LEAST, chances.get(kind, 0.0) if chances else 1.0)) for kind in known}
        self.evidence = dict.fromkeys(known, 0.0)
        self.settle()

    def settle(self) -> None:
        known = {kind: exp(x + self.evidence[kind]) for kind, x in self.prior.items()}
        total = sum(known.values())
        self.chances = {kind: x / total for kind, x in known.items()}

    def shift(self, drafter: str) -> float:
        """By how much a drafter's log odds differ in this text from those in all, as far as its kind says."""
        told = self.told.get(drafter)
        return sum(told.get(kind, 0.0) * chance for kind, chance in self.chances.items()) if told else 0.0

    def learn(self, key: str, hits: Sequence[float], *, first: bool = False) -> None:
        """A drafter's chain or tree was scored at these tokens; ``first``: each is the first one of a draft."""
        told, usual = self.told.get(key.partition("@")[0]), self.usual.get(key)
        if not told or not usual or not hits:
            return
        odds = usual[:1] * len(hits) if first else usual
        keep = 1.0 - len(hits) / (len(hits) + self.config.round_memory)
        # Tokens of one text are alike, so they count for less than as many that have nothing to do with each other.
        weight = self.config.kind_share
        for kind, before in self.evidence.items():
            factor, found = exp(told.get(kind, 0.0)), 0.0
            for x, hit in zip(odds, hits, strict=False):
                moved = x * factor
                found += hit * log(moved) - log(1.0 + moved)
            self.evidence[kind] = keep * before + weight * found
        highest = max(self.evidence.values())
        self.evidence = {kind: x - highest for kind, x in self.evidence.items()}
        self.settle()
