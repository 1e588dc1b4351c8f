"""How far a proposal will be accepted: a small logistic regression per drafter, learned from every token scored.

The chance that a proposed token is accepted, given that all before it were, is the logistic function of a sum: one
weight for the length of the match, one for the drafter's own confidence in the token, one for the token's position,
one for each other drafter by whether it proposes the same, and the drafter's recent luck in this very text times a
weight of its own. All lengths of all requests share these few weights, so a handful of rounds says what any draft
would bring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, floor, inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wager.core import Hint

Floats = NDArray[np.float64]
Places = NDArray[np.intp]

# The weights of a drafter, one after the other; after these come four for every drafter beside it.
MATCHES = (0, 0, 1, 2, 3, 3, 4, 4, 4, 4, 5)  # by tokens of match: none or 1, 2, 3, 4 to 5, 6 to 9, more
EDGES = (0.1, 0.3, 0.5, 0.7, 0.85, 0.975)  # confidence is told apart there; a drafter may have none
GRID = 40  # confidence is looked up in 40ths
CONFIDENCE = 6  # first of: none, below 0.1, ... 0.975 and above
POSITION = CONFIDENCE + len(EDGES) + 2  # first, second, third, later token
EMA = POSITION + 4
AGREEMENT = EMA + 1
SILENT, AGAINST, WITH, ENDED = range(4)  # another proposes nothing; otherwise; the same; the same, but is at its end

# Before anything is learned: surer and longer matches are better bets, and two drafters are better than one.
PRIOR = (
    *(-0.6, -0.2, 0.0, 0.2, 0.4, 0.6),
    *(0.0, -0.8, -0.6, -0.4, -0.2, 0.0, 0.3, 0.8),
    *(-0.1, 0.0, 0.1, 0.3),
    0.3,
)
AGREEMENT_PRIOR = (0.0, -0.3, 0.4, 0.1)
RATE = 0.3  # of learning, by AdaGrad; sums of squares start at 1
FADE = 0.9995  # of those sums, token by token: what is learned late still counts
RECENT, LASTING = 0.1, 0.01  # shares of a drafter's luck that its last token makes up: in this text, and in all
SURE = 0.99  # no token is likelier than this
HOPELESS = 0.02  # chance of reaching a token below which a proposal is not looked at any further
STEEP = 8.0  # sums are clipped there

Other = tuple[int, int, int]  # where its weights begin, tokens it has in common with a proposal, tokens it proposes


def bucket(confidence: float) -> int:
    """The weight for this confidence."""
    return CONFIDENCE + 1 + sum(confidence >= edge for edge in EDGES)


_BUCKET = tuple(bucket(i / GRID) for i in range(GRID + 1))
_FINE = float(GRID)
_FLAT = -STEEP
_DEPTH = [POSITION, POSITION + 1, POSITION + 2, POSITION + 3]  # by position; the last is for all that follow


class Proposal:
    """A drafter's proposal, what the others say to it, and the chances of its tokens as far as it was looked at.

    One can be filled in again and again, up to the length it was made with: making objects is most of what a decision
    takes.
    """

    __slots__ = ("chances", "common", "drafter_agreement", "hint", "hints", "length", "looked")

    def __init__(self, hint: Hint, length: int, others: Sequence[Other] = ()) -> None:
        self.hint, self.length = hint, length
        self.drafter_agreement: Sequence[tuple[Any, int]] = [
            (first, first) for first, _, _ in others
        ]  # who, and its first weight
        self.common: Mapping[Any, int] = {first: common for first, common, _ in others}  # who -> tokens in common
        self.hints: Mapping[Any, Hint] = {first: Hint(size=size) for first, _, size in others}  # who -> what it says
        self.chances = [0.0] * length
        self.looked = 0  # tokens whose chances are known
        _DEPTH.extend(_DEPTH[-1:] * (length - len(_DEPTH)))

    def places(self, j: int) -> list[int]:
        """The weights its token at this position is made of, luck's aside."""
        hint, sure = self.hint, self.hint.confidence
        told = _BUCKET[floor(sure[j] * _FINE)] if j < len(sure) else CONFIDENCE
        own = [MATCHES[hint.match] if hint.match < 10 else 5, told, _DEPTH[j]]
        for who, first in self.drafter_agreement:
            common = self.common.get(who) or 0
            if j < common:
                first += WITH
            elif size := self.hints[who].size:
                first += ENDED if common == size else AGAINST
            own.append(first)
        return own

    @property
    def saved(self) -> tuple[Any, ...]:
        """It and what was expected of it, in lists."""
        hint = self.hint
        others = [(first, self.common.get(who) or 0, self.hints[who].size) for who, first in self.drafter_agreement]
        return (hint.match, list(hint.confidence), hint.size), self.length, others, self.chances[: self.looked]

    @classmethod
    def load(cls, hint: Sequence[Any], length: int, others: Sequence[Any], chances: Sequence[float]) -> Proposal:
        """Back from what was saved."""
        match, sure, size = hint
        own = cls(Hint(match, tuple(sure), size), length, [(a, b, c) for a, b, c in others])
        own.looked = len(chances)
        own.chances[: own.looked] = chances
        return own


class AcceptanceModel:
    """Acceptance of hinted drafters, each called by its place in the policy's list of them."""

    def __init__(self, drafters: int) -> None:
        self.drafters = drafters
        self.width = AGREEMENT + 4 * drafters
        self.weights = [[*PRIOR, *(AGREEMENT_PRIOR * drafters)] for _ in range(drafters)]
        self.squares = [[1.0] * self.width for _ in range(drafters)]
        self.mean_acceptance_ema = [0.0] * drafters  # luck: 2 for every token accepted, -2 for one that was not, faded
        self.acceptance_ema = [0.0] * drafters  # of the one text that is generated now

    # --- one text ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Another text: its luck is as yet everybody's."""
        self.acceptance_ema = list(self.mean_acceptance_ema)

    def look(self, drafter: int, proposal: Proposal, least: float = HOPELESS) -> list[float]:
        """That each token is accepted if all before it are, until too little is left to hope for."""
        self.cut(drafter, proposal, [0.0] * (proposal.length + 2), 0.0, least)
        return proposal.chances[: proposal.looked]

    def cut(
        self, drafter: int, proposal: Proposal, seconds: Sequence[float], rate: float, least: float = HOPELESS
    ) -> tuple[float, int, float]:
        """The part of a proposal that is worth most: its value, its tokens, and the tokens to expect of the round.

        ``seconds`` are those of a verification by width, each worth ``rate`` tokens. It looks at the proposal for that,
        until too little is left to hope for.
        """
        w, hint, length, chances = self.weights[drafter], proposal.hint, proposal.length, proposal.chances
        base = w[EMA] * self.acceptance_ema[drafter] + w[MATCHES[hint.match] if hint.match < 10 else 5]
        # What another drafter says changes once along a proposal: where it parts from it, or ends.
        turns = [0.0] * length
        common_with, hints = proposal.common, proposal.hints
        for who, first in proposal.drafter_agreement:
            common = common_with.get(who)
            if not common:
                base += w[first + (AGAINST if hints[who].size else SILENT)]
                continue
            alike = w[first + WITH]
            base += alike
            if common < length:
                size = hints[who].size
                then = w[first + (ENDED if common == size else AGAINST if size else SILENT)]
                turns[common] = turns[common] + then - alike
        sure, bucket, depth = hint.confidence, _BUCKET, _DEPTH
        told, untold = len(sure), w[CONFIDENCE]
        alive = tokens = 1.0
        top, best, most = -inf, 0, 1.0
        j = -1
        for j, turn in enumerate(turns):
            base += turn
            z = base + (w[bucket[floor(sure[j] * _FINE)]] if j < told else untold) + w[depth[j]]
            p = 1.0 / (1.0 + exp(-z)) if z > _FLAT else 0.0
            if p > SURE:
                p = SURE
            chances[j] = p
            alive *= p
            tokens += alive
            value = tokens - rate * seconds[j + 2]
            if value > top:
                top, best, most = value, j + 1, tokens
            if alive < least:
                break
        proposal.looked = j + 1
        return top, best, most

    def learn(self, drafter: int, proposal: Proposal, scored: int, agreed: int) -> None:
        """``scored`` tokens of it are known by now, and ``agreed`` of them, all or all but the last, were right."""
        if scored > proposal.looked:
            self.look(drafter, proposal, 0.0)
        weights, squares = self.weights[drafter], self.squares[drafter]
        recent, lasting = self.acceptance_ema[drafter], self.mean_acceptance_ema[drafter]
        for j in range(scored):
            truth, luck = (1.0, 2.0) if j < agreed else (0.0, -2.0)
            error = proposal.chances[j] - truth
            step, square = RATE * error, error * error
            for i in proposal.places(j):
                squares[i] = seen = FADE * squares[i] + square
                weights[i] -= step / sqrt(seen)
            squares[EMA] = seen = FADE * squares[EMA] + square * recent * recent
            weights[EMA] -= step * recent / sqrt(seen)
            recent += RECENT * (luck - recent)
            lasting += LASTING * (luck - lasting)
        self.acceptance_ema[drafter], self.mean_acceptance_ema[drafter] = recent, lasting

    # --- saving ------------------------------------------------------------------------------------------------------

    @property
    def saved(self) -> dict[str, Any]:
        """Everything learned, in lists."""
        return {
            "weights": [list(w) for w in self.weights],
            "squares": [list(s) for s in self.squares],
            "mean_acceptance_ema": list(self.mean_acceptance_ema),
            "acceptance_ema": list(self.acceptance_ema),
        }

    @saved.setter
    def saved(self, saved: dict[str, Any]) -> None:
        for name, value in saved.items():
            setattr(self, name, value)
