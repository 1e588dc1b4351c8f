"""A head on CUDA: a draft is one copy to the device, two replays of captured graphs, and one read back.

Launching a head's dozen small kernels one by one takes longer than running them. One graph reads new entries, another
drafts. What changes is read from the device: with the kernels the cache may move, without them all of it is masked.
"""

import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor

from wager.eagle.eagle3_head import Eagle3Head
from wager.eagle.fused_layer import fits_kernels, fused_layer
from wager.eagle.graph_inputs import CHAIN, LAST, POSITION, READ, START, TOKENS, TREE, WHERE
from wager.eagle.head import Head, Shape
from wager.eagle.tree import Chain, DraftTree, GumbelNoise, choose, grow, grown_of
from wager.models.cuda_capture import GraphPool
from wager.models.runner import CHUNK, TOLERANCE, WIDEST_TREE, Runner, apart

log = logging.getLogger("wager")

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16)  # entries read at once; a number in between is padded to the next
WIDE = (32, 64, 128, 256, CHUNK)  # those of prompts, where the kernels are used
LONGEST = 64  # tokens a captured chain has at most
LEAST = 2048  # entries there is room for from the start: growing may mean capturing anew
FUSED_ON = ("cuda",)  # devices with the kernels
BROADEST = 16  # tokens after an entry that the kernels look for; beyond, torch's own search is as good

Made = Sequence[Tensor]
Body = Callable[[], Made]


class CUDAGraphHead(Head):
    """A head whose reading, chains and trees are captured; what cannot be goes through the plain forward."""

    _followed: tuple[object, ...] = ()  # what the graphs were captured with
    _tables: Tensor | None = None
    ran = 0  # bodies that were run
    holds = False  # whether the body that ran used cache and tables by their addresses
    shapes: frozenset[Shape] = frozenset()  # of drafts that were asked to be warm

    def follow(self, target: Runner) -> None:
        before = self._followed
        super().follow(target)
        self._followed = self.target, self.embed.data_ptr(), self.pruned
        if before == self._followed:
            return
        device, dtype = self.embed.device, self.embed.dtype
        self.replays: dict[Hashable, Body] = {}
        self.bound: set[Hashable] = set()  # graphs that hold the addresses of cache and tables
        self.captures = True
        self.fused = device.type in FUSED_ON and fits_kernels(self)
        self.pool = GraphPool() if device.type == "cuda" else None
        self.widths = (*WIDTHS, *WIDE) if self.fused else WIDTHS
        self.inputs = torch.zeros(TOKENS + self.widths[-1], dtype=torch.long, device=device)
        self.told: tuple[int, ...] = ()  # what the inputs say of the place after the last entry read
        self.features = torch.zeros((self.widths[-1], self.given), dtype=dtype, device=device)
        self.last = torch.zeros((1, self.hidden), dtype=dtype, device=device)  # the last entry's output, if captured
        self.never = torch.full((1,), float("-inf"), dtype=dtype, device=device)
        self.scratch: dict[int, Tensor] = {}
        self.held_noise: GumbelNoise | None = None  # read by the graphs of sampled drafts; made for the first of them
        # Constants of the bodies: what a chain's steps add to where the first goes, depths, single bits.
        self.steps = torch.zeros((LONGEST, WHERE), dtype=torch.long, device=device)
        self.steps[:, START] = torch.arange(LONGEST, device=device)
        self.depths = torch.arange(WIDEST_TREE, device=device)[:, None].repeat(1, 2 * WIDEST_TREE)
        self.bits = torch.ones(WIDEST_TREE, dtype=torch.long, device=device) << torch.arange(WIDEST_TREE, device=device)
        self.ahead: int | None = None  # entries already put after the free slot, while a body runs
        self.part = READ  # which part of the inputs the body goes by
        self.rows = self.inputs[None, :WHERE]  # of a body on the kernels, where each of its entries goes
        self.words: list[Tensor] = []  # of a tree on the kernels, which entries each of its entries sees
        if device.type == "cuda":
            self._warm()
            self.warm(())

    def warm(self, shapes: Iterable[Shape]) -> None:
        """Capture drafts of these shapes, so that no round pays for it; and those once asked for, for a new target."""
        self.shapes |= {(depth, self._breadth(breadth)) for depth, breadth in shapes if breadth or depth <= LONGEST}
        if self.target is None or not self.captures or not self.shapes:
            return
        self.begin()
        out = self.read([1], self._probe(1), 0)
        for depth, breadth in sorted(self.shapes):
            self._drafted(out, depth, breadth, None)
        self.begin()

    @torch.inference_mode()
    def _warm(self) -> None:
        """Capture reading, and do without kernels, or without graphs, if what comes out is anything else."""
        limit = TOLERANCE.get(self.embed.dtype, 1e-4)
        while self.captures:
            reading, step = self._off()
            if reading <= limit and step <= limit:
                break
            self._give_up(f"it is {reading:.2g} and {step:.2g} standard deviations off")
        if self.captures and self.fused and not self._prompts_agree(limit):
            self.widths = WIDTHS
        self.begin()

    def _prompts_agree(self, limit: float) -> bool:
        """Capture the reading of prompts; whether it gives what the plain forward does."""
        prompts, width = {("read", width) for width in WIDE}, WIDE[-1]
        self.begin()
        try:
            self._reserve(width, width)
            self._tell([1] * width, 1)  # captures run what they capture, each on its own part of these
            self.replays |= {key: self._captured(partial(self._read, key[1])) for key in prompts}
            captured = self.read([1] * width, self._probe(width), 0).clone()
            self.begin()
            off = apart(captured, super().read([1] * width, self._probe(width), 0))
            why = f"they are {off:.2g} standard deviations off" if off > limit else ""
        except Exception as error:  # too little memory, a compiler
            why = f"{type(error).__name__}: {error}"
        if why:
            log.warning("a head reads prompts without CUDA graphs (%s)", why)
            self.replays = {key: replay for key, replay in self.replays.items() if key not in prompts}
        return not why

    def _off(self) -> tuple[float, float]:
        """How far captured outputs, of a reading and of a step after it, are from the plain forward's."""
        for width in WIDTHS:
            self.begin()
            captured = self.read([1] * width, self._probe(width), 0)
        drafted = self.chain(captured, 2)
        token, stepped = drafted.tokens[:1].clone(), drafted.logits[1].clone()
        self.begin()
        plain = super().read([1] * width, self._probe(width), 0)
        return apart(captured, plain), apart(stepped, self.logits(super().forward(token, plain)))

    def _give_up(self, why: object) -> None:
        """Go on without the kernels, or, where that was it, without graphs."""
        what = "kernels" if self.fused else "CUDA graphs"
        log.warning("drafting by %s is not used (%s): it will be slower", what, why)
        self.captures, self.fused, self.widths = self.fused, False, WIDTHS
        self.replays, self.bound = {}, set()

    def _probe(self, width: int) -> Tensor:
        """Features to try with: rows of the embedding, brought to the size features have."""
        rows = self.embed[torch.arange(width, device=self.embed.device) % len(self.embed)]
        wide = rows.repeat(1, -(-self.given // rows.shape[1]))[:, : self.given]
        return torch.nn.functional.rms_norm(wide, (self.given,))

    def _reserve(self, width: int, positions: int) -> None:
        before = self.cache
        room = max(width, LEAST - self.slots)
        super()._reserve(room, max(positions, self.length + room))
        if self.cache is not before or self.cos is not self._tables:
            self._tables = self.cos
            self.where = (self.cache.data_ptr(), self.cos.data_ptr(), self.sin.data_ptr(), self.capacity)
            for key in self.bound:
                del self.replays[key]
            self.bound = set()
            self.columns = torch.arange(self.capacity, device=self.cache.device)

    @torch.inference_mode()
    def read(self, tokens: Sequence[int], features: Tensor, start: int) -> Tensor:
        width, widest = len(tokens), self.widths[-1]
        if start != self.length or not self.captures or (width > widest and self.widths == WIDTHS):
            return super().read(tokens, features, start)
        if width > widest:
            self.read(tokens[:widest], features[:widest], start)
            return self.read(tokens[widest:], features[widest:], start + widest)
        padded = next(w for w in self.widths if w >= width)
        self._reserve(padded, self.length + padded)
        self._tell([*tokens, *[0] * (padded - width)], width)
        self.features[:width] = features
        made = self._replayed(("read", padded), lambda: self._read(padded))
        if made is None:
            return super().read(tokens, features, start)
        self.outs = made[0][:width]
        self.length, self.slots = self.length + width, self.slots + width
        self._let_go()
        return self.last

    @torch.inference_mode()
    def chain(self, out: Tensor, length: int, gumbel: GumbelNoise | None = None) -> Chain:
        made = self._drafted(out, self._warmed(length, 0), 0, gumbel)
        if made is None:
            return super().chain(out, length, gumbel)
        return Chain(made[0][:length], made[1 : 1 + length])

    @torch.inference_mode()
    def tree(self, out: Tensor, depth: int, breadth: int, nodes: int, gumbel: GumbelNoise | None = None) -> DraftTree:
        breadth = self._breadth(breadth)
        whole = self._warmed(depth, breadth)
        made = self._drafted(out, whole, breadth, gumbel)
        if made is None:
            return super().tree(out, depth, breadth, nodes, gumbel)
        grown = grown_of(made)
        return choose(grown.packed().cpu().numpy(), whole, depth, breadth, nodes)._replace(outs=grown.outs)

    def _warmed(self, depth: int, breadth: int) -> int:
        """How deep to draft: a depth that is not warm comes up at a text's end, and a deeper draft has it in it."""
        if (depth, breadth) in self.shapes:
            return depth
        return min((deep for deep, broad in self.shapes if broad == breadth and deep > depth), default=depth)

    def _drafted(self, out: Tensor, depth: int, breadth: int, gumbel: GumbelNoise | None) -> Made | None:
        """A chain's tokens and logits, or all that a tree grew to, from a graph; None: it cannot be captured."""
        if not self.captures or (not breadth and depth > LONGEST):
            return None
        gumbel = self._hold(gumbel, out)
        assert not self.fused or self.slots == self.length, "the kernels take slots for positions"
        self._reserve(depth * max(1, breadth), self.length + depth)
        if out is not self.last:
            self.last.copy_(out)
        if self.told != (*self.where, self.slots, self.length):  # after a captured reading the device knows
            self._tell((), 0)
        return self._draft(depth, breadth, gumbel)

    def _draft(self, depth: int, breadth: int, gumbel: GumbelNoise | None) -> Made | None:
        """Replay a draft after the last entry read, wherever the device has that."""
        key = "sampled" if gumbel is not None else "likeliest", depth, breadth
        body = partial(self._tree, depth, breadth, gumbel) if breadth else partial(self._chain, depth, gumbel)
        return self._replayed(key, body)

    def _hold(self, gumbel: GumbelNoise | None, out: Tensor) -> GumbelNoise | None:
        """The noise where the graphs read it; levels beyond those given keep what was there, and are not read back."""
        # The first time everything that is warm without it is captured with it: one slow draft in place of many.
        if gumbel is None or gumbel is self.held_noise:
            return gumbel
        if self.held_noise is None:
            rows = gumbel.rows.new_zeros((LONGEST, gumbel.rows.shape[1]))
            self.held_noise = GumbelNoise(rows, torch.ones_like(gumbel.temperature))
            for depth, breadth in sorted(self.shapes):
                self._drafted(out, depth, breadth, self.held_noise)
        self.held_noise.rows[: len(gumbel.rows)] = gumbel.rows[:LONGEST]
        self.held_noise.temperature.copy_(gumbel.temperature)
        return self.held_noise

    def _tell(self, tokens: Sequence[int], width: int) -> None:
        """Everything the graphs go by, in one copy; so many of the tokens are real."""
        where, slot, position = self.where, self.slots, self.length
        given = [*where, slot, 0, *where, slot + width, 0, *where, slot + width, 1]
        given += [position, position + width, max(0, width - 1), *tokens]
        # From memory that is not pinned: it has been copied when the call returns.
        self.inputs[: len(given)].copy_(torch.tensor(given), non_blocking=True)
        self.told = (*where, slot + width, position + width)

    # Bodies: everything that changes is read from the device.

    def _read(self, width: int) -> Made:
        """Read entries, and keep the output of the last real one."""
        self.part, self.rows = READ, self.inputs[None, READ : READ + WHERE]
        made = self.forward(self.inputs[TOKENS : TOKENS + width], self.entering(self.features[:width]))
        torch.index_select(made, 0, self.inputs[LAST : LAST + 1], out=self.last)
        return (made,)

    def _chain(self, length: int, gumbel: GumbelNoise | None) -> Made:
        self.part, self.rows = CHAIN, self.inputs[CHAIN : CHAIN + WHERE] + self.steps[:length]
        drafted = super().chain(self.last, length, gumbel)
        return drafted.tokens, *drafted.logits

    def _tree(self, depth: int, breadth: int, gumbel: GumbelNoise | None) -> Made:
        self.part, self.words = TREE, [self.bits[:0]]
        tokens, sure, paths, expanded, outs = grow(self, self.last, depth, breadth, gumbel)
        return tokens, sure, paths, expanded, torch.cat(self.words), *outs

    def _top(self, scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
        if self.ahead is None or not self.fused or count > BROADEST:
            return super()._top(scores, count)
        from wager.eagle import kernels

        return kernels.likeliest(scores, count)

    def best(self, paths: Tensor, tokens: Tensor, breadth: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if self.ahead is None or not self.fused or breadth > BROADEST:
            return super().best(paths, tokens, breadth)
        from wager.eagle import kernels

        return kernels.best(paths, tokens, breadth)

    def forward(self, tokens: Tensor, features: Tensor) -> Tensor:
        if self.ahead is None:
            return super().forward(tokens, features)
        at, width = self.ahead, len(tokens)
        self.ahead += width
        if self.fused:
            return fused_layer(self, self.scratch, tokens, features, self.rows[at])
        new = torch.arange(at, at + width, device=tokens.device)
        slots, positions = self.inputs[self.part + START] + new, self.inputs[POSITION[self.part]] + new
        return self._masked(tokens, features, slots, positions, self.columns <= slots[:, None])

    def branch(self, tokens: Tensor, features: Tensor, depth: int, seen: Tensor) -> Tensor:
        if self.ahead is None:
            return super().branch(tokens, features, depth, seen)
        width, entries = seen.shape
        if self.fused and entries <= WIDEST_TREE:
            words = (seen * self.bits[:entries]).sum(-1)
            self.words.append(words)
            # Tokens, which the kernels do not look at, and depths are the same number.
            where = torch.cat((self.inputs[TREE : TREE + WHERE], self.depths[depth - 1, : 2 * width], words))
            return fused_layer(self, self.scratch, tokens, features, where, entries - width)
        of_tree = self.inputs[TREE + START] + torch.arange(entries, device=tokens.device)
        visible = (self.columns < of_tree[:1]).repeat(width, 1).index_copy_(1, of_tree, seen)
        positions = (self.inputs[POSITION[self.part]] + (depth - 1)).expand(width)
        return self._masked(tokens, features, of_tree[-width:], positions, visible)

    def _masked(
        self,
        tokens: Tensor,
        features: Tensor,
        slots: Tensor,  # (width,)
        positions: Tensor,  # (width,)
        visible: Tensor,  # (width, capacity)
    ) -> Tensor:
        self.holds = True
        mask = torch.where(visible, self.nothing[0], self.never)
        return self._layer(tokens, features, slots, self.capacity, (self.cos[positions], self.sin[positions]), mask)

    def _replayed(self, key: Hashable, body: Body) -> Made | None:
        """Run a body, from its graph; its tensors are overwritten by the next run. None: it cannot be captured."""
        while key not in self.replays:
            if not self.captures:
                return None
            self.holds = False
            try:
                self.replays[key] = self._captured(body)
            except Exception as error:  # a library that cannot be captured, a compiler, too little memory
                self._give_up(f"{type(error).__name__}: {error}")
                continue
            if self.holds:
                self.bound.add(key)
        self.ran += 1
        return self.replays[key]()

    def _captured(self, body: Body) -> Body:
        def run() -> Made:
            self.ahead = 0
            try:
                return body()
            finally:
                self.ahead = None

        if self.pool is None:  # no CUDA, nothing is captured: the same arithmetic, for tests
            run()
            return run
        with torch.cuda.device(self.embed.device):
            graph, made = self.pool.capture(run)

        def replay() -> Made:
            graph.replay()
            return made

        return replay


class CUDAGraphEagle3Head(CUDAGraphHead, Eagle3Head):
    """An EAGLE-3 head whose reading, chains and trees are captured."""
