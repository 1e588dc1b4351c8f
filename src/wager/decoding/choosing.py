"""How the next token is chosen from its scores, and so what of a draft stands.

Greedy: the token with the largest score. A drafted token stands while it is that one.

Sampled with shared noise (the default): the token with the largest sum of score and noise, where every position of the
text has Gumbel noise of its own, one number a token. Such a token is a draw from softmax(scores). Which one it is
depends on the target and the seed and on nothing that was drafted, so a drafted token stands while it is that one: the
text is what plain decoding writes with the same seed, token for token. Drafters that know the noise draft with it and
are right the more often (the coupling of Daliri, Musco and Suresh 2024).

Sampled by the residual rule (``acceptance``): each drafted token stands with a probability of its own, and another draw
follows the first that does not. The distribution is the same; which text it is depends on what was drafted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch

from wager.decoding.acceptance import accept_greedy, accept_sampled, accept_tree_greedy, accept_tree_sampled
from wager.drafters import Draft
from wager.models.runner import ancestry

SHARED, RESIDUAL = "shared-noise", "residual"
RULES = (SHARED, RESIDUAL)
LEAST = 32  # rows of noise there is room for


class Choosing(ABC):
    """One text's; positions count its new tokens from 0."""

    samples = True

    @abstractmethod
    def chain(self, scores: torch.Tensor, draft: Draft, at: int) -> tuple[int, int]:
        """How many drafted tokens stand, and the token after them; the first of them is for position ``at``.

        ``scores`` are (drafted + 1, vocabulary).
        """

    @abstractmethod
    def tree(self, scores: torch.Tensor, draft: Draft, parents: Sequence[int], at: int) -> tuple[list[int], int]:
        """The path that stands, as indices of the draft's tokens, and the token after it.

        ``scores`` are those after the text's last token and after each of the tree's.
        """

    @abstractmethod
    def draw(self, scores: torch.Tensor, at: int) -> tuple[int, torch.Tensor]:
        """A drafter's token for a position, from its own scores (vocabulary,), and the distribution it comes from."""

    def noise(self, at: int, count: int) -> torch.Tensor | None:
        """What will be added to the scores of positions from ``at`` on, (count, vocabulary); None: nobody knows yet."""
        return None


class Greedy(Choosing):
    """The token with the largest score."""

    samples = False

    def chain(self, scores: torch.Tensor, draft: Draft, at: int) -> tuple[int, int]:
        choices = scores.argmax(-1).tolist()
        accepted = accept_greedy(choices, draft.tokens)
        return accepted, choices[accepted]

    def tree(self, scores: torch.Tensor, draft: Draft, parents: Sequence[int], at: int) -> tuple[list[int], int]:
        choices = scores.argmax(-1).tolist()
        path = accept_tree_greedy(choices, draft.tokens, parents)
        return path, choices[path[-1] + 1 if path else 0]

    def draw(self, scores: torch.Tensor, at: int) -> tuple[int, torch.Tensor]:
        return int(scores.argmax()), torch.softmax(scores, -1, dtype=torch.float32)


class SharedNoise(Greedy):
    """The token with the largest sum of score and its position's noise."""

    samples = True

    def __init__(self, vocabulary: int, device: torch.device, seed: int | None = None) -> None:
        if seed is None:
            seed = int(torch.randint(1 << 62, ()))
        self.generator: torch.Generator | np.random.Generator
        if device.type == "cpu":  # numpy makes such numbers four times as fast as torch
            self.generator = np.random.Generator(np.random.SFC64(seed % (1 << 64)))
        else:
            self.generator = torch.Generator(device).manual_seed(seed)
        self.rows = torch.empty((LEAST, vocabulary), dtype=torch.float32, device=device)
        self.first = self.known = 0  # positions: that of the first row, and the first that has no noise yet
        self.passed = 0  # the one before which no token is to be chosen any more

    def chain(self, scores: torch.Tensor, draft: Draft, at: int) -> tuple[int, int]:
        self._reach(at, scores.shape[-1])
        return super().chain(scores + self.noise(at, len(scores)), draft, at)

    def tree(self, scores: torch.Tensor, draft: Draft, parents: Sequence[int], at: int) -> tuple[list[int], int]:
        self._reach(at, scores.shape[-1])
        depths, _ = ancestry([-1, *(parent + 1 for parent in parents)])
        noise = self.noise(at, 1 + max(depths))[torch.tensor(depths, device=scores.device)]
        return super().tree(scores + noise, draft, parents, at)

    def draw(self, scores: torch.Tensor, at: int) -> tuple[int, torch.Tensor]:
        noise = self.noise(at, 1)[0]
        token = int((scores[: len(noise)] + noise[: len(scores)]).argmax())
        return token, torch.softmax(scores, -1, dtype=torch.float32)

    def alone(self, at: int) -> torch.Tensor:
        """The noise of one position, (vocabulary,), and of none before it from then on."""
        while self.known < at:
            self.passed = self.known
            self.noise(self.known, min(LEAST, at - self.known))
        self.passed = at
        return self.noise(at, 1)[0]

    def _reach(self, at: int, width: int) -> None:
        """Nothing before this position is asked for any more."""
        self.passed = at
        if not self.known and width != self.rows.shape[1]:  # there may be fewer tokens to choose from than to read
            self.rows = self.rows.new_empty((LEAST, width))

    @torch.inference_mode()
    def noise(self, at: int, count: int) -> torch.Tensor:
        assert at >= self.passed, "the text has passed this position"
        end = at + count
        if end - self.first > len(self.rows):
            keep = self.rows[self.passed - self.first : self.known - self.first]
            moved = self.rows.new_empty((max(LEAST, 2 * (end - self.passed)), self.rows.shape[1]))
            moved[: len(keep)] = keep
            self.rows, self.first = moved, self.passed
        if end > self.known:
            self._make(self.rows[self.known - self.first : end - self.first])
            self.known = end
        return self.rows[at - self.first : end - self.first]

    def _make(self, rows: torch.Tensor) -> None:
        """The next rows of noise, each the same however many are made at once."""
        if isinstance(self.generator, torch.Generator):
            for row in rows:
                row.exponential_(generator=self.generator)
        else:
            rows.copy_(torch.from_numpy(self.generator.standard_exponential(tuple(rows.shape))))
        rows.log_().neg_()


class Residual(Choosing):
    """Each drafted token by its own chance, then a draw from what is left."""

    def __init__(self, device: torch.device, seed: int | None = None) -> None:
        self.generator = None if seed is None else torch.Generator(device).manual_seed(seed)

    def chain(self, scores: torch.Tensor, draft: Draft, at: int) -> tuple[int, int]:
        p = torch.softmax(scores, -1, dtype=torch.float32)
        return accept_sampled(p, draft.tokens, draft.probs, self.generator)

    def tree(self, scores: torch.Tensor, draft: Draft, parents: Sequence[int], at: int) -> tuple[list[int], int]:
        p = torch.softmax(scores, -1, dtype=torch.float32)
        return accept_tree_sampled(p, draft.tokens, parents, draft.probs, self.generator)

    def draw(self, scores: torch.Tensor, at: int) -> tuple[int, torch.Tensor]:
        q = torch.softmax(scores, -1, dtype=torch.float32)
        return int(torch.multinomial(q, 1, generator=self.generator)), q
