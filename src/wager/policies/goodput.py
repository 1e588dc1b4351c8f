"""Two published rules Nightjar compares with: DSD's goodput model and TETRIS' token budget."""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from operator import add, mul

import numpy as np

from wager.core import OFF, Arm, Context, Round, Signal
from wager.core.batch import Batch, Choices
from wager.policies.base import Arms, Policy, require
from wager.policies.onthefly import ModelPolicy, only_drafter


class DSD(ModelPolicy):
    """The length of best predicted goodput: average acceptance over a linear model of verification time."""

    # Dynamic speculative decoding / SmartSpec (Liu et al. 2024), its latency model fitted online instead of profiled.
    # Length 0 brings no new acceptance data, so a bad average that turned it off is never corrected.
    learned = ("played", "counts", "verify")

    def __init__(self, arms: Arms, *, cap: float = 0.98, seed: int = 0) -> None:
        super().__init__(arms, cap=cap, seed=seed)
        self.widths = [arm.length + 1 for arm in self.arms]  # tokens verified per request
        self.reset()

    def reset(self) -> None:
        super().reset()
        self.counts: dict[str, list[float]] = {}  # drafter -> [accepted, rejected, draft seconds, draft steps]
        self.verify = [0.0] * 5  # rounds, and sums of x, y, x^2, x y for x = tokens verified and y = seconds

    def choose(self, context: Context) -> Arm:
        slots = self.available(context.arms)
        if (first := self.unplayed(self.played, slots)) is not None:
            return first
        at_zero, per_token = self.latency()
        per_width = per_token * context.batch
        verify = [at_zero + per_width * width for width in range(self.longest + 2)]
        if min(verify) < 1e-9:
            verify = [max(1e-9, seconds) for seconds in verify]
        per_arm = zip(self.tokens, self.drafting, self.widths, strict=True)
        return self.best([tokens / (draft + verify[width]) for tokens, draft, width in per_arm], slots)

    def observe(self, round: Round) -> None:
        self.played[self.slot[round.arm]] = True
        x, y = round.drafted + round.batch, round.verify_seconds
        n, sx, sy, sxx, sxy = self.verify
        self.verify = [n + 1, sx + x, sy + y, sxx + x * x, sxy + x * y]
        drafter = round.arm.drafter
        if round.arm.length:
            more = (round.accepted, round.rejected, round.draft_seconds, round.drafted / round.batch)
            self.counts[drafter] = list(map(add, self.counts.get(drafter, [0.0] * 4), more))
            self.fit(drafter, *self.counts[drafter])

    def latency(self) -> tuple[float, float]:
        """Verification seconds as intercept and slope over the tokens verified, by least squares."""
        n, x, y, xx, xy = self.verify
        if not y:
            return 1.0, 0.0
        variance = xx / n - (x / n) ** 2
        slope = (xy / n - x * y / n**2) / variance if variance > 1e-12 else 0.0
        return (y - slope * x) / n, slope

    def settle(self) -> None:
        for drafter, counts in self.counts.items():
            self.fit(drafter, *counts)


class Tetris(Policy):
    """A token budget over the batch, spent on the drafts most likely to be accepted."""

    # TETRIS (Wu et al. 2025): a draft token is worth the product of the confidences along its chain; since that falls
    # along a chain, taking the best tokens of the batch one by one always takes prefixes.
    needs = frozenset({Signal.HINTS})
    per_request = True
    whole_batch = False
    learned = ("accepted", "rejected")

    def __init__(self, arms: Arms, *, per_request: int = 3, drafter: str = "", seed: int = 0) -> None:
        super().__init__(arms, seed=seed)
        require(per_request >= 0, f"per_request is at least 0 tokens, not {per_request}")
        self.per_request_tokens = per_request
        self.drafter = only_drafter(self.arms, drafter)
        self.reset()

    def reset(self) -> None:
        super().reset()
        self.accepted = self.rejected = 0

    def choose(self, context: Context) -> Arm:
        slots = self.available(context.arms)
        return self.at_most(self._spend([self._confidence(context, slots)])[0], self.drafter, slots)

    def choose_batch(self, batch: Batch) -> Choices:
        """A length for every request, under one token budget."""
        slots = self.available(batch.context.arms if batch.context else self.arms)
        most = self.at_most(self.longest, self.drafter, slots)
        chains: list[list[float]] = [[] for _ in batch.slots]
        if most.drafter == self.drafter and most.length:
            own = self.drafters.index(self.drafter)
            sure = np.nan_to_num(batch.confidence[own])  # a token of unknown confidence ends its chain
            sizes = np.minimum(batch.size[own], np.minimum(batch.limit, most.length)).tolist()
            chains = [row[:size] for row, size in zip(sure.tolist(), sizes, strict=True)]
        # Where a request gets no token and `off` is not available, its arm may be another drafter's.
        arms = [self.at_most(n, self.drafter, slots) for n in self._spend(chains)]
        drafter = [self.drafters.index(arm.drafter) if arm.length else -1 for arm in arms]
        longest = max(arms, key=lambda arm: arm.length, default=OFF)
        return Choices(np.array(drafter, np.int64), np.array([arm.length for arm in arms], np.int64), longest)

    def _spend(self, chains: Sequence[Sequence[float]]) -> list[int]:
        """Tokens of each chain, of which all together take the budget."""
        tokens = [(-worth, i) for i, chain in enumerate(chains) for worth in accumulate(chain, mul) if worth > 0]
        taken = Counter(i for _, i in sorted(tokens)[: self.per_request_tokens * len(chains)])
        return [taken[i] for i in range(len(chains))]

    def observe(self, round: Round) -> None:
        if round.arm.drafter == self.drafter:
            self.accepted += round.accepted
            self.rejected += round.rejected

    def _confidence(self, context: Context, slots: list[int]) -> Sequence[float]:
        """Probability that each further draft token of a request is accepted, given those before it."""
        longest = self.at_most(self.longest, self.drafter, slots)
        if longest.drafter != self.drafter:
            return ()
        hint = context.hints.get(self.drafter)
        if hint is not None:
            return hint.confidence[: longest.length]
        tried = self.accepted + self.rejected
        return [self.accepted / tried if tried else 1.0] * longest.length
