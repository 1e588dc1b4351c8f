"""What every reference shares: the whole history in lists, and the few rules that hold for all policies."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from wager.core import Arm, Context, Round

Item = TypeVar("Item")


def acceptance_estimate(rounds: Sequence[Round]) -> float:
    """On-the-fly adaptation, eq. 2: accepted / (accepted + drafts cut short)."""
    accepted = sum(past.accepted for past in rounds)
    rejected = sum(past.rejected for past in rounds)
    return accepted / (accepted + rejected) if accepted + rejected > 0 else 0.0


def expected_tokens(alpha: float, length: int) -> float:
    """On-the-fly adaptation, eq. 9: 1 + alpha + ... + alpha^length."""
    return sum(alpha**j for j in range(length + 1))


class Reference:
    """A policy that remembers every round and works everything out anew at each decision."""

    def __init__(self, arms: Sequence[Arm], *, seed: int = 0) -> None:
        self.arms = list(arms)
        self.longest = max(arm.length for arm in self.arms)  # L
        self.rng = np.random.default_rng(seed)
        self.history: list[Round] = []
        self.rounds_of: dict[Arm, list[Round]] = {arm: [] for arm in self.arms}  # the same, arm by arm
        self.times_of: dict[Arm, list[int]] = {arm: [] for arm in self.arms}  # and their numbers, from 1
        self.last_index: dict[Arm, float] = {}  # of the last decision that was an argmax; empty for any other

    def choose(self, context: Context) -> Arm:
        raise NotImplementedError

    def observe(self, round: Round) -> None:
        self.history.append(round)
        self.rounds_of[round.arm].append(round)
        self.times_of[round.arm].append(len(self.history))

    def available(self, context: Context) -> list[Arm]:
        self.last_index = {}
        return [arm for arm in self.arms if arm in context.arms]

    def first_unplayed(self, available: list[Arm]) -> Arm | None:
        for arm in available:
            if not self.rounds_of[arm]:
                return arm
        return None

    def drafters(self, arms: Sequence[Arm]) -> list[str]:
        """Names of the drafters other than off, in arm order."""
        names: list[str] = []
        for arm in arms:
            if arm.drafter != "off" and arm.drafter not in names:
                names.append(arm.drafter)
        return names

    def argmax(self, index: Mapping[Arm, float]) -> Arm:
        """Largest index; ties go to the earliest arm."""
        self.last_index = dict(index)
        best = None
        for arm in self.arms:
            if arm in index and (best is None or index[arm] > index[best]):
                best = arm
        assert best is not None
        return best

    def uniform(self, items: Sequence[Item]) -> Item:
        return items[int(self.rng.random() * len(items))]

    def coin(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def categorical(self, probability: Mapping[Arm, float]) -> Arm:
        """First arm whose cumulative probability exceeds one uniform draw, else the last."""
        u, total = self.rng.random(), 0.0
        for arm in probability:
            total += probability[arm]
            if total > u:
                return arm
        return arm


def shortest(available: Sequence[Arm]) -> Arm:
    """The shortest available arm, the earliest on ties."""
    best = available[0]
    for arm in available:
        if arm.length < best.length:
            best = arm
    return best


def longest_of(drafter: str, available: Sequence[Arm], limit: float = float("inf")) -> Arm | None:
    """The drafter's longest available arm no longer than the limit, the earliest on ties."""
    best = None
    for arm in available:
        if arm.drafter == drafter and arm.length <= limit and (best is None or arm.length > best.length):
            best = arm
    return best


def off_or_shortest(available: Sequence[Arm]) -> Arm:
    """Plain decoding where it is available, else the shortest arm."""
    for arm in available:
        if arm.drafter == "off":
            return arm
    return shortest(available)


class Rewarded(Reference):
    """A reference that learns from one number per round."""

    def __init__(self, arms: Sequence[Arm], *, seed: int = 0, reward: str) -> None:
        super().__init__(arms, seed=seed)
        self.reward = reward
        self.rewards: list[float] = []  # one per round of the history
        self.rewards_of: dict[Arm, list[float]] = {arm: [] for arm in self.arms}  # the same, arm by arm
        self.units: list[float] = []  # the same as seen when the round came in, brought to [0, 1]

    def observe(self, round: Round) -> None:
        super().observe(round)
        self.rewards.append(self.value(round))
        self.rewards_of[round.arm].append(self.rewards[-1])
        floor = 1.0 if self.reward == "tokens" else 0.0
        self.units.append((self.rewards[-1] - floor) / self.spread())

    def value(self, round: Round) -> float:
        block_efficiency = round.accepted / (self.longest * round.batch) if self.longest else 0.0
        if self.reward == "tokens":  # BanditSpec's Y
            return round.accepted / round.batch + 1
        if self.reward == "be":  # MetaSD's N_acc / N_max
            return block_efficiency
        if self.reward == "bd":  # MetaSD, eq. 4
            if round.overlap and round.arm.tree:  # of one path through the tree, as if it were as deep there
                return float(np.mean(round.overlap)) * round.arm.length / self.longest
            return sum(round.overlap) / self.longest if round.overlap else block_efficiency
        if self.reward == "acceptance":  # on-the-fly adaptation, Alg. 2, line 18
            return round.accepted / round.drafted if round.drafted else 0.0
        assert self.reward == "goodput"  # Nightjar's tokens per second
        seconds = round.draft_seconds + round.verify_seconds + round.lag_seconds
        return round.emitted / (seconds if seconds > 0 else 1.0)

    def spread(self) -> float:
        """Range of the reward."""
        if self.reward == "tokens":
            return float(max(self.longest, 1))
        if self.reward == "goodput":
            return max(self.rewards, default=0.0)
        return 1.0

    def mean_of(self, arm: Arm) -> float:
        values = self.rewards_of[arm]
        return sum(values) / len(values) if values else 0.0
