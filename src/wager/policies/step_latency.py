"""Seconds of a step, taken apart: verifying one draft length while drafting the next."""

from __future__ import annotations

MIN_WEIGHT = 0.02  # of a new step once an estimate has settled: about the last fifty count
SETTLED = 3  # steps of a kind before others are held against it


class StepLatency:
    """Learns what verifying and what drafting each length costs, by size of batch.

    A step verifies the drafts of the step before and makes the next ones, so a step in which the length changes pays
    for two arms: seconds = verify[length verified] + draft[length drafted]. Drafting nothing is the zero of drafting;
    what a drafter costs even then is part of every step.
    """

    def __init__(self) -> None:
        self._verify: dict[tuple[int, int], list[float]] = {}  # (batch bucket, length) -> [steps, seconds]
        self._draft: dict[tuple[int, int], list[float]] = {}
        self._switch = [0.0, 0.0]  # times drafting was resumed, mean seconds that took beyond what was expected

    def observe(self, batch: int, verified: int, drafted: int, seconds: float, *, resumed: bool = False) -> None:
        """A step took so long; verified, drafted: lengths; ``resumed``: it drafts for the first time after a pause."""
        bucket = batch.bit_length()
        verify = self._verify.setdefault((bucket, verified), [0, 0.0])
        draft = self._draft.setdefault((bucket, drafted), [0, 0.0])
        error = seconds - verify[1] - draft[1]
        if resumed and min(verify[0], draft[0]) >= SETTLED:
            # What it took beyond a step of this kind is the cost of switching, and no part of the others.
            self._switch[0] += 1
            self._switch[1] += (error - self._switch[1]) * max(MIN_WEIGHT, 1 / self._switch[0])
            return
        verify[0] += 1
        if verify[0] == 1:  # the first of this kind: nothing tells the two apart yet, so drafting keeps what it was
            verify[1] = max(0.0, error)
            return
        share = 0.5 if drafted else 1.0
        verify[1] += share * error * max(MIN_WEIGHT, 1 / verify[0])
        if drafted:
            draft[0] += 1
            draft[1] = max(0.0, draft[1] + share * error * max(MIN_WEIGHT, 1 / draft[0]))

    def drafting(self, batch: int, length: int) -> float:
        """Seconds it takes to draft this length for such a batch, 0 while unknown."""
        known = self._draft.get((batch.bit_length(), length)) if length else None
        return known[1] if known else 0.0

    @property
    def switching(self) -> float:
        """Seconds it has cost, on average, to resume drafting."""
        return max(0.0, self._switch[1])
