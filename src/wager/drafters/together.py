"""Several drafters at once: each drafts a chain, and all chains are verified as one tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from wager.core import Arm, Tree
from wager.core.require import require
from wager.drafters.base import Draft, Drafter, DraftSampler


def _every(method: str) -> Callable[..., None]:
    """The method of this name, called of every one of the drafters."""

    def call(self: Together, *given: Any) -> None:
        for drafter in self.drafters:
            getattr(drafter, method)(*given)

    return call


class Together(Drafter):
    """Lets every one of several drafters draft, and keeps what is best (MetaSD's DraftALL)."""

    cheap: ClassVar[bool] = False
    trees: ClassVar[bool] = True

    def __init__(self, drafters: Sequence[Drafter], name: str = "together") -> None:
        require(len(drafters) >= 2, f"drafting together takes at least two drafters, not {len(drafters)}")
        self.name, self.drafters = name, list(drafters)

    begin, extend, end = _every("begin"), _every("extend"), _every("end")
    forget, fit, follow = _every("forget"), _every("fit"), _every("follow")

    def warm(self, arms: Iterable[Arm]) -> None:
        lengths = sorted({arm.length for arm in arms if arm.length})
        for drafter in self.drafters:
            drafter.warm([Arm(drafter.name, length) for length in lengths])  # whatever the arm, each drafts a chain

    @property
    def lag(self) -> int:
        return max(drafter.lag for drafter in self.drafters)

    @property
    def memory(self) -> int:
        return sum(drafter.memory for drafter in self.drafters)

    def propose(self, length: int, sample: DraftSampler | None = None) -> Draft:
        """The longest of their chains; the others would be lost."""
        longest = max(self._drafts(length, sample), key=lambda draft: len(draft.tokens))
        return replace(longest, probs=None, raw=None)  # whose it is changes from round to round: it counts as certain

    def propose_tree(self, length: int, shape: Tree, sample: DraftSampler | None = None) -> Draft:
        drafts = self._drafts(length, sample)
        tokens: list[int] = []
        parents: list[int] = []
        known: dict[tuple[int, int], int] = {}  # (parent, token) -> node
        for draft in drafts:
            at = -1
            for token in draft.tokens:
                if (at, token) not in known:
                    if len(tokens) == shape.nodes:
                        break
                    known[at, token] = len(tokens)
                    tokens.append(token)
                    parents.append(at)
                at = known[at, token]
        lag = max(draft.lag for draft in drafts)
        return Draft(tokens, parents=parents, lag=lag, lag_seconds=sum(draft.lag_seconds for draft in drafts))

    def _drafts(self, length: int, sample: DraftSampler | None) -> list[Draft]:
        """Every drafter's chain: drawn where the noise is known, else its likeliest, chosen for certain."""
        # Chains that were drawn apart could not be told from one another by the residual rule.
        drawn = sample if sample is not None and sample.gumbel(1) is not None else None
        return [drafter.propose(length, drawn) for drafter in self.drafters]
