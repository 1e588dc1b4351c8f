"""References of BanditSpec's two arm selection algorithms."""

import math
from collections.abc import Sequence

from reference.history import Rewarded
from wager.core import Arm, Context, Round


class UCBSpec(Rewarded):
    """BanditSpec, Algorithm 4 (in full Algorithm 8): UCBSpec."""

    def __init__(self, arms: Sequence[Arm], *, seed: int = 0, delta: float = 0.5, reward: str = "tokens") -> None:
        super().__init__(arms, seed=seed, reward=reward)
        self.delta = delta

    def choose(self, context: Context) -> Arm:
        available = self.available(context)
        # line 1: every arm once
        unplayed = self.first_unplayed(available)
        if unplayed is not None:
            return unplayed
        # lines 3 and 4
        t = len(self.history)
        ucb = {}
        for arm in available:
            n = len(self.rewards_of[arm])
            ucb[arm] = self.mean_of(arm) + self.radius(n, t)
        return self.argmax(ucb)

    def radius(self, n: int, t: int) -> float:
        """cr_{i,t}, with the reward's range for L."""
        k = len(self.arms)
        inside = 1 + 2 * math.log(k * t**2 * (1 + n) ** 0.5 / self.delta)
        return self.spread() / 2 * math.sqrt((1 + n) / n**2 * inside)


class EXP3Spec(Rewarded):
    """BanditSpec, Algorithm 5 (in full Algorithm 9): EXP3Spec."""

    def __init__(self, arms: Sequence[Arm], *, seed: int = 0, reward: str = "tokens") -> None:
        super().__init__(arms, seed=seed, reward=reward)
        self.probability: dict[Arm, float] = {}  # p_t of the latest choose
        self.z: dict[Arm, list[float]] = {arm: [] for arm in self.arms}  # Z-hat where it is not 0

    def choose(self, context: Context) -> Arm:
        available = self.available(context)
        k, t = len(self.arms), len(self.history) + 1
        # Algorithm 9's learning rate
        eta = math.sqrt(math.log(k) / (t * k))
        # line 4; the smallest sum is taken from all of them, which leaves p as it is and keeps exp from underflowing
        sums = {arm: sum(self.z[arm]) for arm in available}
        smallest = min(sums.values())
        weight = {arm: math.exp(-eta * (sums[arm] - smallest)) for arm in available}
        total = sum(weight.values())
        self.probability = {arm: weight[arm] / total for arm in available}
        # line 5
        return self.categorical(self.probability)

    def observe(self, round: Round) -> None:
        super().observe(round)
        # line 8: (L + 1 - Y) / (L p), that is the unit loss over p; an arm the engine put in its place may have no p
        p = self.probability.get(round.arm, 1 / len(self.arms))
        self.z[round.arm].append((1 - self.units[-1]) / max(p, 1e-12))
