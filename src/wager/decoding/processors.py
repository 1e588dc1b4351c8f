"""The target's logits processors, applied at every verified position as plain decoding would apply them there."""

from __future__ import annotations

import math
from typing import Any

import torch

# These look at each row of scores alone, so all positions go through at once. The rest look at the text before them.
ROW_WISE = frozenset(
    {
        "TemperatureLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "MinPLogitsWarper",
        "TopHLogitsWarper",
        "TypicalLogitsWarper",
        "EpsilonLogitsWarper",
        "EtaLogitsWarper",
        "InfNanRemoveLogitsProcessor",
        "LogitNormalization",
        "SuppressTokensLogitsProcessor",
    }
)
REFUSED = {
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": "guidance runs the model a second time for every token",
    "SynthIDTextWatermarkLogitsProcessor": "it counts its calls, and drafts that are not kept would count",
}


class Processors:
    """From raw logits at several positions to the scores the next token is chosen by."""

    def __init__(self, processors: Any) -> None:
        for processor in processors:
            if (why := REFUSED.get(type(processor).__name__)) is not None:
                raise ValueError(f"wager cannot verify drafts under {type(processor).__name__}: {why}")
        self.steps = [(processor, type(processor).__name__ in ROW_WISE) for processor in processors]
        self.needs_text = not all(row_wise for _, row_wise in self.steps)
        heated = (p.temperature for p in processors if type(p).__name__ == "TemperatureLogitsWarper")
        self.temperature = float(math.prod(heated))

    def __call__(self, ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Scores (positions, vocabulary); ``ids`` (1, text and draft) ends where the last position looks back to.

        Where nothing needs the text, ``ids`` may be empty. Raw logits are in float32 before anything is done to them.
        """
        if not self.steps:
            return logits
        scores = logits.to(torch.float32, copy=True)
        count, whole = scores.shape[0], ids.shape[1]
        for processor, row_wise in self.steps:
            if row_wise:
                scores = processor(ids, scores)
            else:
                rows = [processor(ids[:, : whole - count + 1 + i], scores[i : i + 1]) for i in range(count)]
                scores = torch.cat(rows)
        return scores
