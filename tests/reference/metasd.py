"""References of MetaSD's bandits."""

import math
from collections.abc import Sequence

from reference.history import Rewarded
from wager.core import Arm, Context, Round


class MetaUCB(Rewarded):
    """MetaSD, Algorithm 2: MetaSD-UCB, with the switching cost of section H.1."""

    def __init__(
        self, arms: Sequence[Arm], *, seed: int = 0, beta: float = 0.01, reward: str = "bd", lag_cost: float = 0.0
    ) -> None:
        super().__init__(arms, seed=seed, reward=reward)
        self.beta, self.lag_cost = beta, lag_cost

    def choose(self, context: Context) -> Arm:
        available = self.available(context)
        # lines 2 to 5: every drafter once
        for arm in available:
            if self.count(arm) == 0:
                return arm
        # line 7
        index, spread, log_t = {}, self.spread(), math.log(self.clock())
        for arm in available:
            bonus = self.beta * spread * math.sqrt(2 * log_t / self.count(arm))
            index[arm] = self.mean(arm) + bonus - self.switching_cost(arm, context)
        return self.argmax(index)

    def clock(self) -> float:
        """What stands inside the logarithm."""
        return len(self.history)

    def count(self, arm: Arm) -> float:
        return len(self.rewards_of[arm])

    def mean(self, arm: Arm) -> float:
        """Line 4, then line 9 for every further round."""
        mu, n = 0.0, 0
        for r in self.rewards_of[arm]:
            mu = (mu * n + r) / (n + 1)
            n = n + 1
        return mu

    def switching_cost(self, arm: Arm, context: Context) -> float:
        """H.1: lambda (l(t) - l(tau_i(t))) where the drafter changes."""
        if context.previous is None or context.previous.drafter == arm.drafter:
            return 0.0
        return self.lag_cost * context.lag.get(arm.drafter, 0)


class DiscountedUCB(MetaUCB):
    """MetaSD, Algorithm 6 as Kocsis and Szepesvari (2006) have it: counts are discounted like the rewards."""

    def __init__(
        self,
        arms: Sequence[Arm],
        *,
        seed: int = 0,
        beta: float = 0.01,
        gamma: float = 0.99,
        reward: str = "bd",
        lag_cost: float = 0.0,
    ) -> None:
        super().__init__(arms, seed=seed, beta=beta, reward=reward, lag_cost=lag_cost)
        self.gamma = gamma

    def clock(self) -> float:
        return sum(self.count(arm) for arm in self.arms)

    def count(self, arm: Arm) -> float:
        """N_i = sum over s of gamma^(t-s) [a_s = i]."""
        t = len(self.history)
        return sum(self.gamma ** (t - s) for s in self.times_of[arm])

    def mean(self, arm: Arm) -> float:
        """S_i / N_i with S_i = sum over s of gamma^(t-s) r_s [a_s = i]."""
        t = len(self.history)
        total = sum(self.gamma ** (t - s) * r for s, r in zip(self.times_of[arm], self.rewards_of[arm], strict=True))
        return total / self.count(arm)


class SlidingUCB(MetaUCB):
    """MetaSD, Algorithm 8: sliding-window UCB."""

    def __init__(
        self,
        arms: Sequence[Arm],
        *,
        seed: int = 0,
        beta: float = 0.01,
        window: int = 200,
        reward: str = "bd",
        lag_cost: float = 0.0,
    ) -> None:
        super().__init__(arms, seed=seed, beta=beta, reward=reward, lag_cost=lag_cost)
        self.window = window

    def inside(self, arm: Arm) -> list[float]:
        """The arm's rewards of rounds t - window + 1 to t."""
        t = len(self.history)
        played = zip(self.times_of[arm], self.rewards_of[arm], strict=True)
        return [r for s, r in played if s >= t - self.window + 1]

    def count(self, arm: Arm) -> float:
        """Line 10."""
        return len(self.inside(arm))

    def mean(self, arm: Arm) -> float:
        """Line 9."""
        inside = self.inside(arm)
        return sum(inside) / len(inside)


class MetaEXP3(Rewarded):
    """MetaSD, Algorithm 7: MetaSD-EXP3 (Auer et al., 2002)."""

    def __init__(self, arms: Sequence[Arm], *, seed: int = 0, gamma: float = 0.4, reward: str = "bd") -> None:
        super().__init__(arms, seed=seed, reward=reward)
        self.gamma = gamma
        self.probability: dict[Arm, float] = {}  # p_t of the latest choose
        self.r_hat: dict[Arm, list[float]] = {arm: [] for arm in self.arms}  # r-hat where it is not 0

    def choose(self, context: Context) -> Arm:
        available = self.available(context)
        # lines 1 and 8: log w(i); all weights share a factor that keeps exp from overflowing
        log_w = {arm: sum(self.gamma * r_hat / len(self.arms) for r_hat in self.r_hat[arm]) for arm in available}
        largest = max(log_w.values())
        w = {arm: math.exp(log_w[arm] - largest) for arm in available}
        # line 3
        total = sum(w.values())
        self.probability = {arm: (1 - self.gamma) * w[arm] / total + self.gamma / len(available) for arm in available}
        # line 4
        return self.categorical(self.probability)

    def observe(self, round: Round) -> None:
        super().observe(round)
        # line 7
        self.r_hat[round.arm].append(self.units[-1] / self.probability.get(round.arm, 1 / len(self.arms)))


class Halving(Rewarded):
    """MetaSD, Algorithm 5 as Karnin et al. (2013) have it: the better half stays."""

    def __init__(
        self, arms: Sequence[Arm], *, seed: int = 0, period: int = 1, budget: int = 0, reward: str = "bd"
    ) -> None:
        super().__init__(arms, seed=seed, reward=reward)
        self.period, self.budget = period, budget

    def choose(self, context: Context) -> Arm:
        available = self.available(context)
        survivors, pulls = self.phase()
        if len(survivors) == 1 and survivors[0] in available:
            return survivors[0]
        if len(survivors) > 1:
            for arm in survivors:
                if arm in available and len(pulls[arm]) < self.pulls_each(survivors):
                    return arm
        return self.argmax({arm: self.mean_of(arm) for arm in available})

    def pulls_each(self, survivors: list[Arm]) -> int:
        """Line 3: n_r; in the experiments (F.4) the period."""
        if not self.budget:
            return self.period
        phases = math.ceil(math.log2(len(self.arms)))
        return max(1, math.floor(self.budget / (len(survivors) * phases)))

    def phase(self) -> tuple[list[Arm], dict[Arm, list[float]]]:
        """Play the history through: the arms still in, and the rewards each of them got in the phase under way."""
        survivors = list(self.arms)  # line 1
        pulls: dict[Arm, list[float]] = {arm: [] for arm in survivors}
        for past, reward in zip(self.history, self.rewards, strict=True):
            if len(survivors) == 1:
                break
            if past.arm in survivors and len(pulls[past.arm]) < self.pulls_each(survivors):
                pulls[past.arm].append(reward)
            if all(len(pulls[arm]) == self.pulls_each(survivors) for arm in survivors):
                survivors = self.half(survivors, {arm: sum(pulls[arm]) for arm in survivors})
                pulls = {arm: [] for arm in survivors}
        return survivors, pulls

    def half(self, survivors: list[Arm], total: dict[Arm, float]) -> list[Arm]:
        """Lines 4 to 6: the ceil(|S|/2) arms with the largest sums, in arm order."""
        ranked = sorted(survivors, key=lambda arm: (-total[arm], survivors.index(arm)))
        kept = ranked[: math.ceil(len(survivors) / 2)]
        return [arm for arm in survivors if arm in kept]


class PETC(Halving):
    """MetaSD, Algorithm 4: pure exploration then commit, B_0 = c ln B (Theorem 8)."""

    def __init__(
        self, arms: Sequence[Arm], *, seed: int = 0, c: float = 10.0, tokens: int = 20000, reward: str = "bd"
    ) -> None:
        super().__init__(arms, seed=seed, budget=max(1, math.ceil(c * math.log(tokens))), reward=reward)
