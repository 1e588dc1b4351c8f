"""The target's logits processors, applied at every verified position as plain decoding would apply them there."""

from __future__ import annotations

import math
from typing import Any

import torch

from wager.models.compat_transformers import refusal, row_wise, temperature_of


class Processors:
    """From raw logits at several positions to the scores the next token is chosen by."""

    def __init__(self, processors: Any) -> None:
        for processor in processors:
            if why := refusal(processor):
                raise ValueError(f"wager cannot verify drafts under {type(processor).__name__}: {why}")
        self.steps = [(processor, row_wise(processor)) for processor in processors]
        self.needs_text = not all(alone for _, alone in self.steps)
        self.temperature = math.prod(map(temperature_of, processors))

    def __call__(self, ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Scores (positions, vocabulary); ``ids`` (1, text and draft) ends where the last position looks back to.

        Where nothing needs the text, ``ids`` may be empty. Raw logits are in float32 before anything is done to them.
        """
        if not self.steps:
            return logits
        scores = logits.to(torch.float32, copy=True)
        count, whole = scores.shape[0], ids.shape[1]
        for processor, alone in self.steps:
            if alone:
                scores = processor(ids, scores)
            else:
                rows = [processor(ids[:, : whole - count + 1 + i], scores[i : i + 1]) for i in range(count)]
                scores = torch.cat(rows)
        return scores
