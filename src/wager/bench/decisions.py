"""How long a policy takes to decide: choose and observe, without a model."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from time import perf_counter_ns

import numpy as np

from wager.core import OFF, Arm, Context, PromptFeatures, Round
from wager.policies import build

LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8)


def arms_for(count: int) -> list[Arm]:
    """``off`` and drafters x lengths, so many arms in all."""
    drafted = [Arm(f"d{i}", length) for i in range(count) for length in LENGTHS[:: max(1, 32 // count)]]
    return [OFF, *drafted][:count]


def decision_seconds(spec: str, arms: Sequence[Arm], *, rounds: int = 5000, warmup: int = 1000, seed: int = 0) -> float:
    """Median seconds of one choose plus one observe.

    Contexts and rounds are made beforehand, so that only the policy runs between two readings of the clock. Batch size
    and request change every 100 rounds.
    """
    rng = np.random.default_rng(seed)
    policy = build(spec, arms, seed=seed)
    outcomes = {arm: [_round(arm, rng) for _ in range(50)] for arm in arms}
    available = tuple(arms)
    taken: list[int] = []
    previous: Arm | None = None
    for t in range(rounds + warmup):
        prompt = PromptFeatures(20 + t % 7, 2.0 + rng.random(), (rng.random(),)) if t % 100 == 0 else None
        lag = {} if previous is None else {arm.drafter: 3 for arm in arms if arm.drafter != previous.drafter}
        context = Context(available, batch=1 + t // 100 % 16, tokens=2 * t, previous=previous, lag=lag, prompt=prompt)
        begin = perf_counter_ns()
        arm = policy.choose(context)
        middle = perf_counter_ns()
        outcome = outcomes[arm][t % 50]
        resume = perf_counter_ns()
        policy.observe(outcome)
        taken.append(middle - begin + perf_counter_ns() - resume)
        previous = arm
    return statistics.median(taken[warmup:]) * 1e-9


def _round(arm: Arm, rng: np.random.Generator) -> Round:
    accepted = int(np.cumprod(rng.random(arm.length) < 0.4 + 0.05 * (arm.length % 8)).sum())
    return Round(
        arm,
        drafted=arm.length,
        accepted=accepted,
        emitted=accepted + 1,
        draft_seconds=0.001 * arm.length,
        verify_seconds=0.02 + 0.001 * arm.length,
        overlap=tuple(rng.random(arm.length).tolist()),
        seen=accepted,
    )
