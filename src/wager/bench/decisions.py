"""How long a policy takes to decide: choose and observe, without a model."""

import statistics
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np

from wager.core import OFF, Arm, Context, Hint, PromptFeatures, Round, require
from wager.core.batch import Batch, BatchRound
from wager.policies import build

LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8)


def arms_for(count: int) -> list[Arm]:
    """``off`` and drafters x lengths, so many arms in all."""
    drafted = [Arm(f"d{i}", length) for i in range(count) for length in LENGTHS[:: max(1, 32 // count)]]
    return [OFF, *drafted][:count]


def decision_seconds(spec: str, arms: Sequence[Arm], *, rounds: int, warmup: int) -> float:
    """Median seconds of one choose plus one observe; batch size and request change every 100 rounds."""
    rng = np.random.default_rng(0)
    policy, available = build(spec, arms), tuple(arms)
    outcomes = {arm: [_round(arm, rng) for _ in range(50)] for arm in arms}
    taken: list[float] = []
    previous: Arm | None = None
    for t in range(rounds + warmup):
        prompt = PromptFeatures(20 + t % 7, 2.0 + rng.random(), (rng.random(),)) if t % 100 == 0 else None
        lag = {} if previous is None else {arm.drafter: 3 for arm in arms if arm.drafter != previous.drafter}
        context = Context(available, 1 + t // 100 % 16, tokens=2 * t, previous=previous, lag=lag, prompt=prompt)
        arm, chose = timed(policy.choose, context)
        taken.append(chose + timed(policy.observe, outcomes[arm][t % 50])[1])
        previous = arm
    return statistics.median(taken[warmup:])


def timed(call: Callable[[Any], Any], given: Any) -> tuple[Any, float]:
    """What a call gives, and its seconds."""
    began = perf_counter_ns()
    made = call(given)
    return made, (perf_counter_ns() - began) * 1e-9


def _round(arm: Arm, rng: np.random.Generator) -> Round:
    accepted = int(np.cumprod(rng.random(arm.length) < 0.4 + 0.05 * (arm.length % 8)).sum())
    seconds: dict[str, Any] = {"draft_seconds": 0.001 * arm.length, "verify_seconds": 0.02 + 0.001 * arm.length}
    overlap = tuple(rng.random(arm.length).tolist())
    return Round(arm, arm.length, accepted, accepted + 1, **seconds, overlap=overlap, repeated=accepted)


def hinted_seconds(spec: str, drafters: int = 4, *, rounds: int = 3000, warmup: int = 1000) -> tuple[float, float]:
    """Median seconds of one choose, and of one observe, where every drafter tells what it proposes."""
    rng = np.random.default_rng(0)
    names = [f"d{i}" for i in range(drafters)]
    arms = (OFF, *(Arm(name, length) for name in names for length in LENGTHS))
    policy = build(spec, arms)
    taken: list[tuple[float, float]] = []
    previous: Arm | None = None
    for t in range(rounds + warmup):
        sizes = rng.integers(0, 1 + LENGTHS[-1], drafters).tolist()
        hints = {
            name: Hint(int(rng.integers(1, 12)) if size else 0, tuple((rng.random(size) ** 0.5).tolist()), size)
            for name, size in zip(names, sizes, strict=True)
        }
        shared = {one: {two: min(hints[one].size, hints[two].size) // 2 for two in names} for one in names}
        agreed = {name: int(rng.integers(0, 1 + hint.size) * rng.random()) for name, hint in hints.items()}
        proposed: dict[str, Any] = {"hints": hints, "agreement": shared, "proposal_seconds": dict.fromkeys(names, 2e-5)}
        arm, chose = timed(policy.choose, Context(arms, tokens=t, previous=previous, **proposed))
        drafted = min(arm.length, hints[arm.drafter].size) if arm.length else 0
        accepted = min(drafted, agreed.get(arm.drafter, 0))
        others = {name: min(n, accepted + 1) for name, n in agreed.items() if name != arm.drafter}
        outcome = Round(arm, drafted, accepted, accepted + 1, verify_seconds=0.02 + 0.002 * drafted, others=others)
        taken.append((chose, timed(policy.observe, outcome)[1]))
        previous = arm
    return _medians(taken[warmup:])


def rows_seconds(spec: str, batch: int = 256, *, steps: int = 300, warmup: int = 50) -> tuple[float, float]:
    """The same for a batch decided in columns."""
    rng, drafters, longest = np.random.default_rng(0), 3, 5
    arms = (OFF, *(Arm(f"d{i}", n) for i in range(drafters) for n in range(1, longest + 1)))
    policy = build(spec, arms)
    require(policy.per_request, f"policy {spec!r} does not decide for batches in columns")
    taken: list[tuple[float, float]] = []
    slots, limit, shape = np.arange(batch), np.full(batch, longest), (drafters, batch)
    for t in range(steps + warmup):
        size = rng.integers(0, 1 + longest, shape)
        match, confidence = rng.integers(0, 12, shape), rng.random((*shape, longest)) ** 0.5
        common = np.minimum(size[None], size[:, None]) // 2
        rows = Batch(slots, np.full(batch, t == 0), match, size, confidence, limit, common)
        choices, chose = timed(policy.choose_batch, rows)
        drafter, length = choices.drafter, choices.length
        agreed = np.minimum(size, (rng.random(shape) * 3).astype(int))
        played = np.minimum(length, agreed[np.maximum(drafter, 0), slots])
        seconds = 0.02 + 1e-4 * float(length.sum())
        outcome = BatchRound(rows, drafter, length, played + 1, np.minimum(agreed, played + 1), seconds)
        taken.append((chose, timed(policy.observe_batch, outcome)[1]))
    return _medians(taken[warmup:])


def _medians(taken: Sequence[tuple[float, float]]) -> tuple[float, float]:
    chose, observed = zip(*taken, strict=True)
    return statistics.median(chose), statistics.median(observed)
