"""The small kernels of an EAGLE head on CUDA, beside those of a layer.

The likeliest tokens take two, in place of a softmax and a search over everything: each part of the vocabulary is
searched by a program of its own, then a row's parts are joined. Of two tokens as likely the first comes first.
"""

# ruff: noqa: N803 - Triton's constants are written in capitals
# mypy: allow-untyped-decorators
from __future__ import annotations

import torch
import triton
import triton.language as tl

PART = 1024  # logits one program looks at


@triton.jit
def _beside(tokens, embed, features, out, stride, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < size
    token = tl.load(tokens + row).to(tl.int64)
    to = out + row * 2 * size + at
    tl.store(to, tl.load(embed + token * size + at, mask=inside), mask=inside)
    tl.store(to + size, tl.load(features + row * stride + at, mask=inside), mask=inside)


@triton.jit
def _of_parts(  # type: ignore[no-untyped-def]
    logits, values, ids, peaks, sums, size, COUNT: tl.constexpr, PART: tl.constexpr
):
    part = tl.program_id(1)
    to = tl.program_id(0) * tl.num_programs(1) + part
    at = tl.arange(0, PART)
    column = part * PART + at
    row = logits + tl.program_id(0).to(tl.int64) * size
    x = tl.load(row + column, mask=column < size, other=-float("inf")).to(tl.float32)
    peak = tl.max(x, 0)
    tl.store(peaks + to, peak)
    tl.store(sums + to, tl.sum(tl.where(x > -float("inf"), tl.exp(x - peak), 0.0), 0))
    for rank in range(COUNT):
        best, place = tl.max(x, 0, return_indices=True)
        tl.store(values + to * COUNT + rank, best)
        tl.store(ids + to * COUNT + rank, part * PART + place)
        x = tl.where(at == place, -float("inf"), x)


@triton.jit
def _joined(  # type: ignore[no-untyped-def]
    values, ids, peaks, sums, logp, found, parts, COUNT: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    part = tl.arange(0, PARTS)
    peak_of = tl.load(peaks + row * parts + part, mask=part < parts, other=-float("inf"))
    peak = tl.max(peak_of, 0)
    total = tl.load(sums + row * parts + part, mask=part < parts, other=0.0)
    # A sum of at least 1, so that no probability is above 1 by rounding.
    log_total = tl.log(tl.sum(total * tl.exp(peak_of - peak), 0))
    at = tl.arange(0, BLOCK)
    x = tl.load(values + row * parts * COUNT + at, mask=at < parts * COUNT, other=-float("inf"))
    for rank in range(COUNT):
        best, place = tl.max(x, 0, return_indices=True)
        tl.store(logp + row * COUNT + rank, (best - peak) - log_total)
        tl.store(found + row * COUNT + rank, tl.load(ids + row * parts * COUNT + place).to(tl.int64))
        x = tl.where(at == place, -float("inf"), x)


@triton.jit
def _best(  # type: ignore[no-untyped-def]
    paths, tokens, index, parent, chosen, sums, COUNT: tl.constexpr, BLOCK: tl.constexpr
):
    at = tl.arange(0, BLOCK)
    x = tl.load(paths + at, mask=at < COUNT * COUNT, other=-float("inf"))
    for rank in range(COUNT):
        best, place = tl.max(x, 0, return_indices=True)
        tl.store(index + rank, place.to(tl.int64))
        tl.store(parent + rank, (place // COUNT).to(tl.int64))
        tl.store(chosen + rank, tl.load(tokens + place))
        tl.store(sums + rank, best)
        x = tl.where(at == place, -float("inf"), x)


def beside(tokens: torch.Tensor, embed: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """Each token's embedding and its feature, (width, 2 hidden)."""
    width, size = features.shape
    out = torch.empty((width, 2 * size), dtype=features.dtype, device=features.device)
    block = triton.next_power_of_2(size)
    _beside[(width,)](tokens, embed, features, out, features.stride(0), size, BLOCK=block, num_warps=4)
    return out


def best(
    paths: torch.Tensor,  # (count * count,)
    tokens: torch.Tensor,  # (count * count,)
    count: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of the paths the ``count`` likeliest: where they are, in which row, their tokens, and how likely they are."""
    index, parent, chosen = (torch.empty_like(tokens[:count]) for _ in range(3))
    sums = torch.empty_like(paths[:count])
    block = max(16, triton.next_power_of_2(count * count))
    _best[(1,)](paths, tokens, index, parent, chosen, sums, COUNT=count, BLOCK=block, num_warps=1)
    return index, parent, chosen, sums


def likeliest(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each row of logits (rows, size) the ``count`` largest: log-probabilities and columns, (rows, count) each."""
    logits = logits.contiguous()
    rows, size = logits.shape
    parts = int(triton.cdiv(size, PART))

    def room(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=logits.device)

    values, ids = room(rows, parts, count), room(rows, parts, count, dtype=torch.int32)
    peaks, sums = room(rows, parts), room(rows, parts)
    _of_parts[(rows, parts)](logits, values, ids, peaks, sums, size, COUNT=count, PART=PART, num_warps=4)
    logp, found = room(rows, count), room(rows, count, dtype=torch.long)
    _joined[(rows,)](
        values, ids, peaks, sums, logp, found, parts,
        COUNT=count, PARTS=max(16, triton.next_power_of_2(parts)), BLOCK=max(16, triton.next_power_of_2(parts * count)),
        num_warps=4,
    )  # fmt: skip
    return logp, found
