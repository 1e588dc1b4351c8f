"""What an environment is, and the loop that plays a policy in it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from wager.core import Arm, Context, Round
from wager.core.batch import Batch, Choices
from wager.policies import Policy, build
from wager.policies.choice import choice_of, choices_of


class Environment(ABC):
    """One text (or one stretch of serving) being generated; the same seed gives every policy the same draws."""

    per_request = False  # whether the requests of a step may have different lengths, as ``play_batch`` picks them

    def __init__(self, arms: tuple[Arm, ...], goal: int) -> None:
        self.arms, self.goal = arms, goal
        self.tokens = 0  # emitted so far
        self.seconds = 0.0  # spent so far
        self.previous: Arm | None = None

    @property
    def done(self) -> bool:
        return self.tokens >= self.goal

    @abstractmethod
    def context(self) -> Context:
        """What the policy may know before the next round."""

    @abstractmethod
    def play(self, arm: Arm) -> Round:
        """Run one round."""

    def play_batch(self, choose: Callable[[Batch], Choices]) -> Round:
        """Run one step with what ``choose`` picks for each request; the round's arm is the longest of them."""
        raise NotImplementedError

    def advance(self, outcome: Round) -> Round:
        self.tokens += outcome.emitted
        self.seconds += outcome.seconds
        self.previous = outcome.arm.alone
        return outcome

    @abstractmethod
    def clairvoyant(self) -> Arm:
        """The arm with the best expected tokens per second for one who knows the environment's parameters."""

    def facts(self) -> dict[str, float]:
        """Further figures of a finished run, such as latencies."""
        return {}


class Scenario(Protocol):
    """Everything about an experiment but the seed and the policy."""

    @property
    def arms(self) -> tuple[Arm, ...]: ...
    @property
    def goal(self) -> int: ...  # tokens to generate
    def horizon(self, spec: str) -> int:
        """Tokens that a policy which plans ahead is told of: the goal, or those of a text if each starts it anew."""
        ...

    def start(self, seed: int, policy: Policy | None = None) -> Environment:
        """A fresh environment that measures what this policy needs; nothing on request without one."""
        ...


@dataclass(frozen=True, slots=True)
class Run:
    """One policy, one seed, one text."""

    rounds: int
    tokens: int
    seconds: float
    switches: int
    pulls: dict[Arm, int]
    curve: tuple[tuple[int, float], ...]  # at each token mark: rounds and seconds it took to get there
    facts: dict[str, float] = field(default_factory=dict)


CLAIRVOYANT = "clairvoyant"  # not a policy one can have: the environment itself says which arm is best


Watch = Callable[[Context, Round], None]


def play(
    scenario: Scenario, spec: str, seed: int, *, marks: Sequence[int] = (), warmup: int = 0, watch: Watch | None = None
) -> Run:
    """Play one policy through one environment to its end.

    ``marks`` are token counts at which the curve is read, ascending. Rounds before ``warmup`` tokens count for nothing
    but the curve and the environment's facts. ``watch`` sees every context and round.
    """
    policy = None if spec == CLAIRVOYANT else build(spec, scenario.arms, seed=seed, tokens=scenario.horizon(spec))
    environment = scenario.start(seed, policy)
    pulls = dict.fromkeys(scenario.arms, 0)
    curve: list[tuple[int, float]] = []
    rounds = switches = 0
    skipped: tuple[int, int, float] | None = None if warmup else (0, 0, 0.0)  # rounds, tokens, seconds of the warm-up
    last: Arm | None = None
    while not environment.done:
        context = environment.context()
        if policy is None:
            outcome = environment.play(environment.clairvoyant())
        elif environment.per_request and not policy.whole_batch:
            outcome = environment.play_batch(partial(choices_of, policy))
        else:
            outcome = environment.play(choice_of(policy, context))
        if policy is not None:
            policy.observe(outcome)
        arm = outcome.arm.alone  # what is merged into a draft changes from round to round
        rounds += 1
        pulls[arm] += 1
        switches += last is not None and arm != last
        last = arm
        if watch is not None:
            watch(context, outcome)
        if skipped is None and environment.tokens >= warmup:
            skipped = (rounds, environment.tokens, environment.seconds)
            pulls, switches = dict.fromkeys(scenario.arms, 0), 0
        while len(curve) < len(marks) and environment.tokens >= marks[len(curve)]:
            curve.append((rounds, environment.seconds))
    curve += [(rounds, environment.seconds)] * (len(marks) - len(curve))
    if skipped is None or skipped[1] >= environment.tokens:
        raise ValueError(f"nothing is left after a warm-up of {warmup} of {environment.tokens} tokens")
    counted = rounds - skipped[0], environment.tokens - skipped[1], environment.seconds - skipped[2]
    return Run(*counted, switches, pulls, tuple(curve), environment.facts())
