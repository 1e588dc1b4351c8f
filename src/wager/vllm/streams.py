"""Which row of vLLM's batch is which request, and how much of each text is known."""

import heapq
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Stream:
    """One request as long as it lives, in whatever row it is."""

    slot: int  # a small number of its own while it lives, another's afterwards: for arrays by request
    fresh: bool = True  # first seen in this step
    resumed: bool = False  # known, but its last proposal was not verified in this step
    payload: Any = None  # the caller's own
    length: int = 0  # tokens known when it was last in a row


class Streams:
    """Gives every row of a batch its Stream, step after step, while requests come, go, move and return.

    Of the last step, by row: ``counts`` tokens were sampled, ``ends`` tokens are in the text, and ``before`` of them
    were known already, 0 where the stream is fresh. They are never written to again.
    """

    def __init__(self, on_end: Callable[[Stream], None]) -> None:
        self._on_end = on_end
        self._streams: dict[str, Stream] = {}  # by request
        self._free: list[int] = []  # slots, a heap
        self._names: list[str | None] = []  # by row; None: nothing was sampled
        self._by_row: list[Stream | None] = []
        self._flagged: list[Stream] = []  # fresh or resumed in the last step
        self.counts = self.ends = self.before = np.zeros(0, dtype=np.int64)

    @property
    def settled(self) -> bool:
        """Whether every stream of the last step had been in the step before."""
        return not self._flagged

    def follow(
        self, names: Sequence[str], alive: Container[str], sampled: list[list[int]], lengths: npt.NDArray[Any]
    ) -> list[Stream | None]:
        """Each row's stream in this step; None where nothing was sampled, as in a prompt still being read.

        It is the same list, not to be written to, while every row holds the stream it held. names: each row's request;
        alive: all requests that are not over, preempted ones included; lengths (rows or more,) count sampled tokens.
        """
        rows = len(sampled)
        for flagged in self._flagged:
            flagged.fresh = flagged.resumed = False
        self._flagged.clear()
        known = self.ends
        self.counts = np.fromiter(map(len, sampled), np.int64, rows)
        self.ends = lengths[:rows].astype(np.int64)
        held = [name if new else None for name, new in zip(names, sampled, strict=False)]
        if held != self._names:
            known = self._change(held, alive, known)
        self.before = known
        unseen = np.flatnonzero((known + self.counts != self.ends) & (known > 0) & (self.counts > 0)).tolist()
        if unseen:  # vLLM leaves the proposer out of steps in which a request is about to fill the model's context
            self._by_row = list(self._by_row)
            for stream in (self._by_row[row] for row in unseen):
                if stream is not None and not stream.resumed:
                    self._resume(stream)
        return self._by_row

    def _change(self, names: list[str | None], alive: Container[str], known: Integers) -> Integers:
        """Other requests are in the rows now; the known tokens of each row."""
        before = {stream for stream in self._by_row if stream is not None}
        for held, length in zip(self._by_row, known.tolist(), strict=True):
            if held is not None:
                held.length = length
        for name in [name for name in self._streams if name not in alive]:
            over = self._streams.pop(name)
            self._on_end(over)
            heapq.heappush(self._free, over.slot)
        self._names, self._by_row = names, [None if name is None else self._stream(name, before) for name in names]
        return np.array([stream.length if stream is not None else 0 for stream in self._by_row], dtype=np.int64)

    def _stream(self, name: str, before: set[Stream]) -> Stream:
        stream = self._streams.get(name)
        if stream is None:
            slot = heapq.heappop(self._free) if self._free else len(self._streams)
            stream = self._streams[name] = Stream(slot)
            self._flagged.append(stream)
        elif stream not in before:
            self._resume(stream)
        return stream

    def _resume(self, stream: Stream) -> None:
        stream.resumed = True
        self._flagged.append(stream)
