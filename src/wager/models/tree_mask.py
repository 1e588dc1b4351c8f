"""The attention masks of a tree of tokens, for every kind of layer that transformers' caches know."""

from collections.abc import Sequence
from typing import Any

import torch

from wager.models import compat_transformers as compat
from wager.models.runner import ancestry, seen

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
KINDS = {FULL, SLIDING, CHUNKED}


def layer_kinds(config: Any) -> list[str]:
    """What each layer sees, as a text configuration says: all tokens, a window, or the chunk it is in."""
    if named := getattr(config, "layer_types", None):
        return list(named)
    if getattr(config, "sliding_window", None) is not None:
        return [SLIDING]
    return [CHUNKED if getattr(config, "attention_chunk_size", None) is not None else FULL]


def tree_inputs(model: Any, cache: Any, parents: Sequence[int], start: int, padding: Any = None) -> dict[str, Any]:
    """Mask and positions of a tree's tokens after ``start`` others; ``padding`` (start,) is True where one is none."""
    config, device = model.config.get_text_config(), model.device
    depths, words = ancestry(parents)
    width = len(parents)
    padded = 0 if padding is None else int(padding.sum())
    ahead = torch.tensor(depths, device=device) + start
    at = torch.cat((torch.arange(start, device=device), ahead)) - padded  # positions of all keys
    unseen = torch.zeros((width, start + width), dtype=torch.bool, device=device)
    unseen[:, start:] = ~seen(words, device)
    if padding is not None:
        unseen[:, : len(padding)] |= padding
    masks: dict[str, torch.Tensor] = {}
    for layer, kind in enumerate(layer_kinds(config)):
        if kind not in masks:
            masks[kind] = _added(_within(unseen, at, kind, config), compat.mask_length_of(cache, layer, width), model)
    mask = masks if len(masks) > 1 else next(iter(masks.values()))
    return {"attention_mask": mask, "position_ids": (ahead - padded)[None]}


def _within(unseen: torch.Tensor, at: torch.Tensor, kind: str, config: Any) -> torch.Tensor:
    """The same, and what is out of the window or chunk of each token."""
    own = at[-len(unseen) :, None]
    if kind == SLIDING:
        return unseen | (at <= own - int(config.sliding_window))
    if kind == CHUNKED:
        chunk = int(config.attention_chunk_size)
        return unseen | (at // chunk != own // chunk)
    return unseen


def _added(unseen: torch.Tensor, keys: int, model: Any) -> torch.Tensor:
    """As a mask that is added to the scores over the last ``keys``, (1, 1, width, keys)."""
    mask = torch.zeros((1, 1, len(unseen), keys), dtype=model.dtype, device=unseen.device)
    return mask.masked_fill_(unseen[:, -keys:], torch.finfo(mask.dtype).min)
