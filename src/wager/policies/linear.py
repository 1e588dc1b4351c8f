"""Linear contextual bandits with the batch size as context."""

from math import sqrt
from operator import add

from wager.core import Arm, Context, Round
from wager.policies.base import Arms, RewardPolicy, require


class LinUCB(RewardPolicy):
    """Optimism in a linear model of the reward over the batch size, one model per arm."""

    # Li et al. 2010, disjoint models; x = (1, batch / batch_scale), A = I + sum x x', theta = A^-1 sum r x.
    # The prior takes rewards to be about 1 in size, so the bonus is in units of the largest reward seen. Nothing is
    # seen at first, so every arm is played once. alpha = 1 + sqrt(ln(2/delta)/2) for delta = 0.1 (their section 3.1): a
    # smaller one, such as 0.5, leaves an arm of few rounds, whose mean the prior holds near 0, below the first played.
    learned = ("spread", "pulls", "gram", "sums", "models")

    def __init__(
        self, arms: Arms, *, alpha: float = 2.22, batch_scale: float = 16.0, reward: str = "goodput", seed: int = 0
    ) -> None:
        super().__init__(arms, reward=reward, seed=seed)
        require(alpha >= 0 and batch_scale > 0, f"alpha and batch_scale are positive, not {alpha} and {batch_scale}")
        self.width, self.batch_scale = alpha, batch_scale
        self.reset()

    def reset(self) -> None:
        super().reset()
        k = len(self.arms)
        self.pulls = [0] * k
        self.gram = [[1.0, 0.0, 1.0] for _ in range(k)]  # A as [A00, A01, A11]
        self.sums = [[0.0, 0.0] for _ in range(k)]
        self.models = [(0.0, 0.0, 1.0, 0.0, 1.0)] * k  # theta0, theta1, and A^-1 as 00, 01, 11

    def choose(self, context: Context) -> Arm:
        slots = self.available(context.arms)
        if (first := self.unplayed(self.pulls, slots)) is not None:
            return first
        x = context.batch / self.batch_scale
        # mean theta.x of each arm, and so many times its standard deviation sqrt(x' A^-1 x)
        index = [
            t0 + t1 * x + z * sqrt(flat + 2 * cross * x + steep * x * x)
            for (t0, t1, flat, cross, steep), z in zip(self.models, self.bonus(), strict=True)
        ]
        return self.best(index, slots)

    def bonus(self) -> list[float]:
        """How many standard deviations to add to each arm."""
        return [self.width * self.spread] * len(self.arms)

    def observe(self, round: Round) -> None:
        i = self.slot[round.arm]
        x = round.batch / self.batch_scale
        reward = self.value(round)
        self.pulls[i] += 1
        gram = self.gram[i] = list(map(add, self.gram[i], (1.0, x, x * x)))
        sums = self.sums[i] = list(map(add, self.sums[i], (reward, reward * x)))
        det = gram[0] * gram[2] - gram[1] * gram[1]
        flat, cross, steep = gram[2] / det, -gram[1] / det, gram[0] / det
        theta = flat * sums[0] + cross * sums[1], cross * sums[0] + steep * sums[1]
        self.models[i] = (*theta, flat, cross, steep)


class LinTS(LinUCB):
    """Thompson sampling in a linear model of the reward over the batch size, one model per arm."""

    # Agrawal & Goyal 2013. With one model per arm, drawing theta from N(theta, v^2 A^-1) and drawing theta.x are alike.
    # v = R sqrt(9 d ln(t/delta)) there, with R = 1/2 for rewards in [0, 1]; here R alone, as is usual in practice.
    def __init__(
        self, arms: Arms, *, v: float = 0.5, batch_scale: float = 16.0, reward: str = "goodput", seed: int = 0
    ) -> None:
        super().__init__(arms, alpha=v, batch_scale=batch_scale, reward=reward, seed=seed)

    def bonus(self) -> list[float]:
        scale = self.width * self.spread
        return [scale * z for z in self.rng.standard_normal(len(self.arms)).tolist()]
