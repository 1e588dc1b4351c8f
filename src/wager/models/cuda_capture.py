"""Capturing CUDA graphs that share memory."""

from collections.abc import Callable
from typing import TypeVar

import torch

from wager.core.garbage import uncollected

Made = TypeVar("Made")


class GraphPool:
    """Memory shared by captured graphs, kept for as long as this object lives.

    PyTorch counts the graphs that use a pool and gives it up with the last of them; its handle is only a number. A
    capture into a pool that was given up fails, for instance after all graphs were dropped to be captured anew. So one
    graph, which is never replayed, stays here.
    """

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        self._kept: torch.cuda.CUDAGraph | None = None

    def capture(self, body: Callable[[], Made]) -> tuple[torch.cuda.CUDAGraph, Made]:
        """A graph of what ``body`` does on the current device, and the tensors that every replay overwrites."""
        if self._kept is None:
            self._kept, _ = self._captured(lambda: torch.zeros(1, device="cuda"))
        # Two runs beforehand let every library choose its kernels.
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                body()
        torch.cuda.current_stream().wait_stream(side)
        return self._captured(body)

    def _captured(self, body: Callable[[], Made]) -> tuple[torch.cuda.CUDAGraph, Made]:
        graph = torch.cuda.CUDAGraph()
        # a graph that is given up while another is captured makes that capture fail
        with uncollected(), torch.cuda.graph(graph, pool=self.handle):
            made = body()
        return graph, made
