"""A pool of CUDA graphs outlives the graphs in it; PyTorch's rules of pools are played, no device is needed."""

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch

from wager.eagle.cuda_graphs import CUDAGraphHead
from wager.models.cuda_capture import GraphPool


class Pools:
    """How PyTorch's allocator counts: a pool is opened by the first graph in it and given up with the last.

    A capture into a pool that was given up fails while a tensor in it is still held.
    """

    def __init__(self) -> None:
        self.handles, self.graphs, self.given_up = 0, Counter[int](), set[int]()
        self.captured = 0

    def handle(self) -> int:
        self.handles += 1
        return self.handles

    def enter(self, pool: int) -> None:
        assert pool not in self.given_up, "use_count > 0 INTERNAL ASSERT FAILED"
        self.graphs[pool] += 1

    def leave(self, pool: int) -> None:
        self.graphs[pool] -= 1
        if not self.graphs[pool]:
            self.given_up.add(pool)


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> Pools:
    played = Pools()

    class Graph:
        pool = 0

        def __del__(self) -> None:
            if self.pool:
                played.leave(self.pool)

    class Stream:
        def wait_stream(self, other: "Stream") -> None:
            pass

    @contextmanager
    def graph(made: Graph, pool: int) -> Iterator[None]:
        played.enter(pool)
        made.pool = pool
        played.captured += 1
        yield

    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *size, device="cpu", **more: zeros(*size, **more))
    for name, fake in {
        "graph_pool_handle": played.handle,
        "CUDAGraph": Graph,
        "graph": graph,
        "Stream": Stream,
        "current_stream": Stream,
        "stream": lambda _: nullcontext(),
        "device": lambda _: nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return played


def recaptured(capture: Callable[[], Any]) -> None:
    """Capture, drop every graph, and capture again."""
    first = capture()
    assert first[1] == "made"
    del first
    gc.collect()
    assert capture()[1] == "made"


def test_graphs_can_be_dropped_and_captured_again(pools: Pools) -> None:
    pool = GraphPool()
    recaptured(partial(pool.capture, lambda: "made"))
    assert (pools.captured, pools.given_up) == (3, set())  # one of them is the pool's own
    del pool
    gc.collect()
    assert pools.given_up == {1}  # nothing keeps its memory now


def test_a_handle_alone_does_not_keep_a_pool(pools: Pools) -> None:
    """What the pool's own graph is for."""
    pool = GraphPool()

    def without() -> Any:
        pool._kept = None
        return pool._captured(lambda: "made")

    with pytest.raises(AssertionError, match="INTERNAL ASSERT"):
        recaptured(without)


def test_a_head_that_gives_up_its_kernels_captures_into_the_same_pool(pools: Pools) -> None:
    head = CUDAGraphHead.__new__(CUDAGraphHead)
    head.captures = head.fused = True
    head.replays, head.bound, head.pool = {}, set(), GraphPool()
    head.embed = torch.zeros(1)
    head.replays["read"] = head._captured(lambda: ())
    head._give_up("it is slow")
    gc.collect()
    assert head.captures
    assert not head.fused
    head._captured(lambda: ())  # would fail in a pool that was given up
    assert not pools.given_up
