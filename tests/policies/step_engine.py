"""A simulated engine that drafts at the end of one step and verifies in the next: times and acceptance are given."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

from wager.core import OFF, Arm, Context, Round
from wager.policies import build
from wager.policies.steps import Step, StepRounds

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


# SmolLM2 and an EAGLE head on an H200, about: milliseconds of a step, per token verified, of the head's drafts and per
# token of them. Matching costs next to nothing.
SMALL_LOADS = {
    1: (1.6, 0.02, 0.5, 0.08),
    8: (1.8, 0.03, 0.5, 0.08),
    32: (2.3, 0.06, 0.6, 0.1),
    128: (3.8, 0.3, 0.8, 0.15),
}
BOTH_ARMS = (OFF, *(Arm(name, n) for name in ("suffix", "eagle") for n in range(1, 6)))
# Chances of each token by drafter; the head's arms are those in which both draft.
CHAT = {"suffix": (0.1,) * 5, "eagle": (0.6, 0.55, 0.5, 0.5, 0.5)}
COPYING = {"suffix": (0.93,) * 5, "eagle": (0.94,) * 5}


@dataclass
class MixedEngine:
    """Steps in which matching drafts alone, or a head as well, which lags in all others."""

    seed: int = 0
    noise: float = 0.05
    most_kept: int = 128  # tokens of a request
    arms: list[Arm] = field(default_factory=list)  # that have drafted

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        policy = build("auto", BOTH_ARMS, seed=self.seed, tokens=1_000_000)
        self.rounds = StepRounds(policy, BOTH_ARMS, overlap=True)
        self.arm, self.missed, self.reading = OFF, 0, 0.0

    def seconds(self, batch: int, arm: Arm) -> float:
        """Of a step that verifies this arm's drafts, and of making them."""
        base, verify, fixed, draft = SMALL_LOADS[batch]
        drafting = fixed + draft * arm.length if arm.drafter == "eagle" else 0.05 if arm.length else 0.0
        return 1e-3 * (base + verify * arm.length + drafting)

    def goodput(self, batch: int, arm: Arm, chances: Mapping[str, Sequence[float]]) -> float:
        """Tokens a second of an arm for good."""
        return batch * _tokens(arm, chances) / self.seconds(batch, arm)

    def run(self, steps: int, batch: int, chances: Mapping[str, Sequence[float]]) -> float:
        """Expected tokens a second over so many steps, as a share of the best arm's."""
        tokens = taken = 0.0
        for _ in range(steps):
            arm, reading = self.arm, self.reading
            step = self.rounds.plan(batch, batch, arm.length * batch, False)
            own = chances.get(arm.drafter, ())[: arm.length]
            right = [next((n for n, x in enumerate(own) if self.rng.random() > x), arm.length) for _ in range(batch)]
            survivors = tuple(sum(n >= k for n in right) for k in range(1, arm.length + 1))
            self.reading = self._read(step.next_arm, arm, batch)
            took = self.seconds(batch, arm) + reading
            self.rounds.observe(step, sum(right), batch + sum(right), took * self.rng.gauss(1, self.noise), survivors)
            tokens, taken = tokens + batch * _tokens(arm, chances), taken + took
            self.arm = step.next_arm
            self.arms.append(self.arm)
        return tokens / taken / max(self.goodput(batch, arm, chances) for arm in BOTH_ARMS)

    def _read(self, arm: Arm, verified: Arm, batch: int) -> float:
        """Seconds in which the head reads what it has missed: before it drafts, or when more than is kept."""
        missed, new = self.missed, 1 + verified.length
        full = missed + new > self.most_kept
        self.missed = 0 if arm.drafter == "eagle" else new if full else missed + new
        return 1e-3 + 1e-7 * missed * batch if missed and (full or arm.drafter == "eagle") else 0.0


def _tokens(arm: Arm, chances: Mapping[str, Sequence[float]]) -> float:
    return sum(accumulate(chances.get(arm.drafter, ())[: arm.length], mul, initial=1.0))


HOST_ARMS = (OFF, *(Arm("suffix", n) for n in range(1, 6)))


@dataclass
class HostEngine:
    """A small model, scheduled asynchronously: the host launches a step while its predecessor runs, and takes longer.

    From one step's end to the next's it launches the successor, which verifies what the step has drafted. A step's
    tokens are known when the successor has been planned.
    """

    seed: int = 0
    noise: float = 0.05
    slow: float = 1.0  # times as long as usual that the host takes at present
    lengths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        policy = build("auto", HOST_ARMS, seed=self.seed, tokens=1_000_000)
        self.rounds = StepRounds(policy, HOST_ARMS, overlap=True)
        self.flight: Step | None = None

    def seconds(self, batch: int, verified: int, drafted: int) -> float:
        """In which the host launches a step; SmolLM2 on an H200 takes 1.70 ms without drafts and 2.15 with two."""
        base = SMALL_LOADS[batch][0] + 0.1
        return 1e-3 * self.slow * (base + (0.35 + 0.02 * verified if verified else 0.0) + 0.05 * bool(drafted))

    def run(self, steps: int, batch: int, chances: Sequence[float], *, joins: float = 0.0, text: int = 0) -> float:
        """Expected tokens a second over so many steps, as a share of the best fixed length's; ``joins``: the share of
        steps that also read a prompt, each after one in which a request of the batch has ended; ``text``: steps after
        which all requests are others."""
        tokens, taken = 0.0, 0.0
        means = list(accumulate(accumulate(chances, mul, initial=1.0)))
        missing = False
        for at in range(steps):
            begins = text > 0 and at % text == 0
            mixed, now = missing or begins, 0 if begins else batch - missing
            missing = not mixed and self.rng.random() < joins
            then = batch - missing
            before = self.flight
            length = before.length if before is not None else 0
            self.flight = step = self.rounds.plan(then, now, length * now, mixed)
            self.lengths.append(step.length)
            took = self.seconds(batch, length, step.length) * self.rng.gauss(1, self.noise)
            if before is not None:
                self._finish(before, took, chances, timed=not mixed)
            tokens, taken = tokens + now * means[length], taken + took
        best = max(mean / self.seconds(batch, n, n) for n, mean in enumerate(means))
        return tokens / taken / batch / best

    def _finish(self, step: Step, took: float, chances: Sequence[float], *, timed: bool) -> None:
        own, batch = chances[: step.arm.length], step.batch
        right = [next((n for n, x in enumerate(own) if self.rng.random() > x), len(own)) for _ in range(batch)]
        survivors = tuple(sum(n >= k for n in right) for k in range(1, len(own) + 1))
        step.mixed = step.mixed or not timed
        self.rounds.observe(step, sum(right), batch + sum(right), took, survivors)


class Script:
    """Plays the arms it is given, and remembers what it is told."""

    carries = exploring = False

    def __init__(self, *arms: Arm) -> None:
        self.arms = list(arms)
        self.contexts: list[Context] = []
        self.rounds: list[Round] = []

    def choose(self, context: Context) -> Arm:
        self.contexts.append(context)
        return self.arms.pop(0)

    def observe(self, round: Round) -> None:
        self.rounds.append(round)
