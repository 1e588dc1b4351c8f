"""MetaSD: UCB with alignment feedback, its two forms for changing text, and EXP3."""

from collections import deque
from math import log, sqrt
from typing import ClassVar

from wager.core import Arm, Context, Round
from wager.policies.banditspec import EXP3Spec
from wager.policies.base import Arms, RewardPolicy, require


class MetaUCB(RewardPolicy):
    """UCB1 over drafters, fed by how well their distributions align with the target's."""

    # MetaSD Alg. 2: argmax mean_i + beta * sqrt(2 ln t / n_i), every arm once first.
    # Section H.1: a drafter that is not the previous one costs lag_cost per token it must catch up on.
    per_text = True
    learned: ClassVar[tuple[str, ...]] = ("spread", "rounds", "means", "counts")

    def __init__(
        self, arms: Arms, *, beta: float = 0.01, reward: str = "bd", lag_cost: float = 0.0, seed: int = 0
    ) -> None:
        super().__init__(arms, reward=reward, seed=seed)
        require(beta >= 0 and lag_cost >= 0, f"beta and lag_cost are at least 0, not {beta} and {lag_cost}")
        self.beta, self.lag_cost = beta, lag_cost
        self.reset()

    def reset(self) -> None:
        super().reset()
        self.rounds = 0.0  # t
        self.means = [0.0] * len(self.arms)
        self.counts = [0.0] * len(self.arms)  # n

    def choose(self, context: Context) -> Arm:
        slots = self.available(context.arms)
        if (first := self.unplayed(self.counts, slots)) is not None:
            return first
        bonus = self.beta * self.spread * sqrt(2 * log(max(1.0, self.rounds)))
        index = [mean + bonus / sqrt(n or 1.0) for mean, n in zip(self.means, self.counts, strict=True)]
        if self.lag_cost and context.previous is not None:
            last, lag = context.previous.drafter, context.lag
            for i, arm in enumerate(self.arms):
                if arm.drafter != last:
                    index[i] -= self.lag_cost * lag.get(arm.drafter, 0)
        return self.best(index, slots)

    def observe(self, round: Round) -> None:
        i = self.slot[round.arm]
        self.rounds += 1
        n = self.counts[i]
        self.means[i] = (self.means[i] * n + self.value(round)) / (n + 1)
        self.counts[i] = n + 1


class DiscountedUCB(MetaUCB):
    """UCB that forgets at a steady rate, for text whose best drafter changes."""

    # MetaSD Alg. 6, with the discounted counts of the original (Kocsis & Szepesvári 2006): as printed it divides a
    # discounted sum by an undiscounted count, which drives every mean to zero.
    def __init__(self, arms: Arms, *, beta: float = 0.01, gamma: float = 0.99, reward: str = "bd",
                 lag_cost: float = 0.0, seed: int = 0) -> None:  # fmt: skip
        require(0 < gamma <= 1, f"gamma is a discount above 0 and at most 1, not {gamma}")
        self.gamma = gamma
        super().__init__(arms, beta=beta, reward=reward, lag_cost=lag_cost, seed=seed)

    def observe(self, round: Round) -> None:
        # An arm that was not played for very long keeps a trace: its count never becomes 0.
        self.counts = [n and max(self.gamma * n, 1e-200) for n in self.counts]
        super().observe(round)
        self.rounds = sum(self.counts)


class SlidingUCB(MetaUCB):
    """UCB over the last rounds only, for text whose best drafter changes."""

    # MetaSD Alg. 8 (Garivier & Moulines 2011).
    learned = (*MetaUCB.learned, "recent", "kept")

    def __init__(self, arms: Arms, *, beta: float = 0.01, window: int = 200, reward: str = "bd",
                 lag_cost: float = 0.0, seed: int = 0) -> None:  # fmt: skip
        require(window >= 1, f"window is at least 1 round, not {window}")
        self.window = window
        super().__init__(arms, beta=beta, reward=reward, lag_cost=lag_cost, seed=seed)

    def reset(self) -> None:
        super().reset()
        self.recent: deque[int] = deque()  # arms of the last rounds
        self.kept: list[deque[float]] = [deque() for _ in self.arms]  # their rewards, per arm

    def observe(self, round: Round) -> None:
        i = self.slot[round.arm]
        self.rounds += 1
        self.recent.append(i)
        self.kept[i].append(self.value(round))
        if len(self.recent) > self.window:
            gone = self.recent.popleft()
            self.kept[gone].popleft()
            self._refresh(gone)
        self._refresh(i)

    def _refresh(self, i: int) -> None:
        kept, n = self.kept[i], len(self.kept[i])
        self.counts[i] = n
        self.means[i] = sum(kept) / n if n else 0.0


class MetaEXP3(EXP3Spec):
    """Exponential weights on alignment rewards, with steady exploration."""

    # MetaSD Alg. 7 (Auer et al. 2002); `scores` holds the logarithms of the weights w.
    def __init__(self, arms: Arms, *, gamma: float = 0.4, reward: str = "bd", seed: int = 0) -> None:
        require(0 < gamma <= 1, f"gamma is above 0 and at most 1, not {gamma}")
        self.gamma = gamma
        super().__init__(arms, reward=reward, seed=seed)

    def choose(self, context: Context) -> Arm:
        return self.draw(self.available(context.arms), 1.0, self.gamma)

    def observe(self, round: Round) -> None:
        self.rounds += 1
        gain = self.gamma * self.unit(round) / len(self.arms)
        self.scores[self.slot[round.arm]] += gain / self.chance(round.arm)
