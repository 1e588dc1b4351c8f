"""How the tokens of the tests' sampled texts are chosen, and what their drafters draw with."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from wager.decoding.sampler import RESIDUAL, GumbelSampler, Residual, Sampler


class Draws:
    """What a drafter draws with: a function from the text and its logits, and noise if it is known."""

    def __init__(self, draw: Callable[..., Any], gumbel: torch.Tensor | None = None, temperature: float = 1.0) -> None:
        self.draw, self.known, self.temperature = draw, gumbel, temperature

    def __call__(self, text: Sequence[int], logits: torch.Tensor) -> tuple[int, torch.Tensor]:
        token, q = self.draw(text, logits)
        return token, q

    def gumbel(self, count: int) -> torch.Tensor | None:
        return None if self.known is None else self.known[:count]


def sampler(rule: str, vocabulary: int, seed: int | None = None) -> Sampler:
    """How a sampled text's tokens are chosen, on the CPU."""
    device = torch.device("cpu")
    return Residual(device, seed) if rule == RESIDUAL else GumbelSampler(vocabulary, device, seed)
