"""A round that stays on the device: draft, verification and acceptance are launched at once and read back once.

The draft's graph leaves its tokens on the device, a kernel puts them into the input of the target's graph, and another
finds what is accepted, moves that into place in the target's cache, and has both inputs go on after it. Before the host
reads the result, the head reads the new entries, and where the same draft is expected next, it drafts: the host commits
the tokens and chooses while the device drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
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

REPEATS = 4  # of a forward that is timed; the least counts


class Found(NamedTuple):
    """What a round brought."""

    drafted: list[int]  # tokens
    path: list[int]  # indices of the accepted ones
    following: int
    verify_seconds: float  # as the host would have waited for such a forward alone
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
        event: Any = torch.cuda.Event
        self.clock = [event(enable_timing=True) for _ in range(2)] if self.cuda else []
        self.waiting: float | None = None  # seconds of a forward alone that the device does not work; None: not timed
        self.last_key: Hashable = None  # of the last round's draft
        self.meanwhile: Callable[[], object] = tuple  # called while the device works
        # A draft that was made at the end of a round: its key, what the head had read and run by then, its tensors.
        self.ahead: tuple[Hashable, tuple[int, int], Made] | None = None

    def forget(self) -> None:
        """A new text: discard the draft made ahead."""
        self.ahead = self.last_key = None

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
        gumbel: GumbelNoise | None,  # of as many positions as ``positions`` says
    ) -> Found | None:
        """Play a round, ``depth`` of whose tokens may be accepted; None where the draft cannot be captured."""
        head, target = self.head, self.target
        if self.waiting is None:
            self.waiting = self._time_waiting(last) if self.cuda else 0.0
        breadth = 0 if shape is None else head._breadth(shape.breadth)
        nodes = depth if shape is None else min(shape.nodes, grown_nodes(depth, breadth))
        width, whole = nodes + 1, head._warmed(depth, breadth)
        reading = next(w for w in cuda_graphs.WIDTHS if w > depth)
        # Room for this draft, for reading what comes of it, and for another draft: nothing moves in between.
        head._reserve(reading + 2 * whole * max(1, breadth), head.length + reading + 2 * whole)
        key = (gumbel is not None, whole, breadth)
        made = self._taken(key)
        begun = made is not None
        if made is None and (made := head._drafted(out, whole, breadth, gumbel)) is None:
            return None
        if head.told != (*head.where, head.slots, head.length):
            head._tell((), 0)
        padded = target.expect(last, width, bool(breadth))
        if breadth:
            count, entries = grown_nodes(depth, breadth), breadth * (depth - 1)
            tokens, _, paths, expanded, words = made[:5]
            grown = tokens[:count], paths[:count], words[:entries], expanded
            most = grown_nodes(whole, breadth)
            round_kernels.select(grown, breadth, nodes, target.inputs, padded, self.parents, most)
        else:
            target.inputs[TOKENS_AT + 1 : TOKENS_AT + width].copy_(made[0][:depth])
        self._mark(0)
        final, logits, states = target.replay(padded)
        assert logits is not None
        depths = target.inputs[TOKENS_AT + padded : TOKENS_AT + padded + width] if breadth else None
        choices = choose(logits[:width], depth + 1, depths)
        parents = self.parents if breadth else None
        head.told = ()  # until the host knows what the device has done
        round_kernels.accept(choices, target.inputs, parents, head.inputs, LAYOUT, self.result, padded)
        if breadth:
            round_kernels.move(target.inputs, self.result, target.cache)
        self.host.copy_(self.result, non_blocking=True)
        self._mark(1)
        self._keep(final, states, depth + 1, bool(breadth))
        read = self._read_ahead(reading, depth + 1)
        ahead = None
        if key == self.last_key:
            ahead = head._draft(whole, breadth, self._next_noise(gumbel, whole))
        self.last_key = key
        found = self._found(width)
        self._go_on([*(found.drafted[at] for at in found.path), found.following], read)
        if ahead is not None:
            self.ahead = key, (head.length, head.ran), ahead
        return found._replace(begun=begun)

    def positions(self, depth: int, shape: Tree | None) -> int:
        """From how many positions such a round takes noise: its own, and those of a draft after it."""
        return depth + 1 + self.head._warmed(depth, 0 if shape is None else self.head._breadth(shape.breadth))

    def _next_noise(self, gumbel: GumbelNoise | None, levels: int) -> GumbelNoise | None:
        """The noise of the positions after the accepted tokens, of which the device knows how many there are."""
        if gumbel is None:
            return None
        held = self.head.held_noise
        assert held is not None, "the draft before this one was made with noise"
        torch.index_select(gumbel.rows, 0, self.result[:1] + self.levels[1 : levels + 1], out=held.rows[:levels])
        return held

    def _taken(self, key: Hashable) -> Made | None:
        """The draft that was made ahead, if it is the one wanted and the head has done nothing since."""
        ahead, self.ahead = self.ahead, None
        fits = ahead is not None and ahead[0] == key and ahead[1] == (self.head.length, self.head.ran)
        return ahead[2] if ahead is not None and fits else None

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
        self.meanwhile()
        if self.cuda:
            self.clock[1].synchronize()
            seconds = self.clock[0].elapsed_time(self.clock[1]) / 1e3 + (self.waiting or 0.0)
        values: list[int] = self.host.tolist()
        accepted = values[0]
        path = [slot - 1 for slot in values[round_kernels.PATH + 1 : round_kernels.PATH + 1 + accepted]]
        drafted = values[round_kernels.DRAFTED + 1 : round_kernels.DRAFTED + width]
        return Found(drafted, path, values[round_kernels.NEW + accepted], seconds)

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
