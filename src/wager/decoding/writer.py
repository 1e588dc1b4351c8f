"""Plain decoding of several prompts at once, for recordings: the texts, and the target's features along them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from wager.decoding.sampler import GumbelSampler
from wager.models.runner import Runner


class Noise:
    """The noise of a sampled text: ``rows[i]`` is added to the scores that its i-th token is chosen by."""

    def __init__(self, target: Runner, seed: int, temperature: float, count: int) -> None:
        sampler = GumbelSampler(target.vocabulary, target.device, seed)
        self.rows, self.temperature = sampler.gumbel(0, count), temperature


@dataclass(frozen=True, slots=True)
class Written:
    """One finished text."""

    prompt: list[int]
    tokens: list[int]
    limit: int  # most tokens it might have had
    features: torch.Tensor | None  # (prompt and tokens but the last, hidden); None: the target shows none


@torch.inference_mode()
def write(
    model: Any, target: Runner, prompts: Sequence[list[int]], count: int, noise: Sequence[Noise] = ()
) -> list[Written]:
    """Texts of at most ``count`` tokens, greedy or each with its noise; ``target`` is the model's own runner.

    Every text is that of plain decoding, but for ties within float error: a batch adds up in another order.
    """
    # transformers counts a batch's cache along its padded prompts, which are on the left
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts], device=target.device)
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=target.device)
    limits = [min(count, target.limit - len(p)) for p in prompts]
    stops = _stops(model)
    tokens: list[list[int]] = [[] for _ in prompts]
    features: list[list[torch.Tensor]] = [[] for _ in prompts]
    live = list(range(len(prompts)))  # the batch's rows; finished ones leave with the next forward
    past: Any = None
    for step in range(max(limits)):
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        made = model.base_model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=past, use_cache=True
        )
        past = made.past_key_values
        for row, i in enumerate(live):
            features[i].append(made.last_hidden_state[row, -len(prompts[i]) if step == 0 else -1 :].clone())
        scores = target.project(made.last_hidden_state[:, -1]).float()
        if noise:
            scores = torch.stack(
                [s / noise[i].temperature + noise[i].rows[step] for s, i in zip(scores, live, strict=True)]
            )
        following = scores.argmax(-1)
        stay = []
        for row, (i, token) in enumerate(zip(live, following.tolist(), strict=True)):
            tokens[i].append(token)
            if token not in stops and len(tokens[i]) < limits[i]:
                stay.append(row)
        if not stay:
            break
        ids = following[:, None]
        if len(stay) < len(live):
            rows = torch.tensor(stay, device=target.device)
            past.batch_select_indices(rows)
            ids, mask, live = ids[rows], mask[rows], [live[row] for row in stay]
        mask = torch.cat((mask, mask.new_ones(len(live), 1)), 1)
    known = zip(prompts, tokens, limits, features, strict=True)
    return [Written(p, t, most, torch.cat(own)) for p, t, most, own in known]


def _stops(model: Any) -> set[int]:
    """Tokens that end a text."""
    own = model.generation_config.eos_token_id
    return set() if own is None else {own} if isinstance(own, int) else set(own)
