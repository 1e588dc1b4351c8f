"""The small kernels of one layer on CUDA, rounding where transformers' own modules round.

Where the cache lies and how much it holds is read from a tensor on the device, ``where``: a cache that grows and moves
needs no new capture of graphs that run these kernels.

    where: int64: addresses of the cache and of the rotary tables cos and sin, capacity of all three in tokens, the
           number of tokens in the cache before this forward, 1 if its tokens are a tree and 0 if they are a chain;
           then the tokens themselves (width) and, of a tree only, the depth of each (width) and a word whose bits say
           which of them it sees: its ancestors and itself (width)
    cache: (layers, 2, num_kv_heads, capacity, head), keys then values
    cos, sin: (capacity, head), the first half of the sine negated

Whatever their shape, tokens go into the cache in the order they come; a tree's are rotated by their depth. A tree may
come in several forwards: ``earlier`` of its tokens are then in the cache already, and the words count from the first.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from wager.models.runner import WIDEST_TREE

TILE = 64  # queries one program holds at most
SPLITS = 16  # parts the cache is cut into, each read by its own program; their results are then combined
TRITON_DTYPE = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit
def _norm(x, delta, weight, out, size, eps, ADD: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64) * size
    at = tl.arange(0, BLOCK)
    inside = at < size
    value = tl.load(x + row + at, mask=inside, other=0.0)
    if ADD:
        more = tl.load(delta + row + at, mask=inside, other=0.0)
        value = (value.to(tl.float32) + more.to(tl.float32)).to(value.dtype)
        tl.store(x + row + at, value, mask=inside)
    exact = value.to(tl.float32)
    normed = (exact * tl.rsqrt(tl.sum(exact * exact) / size + eps)).to(value.dtype)
    by = tl.load(weight + at, mask=inside, other=0.0)
    tl.store(out + row + at, (normed.to(tl.float32) * by.to(tl.float32)).to(value.dtype), mask=inside)


@triton.jit(do_not_specialize=["layer", "earlier"])  # or layers 0, 1 and 16 would each be compiled for
def _rotate_store(  # type: ignore[no-untyped-def]
    q, k, v, where, layer, earlier, heads, num_kv_heads, HEAD: tl.constexpr, HALF: tl.constexpr, DTYPE: tl.constexpr
):
    row = tl.program_id(0)
    slot = tl.program_id(1)
    cache = tl.load(where).to(tl.pointer_type(DTYPE))
    cos = tl.load(where + 1).to(tl.pointer_type(DTYPE))
    sin = tl.load(where + 2).to(tl.pointer_type(DTYPE))
    capacity = tl.load(where + 3)
    start = tl.load(where + 4)
    is_tree = tl.load(where + 5) != 0
    place = start + earlier + row
    depth = tl.load(where + 6 + tl.num_programs(0) + row, mask=is_tree, other=0)
    position = start + tl.where(is_tree, depth, row.to(tl.int64))
    at = tl.arange(0, HALF)
    if slot < heads + num_kv_heads:
        is_query = slot < heads
        source = tl.where(is_query, q + (row * heads + slot) * HEAD, k + (row * num_kv_heads + slot - heads) * HEAD)
        low = tl.load(source + at)
        high = tl.load(source + HALF + at)
        turn = position * HEAD + at
        # The model's own order of rounding: each product, then their sum.
        a = (low.to(tl.float32) * tl.load(cos + turn).to(tl.float32)).to(DTYPE)
        b = (high.to(tl.float32) * tl.load(sin + turn).to(tl.float32)).to(DTYPE)
        c = (high.to(tl.float32) * tl.load(cos + turn + HALF).to(tl.float32)).to(DTYPE)
        d = (low.to(tl.float32) * tl.load(sin + turn + HALF).to(tl.float32)).to(DTYPE)
        low = (a.to(tl.float32) + b.to(tl.float32)).to(DTYPE)
        high = (c.to(tl.float32) + d.to(tl.float32)).to(DTYPE)
        if is_query:
            tl.store(source + at, low)
            tl.store(source + HALF + at, high)
        else:
            to = cache + ((layer * 2 * num_kv_heads + slot - heads) * capacity + place) * HEAD
            tl.store(to + at, low)
            tl.store(to + HALF + at, high)
    else:
        group = slot - heads - num_kv_heads
        source = v + (row * num_kv_heads + group) * HEAD
        to = cache + (((layer * 2 + 1) * num_kv_heads + group) * capacity + place) * HEAD
        tl.store(to + at, tl.load(source + at))
        tl.store(to + HALF + at, tl.load(source + HALF + at))


@triton.jit(do_not_specialize=["layer", "earlier", "width"])
def _attend(  # type: ignore[no-untyped-def]
    q, where, partial, layer, earlier, width, share, num_kv_heads, rows, scale, ROWS: tl.constexpr, HEAD: tl.constexpr,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, DTYPE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    # One program: up to ROWS queries of one group's heads, over one part of the cache.
    group = tl.program_id(0)
    part = tl.program_id(1)
    cache = tl.load(where).to(tl.pointer_type(DTYPE))
    capacity = tl.load(where + 3)
    start = tl.load(where + 4)
    total = start + earlier + width
    size = tl.cdiv(tl.cdiv(total, PARTS), BLOCK) * BLOCK
    first = part * size
    last = tl.minimum(first + size, total)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    real = row < share * width
    token = row % width
    at = tl.arange(0, HEAD)
    source = q + ((token * num_kv_heads + group) * share + row // width)[:, None] * HEAD + at[None, :]
    query = tl.load(source, mask=real[:, None], other=0.0)
    # Which of this forward's tokens each query sees: in a chain all up to its own; a tree's are the bits of a word.
    if not WIDE:
        is_tree = tl.load(where + 5) != 0
        word = tl.load(where + 6 + 2 * width + token, mask=real & is_tree, other=0)
        word = tl.where(is_tree, word, (tl.full((ROWS,), 2, tl.int64) << token.to(tl.int64)) - 1)
    keys = cache + ((layer * 2) * num_kv_heads + group) * capacity * HEAD
    values = cache + ((layer * 2 + 1) * num_kv_heads + group) * capacity * HEAD
    best = tl.full((ROWS,), -1e30, tl.float32)
    total_weight = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, HEAD), tl.float32)
    for begin in range(first, last, BLOCK):
        n = begin + tl.arange(0, BLOCK)
        there = n < last
        key = tl.load(keys + n[:, None] * HEAD + at[None, :], mask=there[:, None], other=0.0)
        score = tl.dot(query, tl.trans(key), input_precision="tf32x3") * scale
        new = n - start
        if WIDE:
            visible = new[None, :] <= token[:, None]
        else:
            bit = (word[:, None] >> tl.minimum(tl.maximum(new, 0), 63)[None, :]) & 1
            visible = (new < 0)[None, :] | (bit != 0)
        score = tl.where(there[None, :] & visible, score, -1e30)
        better = tl.maximum(best, tl.max(score, 1))
        weight = tl.exp(score - better[:, None])
        weight = tl.where(score > -1e29, weight, 0.0)
        shrink = tl.exp(best - better)
        value = tl.load(values + n[:, None] * HEAD + at[None, :], mask=there[:, None], other=0.0)
        mixed = mixed * shrink[:, None] + tl.dot(weight.to(DTYPE), value, input_precision="tf32x3")
        total_weight = total_weight * shrink + tl.sum(weight, 1)
        best = better
    # partial: (num_kv_heads, PARTS, rows, HEAD + 2)
    to = partial + ((group * PARTS + part) * rows + row) * (HEAD + 2)
    tl.store(to[:, None] + at[None, :], mixed, mask=real[:, None])
    tl.store(to + HEAD, best, mask=real)
    tl.store(to + HEAD + 1, total_weight, mask=real)


@triton.jit(do_not_specialize=["width"])
def _combine(  # type: ignore[no-untyped-def]
    partial, out, width, share, rows, HEAD: tl.constexpr, PARTS: tl.constexpr, DTYPE: tl.constexpr
):
    token = tl.program_id(0)
    head = tl.program_id(1)
    group = head // share
    row = (head % share) * width + token
    part = tl.arange(0, PARTS)
    at = tl.arange(0, HEAD)
    source = partial + ((group * PARTS + part) * rows + row) * (HEAD + 2)
    best = tl.load(source + HEAD)
    weight = tl.load(source + HEAD + 1)
    shrink = tl.exp(best - tl.max(best, 0))
    mixed = tl.sum(tl.load(source[:, None] + at[None, :]) * shrink[:, None], 0) / tl.sum(weight * shrink, 0)
    tl.store(out + (token * tl.num_programs(1) + head) * HEAD + at, mixed.to(DTYPE))


@triton.jit
def _gate(gate, up, out, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    x = tl.load(gate + at, mask=inside, other=0.0)
    exact = x.to(tl.float32)
    opened = (exact / (1.0 + tl.exp(-exact))).to(x.dtype)
    y = tl.load(up + at, mask=inside, other=0.0)
    tl.store(out + at, (opened.to(tl.float32) * y.to(tl.float32)).to(x.dtype), mask=inside)


def _rows(queries: int) -> int:
    """Rows of scratch memory for so many queries of a group: whole tiles, each a power of two of at least 16."""
    return max(16, int(triton.next_power_of_2(queries))) if queries <= TILE else int(triton.cdiv(queries, TILE)) * TILE


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float, delta: torch.Tensor | None = None) -> torch.Tensor:
    """Root-mean-square norm of each row; ``delta`` is added to ``x`` in place first."""
    size = x.shape[-1]
    out = torch.empty_like(x)
    block = triton.next_power_of_2(size)
    _norm[(x.numel() // size,)](
        x, x if delta is None else delta, weight, out, size, eps, ADD=delta is not None, BLOCK=block,
        num_warps=4 if block <= 2048 else 8,
    )  # fmt: skip
    return out


def gate(gated: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gated) * up."""
    out = torch.empty_like(up)
    _gate[(triton.cdiv(up.numel(), 1024),)](gated, up, out, up.numel(), BLOCK=1024, num_warps=4)
    return out


def attention(
    q: torch.Tensor,  # (width, heads, head), rotated in place
    k: torch.Tensor,  # (width, num_kv_heads, head)
    v: torch.Tensor,
    where: torch.Tensor,
    layer: int,
    scratch: dict[int, torch.Tensor],  # rows of queries -> room for the parts' results; filled here
    earlier: int = 0,  # tokens of the same tree that the cache holds after its first tokens; 0 for a chain
) -> torch.Tensor:
    """Put keys and values into the cache, and attend to all of it: (width, heads * head)."""
    # More than WIDEST_TREE tokens are always a chain.
    width, heads, head = q.shape
    assert not earlier or earlier + width <= WIDEST_TREE, "what a query sees of its tree is one word"
    dtype: Any = TRITON_DTYPE[q.dtype]
    num_kv_heads = k.shape[1]
    share = heads // num_kv_heads
    rows = _rows(share * width)
    if rows not in scratch:
        scratch[rows] = torch.empty((num_kv_heads, SPLITS, rows, head + 2), dtype=torch.float32, device=q.device)
    _rotate_store[(width, heads + 2 * num_kv_heads)](
        q, k, v, where, layer, earlier, heads, num_kv_heads, HEAD=head, HALF=head // 2, DTYPE=dtype, num_warps=1
    )
    tile = min(rows, TILE)
    _attend[(num_kv_heads, SPLITS, rows // tile)](
        q, where, scratch[rows], layer, earlier, width, share, num_kv_heads, rows, head**-0.5,
        ROWS=tile, HEAD=head, BLOCK=64 if head <= 64 else 32, PARTS=SPLITS, DTYPE=dtype, WIDE=width > WIDEST_TREE,
        num_warps=4,
    )  # fmt: skip
    out = torch.empty((width, heads * head), dtype=q.dtype, device=q.device)
    _combine[(width, heads)](scratch[rows], out, width, share, rows, HEAD=head, PARTS=SPLITS, DTYPE=dtype, num_warps=2)
    return out
