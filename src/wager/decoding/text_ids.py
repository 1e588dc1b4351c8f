"""The text as a tensor, for those who look at it."""

from collections.abc import Sequence

import torch


class TextIds:
    """The text as a tensor that grows in place, for processors and criteria that look at it."""

    def __init__(self, text: Sequence[int], device: torch.device) -> None:
        self.length = len(text)
        self.buffer = torch.empty((1, 2 * len(text) + 256), dtype=torch.long, device=device)
        self.buffer[0, : self.length] = torch.tensor(text, device=device)

    def with_draft(self, tokens: Sequence[int]) -> torch.Tensor:
        """The text with these tokens after it, (1, both); they are not part of it yet."""
        end = self.length + len(tokens)
        if end > self.buffer.shape[1]:
            self.buffer = torch.cat((self.buffer, torch.empty_like(self.buffer)), dim=1)
        if tokens:
            self.buffer[0, self.length : end] = torch.tensor(tokens, device=self.buffer.device)
        return self.buffer[:, :end]
