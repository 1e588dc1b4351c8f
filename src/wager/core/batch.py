"""A batch of requests as arrays: what is known before a step, what was chosen, what came back.

B requests, D drafters, proposals of at most K tokens. A drafter is its index in the policy's ``drafters``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wager.core.arm import OFF, Arm
from wager.core.context import Context

Ints = NDArray[np.integer[Any]]
Floats = NDArray[np.floating[Any]]
Bools = NDArray[np.bool_]


@dataclass(slots=True)
class Batch:
    """What is known before a step, one entry per request.

    ``confidence`` may have any memory layout; positions outermost (``np.empty((K, D, B)).transpose(1, 2, 0)``) is read
    fastest.
    """

    slots: Ints  # (B,) a small number per request, unique, constant while the request lives
    fresh: Bools  # (B,) the request's first step: its slot may have been another's
    match: Ints  # (D, B) tokens of context the proposal was found by; 0: none
    size: Ints  # (D, B) tokens proposed, 0 to K
    confidence: Floats  # (D, B, K) the drafter's probability of each token given those before; nan: unknown
    limit: Ints  # (B,) most tokens the request may draft
    agreement: Ints | None = None  # (D, D, B) leading tokens that two drafters both propose; None: unknown
    proposal_seconds: Sequence[float] = ()  # (D,) seconds each drafter's proposals took, 0: not called; (): unknown
    context: Context | None = None  # of the batch as a whole; None: every arm is available, nothing else is known
    work: Any = field(default=None, repr=False, compare=False)  # the policy's, from choose_batch to observe_batch

    def of(self, requests: Sequence[int]) -> Batch:
        """Some of the requests only."""
        match, size, confidence = self.match[:, requests], self.size[:, requests], self.confidence[:, requests]
        agreement = None if self.agreement is None else self.agreement[:, :, requests]
        slots, fresh = self.slots[requests], self.fresh[requests]
        return Batch(slots, fresh, match, size, confidence, self.limit[requests], agreement)


@dataclass(frozen=True, slots=True)
class Choices:
    """What each request drafts.

    A length may exceed what was proposed only where all lengths are K: the engine then pads.
    """

    drafter: Ints  # (B,) -1: none
    length: Ints  # (B,) tokens; 0: none
    arm: Arm = OFF  # stands for the whole step where one arm has to: the longest chosen

    @classmethod
    def off(cls, count: int) -> Choices:
        """No request drafts."""
        return cls(np.full(count, -1), np.zeros(count, np.int64))


@dataclass(slots=True)
class BatchRound:
    """What came back: every drafter's proposal, chosen or not, scored on the true tokens."""

    batch: Batch  # as it was when the choice was made
    drafter: Ints  # (B,) whose draft was verified; -1: none
    drafted: Ints  # (B,) tokens verified, padding included
    emitted: Ints  # (B,) true tokens now known, at least 1
    agreed: Ints  # (D, B) leading tokens of the proposal that equal the true ones; at most size and emitted
    seconds: float  # of the step; 0 or less: not to be learned from, as when a prompt was read in it
    draft_seconds: float = 0.0  # of all drafters together, not part of seconds
    arm: Arm = OFF  # that of the Choices
