"""Are two greedy texts the same, and if not, is it a tie?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

# Gaps up to this many standard deviations of the logits are float error: a few times what the model's own logits move
# by when the same tokens go through it in another grouping.
FLOAT_ERROR = {torch.float32: 1e-4, torch.bfloat16: 0.2, torch.float16: 0.05}


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two continuations of a prompt part."""

    at: int  # tokens they share
    gap: float | None  # between the two tokens' logits, in standard deviations; None where one text just ends
    tie: bool


@torch.no_grad()
def difference(model: Any, prompt: Sequence[int], ours: Sequence[int], theirs: Sequence[int]) -> Difference | None:
    """Where two greedy continuations part, and whether the model's logits tie there; None if they are the same."""
    if list(ours) == list(theirs):
        return None
    shared = min(len(ours), len(theirs))
    at = next((i for i in range(shared) if ours[i] != theirs[i]), shared)
    if at == shared:
        return Difference(at, None, False)
    text = torch.tensor([[*prompt, *theirs[:at]]], device=model.device)
    logits = model(input_ids=text).logits[0, -1].float()
    gap = float((logits.max() - torch.minimum(logits[ours[at]], logits[theirs[at]])) / logits.std())
    return Difference(at, gap, gap <= FLOAT_ERROR.get(model.dtype, 1e-4))
