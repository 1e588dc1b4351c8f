"""A Triton kernel for `wager.vllm.lagging_head`: what a head would have read in a step, kept with one launch."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["hidden", "inputs", "last", "positions", "sampled", "rows", "requests", "starts"])
def keep(  # type: ignore[no-untyped-def]
    hidden,  # [tokens, hidden_stride]
    hidden_stride,
    inputs,  # int32 [tokens]: what the target has read
    last,  # int64 [slots]: the token sampled last
    positions,  # int64 [tokens]
    sampled,  # int32 [requests]: tokens each got in this step; so many of those it read were right
    rows,  # int64 [requests]: the slot of each request
    requests,  # int64 [programs]: twice the request, plus 1 where it had missed nothing; without EVERY
    starts,  # int32 [requests + 1]: the first token of each request
    kept_hidden,  # [slots * WINDOW, SIZE]
    kept_tokens,  # int32 [slots * WINDOW]
    newest,  # int64 [slots]: position of the newest token kept
    missed,  # int32 [slots]: tokens kept that the head has not read
    EVERY: tl.constexpr,  # all requests, each of which has missed something before
    WINDOW: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    fresh = request < 0
    if not EVERY:
        request = tl.load(requests + request)
        fresh = request % 2 == 1
        request = request // 2
    number = tl.program_id(1)  # of the token, among those of the request
    count = tl.load(sampled + request)
    if number < count:
        slot = tl.load(rows + request).to(tl.int64)
        token = tl.load(starts + request).to(tl.int64) + number
        position = tl.load(positions + token).to(tl.int64)
        place = slot * WINDOW + position % WINDOW
        at = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
        state = tl.load(hidden + token * hidden_stride + at, mask=at < SIZE)
        tl.store(kept_hidden + place * SIZE + at, state, mask=at < SIZE)
        if tl.program_id(2) == 0:
            # the token after it: the next one read, or the one just sampled
            if number < count - 1:
                tl.store(kept_tokens + place, tl.load(inputs + token + 1))
            else:
                tl.store(kept_tokens + place, tl.load(last + slot).to(tl.int32))
                tl.store(newest + slot, position)
                before = tl.load(missed + slot)
                tl.store(missed + slot, tl.where(fresh, 0, before) + count)
