"""What a proposal adds to another drafter's draft, if both are verified in one pass and the longer match is kept."""

from collections.abc import Sequence

from wager.policies.auto.config import AutoConfig
from wager.policies.auto.features import Proposal
from wager.policies.base import Learner


class MergeModel(Learner):
    """How much a proposal adds to a model's draft, beside what it would if both were right independently.

    They are not: easy tokens are easy for both. So the tokens that proposals did add are counted beside those expected.
    """

    learned = ("expected", "added")

    def __init__(self, config: AutoConfig) -> None:
        self.config = config
        # tokens, over the latest rounds that had a proposal merged into a model's draft
        self.expected = self.added = 0.0

    @property
    def share(self) -> float:
        """Of the tokens expected of independent drafts, those that are added."""
        prior = self.config.shrinkage
        return (self.added + prior) / (self.expected + prior)

    def learn(self, expected: float, added: int) -> None:
        """A round in which a proposal was merged into a model's draft."""
        keep = 1.0 - 1.0 / self.config.round_memory
        self.expected = keep * self.expected + expected
        self.added = keep * self.added + added


def best_merge(
    proposal: Proposal,  # with the chance of each of its tokens, those before it being right
    longest: int,  # tokens of it that may be merged
    own: Sequence[float],  # probability that the draft itself has its 1st, 2nd, … token accepted
    shared: int,  # leading tokens that are the draft's own, and cost nothing
    seconds: Sequence[float],  # of verification, by width
    width: int,  # that the draft has by itself
    rate: float,  # tokens that a second is worth
    share: float,  # of the tokens that independent drafts would add
) -> tuple[float, int, float]:
    """The tokens of the proposal that are best merged into a draft, 0 if none: the value they add, their number, and
    the tokens they would add if both were right independently."""
    value, length, expected = 0.0, 0, 0.0
    reach, added, chances = 1.0, 0.0, proposal.chances
    start, known = width - shared, len(own)
    base = rate * seconds[width]
    for n in range(1, min(longest, proposal.evaluated, len(seconds) - 1 - start) + 1):
        reach *= chances[n - 1]
        if n > shared:
            added += reach * (1.0 - own[n - 1]) if n <= known else reach
            worth = share * added - rate * seconds[start + n] + base
            if worth > value:
                value, length, expected = worth, n, added
    return value, length, expected
