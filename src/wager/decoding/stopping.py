"""When a text is finished."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from wager.models.compat_transformers import end_tokens, max_length_of


class Stopping:
    """transformers' stopping criteria; the two every request has are answered without tensors."""

    def __init__(self, criteria: Any, limit: int) -> None:
        self.limit = limit  # most tokens of prompt and text together
        self.why_limit = "context"
        self.ends: set[int] = set()
        self.rest: list[Any] = []
        for criterion in criteria:
            if (ends := end_tokens(criterion)) is not None:
                self.ends.update(ends)
            elif (longest := max_length_of(criterion)) is not None:
                if longest <= self.limit:
                    self.limit, self.why_limit = longest, "length"
            else:
                self.rest.append(criterion)

    @property
    def needs_text(self) -> bool:
        """Whether ``check`` has to see the text itself."""
        return bool(self.rest)

    def check(self, length: int, tokens: Sequence[int], ids: torch.Tensor) -> tuple[int, str]:
        """How many of the new tokens the text takes after ``length`` others, and why it then ends; "" if it goes on.

        ``ids`` (1, all) holds the text with the new tokens, or nothing where ``needs_text`` is false.
        """
        for at, token in enumerate(tokens, start=1):
            if token in self.ends:
                return at, "eos"
            if self.rest and any(bool(c(ids[:, : length + at], None).all()) for c in self.rest):
                return at, "stop"
            if length + at >= self.limit:
                return at, self.why_limit
        return len(tokens), ""
