"""MetaSD: UCB with alignment feedback, its two forms for changing text, and EXP3."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import log, sqrt
from typing import ClassVar

from wager.core import Arm, Context, Round
from wager.policies.banditspec import EXP3Spec
from wager.policies.base import RewardPolicy, require


class MetaUCB(RewardPolicy):
    """UCB1 over drafters, fed by how well their distributions align with the target's."""

    # MetaSD Alg. 2: argmax mean_i + beta * sqrt(2 ln t / n_i), every arm once first.
    # Section H.1: a drafter that is not the previous one costs lag_cost per token it must catch up on.
    learned: ClassVar[tuple[str, ...]] = ("spread", "rounds", "means", "counts", "doubts")

    def __init__(
        self, arms: Sequence[Arm], *, beta: float = 0.01, reward: str = "bd", lag_cost: float = 0.0, seed: int = 0
    ) -> None:
        super().__init__(arms, reward=reward, seed=seed)
        require(beta >= 0 and lag_cost >= 0, f"beta and lag_cost are at least 0, not {beta} and {lag_cost}")
        self.beta = beta
        self.lag_cost = lag_cost
        self.reset()

    def reset(self) -> None:
        super().reset()
        self.rounds = 0
        self.means = [0.0] * len(self.arms)
        self.counts = [0.0] * len(self.arms)  # n
        self.doubts = [0.0] * len(self.arms)  # 1/sqrt(n)

    def choose(self, context: Context) -> Arm:
        slots = self.available(context.arms)
        first = self.unplayed(self.counts, slots)
        if first is not None:
            return first
        bonus = self.beta * self.spread * self.growth()
        index = [mean + bonus * doubt for mean, doubt in zip(self.means, self.doubts, strict=True)]
        if self.lag_cost and context.previous is not None:
            awake, lag = context.previous.drafter, context.lag
            for i, arm in enumerate(self.arms):
                if arm.drafter != awake:
                    index[i] -= self.lag_cost * lag.get(arm.drafter, 0)
        return self.best(index, slots)

    def growth(self) -> float:
        """What the bonus grows with: sqrt(2 ln t)."""
        return sqrt(2 * log(self.rounds))

    def observe(self, round: Round) -> None:
        i = self.slot[round.arm]
        self.rounds += 1
        n = self.counts[i]
        self.means[i] = (self.means[i] * n + self.value(round)) / (n + 1)
        self.counts[i] = n + 1
        self.doubts[i] = 1 / sqrt(n + 1)


class DiscountedUCB(MetaUCB):
    """UCB that forgets at a steady rate, for text whose best drafter changes."""

    # MetaSD Alg. 6, with the discounted counts of the original (Kocsis & Szepesvári 2006): as printed it divides a
    # discounted sum by an undiscounted count, which drives every mean to zero.
    # Instead of shrinking every old count by gamma, a new one weighs 1/gamma more than the last; ratios are the same.
    learned = (*MetaUCB.learned, "sums", "weight", "total")

    def __init__(
        self,
        arms: Sequence[Arm],
        *,
        beta: float = 0.01,
        gamma: float = 0.99,
        reward: str = "bd",
        lag_cost: float = 0.0,
        seed: int = 0,
    ) -> None:
        require(0 < gamma <= 1, f"gamma is a discount above 0 and at most 1, not {gamma}")
        self.gamma = gamma
        super().__init__(arms, beta=beta, reward=reward, lag_cost=lag_cost, seed=seed)

    def reset(self) -> None:
        super().reset()
        self.sums = [0.0] * len(self.arms)  # of rewards, each times its weight; `counts` are sums of weights
        self.weight = 1.0  # of the latest round
        self.total = 0.0  # of the counts

    def growth(self) -> float:
        # A discounted count is counts[i] / weight, so 1/sqrt of it is sqrt(weight) * doubts[i].
        return sqrt(2 * log(max(1.0, self.total / self.weight)) * self.weight)

    def observe(self, round: Round) -> None:
        i = self.slot[round.arm]
        self.rounds += 1
        self.weight /= self.gamma
        self.total += self.weight
        self.counts[i] += self.weight
        self.sums[i] += self.weight * self.value(round)
        self.means[i] = self.sums[i] / self.counts[i]
        self.doubts[i] = 1 / sqrt(self.counts[i])
        if self.weight > 1e100:
            self._rescale()

    def _rescale(self) -> None:
        """Bring the weights back to 1 before they overflow; an arm not played for very long keeps a trace."""
        self.counts = [count and max(count / self.weight, 1e-100) for count in self.counts]
        self.sums = [mean * count for mean, count in zip(self.means, self.counts, strict=True)]
        self.doubts = [count and 1 / sqrt(count) for count in self.counts]
        self.total, self.weight = sum(self.counts), 1.0


class SlidingUCB(MetaUCB):
    """UCB over the last rounds only, for text whose best drafter changes."""

    # MetaSD Alg. 8 (Garivier & Moulines 2011).
    learned = (*MetaUCB.learned, "recent", "kept")

    def __init__(
        self,
        arms: Sequence[Arm],
        *,
        beta: float = 0.01,
        window: int = 200,
        reward: str = "bd",
        lag_cost: float = 0.0,
        seed: int = 0,
    ) -> None:
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
        self.doubts[i] = 1 / sqrt(n) if n else 0.0


class MetaEXP3(EXP3Spec):
    """Exponential weights on alignment rewards, with steady exploration."""

    # MetaSD Alg. 7 (Auer et al. 2002); `scores` holds the logarithms of the weights w.
    def __init__(self, arms: Sequence[Arm], *, gamma: float = 0.4, reward: str = "bd", seed: int = 0) -> None:
        require(0 < gamma <= 1, f"gamma is above 0 and at most 1, not {gamma}")
        self.gamma = gamma
        super().__init__(arms, reward=reward, seed=seed)

    def choose(self, context: Context) -> Arm:
        return self.draw(self.available(context.arms), 1.0, self.gamma)

    def observe(self, round: Round) -> None:
        self.rounds += 1
        gain = self.gamma * self.unit(round) / len(self.arms)
        self.scores[self.slot[round.arm]] += gain / self.chance(round.arm)
