"""Is a greedy text the target's own? If not, is the first difference a tie that float error may decide either way?"""

from collections.abc import Sequence
from typing import Any

import torch

Text = Sequence[int]


def first_difference(ours: Text, theirs: Text) -> int | None:
    """Where two texts part; None if they are the same. A text that ends early parts where it ends."""
    for at, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return at
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


@torch.no_grad()
def first_difference_is_a_tie(model: Any, prompt: Text, ours: Text, theirs: Text, tolerance: float) -> bool:
    """Whether two continuations of a prompt are the same, or part at tokens whose logits tie for the first place.

    A tie is proven on the plain model: run over the prompt and what both have in common, in one forward and no cache,
    it puts both tokens within ``tolerance`` of its largest logit. Tolerance is in standard deviations of the logits
    there: 1e-3 in float32 is far above rounding and far below any gap that means something. A text that merely
    ends early is no tie.
    """
    at = first_difference(ours, theirs)
    if at is None:
        return True
    if at >= min(len(ours), len(theirs)):
        return False
    text = torch.tensor([[*prompt, *theirs[:at]]], device=model.device)
    logits = model(input_ids=text).logits[0, -1].float()
    gap = logits.max() - torch.minimum(logits[ours[at]], logits[theirs[at]])
    return bool(gap <= tolerance * logits.std())
