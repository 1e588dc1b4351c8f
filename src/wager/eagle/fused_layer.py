"""A head's layer on CUDA with its small operations fused into kernels; Triton is imported when they are used."""

from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch.nn.functional import linear

from wager.eagle.head import Head

FUSED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def fits_kernels(head: Head) -> bool:
    """Whether Triton is there, slots are positions, and the layer and its sizes are what the kernels take."""
    if head.embed.dtype not in FUSED_DTYPES or find_spec("triton") is None:
        return False
    plain = type(head).entering is Head.entering and head.fc_bias is head.qkv_bias is head.out_bias is None
    sized = plain and head.size >= 16 and head.size & (head.size - 1) == 0
    return head.window == 0 and sized and head.embed.is_contiguous()


def fused_layer(
    head: Head,
    scratch: dict[int, torch.Tensor],  # room for attention's parts
    tokens: torch.Tensor,  # (width,)
    features: torch.Tensor,  # (width, hidden)
    where: torch.Tensor,  # where the cache is, as ``kernels`` has it
    earlier: int = 0,  # of a tree's entries, those already in the cache
) -> torch.Tensor:
    """Outputs of entries, (width, hidden)."""
    from wager.eagle import kernels as head_kernels
    from wager.models import kernels

    width, heads, num_kv_heads, size = len(tokens), head.heads, head.num_kv_heads, head.size
    x = linear(head_kernels.beside(tokens, head.embed, features), head.fc)
    parts = _parts(x, head.qkv, (heads * size, num_kv_heads * size, num_kv_heads * size))
    q, k, v = (part.view(width, -1, size) for part in parts)
    mixed = kernels.attention(q, k, v, where, 0, scratch, earlier)
    y = kernels.norm(x, head.norm, head.eps, linear(mixed, head.out))  # x has the attention added now
    inner = len(head.gate_up) // 2
    return x.addmm_(kernels.gate(*_parts(y, head.gate_up, (inner, inner))), head.down.t())


def _parts(x: torch.Tensor, weight: torch.Tensor, sizes: Sequence[int]) -> Sequence[torch.Tensor]:
    """A product with stacked weights, in its parts, each contiguous: of one row they are that anyway."""
    if len(x) == 1:
        return torch.split(linear(x, weight), list(sizes), dim=-1)
    return [linear(x, part) for part in torch.split(weight, list(sizes))]
