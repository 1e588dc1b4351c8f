"""The kernels of a round that stays on the device: which tokens are verified, and what of them is accepted.

They read and write the input of the target's graphs, ``where`` (see ``models.kernels``): slot 0 of its tokens is the
text's last, the draft's follow, parents before their children. A slot's word has the bits of its ancestors and itself,
so a token is accepted where every slot of its word holds what the target chose after its parent.

A chain of another drafter's may be merged into the draft: its slots follow, beside the head's own from slot 0 on. Both
may have the same tokens, and both be accepted; the deeper one is kept.
"""

# ruff: noqa: N803 - Triton's constants are written in capitals
# mypy: allow-untyped-decorators
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from wager.models.kernels import TRITON_DTYPE
from wager.models.runner import WIDEST_TREE

TILE = 64  # nodes that one is compared with at a time, and that one program places
# What a round leaves on the device: the number of accepted tokens; the slots of the path, slot 0 first, then zeros;
# the new tokens of the text, then zeros; all slots' tokens; how many tokens of the head's own draft would be accepted.
PATH, NEW, DRAFTED, OWN = (1 + part * WIDEST_TREE for part in range(4))
RESULT = OWN + 1


@triton.jit(do_not_specialize=["count", "nodes"])
def _rank(paths, slots, count, nodes, BLOCK: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    # Slots of the likeliest paths in the nodes' order, 0 for a node that does not stay; of two as likely the first.
    at = tl.arange(0, BLOCK)
    own = tl.load(paths + at, mask=at < count, other=-float("inf"))
    before = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, count, TILE):
        other_at = first + tl.arange(0, TILE)
        other = tl.load(paths + other_at, mask=other_at < count, other=-float("inf"))
        likelier = other[None, :] > own[:, None]
        earlier = (other[None, :] == own[:, None]) & (other_at[None, :] < at[:, None])
        before += tl.sum(((likelier | earlier) & (other_at < count)[None, :]).to(tl.int32), 1)
    stays = (at < count) & (before < nodes)
    slot = tl.cumsum(stays.to(tl.int32), 0)
    # NaN compares false with everything, so more nodes could stay than there is room for.
    tl.store(slots + at, tl.where(stays & (slot <= nodes), slot, 0), mask=at < count)


@triton.jit(do_not_specialize=["count", "entries", "padded"])
def _place(  # type: ignore[no-untyped-def]
    tokens, words, expanded, slots, where, parents, count, entries, padded, BREADTH: tl.constexpr,
    ENTRIES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    # A node of a level beyond the first comes after an entry of the head's: an expanded node of the level before.
    node = tl.program_id(0) * TILE + tl.arange(0, TILE)
    slot = tl.load(slots + node, mask=node < count, other=0)
    stays = slot > 0
    level = tl.where(node < BREADTH, 0, 1 + (node - BREADTH) // (BREADTH * BREADTH))
    above = tl.where(level > 0, (node - BREADTH) // BREADTH, 0)  # the entry, counted through all levels
    deep = stays & (level > 0)
    lineage = tl.load(words + above, mask=deep, other=0)  # (nodes,), bits of entries
    entry = tl.arange(0, ENTRIES)
    later = (entry >= BREADTH) & (entry < entries)
    place = tl.load(expanded + entry - BREADTH, mask=later, other=0)
    of_entry = tl.where(later, BREADTH + (entry // BREADTH - 1) * BREADTH * BREADTH + place, entry)
    its_slot = tl.load(slots + of_entry, mask=entry < entries, other=0).to(tl.int64)
    one = tl.full((TILE, ENTRIES), 1, tl.int64)
    seen = ((lineage[:, None] >> entry[None, :].to(tl.int64)) & 1) != 0
    bits = tl.sum(tl.where(seen, one << its_slot[None, :], 0), 1)
    own = tl.full((TILE,), 1, tl.int64) << slot.to(tl.int64)
    parent = tl.sum(tl.where((entry[None, :] == above[:, None]) & deep[:, None], its_slot[None, :], 0), 1)
    to = where + 6 + slot
    tl.store(to, tl.load(tokens + node, mask=stays, other=0), mask=stays)
    tl.store(to + padded, (level + 1).to(tl.int64), mask=stays)
    tl.store(to + 2 * padded, bits | own | 1, mask=stays)
    tl.store(parents + slot, parent, mask=stays)


@triton.jit(do_not_specialize=["padded"])
def _merge(merged, where, parents, padded, SLOTS: tl.constexpr):  # type: ignore[no-untyped-def]
    # A merged token comes after slot 0, then after the one before it. An own chain has only its tokens in place.
    count = tl.load(merged)
    nodes = tl.load(merged + 1)
    own_chain = tl.load(merged + 2) != 0
    slot = tl.arange(0, SLOTS)
    wide = slot.to(tl.int64)
    beyond = wide - nodes  # its depth, where it is merged
    theirs = (beyond > 0) & (beyond <= count)
    two = tl.full((SLOTS,), 2, tl.int64)
    before = (two << wide) - 1  # the bits of a chain from slot 0 to this one
    to = where + 6 + slot
    tl.store(to, tl.load(merged + 2 + beyond, mask=theirs, other=0), mask=theirs)
    placed = theirs | (own_chain & (slot > 0) & (beyond <= count))
    tl.store(to + padded, tl.where(theirs, beyond, wide), mask=placed)
    tl.store(to + 2 * padded, tl.where(theirs, before - (two << (wide - beyond)) + 2, before), mask=placed)
    tl.store(parents + slot, tl.where(theirs & (beyond == 1), 0, wide - 1), mask=placed)


@triton.jit(do_not_specialize=["width", "padded", "own"])
def _accept(  # type: ignore[no-untyped-def]
    choices, where, parents, head, result, width, padded, own, TREE: tl.constexpr, MERGED: tl.constexpr,
    SLOTS: tl.constexpr, READ: tl.constexpr, CHAIN: tl.constexpr, BRANCHES: tl.constexpr, READ_AT: tl.constexpr,
    CHAIN_AT: tl.constexpr, LAST: tl.constexpr, TOKENS: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    slot = tl.arange(0, SLOTS)
    inside = slot < width
    token = tl.load(where + 6 + slot, mask=inside, other=0)
    choice = tl.load(choices + slot, mask=inside, other=0)
    wide = slot.to(tl.int64)
    one = tl.full((SLOTS,), 1, tl.int64)
    if TREE:
        depth = tl.load(where + 6 + padded + slot, mask=inside, other=0)
        word = tl.load(where + 6 + 2 * padded + slot, mask=inside, other=0)
        parent = tl.load(parents + slot, mask=inside & (slot > 0), other=0)
    else:
        depth = wide
        word = ((one + 1) << wide) - 1
        parent = tl.maximum(wide - 1, 0)
    wanted = tl.load(choices + parent, mask=inside, other=0)
    right = inside & ((slot == 0) | (token == wanted))
    good = tl.sum(tl.where(right, one << wide, 0), 0)
    kept = inside & ((word & good) == word)
    if MERGED:  # of two paths the deeper; of two as deep the own draft's, whose slots are the lower ones
        accepted = tl.max(tl.where(kept, depth, 0), 0)
        alone = tl.max(tl.where(kept & (slot < own), depth, 0), 0)
        deepest = tl.min(tl.where(kept & (depth == accepted), slot, SLOTS), 0)
        path = tl.sum(tl.where(slot == deepest, word, 0), 0)
        kept = ((path >> wide) & 1) != 0
    else:
        accepted = tl.sum(kept.to(tl.int64), 0) - 1
        alone = accepted
    following = tl.sum(tl.where(kept & (depth == accepted), choice, 0), 0)
    after = wide > accepted
    tl.store(result, accepted)
    tl.store(result + 1 + depth, wide, mask=kept)
    tl.store(result + 1 + slot, 0, mask=after)
    new = result + 1 + SLOTS
    tl.store(new + depth - 1, token, mask=kept & (slot > 0))
    tl.store(new + slot, tl.where(wide == accepted, following, 0), mask=wide >= accepted)
    tl.store(result + 1 + 2 * SLOTS + slot, token, mask=inside)
    tl.store(result + 1 + 3 * SLOTS, alone)
    # The next round begins after the new tokens, all but the last of which the cache then holds.
    start = tl.load(where + 4)
    tl.store(where + 4, start + accepted + 1)
    tl.store(where + 6, following)
    # So does the head's next reading, of the same tokens, and its next draft.
    first = tl.load(head + CHAIN + 4)
    position = tl.load(head + CHAIN_AT)
    tl.store(head + READ + 4, first)
    tl.store(head + READ_AT, position)
    tl.store(head + CHAIN + 4, first + accepted + 1)
    tl.store(head + BRANCHES + 4, first + accepted + 1)
    tl.store(head + CHAIN_AT, position + accepted + 1)
    tl.store(head + LAST, accepted)
    tl.store(head + TOKENS + depth - 1, token, mask=kept & (slot > 0) & (depth <= MOST))
    last = tl.where(wide == accepted, following, 0)
    tl.store(head + TOKENS + slot, last, mask=(wide >= accepted) & (slot < MOST))


@triton.jit
def _move(where, result, HEAD: tl.constexpr, BLOCK: tl.constexpr, DTYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    # One program: one layer's keys or values of one head. Rows move down in order, so none is overwritten unread.
    cache = tl.load(where).to(tl.pointer_type(DTYPE))
    capacity = tl.load(where + 3)
    accepted = tl.load(result)
    before = tl.load(where + 4) - accepted - 1
    at = tl.arange(0, BLOCK)
    row = cache + (tl.program_id(0) * capacity + before) * HEAD + at
    for depth in range(1, accepted + 1):
        slot = tl.load(result + 1 + depth)
        tl.store(row + depth * HEAD, tl.load(row + slot * HEAD, mask=at < HEAD), mask=at < HEAD)


def select(
    grown: Sequence[torch.Tensor],  # of all nodes tokens, paths; of entries the words; the expanded nodes of levels
    breadth: int,
    nodes: int,
    where: torch.Tensor,
    padded: int,  # the width of the target's forward
    parents: torch.Tensor,  # (WIDEST_TREE,), the slot before each; filled here
    most: int = 0,  # grown nodes of a draft of full depth: near the end of a text there are fewer, for the same kernel
) -> None:
    """Put the ``nodes`` likeliest of the grown ones into the target's input: tokens, depths and words."""
    tokens, paths, words, expanded = grown
    count, entries = len(paths), len(words)
    words, expanded = (part if len(part) else tokens for part in (words, expanded))  # not read where there are none
    slots = torch.empty(count, dtype=torch.int32, device=paths.device)
    block = max(16, triton.next_power_of_2(max(count, most)))
    _rank[(1,)](paths, slots, count, nodes, BLOCK=block, TILE=TILE, num_warps=8)
    _place[(triton.cdiv(count, TILE),)](
        tokens, words, expanded, slots, where, parents, count, entries, padded,
        BREADTH=breadth, ENTRIES=WIDEST_TREE, TILE=TILE, num_warps=4,
    )  # fmt: skip


def merge(
    # How many tokens are merged; nodes of the own draft; 1 if that is a chain, whose tokens are in place and become a
    # tree here, else 0; the tokens. May be pinned memory of the host: the kernel reads it when it runs.
    merged: torch.Tensor,
    where: torch.Tensor,
    padded: int,
    parents: torch.Tensor,
) -> None:
    """Put a merged chain into the target's input, after the own draft."""
    _merge[(1,)](merged, where, parents, padded, SLOTS=WIDEST_TREE, num_warps=1)


def accept(
    choices: torch.Tensor,  # (width,), what the target chose after each slot
    where: torch.Tensor,
    parents: torch.Tensor | None,  # of a tree
    head: torch.Tensor,  # the input of the head's graphs, laid out as ``layout`` says
    layout: dict[str, int],
    result: torch.Tensor,  # (RESULT,), filled here
    padded: int,
    own: int = 0,  # slots of the own draft, slot 0 included, where something is merged into it; 0: nothing is
) -> None:
    """Find what is accepted, and have both inputs go on after it."""
    assert not own or parents is not None, "with something merged it is a tree"
    _accept[(1,)](
        choices, where, where if parents is None else parents, head, result, len(choices), padded, own,
        TREE=parents is not None, MERGED=own > 0, SLOTS=WIDEST_TREE, **layout, num_warps=1,
    )  # fmt: skip


def move(where: torch.Tensor, result: torch.Tensor, cache: torch.Tensor) -> None:
    """Bring the accepted path's rows of the target's cache, (layers, 2 kv heads, capacity, head), into place."""
    layers, groups, _, head = cache.shape
    dtype: Any = TRITON_DTYPE[cache.dtype]
    _move[(layers * groups,)](where, result, HEAD=head, BLOCK=triton.next_power_of_2(head), DTYPE=dtype, num_warps=1)
