"""Models whose cache holds a state that tokens cannot be taken out of again: state-space models and hybrids.

The state before a draft is copied. If the draft is kept in part, the copy takes over, and the tokens kept are read
again together with those of the next forward: no forward is added, one is wider.
"""

from collections.abc import Sequence
from typing import Any

import torch

from wager.models import compat_transformers as compat
from wager.models.hf_runner import HFRunner
from wager.models.runner import CHUNK

MOST_AGAIN = 16  # tokens that are read again along with others; more are read beforehand, and are then done with


class StateRunner(HFRunner):
    """Runs the model as transformers does, and goes back to copies of its state."""

    trees = False

    def begin(self) -> None:
        self._renew()
        self.text: list[int] = []  # the tokens in the cache, as whoever crops it counts
        self.mask, self.length = None, 0

    def _renew(self) -> None:
        """An empty state."""
        self.cache = compat.new_cache(self.model)
        self.read = 0  # tokens that the state has read
        self.saved: tuple[int, Any] | None = None  # tokens read, and the state after them

    def settle(self) -> None:
        if self.read == self.length:
            self.saved = self.read, compat.copied(self.cache)

    def forward(self, tokens: Sequence[int], keep: int, parents: Sequence[int] | None = None) -> torch.Tensor:
        if parents is not None:
            raise ValueError("a model with a recurrent state verifies chains only")
        start = self.length
        again = self._again()
        while len(again) > MOST_AGAIN:
            self._forward(again[:CHUNK], 1)
            again = again[CHUNK:]
        if keep > 1:  # a draft, which may be refused
            self.saved = self.read, compat.copied(self.cache)
        logits = self._forward([*again, *tokens], keep)
        self.text += tokens
        self.before = start
        return logits

    def _again(self) -> list[int]:
        """Go back to a state that has read no more than the text; the tokens of the text that it lacks."""
        if self.read > self.length:
            saved = self.saved
            self._renew()
            if saved is not None and saved[0] <= self.length:
                self.read, self.cache = saved
        return self.text[self.read : self.length]

    def _forward(self, tokens: Sequence[int], keep: int) -> torch.Tensor:
        self.length = self.read
        logits = super().forward(tokens, keep)
        self.read = self.length
        return logits

    def crop(self, length: int) -> None:
        del self.text[length:]
        self.length = length
