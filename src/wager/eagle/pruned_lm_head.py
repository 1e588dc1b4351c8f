"""An LM head with the rows of some tokens only: of the target's, where it is most of what a drafted token costs."""

import weakref
from typing import Any

import torch

from wager.models.calibration import of_products
from wager.models.packed import Weight
from wager.models.runner import Runner

NAME = "pruned lm_head"


class PrunedLMHead:
    """The rows of an output head that belong to some tokens."""

    def __init__(self, rows: torch.Tensor, bias: torch.Tensor | None, ids: torch.Tensor) -> None:
        self.ids = ids.to(rows.device)  # (rows,)
        self.rows = rows  # (rows, hidden)
        self.project = of_products({NAME: Weight((rows, bias))})[NAME]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(width, hidden) to logits (width, rows)."""
        return self.project(x)

    @property
    def memory(self) -> int:
        """Bytes of its rows."""
        return self.rows.nbytes + self.project.nbytes


_KNOWN: weakref.WeakValueDictionary[tuple[Any, ...], PrunedLMHead] = weakref.WeakValueDictionary()


@torch.inference_mode()
def pruned_lm_head(target: Runner, ids: torch.Tensor) -> PrunedLMHead | None:
    """The target's output head for these tokens, shared by all that want the same; None where it has another form."""
    model = getattr(target, "model", None)
    head = model.get_output_embeddings() if model is not None else None
    if not isinstance(head, torch.nn.Linear):
        return None
    weight = head.weight.detach()
    # Not the parameter itself: a model moved to another dtype keeps it.
    key = (weight.data_ptr(), weight.dtype, len(ids), hash(ids.numpy().tobytes()))
    known = _KNOWN.get(key)
    if known is None:
        at = ids.to(weight.device)
        known = _KNOWN[key] = PrunedLMHead(weight[at], None if head.bias is None else head.bias.detach()[at], at)
    return known
