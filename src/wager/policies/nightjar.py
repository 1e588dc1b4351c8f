"""Nightjar and the ADA-BINGREEDY it grew from."""

import math
from collections import defaultdict
from functools import partial
from typing import ClassVar

from wager.core import Arm, Context, Round
from wager.core.rewards import timed
from wager.policies.base import Arms, Learner, RewardPolicy, require


class Situation(Learner):
    """What is known of the arms, and when to explore: blocks of doubling size, cut into bins that explore with
    probability 1/sqrt(bin)."""

    # Nightjar Alg. 1, lines 6 to 8 and 16 to 22.
    learned = ("block", "bin", "round", "exploring", "pulls", "means")

    def __init__(self, arms: int) -> None:
        self.block = self.bin = self.round = 1  # j, b, tau
        self.exploring: bool | None = None  # this bin's type; None until its first round draws it
        self.pulls, self.means = [0] * arms, [0.0] * arms  # rounds and mean reward of each arm (g in eq. 3)

    def advance(self) -> None:
        """One round has been played."""
        side = math.sqrt(2 ** (self.block - 1))  # sqrt(H), H = 2^(j-1)
        self.round += 1
        if self.round > side:
            self.bin, self.round, self.exploring = self.bin + 1, 1, None
            if self.bin > side:
                self.block, self.bin = self.block + 1, 1


class AdaBinGreedy(RewardPolicy):
    """Greedy on the mean reward between scheduled bins of uniform exploration; ignores batch size and cost."""

    # Luo et al. 2018, as Nightjar uses it: Alg. 1 with one state for all batch sizes and without eq. 3's second term.
    learned: ClassVar[tuple[str, ...]] = ("spread", "situations")
    elements: ClassVar = {"situations": Situation}

    def __init__(self, arms: Arms, *, reward: str = "goodput", seed: int = 0) -> None:
        super().__init__(arms, reward=reward, seed=seed)
        self.config = len(self.arms)  # what a situation is made with
        self.reset()

    def reset(self) -> None:
        super().reset()
        self.situations: dict[int, Situation] = defaultdict(partial(Situation, len(self.arms)))  # by key

    def choose(self, context: Context) -> Arm:
        slots = self.available(context.arms)
        now = self.situations[self.key(context.batch)]
        if now.exploring is None:
            now.exploring = bool(self.rng.random() < 1 / math.sqrt(now.bin))
        # g starts at 0, so 1/g is infinite for an arm never tried: only tried arms can be exploited.
        if not now.exploring and (tried := [i for i in slots if now.pulls[i]]):
            return self.arms[self.greedy(context, tried, now.means)]
        return self.uniform(slots)

    def observe(self, round: Round) -> None:
        now, i = self.situations[self.key(round.batch)], self.slot[round.arm]
        now.pulls[i] += 1
        now.means[i] += (self.value(round) - now.means[i]) / now.pulls[i]
        now.advance()

    def key(self, batch: int) -> int:
        """Batch sizes of one key are one situation."""
        return 0

    def greedy(self, context: Context, tried: list[int], means: list[float]) -> int:
        """Place of the arm to exploit."""
        return max(tried, key=means.__getitem__)


class Nightjar(AdaBinGreedy):
    """The best length for each batch size by measured goodput, the cost of resuming drafting included."""

    # Nightjar Alg. 1 and eq. 3. Its table c_prefill(L_max, B) is not typed in but learned from rounds that paid lag.
    learned = (*AdaBinGreedy.learned, "catch_up")

    def __init__(self, arms: Arms, *, max_batch: int = 512, seed: int = 0) -> None:
        require(max_batch >= 1, f"max_batch is at least 1, not {max_batch}")
        self.max_batch = max_batch
        super().__init__(arms, reward="goodput", seed=seed)

    def reset(self) -> None:
        super().reset()
        # (bits of lag, bits of batch size) -> (rounds, mean seconds): the table in powers of two
        self.catch_up: dict[tuple[int, int], tuple[int, float]] = {}

    def observe(self, round: Round) -> None:
        super().observe(round)
        if round.lag:
            key = (round.lag.bit_length(), round.batch.bit_length())
            n, mean = self.catch_up.get(key, (0, 0.0))
            self.catch_up[key] = (n + 1, mean + (round.lag_seconds - mean) / (n + 1))

    def value(self, round: Round) -> float:
        """Goodput without the seconds of catching up: those are eq. 3's second term."""
        return round.emitted / timed(round.draft_seconds + round.verify_seconds)

    def key(self, batch: int) -> int:
        return min(batch, self.max_batch)

    def greedy(self, context: Context, tried: list[int], means: list[float]) -> int:
        # eq. 3: argmin 1/g + [drafter was idle] c_prefill / length
        previous, arms = context.previous, self.arms
        idle: dict[str, float] = {}  # seconds of catching up, for drafters not used in the previous round
        if previous is not None:
            lags = context.lag.items()
            idle = {name: self.prefill(lag, context.batch) for name, lag in lags if lag and name != previous.drafter}
        if not idle:
            return max(tried, key=means.__getitem__)
        return min(tried, key=lambda i: 1 / means[i] + idle.get(arms[i].drafter, 0.0) / max(1, arms[i].length))

    def prefill(self, lag: int, batch: int) -> float:
        """Seconds to catch up on so much lag at this batch size, from the nearest case measured."""
        if not self.catch_up:
            return 0.0
        lags, sizes = lag.bit_length(), batch.bit_length()
        nearest = min(self.catch_up, key=lambda k: (abs(k[0] - lags) + abs(k[1] - sizes), k))
        return self.catch_up[nearest][1]
