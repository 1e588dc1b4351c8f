"""An output head cut to the frequent tokens: one product with fewer rows, which is most of what a small head costs."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.nn.functional import linear

from wager.models import packed
from wager.models.runner import Runner


class Cut:
    """The rows of an output head that belong to some tokens."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, ids: torch.Tensor) -> None:
        self.ids = ids.to(weight.device)  # (rows,)
        self.rows = weight[self.ids]  # (rows, hidden)
        self.bias = None if bias is None else bias[self.ids]
        self.wide: packed.Product | None = None  # for several entries at once, where that is faster
        self.use_wide = [False] * (packed.WIDTHS[-1] + 1)
        if weight.device.type == "cpu" and weight.dtype == torch.float32 and packed.available():
            self._pack()

    def _pack(self) -> None:
        try:
            wide = packed.pack(self.rows, self.bias)
        except RuntimeError:  # a processor this build's kernels do not cover
            return
        x = {width: self.rows.new_zeros(width, self.rows.shape[1]) for width in packed.WIDTHS}
        self.use_wide = packed.faster(
            lambda width: linear(x[width], self.rows, self.bias), lambda width: wide(x[width])
        )
        self.wide = wide if any(self.use_wide) else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(width, hidden) to logits (width, rows)."""
        if self.wide is not None and self.use_wide[min(len(x), packed.WIDTHS[-1])]:
            return self.wide(x)
        return linear(x, self.rows, self.bias)

    @property
    def memory(self) -> int:
        """Bytes of its rows."""
        return self.rows.nbytes * (1 if self.wide is None else 2)


_CUTS: weakref.WeakValueDictionary[tuple[Any, ...], Cut] = weakref.WeakValueDictionary()


@torch.inference_mode()
def cut(target: Runner, ids: torch.Tensor) -> Cut | None:
    """The target's output head for these tokens, shared by all that want the same; None where it has another form."""
    model = getattr(target, "model", None)
    head = model.get_output_embeddings() if model is not None else None
    if not isinstance(head, torch.nn.Linear):
        return None
    weight = head.weight.detach()
    # Not the parameter itself: a model moved to another dtype keeps it.
    key = (weight.data_ptr(), weight.dtype, len(ids), hash(ids.numpy().tobytes()))
    known = _CUTS.get(key)
    if known is None:
        known = _CUTS[key] = Cut(weight, None if head.bias is None else head.bias.detach(), ids)
    return known
