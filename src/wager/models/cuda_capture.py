"""Capturing a CUDA graph."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Made = TypeVar("Made")


def capture(body: Callable[[], Made], pool: Any) -> tuple[torch.cuda.CUDAGraph, Made]:
    """A graph of what ``body`` does on the current device, and the tensors that every replay overwrites."""
    # Two runs beforehand let every library choose its kernels.
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            body()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        made = body()
    return graph, made
