"""Retrieval on the GPU: a Triton kernel that searches a datastore for what a request's text ends with.

The corpus is kept backwards and its suffixes in order, as in `wager.drafters.datastore`, so that a binary search for
the text read backwards finds the longest match of its end. What follows its occurrences is counted as in
`wager.drafters.retrieval`.
"""

from __future__ import annotations

import triton
import triton.language as tl

END = (1 << 31) - 1  # around documents: more than any token, so that the order of the suffixes holds
END_OF_DOCUMENT = tl.constexpr(END)
PLACE_MASK = tl.constexpr((1 << 32) - 1)  # a place in the corpus may be past the largest signed number of 32 bits


@triton.jit
def _compare(corpus, cells, suffixes, place, key, depth, size):  # type: ignore[no-untyped-def]
    """How many of the key's first ``size`` tokens a suffix begins with, and the sign of its difference from them."""
    start = tl.load(suffixes + place).to(tl.int64) & PLACE_MASK
    token = tl.load(corpus + start + depth, mask=(depth < size) & (start + depth < cells), other=-1)
    common = tl.min(tl.where((token != key) & (depth < size), depth, size), axis=0)
    sign = tl.sum(tl.where((depth == common) & (depth < size), tl.where(token < key, -1, 1), 0), axis=0)
    return common, sign


@triton.jit
def _bound(corpus, cells, suffixes, key, depth, size, low, high, AFTER: tl.constexpr):  # type: ignore[no-untyped-def]
    """The first place whose suffix does not sort before the key's first tokens; with AFTER, that sorts after them."""
    low, high = low.to(tl.int64), high.to(tl.int64)  # their sum may not fit into 32 bits
    while low < high:
        middle = (low + high) // 2
        _, sign = _compare(corpus, cells, suffixes, middle, key, depth, size)
        before = sign < AFTER
        low = tl.where(before, middle + 1, low)
        high = tl.where(before, high, middle)
    return low


@triton.jit(do_not_specialize=["rows", "sampled", "cells", "count"])
def retrieve(  # type: ignore[no-untyped-def]
    tokens,  # int32 [slots, stride]
    stride,
    rows,  # int64 [requests]: the slot of each request
    lengths,  # int32 [slots]: tokens of each text
    sampled,  # int32 [requests]: tokens sampled in this step; 0: still reading its prompt
    corpus,  # int32 [cells]: backwards
    cells,
    suffixes,  # int32 [count]: unsigned numbers below 2**32
    count,
    matched,  # int32 [requests]: length of the match, 0 for none
    found,  # int32 [requests, K]: tokens that follow it, -1 after the last
    SHORTEST: tl.constexpr,
    DEPTH: tl.constexpr,
    K: tl.constexpr,
    LOOK: tl.constexpr,  # occurrences that are counted
):
    request = tl.program_id(0)
    run = tl.zeros((), tl.int32)
    if tl.load(sampled + request) > 0:
        row = tl.load(rows + request).to(tl.int64)
        length = tl.load(lengths + row)
        depth = tl.arange(0, DEPTH)
        key = tl.load(tokens + row * stride + length - 1 - depth, mask=depth < length, other=-1)
        whole = tl.minimum(length, DEPTH)
        at = _bound(corpus, cells, suffixes, key, depth, whole, tl.zeros((), tl.int32), count, 0)
        if at > 0:
            run, _ = _compare(corpus, cells, suffixes, at - 1, key, depth, whole)
        if at < count:
            common, _ = _compare(corpus, cells, suffixes, at, key, depth, whole)
            run = tl.maximum(run, common)
        if run >= SHORTEST:
            low = _bound(corpus, cells, suffixes, key, depth, run, tl.zeros((), tl.int32), at, 0)
            high = _bound(corpus, cells, suffixes, key, depth, run, at, count, 1)
            number = tl.arange(0, LOOK)
            occurrences = high - low
            place = low + tl.where(occurrences <= LOOK, number, occurrences * number // LOOK)
            going = number < occurrences
            before = tl.load(suffixes + place, mask=going, other=0).to(tl.int64) & PLACE_MASK
            for step in tl.static_range(K):
                after = before - 1 - step
                token = tl.load(corpus + after, mask=going & (after >= 0), other=END_OF_DOCUMENT)
                going = going & (token != END_OF_DOCUMENT)
                same = (token[:, None] == token[None, :]) & going[:, None] & going[None, :]
                times = tl.sum(same.to(tl.int32), axis=1)
                most = tl.max(times, axis=0)
                chosen = tl.min(tl.where(going & (times == most), token, END_OF_DOCUMENT), axis=0)
                tl.store(found + request * K + step, tl.where(most > 0, chosen, -1))
                if step == 0:
                    run = tl.where(most > 0, run, 0)
                going = going & (token == chosen)
        else:
            run = tl.zeros((), tl.int32)
    tl.store(matched + request, run)
