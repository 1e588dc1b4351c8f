"""How the next token is chosen from its scores, and so which tokens of a draft are accepted.

Greedy: the token with the largest score. A drafted token is accepted while it is that one.

Sampled with shared Gumbel noise (the default): the token with the largest sum of score and noise, where every position
of the text has Gumbel noise of its own, one number per token of the vocabulary. Such a token is a draw from
softmax(scores). It depends on the target and the seed only, so a drafted token is accepted while it is that one, and
the text is what plain decoding writes with the same seed, token for token. A drafter that samples with the same noise
is accepted more often (the coupling of Daliri, Musco and Suresh 2024).

Sampled by the residual rule (``acceptance``): each drafted token is accepted with a probability of its own, and a draw
from the residual follows the first that is not. The distribution is the same; the text depends on what was drafted.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from wager.decoding.acceptance import accept_greedy, accept_sampled, accept_tree_greedy, accept_tree_sampled
from wager.decoding.prepare import Processors
from wager.drafters import Draft
from wager.models.runner import ancestry

SHARED, RESIDUAL = "shared-noise", "residual"
RULES = (SHARED, RESIDUAL)
LEAST = 32  # rows of noise there is room for
NO_IDS = torch.empty((1, 0), dtype=torch.long)


class Sampler(ABC):
    """Chooses one request's tokens; positions count its new tokens from 0."""

    samples = True
    on_device = False  # whether ``choices`` says which tokens are taken, whatever was drafted

    def choices(self, scores: torch.Tensor, at: int, levels: int, depths: torch.Tensor | None) -> torch.Tensor:
        """The tokens chosen after the text's last and after each of a draft's, (width,), where the scores are.

        ``at`` is the position of the first; see ``DeviceChoices``.
        """
        raise ValueError(f"{type(self).__name__} has no choices before it sees the draft")

    @abstractmethod
    def chain(self, scores: torch.Tensor, draft: Draft, at: int) -> tuple[int, int]:
        """How many drafted tokens are accepted, and the token after them; the first of them is for position ``at``.

        ``scores`` are (drafted + 1, vocabulary).
        """

    @abstractmethod
    def tree(self, scores: torch.Tensor, draft: Draft, parents: Sequence[int], at: int) -> tuple[list[int], int]:
        """The accepted path, as indices of the draft's tokens, and the token after it.

        ``scores`` are those after the text's last token and after each of the tree's.
        """

    @abstractmethod
    def draw(self, scores: torch.Tensor, at: int) -> tuple[int, torch.Tensor]:
        """A drafter's token for a position, from its own scores (vocabulary,), and the distribution it comes from."""

    def gumbel(self, at: int, count: int) -> torch.Tensor | None:
        """The noise to be added to the scores of positions from ``at`` on, (count, vocabulary); None: unknown."""
        return None


@dataclass(frozen=True, slots=True)
class RoundSampler:
    """What drafters sample with in one round: the request's own rule, noise and processors."""

    sampler: Sampler
    processors: Processors
    prompt: int  # tokens
    position: int  # of the round's first drafted token

    @property
    def temperature(self) -> float:
        return self.processors.temperature

    def __call__(self, text: Sequence[int], logits: torch.Tensor) -> tuple[int, torch.Tensor]:
        at = len(text) - self.prompt
        if at < self.position:
            raise ValueError("a drafter draws with the whole text before the token, the prompt included")
        ids = torch.tensor([text], device=logits.device) if self.processors.needs_text else NO_IDS
        return self.sampler.draw(self.processors(ids, logits[None])[0], at)

    def gumbel(self, count: int) -> torch.Tensor | None:
        return self.sampler.gumbel(self.position, count)


class Greedy(Sampler):
    """The token with the largest score."""

    samples = False
    on_device = True

    def choices(self, scores: torch.Tensor, at: int, levels: int, depths: torch.Tensor | None) -> torch.Tensor:
        return scores.argmax(-1)

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


class GumbelSampler(Greedy):
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
        self.passed = 0  # the first position whose noise is kept
        self.remembered = 0  # positions before the next token's whose noise is kept, too

    def choices(self, scores: torch.Tensor, at: int, levels: int, depths: torch.Tensor | None) -> torch.Tensor:
        self._reach(at, scores.shape[-1])
        gumbel = self.gumbel(at, levels)
        return (scores + (gumbel if depths is None else gumbel[depths])).argmax(-1)

    def chain(self, scores: torch.Tensor, draft: Draft, at: int) -> tuple[int, int]:
        self._reach(at, scores.shape[-1])
        return super().chain(scores + self.gumbel(at, len(scores)), draft, at)

    def tree(self, scores: torch.Tensor, draft: Draft, parents: Sequence[int], at: int) -> tuple[list[int], int]:
        self._reach(at, scores.shape[-1])
        depths, _ = ancestry([-1, *(parent + 1 for parent in parents)])
        gumbel = self.gumbel(at, 1 + max(depths))[torch.tensor(depths, device=scores.device)]
        return super().tree(scores + gumbel, draft, parents, at)

    def draw(self, scores: torch.Tensor, at: int) -> tuple[int, torch.Tensor]:
        gumbel = self.gumbel(at, 1)[0]
        token = int((scores[: len(gumbel)] + gumbel[: len(scores)]).argmax())
        return token, torch.softmax(scores, -1, dtype=torch.float32)

    def only(self, at: int) -> torch.Tensor:
        """The noise of one position, (vocabulary,); earlier positions are given up."""
        while self.known < at:
            self.passed = self.known
            self.gumbel(self.known, min(LEAST, at - self.known))
        self.passed = at
        return self.gumbel(at, 1)[0]

    def _reach(self, at: int, width: int) -> None:
        """Earlier positions are not needed any more, but for those remembered."""
        self.passed = max(self.passed, at - self.remembered)
        if not self.known and width != self.rows.shape[1]:  # there may be fewer tokens to choose from than to read
            self.rows = self.rows.new_empty((LEAST, width))

    @torch.inference_mode()
    def gumbel(self, at: int, count: int) -> torch.Tensor:
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


class Residual(Sampler):
    """Each drafted token with its own probability, then a draw from the residual."""

    def __init__(self, device: torch.device, seed: int | None = None) -> None:
        self.generator = None if seed is None else torch.Generator(device).manual_seed(seed)

    def chain(self, scores: torch.Tensor, draft: Draft, at: int) -> tuple[int, int]:
        return accept_sampled(_chances(scores, draft), draft.tokens, draft.probs, self.generator)

    def tree(self, scores: torch.Tensor, draft: Draft, parents: Sequence[int], at: int) -> tuple[list[int], int]:
        return accept_tree_sampled(_chances(scores, draft), draft.tokens, parents, draft.probs, self.generator)

    def draw(self, scores: torch.Tensor, at: int) -> tuple[int, torch.Tensor]:
        q = torch.softmax(scores, -1, dtype=torch.float32)
        return int(torch.multinomial(q, 1, generator=self.generator)), q


def _chances(scores: torch.Tensor, draft: Draft) -> torch.Tensor:
    """The target's distributions, over all tokens that are drafted: a model may read more of them than it writes."""
    p = torch.softmax(scores, -1, dtype=torch.float32)
    width = draft.probs.shape[-1] if draft.probs is not None else 1 + max(draft.tokens, default=-1)
    return torch.nn.functional.pad(p, (0, width - p.shape[-1])) if width > p.shape[-1] else p
