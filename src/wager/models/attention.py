"""Attention over a preallocated cache, shared by the target's forward and an EAGLE head's."""

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

NOT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
NARROW = 32  # up to this width attention is two small products; above it, the fused kernel made for prompts


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, partners: torch.Tensor | None = None) -> torch.Tensor:
    """Rotary embedding of (..., head), with the tables of ``rope_tables``: ``sin`` carries rotate_half's minus sign."""
    # ``partners`` (head,): what each number is rotated with, where that is not half a head away.
    other = x.roll(x.shape[-1] // 2, -1) if partners is None else x.index_select(-1, partners)
    return torch.addcmul(x * cos, other, sin)


def attend(
    q: torch.Tensor,  # (heads, width, head)
    keys: torch.Tensor,  # (num_kv_heads, end, head)
    values: torch.Tensor,
    mask: torch.Tensor | None,  # (width, end), added to the scores; None: every token sees all keys
    scale: float,
) -> torch.Tensor:
    """Attention over a cache: (width, heads * head)."""
    (heads, width, head), num_kv_heads = q.shape, len(keys)
    if width > NARROW:
        # Many tokens at once, by torch, but not by cuDNN, which plans for every new shape for longer than a short text.
        with sdpa_kernel(NOT_CUDNN) if q.is_cuda else nullcontext():
            mixed = scaled_dot_product_attention(
                q[None], keys[None], values[None], attn_mask=mask, scale=scale, enable_gqa=heads != num_kv_heads
            )
        return mixed[0].transpose(0, 1).flatten(1)
    # The heads of a group share its keys: stacked as rows, they are one product a group, (num_kv_heads, heads /
    # num_kv_heads * width, end). The mask is added afterwards: with one, torch on ARM runs a product for each group.
    scores = torch.bmm(q.reshape(num_kv_heads, -1, head), keys.transpose(1, 2))
    if scale != 1.0:
        scores = scores.mul_(scale)
    if mask is not None:
        scores.view(-1, *mask.shape).add_(mask)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype)
    return torch.bmm(weights, values).view(heads, width, head).transpose(0, 1).reshape(width, heads * head)


def within(unseen: torch.Tensor | None, positions: torch.Tensor, width: int, window: int) -> torch.Tensor | None:
    """A mask of ``mask`` for the keys at these positions, the last ``width`` the new tokens', and a window of them."""
    if unseen is None:  # one token, whose keys are cut to the window
        return None
    gone = positions <= positions[-width:, None] - window
    return unseen[:, -len(positions) :].masked_fill(gone, -math.inf)


def mask(like: torch.Tensor, width: int, before: int, seen: torch.Tensor | None = None) -> torch.Tensor | None:
    """What new tokens may not see, (width, before and those of ``seen``), to be added to the scores; None: nothing."""
    if seen is not None:  # (width, width or more): which of the last tokens each sees, where they are no chain
        unseen = torch.where(seen, 0.0, -math.inf).to(like.dtype)
    elif width == 1:
        return None
    else:
        unseen = like.new_full((width, width), -math.inf).triu_(1)
    return torch.cat((unseen.new_zeros(width, before), unseen), dim=1)


def rope_tables(rotary: Any, positions: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary tables of transformers' module, (positions, 1, head) each, in the dtype and on the device of ``like``."""
    # The sine's first half is negated, so that rotating is one roll and one multiply-add.
    cos, sin = rotary(like[:0], torch.arange(positions, device=like.device)[None])
    sin = sin.clone()
    sin[..., : sin.shape[-1] // 2].neg_()
    return cos[0, :, None].contiguous(), sin[0, :, None].contiguous()
