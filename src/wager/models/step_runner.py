"""Any model that transformers can generate with, one token at a time."""

from collections.abc import Sequence
from typing import Any

import torch

from wager.models import compat_transformers as compat
from wager.models.runner import Runner


class StepRunner(Runner):
    """Runs the model step by step as its own ``generate`` does; no draft can be verified."""

    def __init__(self, model: Any, why: str) -> None:
        super().__init__(model)
        self.model, self.why_no_drafts = model, why
        self.begin()

    def begin(self) -> None:
        self.ids = torch.empty((1, 0), dtype=torch.long, device=self.device)
        self.inputs: dict[str, Any] = {}
        self.length = 0

    def crop(self, length: int) -> None:
        if length == 0:
            self.begin()
        elif length < self.length:
            raise ValueError(f"tokens cannot be taken back: {self.why_no_drafts}")

    @torch.no_grad()
    def forward(self, tokens: Sequence[int], keep: int, parents: Sequence[int] | None = None) -> torch.Tensor:
        self.ids = torch.cat((self.ids, torch.tensor([tokens], device=self.device)), dim=1)
        logits, self.inputs = compat.generation_step(self.model, self.ids, len(tokens), self.inputs)
        self.before, self.length = self.length, self.ids.shape[1]
        return logits[0, -keep:]

    def prefill(self, tokens: Sequence[int]) -> torch.Tensor:
        return self.forward(tokens, 1)  # in one go: its state may not be carried over from one part to the next
