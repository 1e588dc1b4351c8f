"""What a choice leaves behind for its round to be learned from."""

from collections.abc import Mapping
from math import inf

from wager.policies.auto.arms import Estimate
from wager.policies.auto.features import Proposal


class Decision:
    """One choice. Its round may be observed after the next one was made, so every choice has its own."""

    __slots__ = (
        *("best", "called", "gains", "merge", "most_reading", "most_seconds"),
        *("plain_seconds", "proposals", "rate", "reading", "values", "wait"),
    )

    def __init__(
        self,
        called: Mapping[str, float],  # drafter -> seconds its proposal took
        plain_seconds: float,  # of plain decoding; 0: no choice was made yet
        rate: float,  # tokens that a second is worth
        values: dict[str, float],  # model -> what its best arm is worth, catching up left out
    ) -> None:
        self.called, self.plain_seconds, self.rate, self.values = called, plain_seconds, rate, values
        self.proposals: list[Proposal] = []
        self.gains: list[float] = []  # tokens that each drafter's proposal brought beyond the others'
        self.best: Estimate | None = None  # what was chosen
        # of what was merged into its draft: the value, and the tokens expected were the two independent
        self.merge = 0.0, 0.0
        self.most_seconds = inf  # that the round takes at most, proposals left out
        self.reading: dict[str, int] = {}  # drafter that reads after the round -> tokens that it had not read before
        self.most_reading = 0.0  # seconds of those at most
        self.wait = 0  # rounds until it is considered again who reads
