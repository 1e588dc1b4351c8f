"""Rotary tables of all kinds, brought into one form: what rotates, by which table, and what stands still."""

import inspect
from typing import Any

import torch

from wager.models.attention import rope_tables
from wager.models.tree_mask import layer_kinds

NONE = "none"  # of layers that rotate nothing
Tables = tuple[torch.Tensor, torch.Tensor]  # cosine and sine, (positions, 1, head) each


def rope_kinds(model: Any) -> list[str]:
    """The table that each layer goes by: that of its kind of attention where they differ, or none."""
    body = model.model
    by_kind = "layer_type" in inspect.signature(body.rotary_emb.forward).parameters
    kinds = layer_kinds(model.config) if by_kind else [""]
    kinds = kinds if len(kinds) > 1 else kinds * len(body.layers)
    still = [not getattr(block.self_attn, "use_rope", True) for block in body.layers]
    return [NONE if none else kind for none, kind in zip(still, kinds, strict=False)]


def tables(rotary: Any, kind: str, positions: int, like: torch.Tensor, head: int, interleaved: bool) -> Tables:
    """The tables of one kind, as wide as a head; what is not rotated has a cosine of 1 and a sine of 0."""
    if kind == NONE:
        still = like.new_ones((positions, 1, head))
        return still, torch.zeros_like(still)
    made = (lambda x, at: rotary(x, at, kind)) if kind else rotary
    cos, sin = rope_tables(made, positions, like)
    if interleaved:  # each angle twice in a row, and every second number with the minus sign
        half = cos.shape[-1] // 2
        cos, sin = (by[..., half:].repeat_interleave(2, dim=-1) for by in (cos, sin))
        sin[..., ::2].neg_()
    if (rest := head - cos.shape[-1]) > 0:
        cos = torch.cat((cos, cos.new_ones((positions, 1, rest))), dim=-1)
        sin = torch.cat((sin, sin.new_zeros((positions, 1, rest))), dim=-1)
    return cos, sin


def partners(rotary: Any, kind: str, like: torch.Tensor, head: int, interleaved: bool) -> torch.Tensor | None:
    """For each number of a head the one it is rotated with, (head,); None: the one half a head away."""
    wide = (
        0
        if kind == NONE
        else rope_tables((lambda x, at: rotary(x, at, kind)) if kind else rotary, 1, like)[0].shape[-1]
    )
    if wide in (0, head) and not interleaved:
        return None
    at = torch.arange(head, device=like.device)
    swapped = at ^ 1 if interleaved else (at + wide // 2) % wide
    return torch.where(at < wide, swapped, at)
