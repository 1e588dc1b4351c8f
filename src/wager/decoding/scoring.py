"""Scores what model drafters predict at tokens of the text, as the request's own rule would have accepted it."""

from collections.abc import Sequence

import torch

from wager.core.round import MOST_SCORED
from wager.decoding.prepare import Processors
from wager.decoding.sampler import NO_IDS, GumbelSampler, Sampler


class TextScorer:
    """A ``drafters.Scorer`` over one request's text, which grows.

    Greedy: whether the likeliest token is the text's. With shared noise: whether the likeliest with the position's
    noise is, which is what the engine would have accepted there. By the residual rule: 1 - TV of target and drafter,
    the probability with which a token drawn by the drafter is kept. The first token, which the prompt's own forward
    gives, is no round's and has no score.
    """

    def __init__(self, text: list[int], prompt: int, sampler: Sampler, processors: Processors) -> None:
        self.text, self.prompt, self.sampler, self.processors = text, prompt, sampler, processors
        self.begins = prompt + 1
        self.expected: list[torch.Tensor] = []  # by the residual rule, the target's distributions at the last tokens
        if isinstance(sampler, GumbelSampler):
            sampler.remembered = MOST_SCORED

    @property
    def samples(self) -> bool:
        return self.sampler.samples

    @property
    def noise(self) -> bool:
        return isinstance(self.sampler, GumbelSampler)

    def taken(self, scores: torch.Tensor, rows: Sequence[int]) -> None:
        """The text goes on with tokens that were chosen by these rows of the scores, (positions, vocabulary)."""
        if self.samples and not self.noise:
            self.expected += torch.softmax(scores[list(rows)], -1, dtype=torch.float32).unbind(0)
            del self.expected[:-MOST_SCORED]

    def hits(self, tokens: Sequence[int], first: int) -> list[float]:
        begin = max(first, self.begins)
        return [float(token == own) for token, own in zip(tokens[begin - first :], self.text[begin:], strict=False)]

    def overlap(self, logits: torch.Tensor, first: int) -> list[float]:
        if (early := self.begins - first) > 0:
            logits, first = logits[early:], first + early
        if not len(logits):
            return []
        count = min(len(logits), len(self.text) - first)
        ids = NO_IDS
        if self.processors.needs_text:
            ids = torch.tensor([self.text[: first + count - 1]], device=logits.device)
        scores = self.processors(ids, logits[:count].float())
        if isinstance(self.sampler, GumbelSampler):
            noise = self.sampler.gumbel(first - self.prompt, count)
            width = min(scores.shape[-1], noise.shape[-1])
            return self.hits((scores[:, :width] + noise[:, :width]).argmax(-1).tolist(), first)
        at = len(self.expected) - (len(self.text) - first)
        if at < 0:  # what the target expected there is not kept
            return self.overlap(logits[-at:], first - at) if -at < count else []
        p = torch.stack(self.expected[at : at + count])
        q = torch.softmax(scores, -1, dtype=torch.float32)[:, : p.shape[-1]]
        shared: list[float] = torch.minimum(p[:, : q.shape[-1]], q).sum(-1).clamp(0, 1).tolist()
        return shared
