"""A Triton kernel for `wager.vllm.lagging`: what a head would have read in a step, kept with one launch."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["hidden", "last", "positions", "rows", "requests", "starts"])
def keep(  # type: ignore[no-untyped-def]
    hidden,  # [tokens, hidden_stride]
    hidden_stride,
    last,  # int64 [slots]: the token sampled last
    positions,  # int64 [tokens]
    rows,  # int64 [requests]: the slot of each request
    requests,  # int64 [programs]: the requests to keep a token of; without EVERY
    starts,  # int32 [requests + 1]: the first token of each request; without EVERY
    kept_hidden,  # [slots * WINDOW, SIZE]
    kept_tokens,  # int32 [slots * WINDOW]
    newest,  # int64 [slots]: position of the newest token kept
    EVERY: tl.constexpr,  # all requests, each with one token
    WINDOW: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    token = request
    if not EVERY:
        request = tl.load(requests + request)
        token = tl.load(starts + request).to(tl.int64)
    slot = tl.load(rows + request).to(tl.int64)
    position = tl.load(positions + token).to(tl.int64)
    place = slot * WINDOW + position % WINDOW
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    state = tl.load(hidden + token * hidden_stride + at, mask=at < SIZE)
    tl.store(kept_hidden + place * SIZE + at, state, mask=at < SIZE)
    if tl.program_id(1) == 0:
        tl.store(kept_tokens + place, tl.load(last + slot).to(tl.int32))
        tl.store(newest + slot, position)
