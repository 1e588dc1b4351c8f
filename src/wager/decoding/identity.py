"""Are two texts the same that should be, and if not, is it a tie?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

# Gaps up to this many standard deviations of the logits are float error: a few times what the model's own logits move
# by when the same tokens go through it in another grouping.
FLOAT_ERROR = {torch.float32: 1e-4, torch.bfloat16: 0.2, torch.float16: 0.05}


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token at which two continuations of a prompt differ."""

    at: int  # tokens they share
    gap: float | None  # of the two scores, in standard deviations of the logits; None where there is none to tell
    tie: bool


@torch.no_grad()
def difference(
    model: Any,
    prompt: Sequence[int],
    ours: Sequence[int],
    theirs: Sequence[int],
    *,
    gumbel: Callable[[int], torch.Tensor] | None = None,
    **settings: Any,
) -> Difference | None:
    """Where two continuations differ first, and whether the scores tie there; None if they are the same.

    Scores are the model's logits; with ``settings`` of ``model.generate`` those that its processors make of them.
    Sampled texts of one seed need ``gumbel``, the noise of a position, (vocabulary,). There is no gap where one text
    just ends, nor where a processor removed one of the two tokens; the latter is a tie, decided by rounding.
    """
    if list(ours) == list(theirs):
        return None
    shared = min(len(ours), len(theirs))
    at = next((i for i in range(shared) if ours[i] != theirs[i]), shared)
    if at == shared:
        return Difference(at, None, False)
    text = torch.tensor([[*prompt, *theirs[:at]]], device=model.device)
    scores, spread = _scores(model, text, settings)
    if gumbel is not None:
        scores = scores + gumbel(at)
        spread /= settings.get("temperature") or 1.0
    gap = float((scores.max() - torch.minimum(scores[ours[at]], scores[theirs[at]])) / spread)
    if gap == float("inf"):
        return Difference(at, None, gumbel is not None)
    return Difference(at, gap, gap <= FLOAT_ERROR.get(model.dtype, 1e-4))


def _scores(model: Any, text: torch.Tensor, settings: dict[str, Any]) -> tuple[torch.Tensor, float]:
    """Scores of the next token, (vocabulary,), and the standard deviation of its logits."""
    if not settings:
        logits = model(input_ids=text).logits[0, -1].float()
        return logits, float(logits.std())
    told = {"output_scores": True, "output_logits": True, "return_dict_in_generate": True}
    made = model.generate(text, attention_mask=torch.ones_like(text), **{**settings, **told, "max_new_tokens": 1})
    return made.scores[0][0].float(), float(made.logits[0][0].float().std())
