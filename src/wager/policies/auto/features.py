"""What the acceptance of a proposed token depends on: the layout of a drafter's weights, and a proposal as features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor

from wager.core import Hint

# The weights of a drafter, one class after the other; then come four for every drafter.
MATCHES = (0, 0, 1, 2, 3, 4, 5)  # class by tokens of match: none or 1, 2, … 5, more
LEVELS = 8  # confidence is told apart in eighths
CONFIDENCE = 6  # first of: none, below 1/8, … below 1, certain
POSITION = CONFIDENCE + LEVELS + 2  # first of: first, second, third, later token
POSITIONS = 4
EMA = POSITION + POSITIONS  # of the acceptance average
AGREEMENT = EMA + 1  # first of four for each other drafter
SILENT, AGAINST, WITH, ENDED = range(4)  # it proposes nothing; otherwise; the same; the same, but it has ended

NO_AGREEMENT: Mapping[str, int] = {}


class Proposal:
    """One drafter's proposal with what the others propose, and its acceptance probabilities once evaluated.

    It is filled in again every round: making objects is most of the time of a decision.
    """

    __slots__ = ("agreement", "chances", "evaluated", "hint", "hints", "index", "length", "name", "others", "places")

    def __init__(self, index: int, name: str, length: int, others: Sequence[tuple[str, int]] = ()) -> None:
        self.index, self.name, self.length = index, name, length
        self.others = others  # other drafters, each with the first of its four weights
        self.hint = Hint()
        self.agreement: Mapping[str, int] = NO_AGREEMENT  # other drafter -> leading tokens both propose
        self.hints: Mapping[str, Hint] = {}
        self.chances = [0.0] * length
        self.places = [POSITION + min(j, POSITIONS - 1) for j in range(length)]  # weights of the positions
        self.evaluated = 0  # tokens whose probability is known

    def fill(self, hint: Hint, length: int, hints: Mapping[str, Hint], agreement: Mapping[str, int]) -> Proposal:
        """Take the proposal of another round."""
        self.hint, self.length, self.hints, self.agreement = hint, length, hints, agreement
        return self

    def features(self, position: int) -> list[int]:
        """The weights that make up the probability of one token, but that of the average."""
        hint = self.hint
        sure = hint.confidence
        level = CONFIDENCE + 1 + floor(sure[position] * LEVELS) if position < len(sure) else CONFIDENCE
        own = [MATCHES[hint.match] if hint.match < 6 else 5, level, self.places[position]]
        for name, first in self.others:
            common = self.agreement.get(name) or 0
            if position < common:
                first += WITH
            elif size := self.hints[name].size:
                first += ENDED if common == size else AGAINST
            own.append(first)
        return own
