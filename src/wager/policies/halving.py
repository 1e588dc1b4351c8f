"""MetaSD's elimination rules: few switches, then commit."""

import math

from wager.core import Arm, Context, Round
from wager.policies.base import Arms, RewardPolicy, require


class Halving(RewardPolicy):
    """Sequential halving: play all arms alike, drop the worse half, until one is left for good."""

    # MetaSD Alg. 5, with the phases and the surviving half of the original (Karnin et al. 2013): as printed it keeps
    # the half with the smaller rewards. A phase is `period` rounds of every surviving arm, 1 in MetaSD's experiments
    # (F.4), or what a `budget` of rounds over all phases leaves it (line 3).
    per_text = True
    learned = ("spread", "alive", "pulls", "sums", "all_pulls", "all_sums")

    def __init__(self, arms: Arms, *, period: int = 1, budget: int = 0, reward: str = "bd", seed: int = 0) -> None:
        super().__init__(arms, reward=reward, seed=seed)
        require(period >= 1, f"period is at least 1 round, not {period}")
        require(budget >= 0, f"budget is at least 1 round, or 0 to go by the period, not {budget}")
        self.period, self.budget = period, budget
        self.phases = max(1, math.ceil(math.log2(len(self.arms))))
        self.reset()

    def reset(self) -> None:
        super().reset()
        k = len(self.arms)
        self.alive = list(range(k))
        self.pulls, self.sums = [0] * k, [0.0] * k  # in this phase
        self.all_pulls, self.all_sums = [0] * k, [0.0] * k  # since the start, for when no surviving arm is available

    @property
    def quota(self) -> int:
        """Rounds every surviving arm gets in this phase."""
        return max(1, self.budget // (len(self.alive) * self.phases)) if self.budget else self.period

    def choose(self, context: Context) -> Arm:
        slots = self.available(context.arms)
        done, quota = len(self.alive) == 1, self.quota
        for i in self.alive:
            if i in slots and (done or self.pulls[i] < quota):
                return self.arms[i]
        return self.arms[max(slots, key=lambda i: self.all_sums[i] / max(1, self.all_pulls[i]))]

    def observe(self, round: Round) -> None:
        i = self.slot[round.arm]
        reward = self.value(round)
        self.all_pulls[i] += 1
        self.all_sums[i] += reward
        quota = self.quota
        if len(self.alive) == 1 or i not in self.alive or self.pulls[i] >= quota:
            return
        self.pulls[i] += 1
        self.sums[i] += reward
        if all(self.pulls[j] >= quota for j in self.alive):
            ranked = sorted(self.alive, key=lambda j: -self.sums[j])
            self.alive = sorted(ranked[: math.ceil(len(ranked) / 2)])
            self.pulls, self.sums = [0] * len(self.arms), [0.0] * len(self.arms)


class PETC(Halving):
    """Pure exploration, then commit: halving for a time logarithmic in the text's length, then one drafter."""

    # MetaSD Alg. 4 with B0 = c ln B (Theorem 8).
    def __init__(self, arms: Arms, *, c: float = 10.0, tokens: int = 20000, reward: str = "bd", seed: int = 0) -> None:
        require(c > 0 and tokens >= 1, f"c is above 0 and tokens at least 1, not {c} and {tokens}")
        budget = c * math.log(tokens)
        require(budget < math.inf, f"c times the logarithm of tokens is a number of rounds, and too large for c {c}")
        super().__init__(arms, budget=max(1, math.ceil(budget)), reward=reward, seed=seed)
