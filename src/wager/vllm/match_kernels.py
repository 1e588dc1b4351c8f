"""Matching on the GPU: Triton kernels for `wager.vllm.matching`, whose reference says what each must compute.

A match is written as one integer, so that the best of many is their maximum whatever the order they are found in:
its length in tokens in the high bits, and below ``PLACE`` bits how recent it is. In the ring of finished texts that
is 1 + the position counted from the oldest token; in the request's own text 1 + the ring's size + the position.
"""

from __future__ import annotations

import triton
import triton.language as tl

PLACE = 40  # bits of the place in a packed match
PLACE_BITS, PLACE_MASK = tl.constexpr(PLACE), tl.constexpr((1 << PLACE) - 1)


@triton.jit
def _run_length(  # type: ignore[no-untyped-def]
    source, at, base, text, length, inside, SHORTEST: tl.constexpr, LONGEST: tl.constexpr, RING: tl.constexpr
):
    """How many tokens up to each position equal those that end the text; 0 where fewer than SHORTEST do."""
    going = inside.to(tl.int32)
    for back in tl.static_range(SHORTEST):
        wanted = tl.load(text + length - 1 - back, mask=length > back, other=-2)
        place = at - back
        if RING > 0:
            place = (base + place) & (RING - 1)
        token = tl.load(source + place, mask=(going > 0) & (at >= back), other=-1)
        going = tl.where(token == wanted, going, 0)
    run = going * SHORTEST
    if tl.max(going, axis=0) > 0:  # rare: the last two tokens stand together nowhere else in most blocks
        for far in range(SHORTEST, LONGEST):  # not unrolled: compiling takes long enough
            wanted = tl.load(text + length - 1 - far, mask=length > far, other=-2)
            place = at - far
            if RING > 0:
                place = (base + place) & (RING - 1)
            token = tl.load(source + place, mask=(going > 0) & (at >= far), other=-1)
            going = tl.where(token == wanted, going, 0)
            run += going
    return run


@triton.jit
def _agreeing(draft, inside, true, step, K_BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many tokens of a draft are those of the text, up to the first that is not."""
    token = tl.load(draft + step, mask=inside, other=-1)
    return tl.min(tl.where(token == true, K_BLOCK, step), axis=0)


@triton.jit
def _judge(  # type: ignore[no-untyped-def]
    kept, gains, judged, row, text, length, new, K: tl.constexpr, K_BLOCK: tl.constexpr
):
    """Compare what both drafted for this text with the tokens that were added to it since."""
    own = kept + row * (3 + 2 * K)
    run = tl.load(own + 1)
    if (run > 0) & (tl.load(own) == length - new):
        step = tl.arange(0, K_BLOCK)
        inside = (step < tl.load(own + 2)) & (step < new)
        true = tl.load(text + length - new + step, mask=inside, other=-2)
        gain = _agreeing(own + 3, inside, true, step, K_BLOCK) - _agreeing(own + 3 + K, inside, true, step, K_BLOCK)
        tl.atomic_add(gains + run, gain)
        tl.atomic_add(judged + run, 1)


@triton.jit(do_not_specialize=["rows", "sampled", "own_blocks", "oldest"])
def scan(  # type: ignore[no-untyped-def]
    tokens,  # int32 [slots, stride]
    stride,
    rows,  # int64 [requests]: the slot of each request
    lengths,  # int32 [slots]: tokens of each text
    sampled,  # int32 [requests]: tokens sampled in this step; 0: still reading its prompt
    ring,  # int32 [RING]
    head,  # int64 [1]: tokens ever written to the ring
    best,  # int64 [requests]: the best packed match, 0 for none
    own_blocks,  # programs that read the request's own text; the others read the ring
    oldest,  # first position of the ring to read, counted from its oldest token
    kept,  # as in draft
    gains,
    judged,
    SHORTEST: tl.constexpr,
    LONGEST: tl.constexpr,
    RING: tl.constexpr,
    BLOCK: tl.constexpr,
    K: tl.constexpr,
    K_BLOCK: tl.constexpr,
    FILL: tl.constexpr,
):
    request = tl.program_id(0)
    block = tl.program_id(1)
    new = tl.load(sampled + request)
    if new > 0:
        row = tl.load(rows + request).to(tl.int64)
        length = tl.load(lengths + row)
        text = tokens + row * stride
        if not FILL:
            if block == 0:
                _judge(kept, gains, judged, row, text, length, new, K, K_BLOCK)
        lane = tl.arange(0, BLOCK)
        if block < own_blocks:
            if block * BLOCK < length - 1:
                at = block * BLOCK + lane
                run = _run_length(text, at, 0, text, length, at < length - 1, SHORTEST, LONGEST, 0)
                packed = (run.to(tl.int64) << PLACE_BITS) + (at + RING + 1)
                found = tl.max(tl.where(run > 0, packed, 0), axis=0)
                if found > 0:
                    tl.atomic_max(best + request, found)
        else:
            if RING > 0:
                at = oldest + (block - own_blocks) * BLOCK + lane
                base = (tl.load(head) & (RING - 1)).to(tl.int32)
                # nothing follows the newest token
                run = _run_length(ring, at, base, text, length, at < RING - 1, SHORTEST, LONGEST, RING)
                packed = (run.to(tl.int64) << PLACE_BITS) + (at + 1)
                found = tl.max(tl.where(run > 0, packed, 0), axis=0)
                if found > 0:
                    tl.atomic_max(best + request, found)


@triton.jit(do_not_specialize=["rows", "last", "drafts", "drafts_stride", "drafted"])
def draft(  # type: ignore[no-untyped-def]
    tokens,  # as in scan, up to head
    stride,
    rows,
    lengths,
    last,  # int64 [slots]: the token sampled last
    ring,
    head,
    best,  # read, and set to 0 for the next step
    drafts,  # int64 [requests, drafts_stride], or [slots, drafts_stride] where BY_SLOT is set
    drafts_stride,
    matched,  # int32 [requests]: length of the match
    counts,  # int32 [requests]: tokens found after it, at most K
    stored_run,  # int32 [requests]: matches in a datastore, and what follows them [requests, K], where STORED is set
    stored,
    # The rest where FILL is not set: a draft is there already, and gives way to matches of lengths that did better.
    kept,  # int32 [slots, 3 + 2 K]: lengths of the text, the match and the drafts; the match's and the other draft
    gains,  # int32 [LONGEST + 1]: by length of match, tokens it had right more than the other draft
    judged,  # int32 [LONGEST + 1]: out of how many
    drafted,  # tokens of a draft in this step
    STORED: tl.constexpr,
    RING: tl.constexpr,
    K: tl.constexpr,
    K_BLOCK: tl.constexpr,
    FILL: tl.constexpr,  # write all K tokens of every request, the last sampled token where nothing is found
    BY_SLOT: tl.constexpr,
    MEMORY: tl.constexpr,
    RUN_BLOCK: tl.constexpr,
    RUNS: tl.constexpr,
):
    request = tl.program_id(0)
    row = tl.load(rows + request).to(tl.int64)
    packed = tl.load(best + request)
    tl.store(best + request, tl.zeros((), tl.int64))
    run = (packed >> PLACE_BITS).to(tl.int32)
    after = (packed & PLACE_MASK).to(tl.int32)  # the place after the match, plus RING in the own text
    found = run > 0
    own = found & (after > RING)
    step = tl.arange(0, K_BLOCK)
    # Past its end a text is taken to go on in its period.
    start = after - RING
    period = tl.maximum(tl.load(lengths + row) - start, 1)
    token = tl.load(tokens + row * stride + start + step % period, mask=own & (step < K), other=-1)
    if RING > 0:
        base = (tl.load(head) & (RING - 1)).to(tl.int32)
        place = after + step
        other = tl.load(ring + ((base + place) & (RING - 1)), mask=found & (after <= RING) & (place < RING), other=-1)
        token = tl.where(own, token, other)
    if STORED:
        longer = tl.load(stored_run + request) > run
        other = tl.load(stored + request * K + step, mask=step < K, other=-1)
        token = tl.where(longer, other, token)
        run = tl.where(longer, tl.load(stored_run + request), run)
        found = run > 0
    ended = tl.min(
        tl.where((token < 0) | (step >= K), step, K_BLOCK), axis=0
    )  # of a text in the ring, or of a document
    valid = found & (step < ended) & (step < K)
    tl.store(matched + request, run)
    tl.store(counts + request, tl.sum(valid.to(tl.int32), axis=0))
    target = drafts + (row if BY_SLOT else request.to(tl.int64)) * drafts_stride + step
    if FILL:
        token = tl.where(valid, token.to(tl.int64), tl.load(last + row))
        tl.store(target, token, mask=step < K)
    else:
        own_kept = kept + row * (3 + 2 * K)
        tl.store(own_kept, tl.load(lengths + row))
        tl.store(own_kept + 1, run)
        tl.store(own_kept + 2, drafted)
        tl.store(own_kept + 3 + step, tl.where(valid, token, -1), mask=step < K)
        tl.store(own_kept + 3 + K + step, tl.load(target, mask=step < K, other=-1).to(tl.int32), mask=step < K)
        tl.store(target, token.to(tl.int64), mask=valid & (tl.load(gains + run) > 0))
        if request == 0:  # forget; above 0, which the other programs ask for, stays above 0
            each = tl.arange(0, RUN_BLOCK)
            count = tl.load(judged + each, mask=each < RUNS, other=0)
            many = (each < RUNS) & (count >= MEMORY)
            tl.store(judged + each, count // 2, mask=many)
            tl.store(gains + each, (tl.load(gains + each, mask=many, other=0) + 1) >> 1, mask=many)


@triton.jit(do_not_specialize=["ended", "only_slot", "only_start", "count", "most"])
def remember(  # type: ignore[no-untyped-def]
    tokens,
    stride,
    lengths,
    ended,  # int32 [2, count]: slots of finished texts, and the position in each to keep it from
    only_slot,  # the same where ONE is set: nothing has to be copied to the device
    only_start,
    count,
    most,  # tokens of one text to keep, its last
    ring,
    head,  # int64 [1]
    new_head,  # int64 [1]: another place than head, which other programs still read
    RING: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
    ONE: tl.constexpr,
):
    """Append texts to the ring, each followed by -1."""
    which = tl.program_id(0)
    each = tl.arange(0, SLOTS)
    if ONE:
        slot = tl.where(each == 0, only_slot, 0).to(tl.int32)
        start = tl.where(each == 0, only_start, 0).to(tl.int32)
    else:
        slot = tl.load(ended + each, mask=each < count, other=0)
        start = tl.load(ended + count + each, mask=each < count, other=0)
    length = tl.load(lengths + slot, mask=each < count, other=0)
    size = tl.minimum(tl.maximum(length - start, 0), most)
    room = tl.where(size > 0, size + 1, 0)
    first = tl.load(head)
    if (which == 0) & (tl.program_id(1) == 0):
        tl.store(new_head, first + tl.sum(room, axis=0))
    mine = each == which
    row = tl.sum(tl.where(mine, slot, 0), axis=0).to(tl.int64)
    kept = tl.sum(tl.where(mine, size, 0), axis=0)
    source = tokens + row * stride + tl.sum(tl.where(mine, length, 0), axis=0) - kept
    target = (first & (RING - 1)).to(tl.int32) + tl.sum(tl.where(each < which, room, 0), axis=0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(source + at, mask=at < kept, other=-1)
    tl.store(ring + ((target + at) & (RING - 1)), token, mask=(at <= kept) & (kept > 0))
