"""A head's layer on CUDA with its small operations fused into kernels; Triton is imported when they are used."""

from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch.nn.functional import embedding, linear

from wager.eagle.eagle3_head import Eagle3Head
from wager.eagle.head import Head

FUSED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def fits_kernels(head: Head) -> bool:
    """Whether Triton is there, slots are positions, and the layer and its sizes are what the kernels take."""
    if head.embed.dtype not in FUSED_DTYPES or find_spec("triton") is None:
        return False
    plain = head.fc_bias is head.qkv_bias is head.out_bias is None
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
    if isinstance(head, Eagle3Head):
        x, r = _eagle3_entries(head, tokens, features)
    else:
        x = r = linear(head_kernels.beside(tokens, head.embed, features), head.fc)
    parts = _parts(x, head.qkv, (heads * size, num_kv_heads * size, num_kv_heads * size))
    q, k, v = (part.view(width, -1, size) for part in parts)
    if head.q_norm is not None and head.k_norm is not None:
        q, k = kernels.norm(q, head.q_norm, head.eps), kernels.norm(k, head.k_norm, head.eps)
    mixed = kernels.attention(q, k, v, where, 0, scratch, earlier)
    y = kernels.norm(r, head.norm, head.eps, linear(mixed, head.out))  # r has the attention added now
    inner = len(head.gate_up) // 2
    out = r.addmm_(kernels.gate(*_parts(y, head.gate_up, (inner, inner))), head.down.t())
    if isinstance(head, Eagle3Head) and head.settings.norm_output:
        return kernels.norm(out, head.final_norm, head.eps)
    return out


def _eagle3_entries(
    head: Eagle3Head, tokens: torch.Tensor, features: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What an EAGLE-3 head's attention reads, and what its output is added to, which nobody else holds."""
    from wager.models import kernels

    features = features.clone(memory_format=torch.contiguous_format)  # they may be one row, repeated
    embedded = kernels.norm(embedding(tokens, head.embed), head.embed_norm, head.eps)
    normed = kernels.norm(features, head.feature_norm, head.eps)
    return torch.cat((embedded, normed), dim=-1), normed if head.settings.norm_before_residual else features


def _parts(x: torch.Tensor, weight: torch.Tensor, sizes: Sequence[int]) -> Sequence[torch.Tensor]:
    """A product with stacked weights, in its parts, each contiguous: of one row they are that anyway."""
    if len(x) == 1:
        return torch.split(linear(x, weight), list(sizes), dim=-1)
    return [linear(x, part) for part in torch.split(weight, list(sizes))]
