"""The Llama forward on CUDA: captured once per width, replayed ever after, prompts included.

Launching a layer's kernels from Python takes far longer than running them. A captured graph launches all layers at
once. The cache may grow and move without a new capture, because the kernels read its address from the device; so they
do what the tokens see of each other, and the same graph serves chains and trees.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn.functional import embedding, linear

from wager.models import kernels
from wager.models.cuda_capture import GraphPool
from wager.models.llama_runner import LlamaRunner
from wager.models.runner import CHUNK, ancestry

# Widths that are captured; a draft in between is padded to the next, and what the padding wrote is cropped.
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 32, 48, 64)
WIDE = (96, 128, 192, 256, 384, CHUNK)  # those of prompts, whose output head is left out: few want it of every token

TOKENS_AT = 6  # in the graphs' input, which the kernels call ``where``
# What a forward gives, overwritten by every replay: (width, hidden), what the head is applied to; logits (width,
# vocabulary), or None where the graph ends before the head; and the states (width, hidden) that are watched, by layer.
Made = tuple[torch.Tensor, torch.Tensor | None, dict[int, torch.Tensor]]


class CUDAGraphRunner(LlamaRunner):
    """Runs a Llama-shaped model on CUDA from captured graphs.

    A draft that is on the device already is verified without a copy: ``expect`` prepares the input but for the draft,
    ``replay`` runs the graph, and ``accept`` takes what the device found.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        # By width, and what is done first.
        self.captured: dict[tuple[int, Callable[[int], None] | None], Callable[[], Made]] = {}
        # Without CUDA nothing is captured: the same arithmetic, for tests.
        self.pool = GraphPool() if self.device.type == "cuda" else None
        # Read by the graphs: where cache and tables are, the tokens and their shape (see kernels). One copy brings all.
        room = max(3 * WIDTHS[-1], WIDE[-1])
        self.inputs = torch.zeros(TOKENS_AT + room, dtype=torch.long, device=self.device)
        self.told: tuple[int, ...] = ()  # what the inputs say of a draft that the device brings
        self.scratch: dict[int, torch.Tensor] = {}

    @property
    def flat(self) -> bool:
        return self.pool is not None

    def begin(self) -> None:
        before = self.weights
        super().begin()
        if self.weights is not before:
            self.captured = {}  # graphs hold the addresses of the weights they were captured with

    def watch(self, layers: Sequence[int] = ()) -> None:
        before = set(self.states)
        super().watch(layers)
        if before != self.states.keys():
            self.captured = {}  # graphs hand out the states that were watched when they were captured

    def warm(self, widths: Iterable[int]) -> None:
        self.begin()
        for width in (*widths, *WIDE):
            self.forward([0] * width, 1)
            self.crop(0)

    @torch.inference_mode()
    def forward(self, tokens: Sequence[int], keep: int, parents: Sequence[int] | None = None) -> torch.Tensor:
        width, start = len(tokens), self.length
        if width > WIDE[-1]:
            return super().forward(tokens, keep, parents)
        padded = next(w for w in (*WIDTHS, *WIDE) if w >= width)
        self._reserve(start + padded)
        # Padding is token 0: what stood there before may have been no token.
        given = [*self._place(), start, int(parents is not None), *tokens, *[0] * (padded - width)]
        if parents is not None:  # depths and words; padding sees the cache and itself, and nothing sees it
            depths, words = ancestry([*parents, *[-1] * (padded - width)])
            given += depths + words
        self._give(given)
        self.told = ()
        final, logits, states = self.replay(padded)
        if self.watched:
            self.features[start : start + width] = final[:width]
        for layer, made in states.items():
            self.states[layer][start : start + width] = made[:width]
        self.before, self.length = start, start + width
        kept = slice(width - keep, width)
        return self.weights.logits(final[kept]) if logits is None else logits[kept]

    def _place(self) -> tuple[int, int, int, int]:
        """Where the kernels find cache and tables."""
        return self.cache.data_ptr(), self.cos.data_ptr(), self.sin.data_ptr(), self.capacity

    def expect(self, last: int, width: int, tree: bool) -> int:
        """Prepare a forward of the text's last token and a draft, ``width`` together; the width it is padded to.

        The device itself puts the draft into ``inputs``, after the last token: its tokens, and of a tree also depths
        and words. Nothing is copied where the device has gone on by itself from one round to the next, and is as wide
        with its padding: what a wider draft left there are tokens, which nothing of this one sees.
        """
        padded = next(w for w in WIDTHS if w >= width)
        self._reserve(self.length + padded)
        told = (*self._place(), self.length, last, padded, int(tree))
        if told != self.told:
            given = [*self._place(), self.length, int(tree), last, *[0] * (padded - 1)]
            if tree:  # of no tokens yet, and of padding: each sees the cache and itself
                given += [0] * padded + ancestry([-1] * padded)[1]
            self._give(given)
            self.told = told
        return padded

    def _give(self, given: list[int]) -> None:
        """Put into ``inputs`` what the next replay is of, without waiting for those before it."""
        # From memory that is not pinned: it has been copied when the call returns.
        self.inputs[: len(given)].copy_(torch.tensor(given), non_blocking=True)

    def replay(self, padded: int, first: Callable[[int], None] | None = None) -> Made:
        """Run the graph of this width on ``inputs``; one that begins with ``first``, which is captured too."""
        with self.on_device():  # kernels and captures go to the current device
            captured = self.captured.get((padded, first))
            if captured is None:
                captured = self.captured[padded, first] = self._captured(padded, first)
            return captured()

    def accept(self, tokens: Sequence[int]) -> None:
        """The text went on with these tokens, as the device found: its inputs and cache have gone on already."""
        self.before, self.length = self.length, self.length + len(tokens)
        self.told = (*self.told[:4], self.length, tokens[-1], *self.told[6:])

    def on_device(self) -> AbstractContextManager[object]:
        """In which kernels, captures and events go to the target's device."""
        return torch.cuda.device(self.device) if self.pool is not None else nullcontext()

    def _captured(self, padded: int, first: Callable[[int], None] | None) -> Callable[[], Made]:
        def body() -> Made:
            if first is not None:
                first(padded)
            return self._body(padded)

        if self.pool is None:
            return body
        graph, made = self.pool.capture(body)

        def replay() -> Made:
            graph.replay()
            return made

        return replay

    def _body(self, width: int) -> Made:
        """One forward of ``width`` tokens, every shape fixed and everything that changes read from ``inputs``."""
        where, tokens = self.inputs, self.inputs[TOKENS_AT : TOKENS_AT + width]
        x = embedding(tokens, self.weights.embed).clone()
        delta: torch.Tensor | None = None
        states: dict[int, torch.Tensor] = {}
        for at, (layer, block) in enumerate(zip(self.weights.layers, self.model.model.layers, strict=True)):
            attn, mlp = block.self_attn, block.mlp
            y = kernels.norm(x, layer.before, self.eps, delta)  # x has the last layer's output added now
            if at in self.states:
                states[at] = x.clone()
            projections = (attn.q_proj, attn.k_proj, attn.v_proj)
            q, k, v = (linear(y, by.weight, by.bias).view(width, -1, self.head) for by in projections)
            if layer.q_norm is not None and layer.k_norm is not None:
                q, k = kernels.norm(q, layer.q_norm, self.eps), kernels.norm(k, layer.k_norm, self.eps)
            mixed = kernels.attention(q, k, v, where, at, self.scratch)
            y = kernels.norm(x, layer.after, self.eps, linear(mixed, attn.o_proj.weight, attn.o_proj.bias))
            opened = kernels.gate(*(linear(y, by.weight, by.bias) for by in (mlp.gate_proj, mlp.up_proj)))
            delta = linear(opened, mlp.down_proj.weight, mlp.down_proj.bias)
        final = kernels.norm(x, self.weights.final, self.eps, delta)
        if (last := len(self.weights.layers)) in self.states:
            states[last] = x  # nothing is added to it any more
        return final, self.weights.logits(final) if width <= WIDTHS[-1] else None, states
