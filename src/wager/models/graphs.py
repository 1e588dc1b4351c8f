"""The lean forward on CUDA: captured once per width, replayed ever after.

Launching a layer's kernels from Python takes far longer than running them. A captured graph launches all layers at
once. The cache may grow and move without a new capture, because the kernels read its address from the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import embedding, linear

from wager.models import kernels
from wager.models.lean import Lean, rotary

# Widths that are captured; a draft in between is padded to the next, and what the padding wrote is cropped.
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 32, 48, 64)


@dataclass(slots=True)
class Captured:
    """One width's graph, with the tensors it reads and writes."""

    graph: torch.cuda.CUDAGraph
    logits: torch.Tensor  # (width, vocabulary), overwritten by every replay


class Graphs(Lean):
    """Runs a Llama-shaped model on CUDA from captured graphs."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        if self.head & (self.head - 1) or self.head < 16:
            raise ValueError(f"a head of {self.head} is not a power of two of at least 16")
        self.captured: dict[int, Captured] = {}
        self.pool = torch.cuda.graph_pool_handle()
        # Read by the graphs: where the cache is (see kernels), then the tokens. One copy a round brings both.
        self.inputs = torch.zeros(4 + WIDTHS[-1], dtype=torch.long, device=self.device)
        self.scratch: dict[int, torch.Tensor] = {}
        self.tables = tuple(t[:, 0].contiguous() for t in rotary(model, min(self.limit, 1 << 20) + WIDTHS[-1]))

    def begin(self) -> None:
        before = self.weights
        super().begin()
        if self.weights is not before:
            self.captured = {}  # graphs hold the addresses of the weights they were captured with

    def forward(self, tokens: Sequence[int], keep: int) -> torch.Tensor:
        width = len(tokens)
        if width > WIDTHS[-1]:
            return super().forward(tokens, keep)
        padded = next(w for w in WIDTHS if w >= width)
        self._reserve(self.length + padded)
        self.inputs[: 4 + width].copy_(torch.tensor([self.cache.data_ptr(), self.capacity, self.length, 0, *tokens]))
        captured = self.captured.get(padded) or self._capture(padded)
        captured.graph.replay()
        self.length += width
        return captured.logits[width - keep : width]

    @torch.inference_mode()
    def _capture(self, width: int) -> Captured:
        """Record one width's forward; two runs beforehand let every library choose its kernels."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._body(width)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            logits = self._body(width)
        self.captured[width] = Captured(graph, logits)
        return self.captured[width]

    def _body(self, width: int) -> torch.Tensor:
        """One forward of ``width`` tokens, every shape fixed and everything that changes read from ``inputs``."""
        where, tokens = self.inputs, self.inputs[4 : 4 + width]
        cos, sin = self.tables
        scratch = self._scratch(width)
        x = embedding(tokens, self.weights.embed).clone()
        delta: torch.Tensor | None = None
        for at, (layer, block) in enumerate(zip(self.weights.layers, self.model.model.layers, strict=True)):
            attn, mlp = block.self_attn, block.mlp
            y = kernels.norm(x, layer.before, self.eps, delta)
            q = linear(y, attn.q_proj.weight, attn.q_proj.bias).view(width, self.heads, self.head)
            k = linear(y, attn.k_proj.weight, attn.k_proj.bias).view(width, self.groups, self.head)
            v = linear(y, attn.v_proj.weight, attn.v_proj.bias).view(width, self.groups, self.head)
            if layer.q_norm is not None and layer.k_norm is not None:
                q, k = kernels.norm(q, layer.q_norm, self.eps), kernels.norm(k, layer.k_norm, self.eps)
            mixed = kernels.attention(q, k, v, cos, sin, where, at, scratch)
            y = kernels.norm(x, layer.after, self.eps, linear(mixed, attn.o_proj.weight, attn.o_proj.bias))
            opened = kernels.gate(
                linear(y, mlp.gate_proj.weight, mlp.gate_proj.bias), linear(y, mlp.up_proj.weight, mlp.up_proj.bias)
            )
            delta = linear(opened, mlp.down_proj.weight, mlp.down_proj.bias)
        head = self.model.lm_head
        return linear(kernels.norm(x, self.weights.final, self.eps, delta), head.weight, head.bias)

    def _scratch(self, width: int) -> torch.Tensor:
        rows = kernels.rows_for(self.heads // self.groups * width)
        if rows not in self.scratch:
            shape = (self.groups, kernels.SPLITS, rows, self.head + 2)
            self.scratch[rows] = torch.empty(shape, dtype=torch.float32, device=self.device)
        return self.scratch[rows]
