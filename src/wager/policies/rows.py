"""The contract for deciding a batch in columns: no object per request, one array per thing that is known.

B requests, D drafters that all propose in every step, proposals of at most K tokens. A drafter is its place in the
policy's ``drafters``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.integer[Any]]
Floats = NDArray[np.floating[Any]]
Bools = NDArray[np.bool_]


@dataclass(slots=True)
class Rows:
    """A batch before the step, one row a request.

    ``confidence`` may lie in memory as it likes; with positions outermost (``np.empty((K, D, B)).transpose(1, 2, 0)``)
    it is read fastest.
    """

    slots: Ints  # (B,) a small number per request, the same while it lives, no two alike
    fresh: Bools  # (B,) the request's first step: its slot may have been another's
    match: Ints  # (D, B) tokens of context the proposal was found by; 0: none
    size: Ints  # (D, B) tokens proposed, 0 to K
    confidence: Floats  # (D, B, K) the drafter's own probability of each token given those before; nan: it has none
    limit: Ints  # (B,) most tokens the request may draft
    shared: Ints | None = None  # (D, D, B) tokens, from the first, that two drafters propose alike; None: not known
    asked: Sequence[float] = ()  # (D,) seconds that asking each drafter took, 0 where it was not asked; (): not known
    work: Any = field(default=None, repr=False, compare=False)  # what the policy keeps between choosing and observing


@dataclass(slots=True)
class Outcome:
    """What came back: every drafter's proposal, played or not, scored on the true tokens."""

    rows: Rows  # as they were when the choice was made
    drafter: Ints  # (B,) who was played; -1: nobody
    drafted: Ints  # (B,) tokens verified, padding counted
    emitted: Ints  # (B,) true tokens now known, at least 1
    agreed: Ints  # (D, B) leading tokens of the proposal that equal the true ones; at most size and emitted
    seconds: float  # of the step; 0 or less: not to be learned from, as when a prompt was read in it
    draft_seconds: float = 0.0  # of all drafters together, not part of seconds


@runtime_checkable
class RowPolicy(Protocol):
    """A policy that decides for a batch in columns."""

    @property
    def drafters(self) -> tuple[str, ...]:
        """Names along the first axis of ``match``, ``size``, ``confidence`` and ``agreed``."""
        ...

    def choose_rows(self, rows: Rows) -> tuple[Ints, Ints]:
        """Drafter (-1: none) and length (0: none) per request, both (B,).

        A length may exceed what was proposed only where all lengths are K: the engine then pads.
        """
        ...

    def observe_rows(self, outcome: Outcome) -> None:
        """Learn from a finished step."""
        ...
