"""Stronger bandits: KL-UCB and Thompson sampling for the truncated geometric.

Both see a round as a run of Bernoulli trials: every accepted token a success, the rejection that ended the run a
failure. That is the truncated geometric's likelihood (BanditSpec eq. 4) and uses more of a round than its length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from wager.core import Arm, Context, Round
from wager.policies.base import RewardPolicy, expected_tokens, require


class TrialPolicy(RewardPolicy):
    """Counts successes and failures per arm, and seconds per round where goodput is the goal."""

    allowed = ("tokens", "goodput")
    learned: ClassVar[tuple[str, ...]] = ("spread", "rounds", "pulls", "wins", "losses", "seconds")

    def __init__(self, arms: Sequence[Arm], *, reward: str = "tokens", seed: int = 0) -> None:
        super().__init__(arms, reward=reward, seed=seed)
        self.timed = reward == "goodput"

    def reset(self) -> None:
        super().reset()
        k = len(self.arms)
        self.rounds = 0
        self.pulls = [0] * k
        self.wins = [0] * k
        self.losses = [0] * k
        self.seconds = [1.0] * k  # mean per round; stays 1 where the goal is tokens

    def observe(self, round: Round) -> None:
        i = self.slot[round.arm]
        self.rounds += 1
        self.pulls[i] += 1
        self.wins[i] += round.accepted
        self.losses[i] += round.rejected
        if self.timed:
            mean = self.seconds[i] if self.pulls[i] > 1 else 0.0
            self.seconds[i] = mean + ((round.seconds or 1.0) - mean) / self.pulls[i]

    def first_unplayed(self, context: Context) -> Arm | None:
        """The first available arm that was never played."""
        pulls = self.pulls
        return next((self.arms[i] for i in self.available(context.arms) if not pulls[i]), None)


class KLUCB(TrialPolicy):
    """Optimism with the tightest confidence bound for a chain of accept-or-reject trials."""

    # Garivier & Cappé 2011. U = max{q : N kl(p, q) <= ln t + c ln ln t}; the index is the tokens a round would emit
    # at acceptance U. Solving for every U every round is not needed: a bound computed for a slightly later t holds
    # until then, so only arms whose bound beats the leader are solved exactly. The decision is the same.
    AHEAD = 0.05  # how far ahead of ln t + c ln ln t bounds are computed

    def __init__(self, arms: Sequence[Arm], *, c: float = 0.0, reward: str = "tokens", seed: int = 0) -> None:
        super().__init__(arms, reward=reward, seed=seed)
        require(c >= 0, f"c is at least 0, not {c}")
        self.c = c
        self.reset()

    def reset(self) -> None:
        super().reset()
        self.bounds = [math.inf] * len(self.arms)  # no index is larger than this ...
        self.valid = 0.0  # ... until the exploration level passes this

    def choose(self, context: Context) -> Arm:
        first = self.first_unplayed(context)
        if first is not None:
            return first
        log = math.log(self.rounds)
        level = log + self.c * math.log(max(log, 1.0))
        if level > self.valid:
            self.valid = level + self.AHEAD
            self.bounds = [self.index(i, self.valid) for i in range(len(self.arms))]
        slots, bounds = self.available(context.arms), self.bounds
        leader = max(slots, key=bounds.__getitem__)
        best = self.index(leader, level)
        for i in slots:
            if i != leader and (bounds[i] > best or (bounds[i] == best and i < leader)):
                exact = self.index(i, level)
                if exact > best or (exact == best and i < leader):
                    leader, best = i, exact
        return self.arms[leader]

    def observe(self, round: Round) -> None:
        super().observe(round)
        i = self.slot[round.arm]
        self.bounds[i] = self.index(i, self.valid)

    def index(self, i: int, level: float) -> float:
        """Tokens (per second) of arm i at the upper confidence bound of its acceptance."""
        length = self.arms[i].length
        tokens = expected_tokens(upper_bound(self.wins[i], self.losses[i], level), length) if length else 1.0
        return tokens / self.seconds[i]


class Thompson(TrialPolicy):
    """Plays each arm as often as it is likely to be the best, under a Beta belief per token."""

    FEW = 16  # arms up to which single draws are faster than one draw of an array

    def __init__(self, arms: Sequence[Arm], *, reward: str = "tokens", seed: int = 0) -> None:
        super().__init__(arms, reward=reward, seed=seed)
        self.widths = [arm.length + 1 for arm in self.arms]
        self.reset()

    def reset(self) -> None:
        super().reset()
        self.beliefs = np.ones((2, len(self.arms)))  # the parameters of each arm's Beta

    def choose(self, context: Context) -> Arm:
        if self.timed:
            first = self.first_unplayed(context)
            if first is not None:
                return first
        slots = self.available(context.arms)
        if len(self.arms) > self.FEW:
            return self.best(self._draw_all(), slots)
        beta, widths, seconds = self.rng.beta, self.widths, self.seconds
        leader, best = -1, -1.0
        for i in slots:
            theta = beta(self.wins[i] + 1, self.losses[i] + 1)
            tokens = (1 - theta ** widths[i]) / (1 - theta) if theta < 1 else widths[i]
            if tokens / seconds[i] > best:
                leader, best = i, tokens / seconds[i]
        return self.arms[leader]

    def observe(self, round: Round) -> None:
        super().observe(round)
        i = self.slot[round.arm]
        self.beliefs[0, i] = self.wins[i] + 1
        self.beliefs[1, i] = self.losses[i] + 1

    def _draw_all(self) -> list[float]:
        """The same for every arm with arrays: Beta(a, b) is G(a)/(G(a) + G(b)) for gamma variates G."""
        won, lost = self.rng.standard_gamma(self.beliefs)
        theta = won / (won + lost)
        tokens = (1 - theta**self.widths) / np.maximum(1 - theta, 1e-16)
        index: list[float] = (tokens / self.seconds if self.timed else tokens).tolist()
        return index

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self.beliefs = np.array([self.wins, self.losses]) + 1.0


def upper_bound(successes: float, failures: float, level: float) -> float:
    """Largest acceptance q with N kl(p, q) <= level, for p = successes / N and N trials."""
    n = successes + failures
    if n == 0:
        return 1.0
    p, goal = successes / n, level / n
    if failures == 0 or goal <= 0:
        return p
    if successes == 0:
        return -math.expm1(-goal)
    # Newton from the right of the root: kl is convex, so the steps only ever come nearer. Two starts lie to the right:
    # kl(p, q) >= (q - p)^2 / 2m with m the largest x(1 - x) on [p, 1], and
    # kl(p, q) >= p log p + (1 - p) log((1 - p)/(1 - q)), which keeps q below 1.
    entropy = p * math.log(p)
    most = p * (1 - p) if p > 0.5 else 0.25
    q = min(p + math.sqrt(2 * most * goal), 1 - (1 - p) * math.exp((entropy - goal) / (1 - p)))
    constant = entropy + (1 - p) * math.log1p(-p) - goal
    for _ in range(60):
        step = (constant - p * math.log(q) - (1 - p) * math.log1p(-q)) * q * (1 - q) / (q - p)
        q -= step
        if abs(step) < 1e-13:
            break
    return q
