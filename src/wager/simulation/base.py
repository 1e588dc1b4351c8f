"""What an environment is, and the loop that plays a policy in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, runtime_checkable

from wager.core import Arm, Context, Round
from wager.policies import BatchPolicy, Policy, build


class Environment(Protocol):
    """One text (or one stretch of serving) being generated; the same seed gives the same luck to every policy."""

    @property
    def tokens(self) -> int:
        """Emitted so far."""
        ...

    @property
    def seconds(self) -> float:
        """Spent so far."""
        ...

    @property
    def done(self) -> bool: ...

    def context(self) -> Context:
        """What the policy may know before the next round."""
        ...

    def play(self, arm: Arm) -> Round:
        """Run one round."""
        ...

    def clairvoyant(self) -> Arm:
        """The arm with the best expected tokens per second for one who knows the environment's parameters."""
        ...

    def facts(self) -> dict[str, float]:
        """Further figures of a finished run, such as latencies."""
        ...


@runtime_checkable
class BatchEnvironment(Environment, Protocol):
    """An environment in which the requests of a step may have different lengths."""

    def play_batch(self, choose: Callable[[Sequence[Context]], list[Arm]]) -> Round:
        """Run one step with the arm that ``choose`` picks for each request; the round's arm is the longest of them."""
        ...


@runtime_checkable
class Asking(Environment, Protocol):
    """An environment in which asking drafters that are not played takes time, as it does in an engine."""

    asks: bool  # whether cheap drafters are asked in every round
    asking: Callable[[], Sequence[str]] | None  # which of them; None: all


class Scenario(Protocol):
    """Everything about an experiment but the seed and the policy."""

    @property
    def arms(self) -> tuple[Arm, ...]: ...

    @property
    def goal(self) -> int:
        """Tokens to generate."""
        ...

    def start(self, seed: int) -> Environment:
        """A fresh environment."""
        ...


@dataclass(frozen=True, slots=True)
class Run:
    """One policy, one seed, one text."""

    rounds: int
    tokens: int
    seconds: float
    switches: int
    pulls: dict[Arm, int]
    # at each token mark: rounds and seconds it took to get there
    curve: tuple[tuple[int, float], ...]
    facts: dict[str, float] = field(default_factory=dict)


CLAIRVOYANT = "clairvoyant"


class Clairvoyant:
    """Not a policy one can have: it asks the environment."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def choose(self, context: Context) -> Arm:
        """The environment's own answer."""
        return self._environment.clairvoyant()

    def observe(self, round: Round) -> None:
        """Nothing to learn."""


def play(
    scenario: Scenario,
    spec: str,
    seed: int,
    *,
    marks: Sequence[int] = (),
    warmup: int = 0,
    watch: Callable[[Context, Round], None] | None = None,
) -> Run:
    """Play one policy through one environment to its end.

    ``marks`` are token counts at which the curve is read, ascending. Rounds before ``warmup`` tokens count for nothing
    but the curve and the environment's facts. ``watch`` sees every context and round.
    """
    environment = scenario.start(seed)
    policy: Policy
    if spec == CLAIRVOYANT:
        policy = Clairvoyant(environment)
    else:
        policy = learner = build(spec, scenario.arms, seed=seed, tokens=scenario.goal)
        if isinstance(environment, Asking):
            environment.asks = bool(learner.uses & {"hints", "others"})
            environment.asking = getattr(learner, "asking", None)
    pulls = dict.fromkeys(scenario.arms, 0)
    curve: list[tuple[int, float]] = []
    rounds = switches = 0
    skipped: tuple[int, int, float] | None = None if warmup else (0, 0, 0.0)  # rounds, tokens, seconds of the warm-up
    last: Arm | None = None
    step: Callable[[], Round] | None = None
    if isinstance(policy, BatchPolicy) and isinstance(environment, BatchEnvironment):
        step = partial(environment.play_batch, policy.choose_batch)
    while not environment.done:
        context = environment.context()
        outcome = step() if step else environment.play(policy.choose(context))
        policy.observe(outcome)
        arm = outcome.arm
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
    return Run(
        rounds - skipped[0],
        environment.tokens - skipped[1],
        environment.seconds - skipped[2],
        switches,
        pulls,
        tuple(curve),
        environment.facts(),
    )
