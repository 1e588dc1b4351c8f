"""A round that stays on the device: draft, verification and acceptance are launched at once and read back once.

The draft's graph leaves its tokens on the device, a kernel puts them into the input of the target's graph, and another
finds what is accepted, moves that into place in the target's cache, and has both inputs go on after it. Before the host
reads the result, the head reads the new entries, and where the next draft is known, or the same is expected, it drafts:
the host commits the tokens and chooses while the device drafts.

A chain that another drafter proposed may be merged into the draft: one forward verifies both, and the deeper is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import inf
from time import perf_counter
from typing import Any, NamedTuple

import torch

from wager.core import Tree
from wager.drafters.base import DeviceChoices
from wager.eagle import cuda_graphs, graph_inputs, round_kernels
from wager.eagle.cuda_graphs import CUDAGraphHead, Made
from wager.eagle.tree import GumbelNoise, grown_nodes
from wager.models.cuda_graph_runner import TOKENS_AT, CUDAGraphRunner
from wager.models.cuda_graph_runner import WIDTHS as TARGET_WIDTHS
from wager.models.runner import WIDEST_TREE, Runner

# Where the head's graphs find what the kernel that accepts has them go on from.
LAYOUT = {
    "READ": graph_inputs.READ,
    "CHAIN": graph_inputs.CHAIN,
    "BRANCHES": graph_inputs.TREE,
    "READ_AT": graph_inputs.POSITION[graph_inputs.READ],
    "CHAIN_AT": graph_inputs.POSITION[graph_inputs.CHAIN],
    "LAST": graph_inputs.LAST,
    "TOKENS": graph_inputs.TOKENS,
    "MOST": cuda_graphs.WIDTHS[-1],
}

LONGEST_MERGED = cuda_graphs.WIDTHS[-1] - 1  # tokens: the head's next reading is of one more
REPEATS = 4  # of a forward that is timed; the least counts


Place = tuple[int, int, int]  # a draft's depth and nodes, and the padded width of the target's forward
Following = tuple[bool, tuple[int, Tree | None] | None]  # whether the next arm is known; depth and shape of its draft


def _unknown() -> Following:
    return False, None


class Ahead(NamedTuple):
    """A draft that was made at the end of a round, or before one."""

    key: Hashable
    head: tuple[int, int]  # what the head had read and run by then
    made: Made
    placed: Place | None = None  # if it is in the target's input already


class Found(NamedTuple):
    """What a round brought."""

    drafted: list[int]  # tokens
    path: list[int]  # indices of the accepted ones
    following: int
    verify_seconds: float  # as the host would have waited for such a forward alone
    own: int  # of the accepted ones, how many there would be of the head's own draft alone
    begun: bool = True  # whether the draft was made ahead


class DeviceRounds:
    """Plays rounds of one head and one target, both of which are captured."""

    def __init__(self, head: CUDAGraphHead, target: CUDAGraphRunner) -> None:
        self.head, self.target = head, target
        device = target.device
        self.result = torch.zeros(round_kernels.RESULT, dtype=torch.long, device=device)
        self.parents = torch.zeros(WIDEST_TREE, dtype=torch.long, device=device)
        self.levels = torch.arange(2 * WIDEST_TREE, device=device)
        self.cuda = device.type == "cuda"
        self.host = torch.zeros(round_kernels.RESULT, dtype=torch.long, pin_memory=self.cuda)
        # What is merged, read from the device where it is. Every round waits for the device in the end, so none writes
        # over what a kernel has yet to read.
        self.merged = torch.zeros(3 + LONGEST_MERGED, dtype=torch.long, pin_memory=self.cuda)
        self.given = self.merged.numpy()
        event: Any = torch.cuda.Event
        self.clock = [event(enable_timing=True) for _ in range(2)] if self.cuda else []
        self.waiting: float | None = None  # seconds of a forward alone that the device does not work; None: not timed
        self.meanwhile: Callable[[], Following] = _unknown  # called while the device works
        self.ahead: Ahead | None = None

    def forget(self) -> None:
        """A new text: discard the draft made ahead."""
        self.ahead = None

    def fits(self, depth: int, shape: Tree | None) -> bool:
        """Whether such a draft fits what is captured, and the head's next reading too."""
        if not self.head.captures or not self.head.fused or depth >= cuda_graphs.WIDTHS[-1]:
            return False
        if shape is None:
            return depth < TARGET_WIDTHS[-1]
        entries = self.head._breadth(shape.breadth) * (self.head._warmed(depth, shape.breadth) - 1)
        return entries <= WIDEST_TREE and shape.nodes < WIDEST_TREE

    @torch.inference_mode()
    def play(
        self,
        out: torch.Tensor,  # (1, hidden), the head's output at the text's last entry
        last: int,  # the text's last token
        depth: int,
        shape: Tree | None,
        choose: DeviceChoices,
        noise: Callable[[], GumbelNoise | None] | None,  # of as many positions as ``positions`` says; None: greedy
        merged: Sequence[int] = (),  # a chain to be verified along with the draft; cut to what there is room for
    ) -> Found | None:
        """Play a round with a draft of this depth; None where that cannot be captured."""
        head, target = self.head, self.target
        if self.waiting is None:
            self.waiting = self._time_waiting(last) if self.cuda else 0.0
        key, whole, breadth = self._key(depth, shape, noise is not None)
        nodes = depth if shape is None else min(shape.nodes, grown_nodes(depth, breadth))
        merged = merged[: self._merged_room(nodes, bool(breadth))] if merged else ()
        tree, deepest, width = bool(breadth or merged), max(depth, len(merged)), 1 + nodes + len(merged)
        self._reserve(deepest)
        ahead = self._taken(key)
        gumbel = noise() if noise is not None and ahead is None else None
        made = ahead.made if ahead is not None else head._drafted(out, whole, breadth, gumbel)
        if made is None:
            return None
        if head.told != (*head.where, head.slots, head.length):
            head._tell((), 0)
        told = target.told
        padded = target.expect(last, width, tree)
        if ahead is None or ahead.placed != (depth, nodes, padded) or target.told is not told:
            self._place(made, depth, breadth, nodes, padded)
        if merged:
            self.given[0], self.given[1], self.given[2] = len(merged), nodes, not breadth
            self.given[3 : 3 + len(merged)] = merged
            if not breadth:  # of many widths; for those of trees it is a part of the graph, which is launched sooner
                self._merge(padded)
        self._mark(0)
        final, logits, states = target.replay(padded, self._merge if merged and breadth else None)
        assert logits is not None
        depths = target.inputs[TOKENS_AT + padded : TOKENS_AT + padded + width] if tree else None
        choices = choose(logits[:width], deepest + 1, depths)
        parents, own = self.parents if tree else None, 1 + nodes if merged else 0
        head.told = ()  # until the host knows what the device has done
        round_kernels.accept(choices, target.inputs, parents, head.inputs, LAYOUT, self.result, padded, own)
        if tree:
            round_kernels.move(target.inputs, self.result, target.cache)
        self.host.copy_(self.result, non_blocking=True)
        self._mark(1)
        self._keep(final, states, deepest + 1, tree)
        read = self._read_ahead(self._reading(deepest), deepest + 1)
        known, following = self.meanwhile()
        if not known:  # the same is expected
            following = depth, shape
        begun: tuple[Hashable, Made, Place | None] | None = None
        if following is not None:
            if noise is not None and gumbel is None:  # made now, where the device does not wait for it
                gumbel = noise()
            begun = self._begun(*following, gumbel, (depth, nodes, padded) if following == (depth, shape) else None)
        found = self._found(width)
        self._go_on([*(found.drafted[at] for at in found.path), found.following], read)
        if begun is not None:
            self.ahead = Ahead(begun[0], (head.length, head.ran), begun[1], begun[2])
        return found._replace(begun=ahead is not None)

    @torch.inference_mode()
    def begin(self, out: torch.Tensor, depth: int, shape: Tree | None, gumbel: GumbelNoise | None) -> None:
        """Draft for a round that may come next, while the host does something else."""
        key, whole, breadth = self._key(depth, shape, gumbel is not None)
        self._reserve(depth)
        made = self.head._drafted(out, whole, breadth, gumbel)
        if made is not None:
            self.ahead = Ahead(key, (self.head.length, self.head.ran), made)

    def positions(self, depth: int) -> int:
        """From how many positions a round takes noise, so many of whose tokens may be accepted: its own, and those of a
        draft after it."""
        return depth + 1 + max((deep for deep, _ in self.head.shapes), default=depth)

    def _key(self, depth: int, shape: Tree | None, noisy: bool) -> tuple[Hashable, int, int]:
        """What tells drafts apart, how deep it is drafted, and how broad: 0 for a chain."""
        breadth = 0 if shape is None else self.head._breadth(shape.breadth)
        whole = self.head._warmed(depth, breadth)
        return (noisy, whole, breadth), whole, breadth

    def _reading(self, depth: int) -> int:
        """The captured width in which the head reads what such a round brings."""
        return next(w for w in cuda_graphs.WIDTHS if w > depth)

    def _reserve(self, depth: int) -> None:
        """Room for a draft, for reading what comes of it, and for another draft: nothing moves in between."""
        head, reading = self.head, self._reading(depth)
        deepest = max((deep for deep, _ in head.shapes), default=depth)
        largest = max((deep * max(1, broad) for deep, broad in head.shapes), default=depth)
        deepest, largest = max(deepest, depth), max(largest, depth)
        head._reserve(reading + 2 * largest, head.length + reading + 2 * deepest)

    def _place(self, made: Made, depth: int, breadth: int, nodes: int, padded: int) -> None:
        """Put the draft into the target's input."""
        if not breadth:
            self.target.inputs[TOKENS_AT + 1 : TOKENS_AT + 1 + nodes].copy_(made[0][:depth])
            return
        count, entries = grown_nodes(depth, breadth), breadth * (depth - 1)
        tokens, _, paths, expanded, words = made[:5]
        most = grown_nodes(self.head._warmed(depth, breadth), breadth)
        grown = tokens[:count], paths[:count], words[:entries], expanded
        round_kernels.select(grown, breadth, nodes, self.target.inputs, padded, self.parents, most)

    def _merged_room(self, nodes: int, tree: bool) -> int:
        """Most tokens that are merged into a draft; into a tree those that its padding has room for: what is placed
        ahead then stays where it is, and one graph serves them all."""
        free = next(w for w in TARGET_WIDTHS if w > nodes + 1) if tree and nodes + 1 < WIDEST_TREE else WIDEST_TREE
        return min(LONGEST_MERGED, free - 1 - nodes)

    def _merge(self, padded: int) -> None:
        """Put a chain beside the draft into the target's input."""
        round_kernels.merge(self.merged, self.target.inputs, padded, self.parents)

    def _begun(
        self, depth: int, shape: Tree | None, gumbel: GumbelNoise | None, place: Place | None
    ) -> tuple[Hashable, Made, Place | None] | None:
        """Draft for the next round, whose place in the text the device knows; and put it into the target's input, where
        it is as deep and wide as this one's (``place``)."""
        key, whole, breadth = self._key(depth, shape, gumbel is not None)
        made = self.head._draft(whole, breadth, self._next_noise(gumbel, whole))
        if made is None:
            return None
        if place is not None:
            self._place(made, depth, breadth, *place[1:])
        return key, made, place

    def _next_noise(self, gumbel: GumbelNoise | None, levels: int) -> GumbelNoise | None:
        """The noise of the positions after the accepted tokens, of which the device knows how many there are."""
        if gumbel is None:
            return None
        held = self.head.held_noise
        assert held is not None, "the draft before this one was made with noise"
        torch.index_select(gumbel.rows, 0, self.result[:1] + self.levels[1 : levels + 1], out=held.rows[:levels])
        return held

    def _taken(self, key: Hashable) -> Ahead | None:
        """The draft that was made ahead, if it is the one wanted and the head has done nothing since."""
        ahead, self.ahead = self.ahead, None
        fits = ahead is not None and ahead.key == key and ahead.head == (self.head.length, self.head.ran)
        return ahead if fits else None

    def _mark(self, which: int) -> None:
        if self.cuda:
            self.clock[which].record()

    def _time_waiting(self, token: int) -> float:
        """What a forward of one token takes by the host's clock beyond the device's: launching it, reading it back.

        Rounds that are not played here are timed by the host, and a policy compares both.
        """
        length, least = self.target.length, inf
        for _ in range(REPEATS):
            began = perf_counter()
            self._mark(0)
            best = self.target.forward([token], 1).argmax(-1)
            self._mark(1)
            best.tolist()
            taken = perf_counter() - began
            self.target.crop(length)
            least = min(least, taken - self.clock[0].elapsed_time(self.clock[1]) / 1e3)
        return max(0.0, least)

    def _keep(self, final: torch.Tensor, states: dict[int, torch.Tensor], count: int, tree: bool) -> None:
        """Put what is watched of the accepted path, and of as many rows in all as could be, where it belongs."""
        target, start = self.target, self.target.length
        path = self.result[round_kernels.PATH : round_kernels.PATH + count] if tree else None
        watched = [(target.features, final)] if target.watched else []
        for rows, made in (*watched, *((target.states[layer], made) for layer, made in states.items())):
            rows[start : start + count] = made[:count] if path is None else made.index_select(0, path)

    def _read_ahead(self, padded: int, count: int) -> Made:
        """Have the head read the new entries, whose number and tokens the device knows."""
        head, start = self.head, self.target.length
        head.features[:count] = head.features_of(self.target, start, start + count)
        made = head._replayed(("read", padded), lambda: head._read(padded))
        assert made is not None, "reading is captured when a head begins to follow its target"
        return made

    def _found(self, width: int) -> Found:
        """Wait for the device, and read what it found."""
        seconds = 0.0
        if self.cuda:
            self.clock[1].synchronize()
            seconds = self.clock[0].elapsed_time(self.clock[1]) / 1e3 + (self.waiting or 0.0)
        values: list[int] = self.host.tolist()
        accepted = values[0]
        path = [slot - 1 for slot in values[round_kernels.PATH + 1 : round_kernels.PATH + 1 + accepted]]
        drafted = values[round_kernels.DRAFTED + 1 : round_kernels.DRAFTED + width]
        return Found(drafted, path, values[round_kernels.NEW + accepted], seconds, values[round_kernels.OWN])

    def _go_on(self, new: list[int], read: Made) -> None:
        """Have the host know what the device has done."""
        head, count = self.head, len(new)
        self.target.accept(new)
        head.outs = read[0][:count]
        head.length, head.slots = head.length + count, head.slots + count
        head.told = (*head.where, head.slots, head.length)


def device_rounds(head: object, target: Runner) -> DeviceRounds | None:
    """Rounds on the device for this head and target; None where one of them is not captured, or without kernels."""
    if isinstance(head, CUDAGraphHead) and isinstance(target, CUDAGraphRunner) and head.fused:
        return DeviceRounds(head, target)
    return None
