"""BanditSpec: UCBSpec and EXP3Spec."""

from bisect import bisect
from itertools import accumulate
from math import exp, log, sqrt
from typing import ClassVar

from wager.core import Arm, Context, Round
from wager.policies.base import Arms, RewardPolicy, require

LEAST_CHANCE = 1e-12


class UCBSpec(RewardPolicy):
    """Optimism with a self-normalised confidence radius on the tokens a round brings."""

    # BanditSpec Alg. 4 and 8. With the length scale L/2 and delta = 1/2 (proof of Theorem 4.3) the index of arm i is
    #   mean_i + L/2 * sqrt((1 + n_i)/n_i^2 * (1 + 2 log(K t^2 sqrt(1 + n_i) / delta)))
    per_text = True
    learned = ("spread", "rounds", "pulls", "sums")

    def __init__(self, arms: Arms, *, delta: float = 0.5, reward: str = "tokens", seed: int = 0) -> None:
        super().__init__(arms, reward=reward, seed=seed)
        require(0 < delta <= 1, f"delta is a probability above 0, not {delta}")
        self.delta = delta
        self.reset()

    def reset(self) -> None:
        super().reset()
        self.rounds = 0
        self.pulls, self.sums = [0] * len(self.arms), [0.0] * len(self.arms)

    def choose(self, context: Context) -> Arm:
        slots = self.available(context.arms)
        if (first := self.unplayed(self.pulls, slots)) is not None:
            return first
        scale = self.spread / 2
        constant = 1 + 2 * log(len(self.arms) / self.delta) + 4 * log(self.rounds)
        index = [
            total / n + scale * sqrt((1 + n) / (n * n) * (constant + log(1 + n))) if n else 0.0
            for total, n in zip(self.sums, self.pulls, strict=True)
        ]
        return self.best(index, slots)

    def observe(self, round: Round) -> None:
        i = self.slot[round.arm]
        self.rounds += 1
        self.pulls[i] += 1
        self.sums[i] += self.value(round)


class EXP3Spec(RewardPolicy):
    """Exponential weights on estimated losses, with a rate that needs no horizon; for text that changes."""

    # BanditSpec Alg. 5 and 9: loss (L + 1 - Y)/(L p), which is (1 - unit reward)/p; rate sqrt(log K/(t K)).
    per_text = True
    learned: ClassVar[tuple[str, ...]] = ("spread", "rounds", "scores", "drawn", "chances")

    def __init__(self, arms: Arms, *, reward: str = "tokens", seed: int = 0) -> None:
        super().__init__(arms, reward=reward, seed=seed)
        self.reset()

    def reset(self) -> None:
        super().reset()
        self.rounds = 0
        self.scores = [0.0] * len(self.arms)  # minus the sum of importance-weighted losses
        self.drawn: list[int] = []  # places the latest choice was made from ...
        self.chances: list[float] = []  # ... and their probabilities

    def choose(self, context: Context) -> Arm:
        k = len(self.arms)
        rate = sqrt(log(k) / ((self.rounds + 1) * k))
        return self.draw(self.available(context.arms), rate, 0.0)

    def observe(self, round: Round) -> None:
        self.rounds += 1
        self.scores[self.slot[round.arm]] -= (1 - self.unit(round)) / self.chance(round.arm)

    def draw(self, slots: list[int], rate: float, mix: float) -> Arm:
        """Draw an arm with probability (1 - mix) softmax(rate * scores) + mix uniform."""
        scores = self.scores if len(slots) == len(self.arms) else [self.scores[i] for i in slots]
        top = max(scores)
        weights = [exp(rate * (score - top)) for score in scores]
        share, floor = (1 - mix) / sum(weights), mix / len(slots)
        self.drawn, self.chances = slots, [weight * share + floor for weight in weights]
        drawn = bisect(list(accumulate(self.chances)), self.rng.random())
        return self.arms[slots[min(drawn, len(slots) - 1)]]

    def chance(self, arm: Arm) -> float:
        """How likely the arm was in the latest choice; 1/K for one that could not be drawn."""
        place = self.slot[arm]
        if place not in self.drawn:
            return 1 / len(self.arms)
        # An engine may play an arm that was as good as impossible; one such round must not outweigh all others.
        return max(self.chances[self.drawn.index(place)], LEAST_CHANCE)
