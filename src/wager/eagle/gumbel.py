"""The noise a sampled target will add to its logits, where the head knows it beforehand."""

from __future__ import annotations

from typing import NamedTuple

import torch


class GumbelNoise(NamedTuple):
    """A sampled target takes the largest of logits / temperature + rows (the Gumbel-max trick)."""

    rows: torch.Tensor  # (levels, vocabulary) or (levels, pruned vocabulary)
    temperature: torch.Tensor  # ()

    def perturb(self, logits: torch.Tensor, level: int) -> torch.Tensor:
        """Scores by which tokens so many levels after an entry are chosen, in float32."""
        return logits.float() / self.temperature + self.rows[level]
