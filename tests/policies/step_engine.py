"""A simulated engine that drafts at the end of one step and verifies in the next: times and acceptance are given."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

from wager.core import OFF, Arm
from wager.policies import build
from wager.policies.steps import StepRounds

# An 8B model and an EAGLE head, measured on an H200: milliseconds of a step, per token verified, per token drafted.
LOADS = {1: (4.74, 0.02, 0.44), 8: (4.75, 0.06, 0.48), 32: (5.13, 0.25, 0.47), 128: (6.37, 2.4, 0.6)}
PROFILES = {"well": (0.9, 0.89, 0.88, 0.86), "fair": (0.75, 0.73, 0.73, 0.7), "bad": (0.4, 0.45, 0.44, 0.38)}
ARMS = (OFF, *(Arm("eagle", n) for n in range(1, 5)))
WINDOW = 32  # tokens that a head misses at most before it reads them


@dataclass
class StepEngine:
    """Steps of one policy; ``catch_up``: seconds of reading what the head has missed, fixed and per token."""

    overlap: bool
    catch_up: tuple[float, float] = (0.0, 0.0)
    seed: int = 0
    policy: str = "auto"
    noise: float = 0.03
    stalls: float = 0.01
    lengths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.rounds = StepRounds(build(self.policy, ARMS, seed=self.seed, tokens=1_000_000), ARMS, overlap=self.overlap)
        self.length, self.missed, self.reading = 0, 0, 0.0
        self.seen: set[tuple[int, int]] = set()

    def seconds(self, batch: int, verified: int, drafted: int) -> float:
        """Of a step, without catching up."""
        base, verify, draft = LOADS[batch]
        return 1e-3 * (base + verify * verified + draft * drafted)

    def best(self, batch: int, chances: Sequence[float]) -> float:
        """Tokens a second of the best fixed length."""
        tokens = accumulate(accumulate(chances, mul, initial=1.0))
        return max(batch * mean / self.seconds(batch, n, n) for n, mean in enumerate(tokens))

    def run(self, steps: int, batch: int, chances: Sequence[float]) -> float:
        """Expected tokens a second over so many steps, as a share of the best fixed length's."""
        tokens, taken = 0.0, 0.0
        means = list(accumulate(accumulate(chances, mul, initial=1.0)))
        for _ in range(steps):
            length, reading = self.length, self.reading
            step = self.rounds.plan(batch, batch, length * batch, False)
            self.lengths.append(step.length)
            right = [next((n for n in range(length) if self.rng.random() > chances[n]), length) for _ in range(batch)]
            survivors = tuple(sum(n >= k for n in right) for k in range(1, length + 1))
            self.reading = self._read(step.length, batch)
            took = self.seconds(batch, length, length if self.overlap else step.length)
            took += reading if self.overlap else self.reading
            first = self.overlap and (batch, length) not in self.seen  # one-time work
            stalled = 4.0 if self.rng.random() < self.stalls or first else 1.0
            self.seen.add((batch, length))
            self.rounds.observe(
                step, sum(right), batch + sum(right), took * self.rng.gauss(1, self.noise) * stalled, survivors
            )
            tokens, taken = tokens + batch * means[length], taken + took
            self.length = step.length
        return tokens / taken / self.best(batch, chances)

    def _read(self, length: int, batch: int) -> float:
        """Seconds in which the head reads what it has missed: before it drafts, or when as much as is kept."""
        missed = self.missed
        self.missed = 0 if length else missed % WINDOW + 1
        fixed, token = self.catch_up
        return fixed + token * missed * batch if missed and (length or missed == WINDOW) else 0.0
