"""Are two texts the same, and if not, is it a tie?"""

from dataclasses import dataclass
from math import inf
from typing import Any

import torch

from wager.decoding.acceptance import Tokens
from wager.decoding.sampler import GumbelSampler

# Gaps up to this many standard deviations of the logits are float error: a few times what the model's own logits move
# by when the same tokens go through it in another grouping.
FLOAT_ERROR = {torch.float32: 1e-4, torch.bfloat16: 0.2, torch.float16: 0.05}


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token at which two continuations of a prompt differ."""

    at: int  # tokens they share
    # From the best score to the worse of the two tokens', in standard deviations of the logits. None where one text
    # just ends, which is no tie, or where one of the tokens was cut off by top-k or top-p, which is one.
    gap: float | None
    tie: bool


@torch.no_grad()
def difference(
    model: Any, prompt: Tokens, ours: Tokens, theirs: Tokens, *, seed: int | None = None, **settings: Any
) -> Difference | None:
    """Where two continuations part, and whether the model's scores tie there; None if they are the same.

    ``settings`` are those of ``model.generate`` that both were made with, and ``seed`` that of sampled ones. Without
    settings the texts are the model's plain greedy ones.
    """
    if list(ours) == list(theirs):
        return None
    shared = min(len(ours), len(theirs))
    at = next((i for i in range(shared) if ours[i] != theirs[i]), shared)
    if at == shared:
        return Difference(at, None, False)
    text = torch.tensor([[*prompt, *theirs[:at]]], device=model.device)
    if settings:
        scores, logits = _next(model, text, settings)
    else:
        scores = logits = model(input_ids=text).logits[0, -1].float()
    spread = logits.std()
    if sampled := bool(settings.get("do_sample")):
        spread = spread / settings.get("temperature", 1.0)
        scores = scores + GumbelSampler(len(scores), scores.device, seed).only(at)
    gap = float((scores.max() - torch.minimum(scores[ours[at]], scores[theirs[at]])) / spread)
    if sampled and gap == inf:  # one of them is at the edge of what top-k or top-p leave: rounding decides
        return Difference(at, None, True)
    return Difference(at, gap, gap <= FLOAT_ERROR.get(model.dtype, 1e-4))


def _next(model: Any, text: torch.Tensor, settings: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """What the next token is chosen by, after every processor, and the logits themselves; both (vocabulary,)."""
    wanted = {"max_new_tokens": 1, "output_scores": True, "output_logits": True, "return_dict_in_generate": True}
    made = model.generate(text, attention_mask=torch.ones_like(text), **{**settings, **wanted})
    return made.scores[0][0].float(), made.logits[0][0].float()
