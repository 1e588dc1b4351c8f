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
        if not self.tokens:
            return Draft()
        above = [1.0, *self.survival[:-1]]
        if self.parents is not None:
            above = [1.0 if parent < 0 else self.survival[parent] for parent in self.parents]
        confidence = tuple([min(1.0, own / over) for own, over in zip(self.survival, above, strict=True)])
        return Draft(self.tokens, Hint(self.match, confidence), parents=self.parents)


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
