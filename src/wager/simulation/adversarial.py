"""Accepted lengths fixed beforehand by an adversary (BanditSpec assumption 5.1)."""

from dataclasses import dataclass

import numpy as np

from wager.core import Arm, Context, Round
from wager.policies.base import Policy, expected_tokens, require
from wager.simulation.base import Environment

BLOCK = 2048  # rounds of the table that are drawn at a time

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
        require(self.pattern in PATTERNS, f"unknown pattern {self.pattern!r}; choose from {', '.join(PATTERNS)}")
        likely = bool(self.acceptance) and all(0 <= p <= 1 for p in self.acceptance)
        require(likely, f"acceptance probabilities lie in [0, 1], not {self.acceptance}")
        require(min(self.length, self.goal, self.period) >= 1, "length, tokens and period are at least 1")

    @property
    def arms(self) -> tuple[Arm, ...]:
        return tuple(Arm(f"d{i + 1}", self.length) for i in range(len(self.acceptance)))

    def horizon(self, spec: str) -> int:
        return self.goal

    def start(self, seed: int, policy: Policy | None = None) -> "AdversarialText":
        return AdversarialText(self, seed)

    def rows(self, seed: int, block: int) -> list[list[int]]:
        """Tokens accepted in a block of rounds, by round and arm."""
        rng, k, levels = np.random.default_rng([seed, block]), len(self.acceptance), np.sort(self.acceptance)[::-1]
        at = np.arange(block * BLOCK, (block + 1) * BLOCK)[:, None]
        if self.pattern == "rotate":
            chance = np.array(self.acceptance)[(np.arange(k)[None, :] + at // self.period) % k]
        elif self.pattern == "trap":
            # The turn comes half-way through the text of the arm that is best at first.
            turn = self.goal / 2 / expected_tokens(float(levels[0]), self.length)
            chance = np.where(at < turn, levels[None, :], levels[None, ::-1])
        else:
            chance = levels[None, :].repeat(BLOCK, axis=0)
            chance[at[:, 0] % self.period == 0, -1] = 1.0
        hits = rng.random((BLOCK, k, self.length)) < chance[:, :, None]
        accepted: list[list[int]] = np.cumprod(hits, axis=2).sum(axis=2).tolist()
        return accepted


class AdversarialText(Environment):
    def __init__(self, scenario: Adversarial, seed: int) -> None:
        super().__init__(scenario.arms, scenario.goal)
        self.scenario, self.rounds = scenario, 0
        self._slot = {arm: i for i, arm in enumerate(self.arms)}
        self._seed = seed
        self._rows = scenario.rows(seed, 0)

    def context(self) -> Context:
        return Context(self.arms, tokens=self.tokens, previous=self.previous)

    def play(self, arm: Arm) -> Round:
        accepted = self._rows[self.rounds % BLOCK][self._slot[arm]]
        self.rounds += 1
        if self.rounds % BLOCK == 0:
            self._rows = self.scenario.rows(self._seed, self.rounds // BLOCK)
        return self.advance(Round(arm, arm.length, accepted, emitted=accepted + 1, verify_seconds=1.0))

    def clairvoyant(self) -> Arm:
        row = self._rows[self.rounds % BLOCK]
        return self.arms[row.index(max(row))]
