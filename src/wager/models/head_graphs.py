"""A head on CUDA: drafting captured once, replayed ever after.

A head's step is some twenty small kernels, and launching them one by one from Python takes longer than running them.
Here every shape is fixed: an entry looks at the whole cache, masked, and where it is put is read from the device.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Sequence

import torch

from wager.models.dynamic_tree import Branches, branches
from wager.models.head import Head
from wager.models.runner import TOLERANCE, Runner, apart

log = logging.getLogger("wager")

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16)  # entries read at once; a number in between is padded to the next
LONGEST = 64  # tokens a captured chain has at most
LEAST = 2048  # entries there is room for from the start: growing means capturing anew
Body = Callable[[], Sequence[torch.Tensor]]


class HeadGraphs(Head):
    """A head whose reading, steps and trees are captured; what cannot be goes through the plain forward."""

    _followed: tuple[object, ...] = ()  # what the graphs were captured with

    def follow(self, target: Runner) -> None:
        before = self._followed
        super().follow(target)
        self._followed = self.target, self.embed.data_ptr(), self.cut
        if before == self._followed:
            return
        device, dtype = self.embed.device, self.embed.dtype
        self.replays: dict[Hashable, Callable[[], Sequence[torch.Tensor]]] = {}
        self.captures = True
        self.pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        # Read by the graphs: the first free slot, the next position, tokens to be read. One copy brings all.
        self.inputs = torch.zeros(2 + WIDTHS[-1], dtype=torch.long, device=device)
        self.features = torch.zeros((WIDTHS[-1], self.hidden), dtype=dtype, device=device)
        self.last = torch.zeros((1, self.hidden), dtype=dtype, device=device)  # what the next step goes on from
        self.drafted = torch.zeros(LONGEST, dtype=torch.long, device=device)
        self.count = torch.zeros(1, dtype=torch.long, device=device)  # tokens drafted
        self.ahead: int | None = None  # entries already put after the free slot, while a body runs
        if device.type == "cuda":
            self._warm()

    @torch.inference_mode()
    def _warm(self) -> None:
        """Capture reading and steps, so that no draft is slow for it, and drop them if they give anything else."""
        for width in WIDTHS:
            self.begin()
            captured = self.read([1] * width, self._probe(width), 0)
        self.chain(captured, 2)
        self.begin()
        plain = super().read([1] * width, self._probe(width), 0)
        self.begin()
        off = apart(captured, plain)
        if self.captures and not off <= TOLERANCE.get(self.embed.dtype, 1e-4):
            log.warning("captured drafting is %.2g standard deviations off, and not used: drafts will be slower", off)
            self.captures = False

    def _probe(self, width: int) -> torch.Tensor:
        """Features to try with: rows of the embedding, brought to the size features have."""
        rows = self.embed[torch.arange(width, device=self.embed.device) % len(self.embed)]
        return torch.nn.functional.rms_norm(rows, (self.hidden,))

    def _reserve(self, width: int, positions: int) -> None:
        before = self.cache
        room = max(width, LEAST - self.slots)
        super()._reserve(room, max(positions, self.length + room))
        if self.cache is not before or self.cos is not getattr(self, "_tables", None):
            self._tables = self.cos
            self.replays = {}  # graphs hold the addresses they were captured with
            self.columns = torch.arange(self.capacity, device=self.cache.device)

    # -- what is asked for

    @torch.inference_mode()
    def read(self, tokens: Sequence[int], features: torch.Tensor, start: int) -> torch.Tensor:
        width = len(tokens)
        if start != self.length or width > WIDTHS[-1] or not self.captures:
            return super().read(tokens, features, start)
        padded = next(w for w in WIDTHS if w >= width)
        self._reserve(padded, self.length + padded)
        self.inputs[: 2 + padded] = torch.tensor([self.slots, self.length, *tokens, *[0] * (padded - width)])
        self.features[:width] = features
        out = self._replayed(("read", padded), lambda: self._read(padded))
        if out is None:
            return super().read(tokens, features, start)
        self.length, self.slots = self.length + width, self.slots + width
        last = out[0][width - 1 : width].clone()
        self._let_go()
        return last

    @torch.inference_mode()
    def chain(self, out: torch.Tensor, length: int) -> torch.Tensor:
        if length > LONGEST or not self.captures:
            return super().chain(out, length)
        self._reserve(length, self.length + length)
        self._start(out)
        for _ in range(length - 1):
            if self._replayed("step", self._step) is None:
                return super().chain(out, length)
        self.drafted[length - 1 : length] = self.named(self.logits(self.last).argmax(-1))
        return self.drafted[:length]

    @torch.inference_mode()
    def tree(self, out: torch.Tensor, depth: int, breadth: int, nodes: int) -> Branches:
        if not self.captures:
            return super().tree(out, depth, breadth, nodes)
        room = breadth * depth
        self._reserve(room, self.length + depth)
        self._start(out)
        key = ("tree", depth, breadth, nodes)
        grown = self._replayed(key, lambda: branches(self, self.last, depth, breadth, nodes))
        return super().tree(out, depth, breadth, nodes) if grown is None else Branches(*grown)

    def _start(self, out: torch.Tensor) -> None:
        self.last.copy_(out)
        self.inputs[:2] = torch.tensor([self.slots, self.length])
        self.count.zero_()

    # -- bodies: everything that changes is read from the device

    def _read(self, width: int) -> Sequence[torch.Tensor]:
        return (self.forward(self.inputs[2 : 2 + width], self.features[:width]),)

    def _step(self) -> Sequence[torch.Tensor]:
        """Choose the token after ``last``, and make it the next entry."""
        token = self.named(self.logits(self.last).argmax(-1))
        self.drafted.index_copy_(0, self.count, token)
        self.last.copy_(self.forward(token, self.last))
        self.inputs[:2].add_(1)
        self.count.add_(1)
        return ()

    def forward(self, tokens: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        if self.ahead is None:
            return super().forward(tokens, features)
        new = torch.arange(self.ahead, self.ahead + len(tokens), device=tokens.device)
        self.ahead += len(tokens)
        slots = self.inputs[:1] + new
        return self._fixed(tokens, features, slots, self.inputs[1:2] + new, self.columns <= slots[:, None])

    def branch(self, tokens: torch.Tensor, features: torch.Tensor, depth: int, seen: torch.Tensor) -> torch.Tensor:
        if self.ahead is None:
            return super().branch(tokens, features, depth, seen)
        self.ahead += len(tokens)
        visible = (self.columns < self.inputs[:1]).repeat(len(tokens), 1)
        of_tree = self.inputs[:1] + torch.arange(seen.shape[1], device=tokens.device)
        visible.index_copy_(1, of_tree, seen)
        positions = (self.inputs[1:2] + (depth - 1)).expand(len(tokens))
        return self._fixed(tokens, features, of_tree[-len(tokens) :], positions, visible)

    def _fixed(
        self,
        tokens: torch.Tensor,
        features: torch.Tensor,
        slots: torch.Tensor,  # (width,)
        positions: torch.Tensor,  # (width,)
        visible: torch.Tensor,  # (width, capacity)
    ) -> torch.Tensor:
        mask = torch.zeros_like(visible, dtype=features.dtype).masked_fill_(~visible, -math.inf)
        return self._layer(tokens, features, slots, self.capacity, (self.cos[positions], self.sin[positions]), mask)

    # -- capturing

    def _replayed(self, key: Hashable, body: Body) -> Sequence[torch.Tensor] | None:
        """Run a body, from its graph; its tensors are overwritten by the next run. None: it cannot be captured."""
        if key not in self.replays:
            try:
                self.replays[key] = self._captured(body)
            except RuntimeError as error:  # a library that cannot be captured, too little memory
                log.warning("drafting is not captured (%s): it will be slower", error)
                self.captures = False
                return None
        return self.replays[key]()

    def _captured(self, body: Body) -> Callable[[], Sequence[torch.Tensor]]:
        def run() -> Sequence[torch.Tensor]:
            self.ahead = 0
            try:
                return body()
            finally:
                self.ahead = None

        if self.embed.device.type != "cuda":
            return run  # nothing is captured: the same arithmetic, for tests
        kept = [tensor.clone() for tensor in (self.inputs, self.last, self.count, self.drafted)]
        with torch.cuda.device(self.embed.device):
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    run()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool):
                made = run()
        for tensor, before in zip((self.inputs, self.last, self.count, self.drafted), kept, strict=True):
            tensor.copy_(before)

        def replay() -> Sequence[torch.Tensor]:
            graph.replay()
            return made

        return replay
