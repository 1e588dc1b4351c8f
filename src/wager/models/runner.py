"""A runner: one model, one stream, one forward at a time over a cache that can be cropped."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import torch

CHUNK = 512  # tokens of a prompt that go through the model at once: bounds the memory of a long prefill


class Runner(ABC):
    """Feeds tokens to a model and keeps its cache; what was fed too much is cropped, never recomputed."""

    vocabulary: int
    limit: int  # most tokens the model can hold
    device: torch.device

    def __init__(self, model: Any) -> None:
        self.vocabulary = vocabulary(model)
        self.limit = context_limit(model)
        self.device = model.device
        self.length = 0  # tokens in the cache

    @abstractmethod
    def forward(self, tokens: Sequence[int], keep: int) -> torch.Tensor:
        """Logits after each of the last ``keep`` tokens, (keep, vocabulary); the tokens join the cache.

        The tensor may be overwritten by the next call.
        """

    @abstractmethod
    def crop(self, length: int) -> None:
        """Forget every token after the first ``length``."""

    def begin(self) -> None:
        """Empty the cache for a new text."""
        self.crop(0)

    def warm(self, widths: Iterable[int]) -> None:  # noqa: B027 - nothing to prepare, as a rule
        """Prepare forwards of these widths, so that none of them is slow the first time."""

    def prefill(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits after the last of any number of tokens, (1, vocabulary)."""
        for at in range(0, len(tokens), CHUNK):
            logits = self.forward(tokens[at : at + CHUNK], 1)
        return logits

    def prefill_scored(self, tokens: Sequence[int]) -> tuple[torch.Tensor, float]:
        """As ``prefill``, and the tokens' perplexity, from the same forwards."""
        total, counted = 0.0, 0
        last: torch.Tensor | None = None
        for at in range(0, len(tokens), CHUNK):
            chunk = tokens[at : at + CHUNK]
            logits = self.forward(chunk, len(chunk)).float()
            before = logits[:-1] if last is None else torch.cat((last, logits[:-1]))
            followed = torch.tensor(chunk[len(chunk) - len(before) :], device=logits.device)
            total += float(torch.nn.functional.cross_entropy(before, followed, reduction="sum")) if len(before) else 0.0
            counted += len(before)
            last = logits[-1:].clone()
        assert last is not None, "a text has at least one token"
        return last, math.exp(min(total / max(1, counted), 700.0))


def vocabulary(model: Any) -> int:
    """Tokens the model knows."""
    return int(model.get_input_embeddings().weight.shape[0])


def context_limit(model: Any) -> int:
    """Most tokens the model was made for; a very large number where its configuration does not say."""
    config = model.config.get_text_config()
    for name in ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"):
        limit = getattr(config, name, None)
        if isinstance(limit, int) and limit > 0:
            return limit
    return 1 << 30
