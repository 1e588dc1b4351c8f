"""Accepted lengths fixed beforehand by nobody's friend (BanditSpec assumption 5.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wager.core import Arm, Context, Round

PATTERNS = {
    "rotate": "the acceptances move on by one arm every `period` rounds",
    "trap": "the arm that is best in the first half of the text is worst in the second",
    "spike": "the last arm is worst but for one round in `period`, in which everything it drafts is accepted",
}


@dataclass(frozen=True, slots=True)
class Adversarial:
    """Arms whose accepted lengths are a fixed table over rounds, whatever is played."""

    acceptance: tuple[float, ...]  # levels the pattern hands out
    length: int
    goal: int  # tokens to generate
    pattern: str = "rotate"
    period: int = 200  # rounds

    def __post_init__(self) -> None:
        if self.pattern not in PATTERNS:
            raise ValueError(f"unknown pattern {self.pattern!r}; choose from {', '.join(PATTERNS)}")
        if not self.acceptance or not all(0 <= p <= 1 for p in self.acceptance):
            raise ValueError(f"acceptance probabilities lie in [0, 1], not {self.acceptance}")
        if self.length < 1 or self.goal < 1 or self.period < 1:
            raise ValueError("length, tokens and period are at least 1")

    @property
    def arms(self) -> tuple[Arm, ...]:
        return tuple(Arm(f"d{i + 1}", self.length) for i in range(len(self.acceptance)))

    def start(self, seed: int) -> AdversarialText:
        return AdversarialText(self, seed)

    def table(self, seed: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """Tokens accepted by round and arm; no policy needs more rounds than tokens."""
        rng = np.random.default_rng(seed)
        k, rounds = len(self.acceptance), self.goal
        levels = np.array(self.acceptance)
        at = np.arange(rounds)[:, None]
        arm = np.arange(k)[None, :]
        if self.pattern == "rotate":
            chance = levels[(arm + at // self.period) % k]
        elif self.pattern == "trap":
            # The turn comes half-way through the text of the arm that is best at first.
            turn = self.goal / 2 / (1 + levels.max() * self.length)
            chance = np.where(at < turn, np.sort(levels)[::-1][None, :], np.sort(levels)[None, :])
        else:
            chance = np.sort(levels)[::-1][None, :].repeat(rounds, axis=0)
            chance[at[:, 0] % self.period == 0, -1] = 1.0
        luck = rng.random((rounds, k, self.length)) < chance[:, :, None]
        return np.asarray(np.cumprod(luck, axis=2).sum(axis=2))


class AdversarialText:
    """A table being played."""

    def __init__(self, scenario: Adversarial, seed: int) -> None:
        self.scenario = scenario
        self.tokens = 0
        self.rounds = 0
        self._arms = scenario.arms
        self._slot = {arm: i for i, arm in enumerate(self._arms)}
        self._table: list[list[int]] = scenario.table(seed).tolist()
        self._previous: Arm | None = None

    @property
    def seconds(self) -> float:
        return float(self.rounds)

    @property
    def done(self) -> bool:
        return self.tokens >= self.scenario.goal

    def context(self) -> Context:
        return Context(self._arms, tokens=self.tokens, previous=self._previous)

    def play(self, arm: Arm) -> Round:
        accepted = self._table[self.rounds][self._slot[arm]]
        outcome = Round(arm, drafted=arm.length, accepted=accepted, emitted=accepted + 1, verify_seconds=1.0)
        self.tokens += outcome.emitted
        self.rounds += 1
        self._previous = arm
        return outcome

    def clairvoyant(self) -> Arm:
        row = self._table[self.rounds]
        return self._arms[row.index(max(row))]

    def facts(self) -> dict[str, float]:
        return {}
