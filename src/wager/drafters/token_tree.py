"""Trees of drafted tokens: the likeliest nodes first."""

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import NamedTuple, TypeVar

from wager.core import Hint, Tree
from wager.drafters.base import Draft

Place = TypeVar("Place")


class Continuation(NamedTuple):
    """How a text goes on after a match: a chain, or a tree with ``parents``."""

    tokens: list[int]
    survival: list[float]  # probability that the text goes through each token
    score: float  # their sum: the expected number of accepted tokens
    match: int  # tokens of context matched
    parents: list[int] | None = None  # indices of tokens; -1: the match itself

    def draft(self) -> Draft:
        """As a proposal: its hint holds the probability of each token given those before it."""
        tokens, survival = self.tokens, self.survival
        if not tokens:
            return Draft()
        if self.parents is not None:
            above = [1.0 if parent < 0 else survival[parent] for parent in self.parents]
        elif survival[0] == survival[-1]:  # it never rises
            confidence = (survival[0], *[1.0] * (len(survival) - 1))
            return Draft(tokens, Hint(self.match, confidence, len(confidence)))
        else:
            above = [1.0, *survival[:-1]]
        confidence = tuple([min(1.0, own / over) for own, over in zip(survival, above, strict=True)])
        return Draft(tokens, Hint(self.match, confidence), parents=self.parents)


NOTHING = Continuation([], [], 0.0, 0)


def grow(
    root: Place,
    children: Callable[[Place, int], Iterable[tuple[int, float, Place]]],
    depth: int,
    shape: Tree,
    least: float,
    match: int,
) -> Continuation:
    """The likeliest nodes of a tree whose root follows a match, none of them less likely than ``least``.

    ``children`` gives a place's likeliest tokens, at most so many: each with its share and where it leads. A node
    is never likelier than its parent, so that parents come first.
    """
    tokens: list[int] = []
    parents: list[int] = []
    survival: list[float] = []
    waiting: list[tuple[float, int, int, int, int, Place]] = []  # -survival, number, depth, parent, token, place
    place, alive, deep, at, number = root, 1.0, 0, -1, 0
    while True:
        if deep < depth:
            for token, share, below in children(place, shape.breadth):
                if alive * share < least:
                    break
                number += 1
                heappush(waiting, (-alive * share, number, deep + 1, at, token, below))
        if not waiting or len(tokens) == shape.nodes:
            return Continuation(tokens, survival, sum(survival), match, parents)
        against, _, deep, parent, token, place = heappop(waiting)
        alive, at = -against, len(tokens)
        tokens.append(token)
        parents.append(parent)
        survival.append(alive)
