"""Requests followed through a batch whose rows vLLM moves about."""

import random
import time

import numpy as np
import pytest
from waiting import allowed

from wager.vllm.streams import Stream, Streams


class Followed:
    """Streams, fed with the names and lengths of requests as a test keeps them."""

    def __init__(self) -> None:
        self.ended: list[Stream] = []
        self.streams = Streams(self.ended.append)
        self.lengths: dict[str, int] = {}  # of every request that is not over

    def step(self, rows: list[str], new: dict[str, int] | None = None) -> dict[str, Stream | None]:
        """One step with these requests in the rows; each gets 1 token, or as many as ``new`` says."""
        counts = [(new or {}).get(name, 1) for name in rows]
        for name, count in zip(rows, counts, strict=True):
            self.lengths[name] = self.lengths.get(name, 10) + count
        ends = np.array([self.lengths[name] for name in rows] + [0, 0], np.int32)  # vLLM's array is longer
        found = self.streams.follow(rows, self.lengths, [[7] * count for count in counts], ends)
        return dict(zip(rows, found, strict=True))


@pytest.mark.parametrize("seed", range(8))
def test_a_stream_is_always_the_same_request(seed: int) -> None:
    rng, batch = random.Random(seed), Followed()
    owners: dict[str, Stream] = {}
    known: dict[str, int] = {}
    rows: list[str] = []
    away: list[str] = []
    last: set[str] = set()  # decoded in the step before
    for step in range(300):
        for name in [name for name in rows if rng.random() < 0.1]:
            rows.remove(name)
            if rng.random() < 0.5:
                away.append(name)
            else:
                del batch.lengths[name]  # over, or aborted
        while away and len(rows) < 8 and rng.random() < 0.3:
            rows.append(away.pop(rng.randrange(len(away))))
        while len(rows) < 8 and rng.random() < 0.4:
            rows.append(f"request {step} {len(rows)}")
        if rng.random() < 0.3:
            rng.shuffle(rows)
        new = {name: rng.choice([0, 1, 1, 1, 2, 4]) for name in rows}
        grown = rng.random() < 0.05  # the step before was not shown
        if grown:
            for name in last & set(rows):
                batch.lengths[name] += 2
        held = batch.streams._by_row
        found = batch.step(rows, new)
        for row, (name, stream) in enumerate(found.items()):
            if not new[name]:
                assert stream is None
                continue
            assert owners.setdefault(name, stream) is stream
            assert stream.fresh == (name not in known)
            assert stream.resumed == (name in known and (name not in last or grown))
            assert batch.streams.before[row] == known.get(name, 0)
            assert batch.streams.ends[row] == batch.lengths[name]
        last = {name for name in rows if new[name]}
        known.update({name: batch.lengths[name] for name in last})
        slots = [owners[name].slot for name in known if name in batch.lengths]
        assert len(set(slots)) == len(slots)
        assert batch.streams.settled == (not any(s and (s.fresh or s.resumed) for s in found.values()))
        if batch.streams._by_row is held:
            assert [owners[name] if new[name] else None for name in rows] == held
    assert len(batch.ended) == len(set(map(id, batch.ended))) > 20


def test_a_request_that_is_over_is_ended_at_once_and_its_slot_given_to_another() -> None:
    batch = Followed()
    first = batch.step(["a", "b"])
    assert [s.slot for s in first.values() if s] == [0, 1]
    del batch.lengths["a"]
    second = batch.step(["c", "b"])
    assert batch.ended == [first["a"]]
    assert second["b"] is first["b"]
    assert second["c"].slot == 0


@pytest.mark.parametrize(("rows", "microseconds"), [(16, 20), (256, 120)])
def test_following_a_batch_takes_microseconds(rows: int, microseconds: int) -> None:
    batch, best = Followed(), 1.0
    names = [f"request {row}" for row in range(rows)]
    lengths, sampled = np.full(rows, 100, np.int32), [[1, 2]] * rows
    alive = dict.fromkeys(names)
    for _ in range(200):
        lengths = lengths + 2
        began = time.perf_counter()
        batch.streams.follow(names, alive, sampled, lengths)
        best = min(best, time.perf_counter() - began)
    assert best <= allowed(microseconds * 1e-6), f"{best * 1e6:.0f} microseconds"
