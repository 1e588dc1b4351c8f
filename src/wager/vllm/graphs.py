"""A full CUDA graph for every batch size at every draft length.

vLLM looks a step's graph up by its number of tokens, and offers for each number only the graphs of the next larger
captured size. Where several draft lengths have graphs, that size often has none for the length at hand: 5 requests of 3
tokens each are 15 tokens; the next size, 16, has graphs for 1, 2 and 4 tokens a request, and the next graph for 3 has
18. Such a step, a third of all combinations, runs outside the full graphs and takes several times as long.
"""

from collections import defaultdict
from typing import Any


def offer_every_length(manager: Any) -> None:
    """Let a CudaGraphManager offer, for every number of tokens, the smallest graph of each draft length."""
    offered: dict[tuple[int, int], list[Any]] = defaultdict(list)  # (tokens, LoRAs) -> graphs, full ones first
    for _, descriptions in sorted(manager._capture_descs.items(), key=lambda item: item[0].name):  # FULL, PIECEWISE
        start: dict[tuple[Any, ...], int] = defaultdict(int)  # kind of graph -> tokens not covered yet
        for graph in reversed(descriptions):  # smallest first
            kind = graph.uniform_token_count, graph.max_query_len, graph.num_active_loras, graph.num_ubatches
            for tokens in range(start[kind], graph.num_tokens + 1):
                offered[tokens, graph.num_active_loras].append(graph)
            start[kind] = graph.num_tokens + 1
    manager._candidates = dict(offered)
