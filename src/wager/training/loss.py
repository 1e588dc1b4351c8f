"""The loss of a drafter: how far its distribution is from the target's, over a whole vocabulary, in little memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch


def _rows(logits: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy of each row, and its gradient by the logits."""
    exact = logits.float()
    total = torch.logsumexp(exact, -1, keepdim=True)
    loss = total[:, 0] - (wanted.float() * exact).sum(-1)
    return loss, (torch.exp(exact - total) - wanted.float()).to(logits.dtype)


@cache
def _fused(cuda: bool) -> Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """The same in a few passes over the memory where a compiler can be had for the device."""
    return torch.compile(_rows, dynamic=True) if cuda else _rows


class _SoftCrossEntropy(torch.autograd.Function):
    """Keeps the gradient instead of what it is made of."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        loss, gradient = _fused(logits.is_cuda)(logits, wanted)
        ctx.save_for_backward(gradient)
        return loss.mean()

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * (outer[0] / len(gradient)).to(gradient.dtype), None


def soft_cross_entropy(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """The mean over rows of - sum of wanted * log softmax(logits); both (rows, vocabulary), wanted a distribution."""
    mean: torch.Tensor = _SoftCrossEntropy.apply(logits, wanted)  # type: ignore[no-untyped-call]
    return mean
