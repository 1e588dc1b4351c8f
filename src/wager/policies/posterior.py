"""Stronger bandits: KL-UCB and Thompson sampling for the truncated geometric.

Both see a round as a run of Bernoulli trials: every accepted token a success, the rejection that ended the run a
failure. That is the truncated geometric's likelihood (BanditSpec eq. 4) and uses more of a round than its length.
"""

import math
from typing import ClassVar

import numpy as np

from wager.core import Arm, Context, Round
from wager.core.rewards import timed
from wager.policies.base import Arms, RewardPolicy, expected_tokens, require

ALMOST_SURE = 1 - 1e-12  # keeps 1 - acceptance from being 0


class TrialPolicy(RewardPolicy):
    """Counts successes and failures per arm, and seconds per round where goodput is the goal."""

    allowed = ("tokens", "goodput")
    learned: ClassVar[tuple[str, ...]] = ("spread", "rounds", "pulls", "wins", "losses", "seconds")

    def __init__(self, arms: Arms, *, reward: str = "tokens", seed: int = 0) -> None:
        super().__init__(arms, reward=reward, seed=seed)
        self.timed = reward == "goodput"

    def reset(self) -> None:
        super().reset()
        k = len(self.arms)
        self.rounds = 0
        self.pulls, self.wins, self.losses = [0] * k, [0] * k, [0] * k
        self.seconds = [1.0] * k  # mean per round; stays 1 where the goal is tokens

    def observe(self, round: Round) -> None:
        i = self.slot[round.arm]
        self.rounds += 1
        self.pulls[i] += 1
        self.wins[i] += round.accepted
        self.losses[i] += round.rejected
        if self.timed:
            mean = self.seconds[i] if self.pulls[i] > 1 else 0.0
            self.seconds[i] = mean + (timed(round.seconds) - mean) / self.pulls[i]

    def _index(self, i: int, acceptance: float) -> float:
        """Tokens (per second) of arm i at this acceptance."""
        return expected_tokens(acceptance, self.arms[i].length) / self.seconds[i]


class KLUCB(TrialPolicy):
    """Optimism with the tightest confidence bound for a chain of accept-or-reject trials."""

    # Garivier & Cappé 2011. U = max{q : N kl(p, q) <= level} with level = ln t + c ln ln t; the index is the tokens a
    # round would emit at acceptance U.
    learned = (*TrialPolicy.learned, "roots")

    def __init__(self, arms: Arms, *, c: float = 0.0, reward: str = "tokens", seed: int = 0) -> None:
        super().__init__(arms, reward=reward, seed=seed)
        require(c >= 0, f"c is at least 0, not {c}")
        self.c = c
        self.reset()

    def reset(self) -> None:
        super().reset()
        self.roots = [1.0] * len(self.arms)  # U when it was last needed: close to what it is now

    def choose(self, context: Context) -> Arm:
        slots = self.available(context.arms)
        if (first := self.unplayed(self.pulls, slots)) is not None:
            return first
        log = math.log(self.rounds)
        level = log + self.c * math.log(max(log, 1.0))
        for i in slots:
            self.roots[i] = upper_bound(self.wins[i], self.losses[i], level, self.roots[i])
        return self.arms[max(slots, key=lambda i: self._index(i, self.roots[i]))]


class Thompson(TrialPolicy):
    """Plays each arm as often as it is likely to be the best, under a Beta belief per token."""

    # A draw stays good until its arm is played again, so the longer an arm waits, the more it draws at a time.
    learned = (*TrialPolicy.learned, "sizes", "drawn")
    BLOCK = 128  # draws at a time, at most

    def __init__(self, arms: Arms, *, reward: str = "tokens", seed: int = 0) -> None:
        super().__init__(arms, reward=reward, seed=seed)
        self.reset()

    def reset(self) -> None:
        super().reset()
        self.sizes = [1] * len(self.arms)  # draws to make when the store is empty
        self.drawn: list[list[float]] = [[] for _ in self.arms]  # indices in store, each used once

    def choose(self, context: Context) -> Arm:
        slots = self.available(context.arms)
        if self.timed and (first := self.unplayed(self.pulls, slots)) is not None:
            return first
        drawn = self.drawn if len(slots) == len(self.arms) else [self.drawn[i] for i in slots]
        index = [store.pop() if store else self._draw(i) for i, store in zip(slots, drawn, strict=True)]
        return self.arms[slots[index.index(max(index))]]

    def observe(self, round: Round) -> None:
        super().observe(round)
        i = self.slot[round.arm]
        self.sizes[i] = 1
        self.drawn[i] = []

    def _draw(self, i: int) -> float:
        """Tokens (per second) of arm i at an acceptance drawn from its posterior Beta(1 + wins, 1 + losses)."""
        a, b, width, size = self.wins[i] + 1.0, self.losses[i] + 1.0, self.arms[i].length + 1, self.sizes[i]
        self.sizes[i] = min(4 * size, self.BLOCK)
        if size == 1:
            return self._index(i, self.rng.beta(a, b))
        thetas = np.minimum(self.rng.beta(a, b, size), ALMOST_SURE)
        self.drawn[i] = ((1 - thetas**width) / (1 - thetas) / self.seconds[i]).tolist()
        return self.drawn[i].pop()


def upper_bound(wins: int, losses: int, level: float, guess: float = 1.0) -> float:
    """Largest acceptance q with N kl(p, q) <= level, for p = wins / N and N trials; a good guess makes it fast."""
    n = wins + losses
    if n == 0:
        return 1.0
    p, goal = wins / n, level / n
    if losses == 0 or goal < 1e-15:  # the root is p to within 1e-7
        return p
    if wins == 0:
        return -math.expm1(-goal)
    log, rest = math.log, 1 - p
    entropy = p * log(p)
    constant = entropy + rest * log(rest) - goal
    # Newton: kl is convex in q, so one step from anywhere right of p ends right of the root, and from there the steps
    # only ever come nearer, squaring the error.
    q = guess
    for _ in range(60):
        if not p < q < 1:
            # The root lies left of two points: kl(p, q) >= (q - p)^2 / 2m with m the largest x(1 - x) on [p, 1], and
            # kl(p, q) >= p log p + (1 - p) log((1 - p)/(1 - q)), which keeps q below 1.
            most = p * rest if p > 0.5 else 0.25
            q = min(p + math.sqrt(2 * most * goal), 1 - rest * math.exp((entropy - goal) / rest))
            if q >= 1:  # the root is as near 1 as no number below it
                return 1.0
        step = (constant - p * log(q) - rest * log(1 - q)) * q * (1 - q) / (q - p)
        q -= step
        if abs(step) < 1e-8 * (1 - q):
            break
    return q
