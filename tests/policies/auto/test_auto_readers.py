"""Heads with cards of which idle ones read: who can, what their reading tells, and for how long that counts."""

from typing import Any

import numpy as np
import pytest
from auto_lab import run_of

from wager.core import OFF, Arm, Calibration, Context, Round
from wager.policies import build
from wager.policies.auto import Auto

CARD, VERIFY, STEP = (0.6,) * 4, 1e-3, 1e-4  # seconds


def heads(names: str, **known: Any) -> Auto:
    """With one card for all of them."""
    arms = (OFF, *(Arm(name, 4) for name in names))
    policy = build("auto", arms, seed=0)
    assert isinstance(policy, Auto)
    drafts, late = dict.fromkeys(arms[1:], 4 * STEP), {name: {64: STEP} for name in names}
    policy.calibrate(Calibration({1: VERIFY, 5: VERIFY}, drafts, late, dict.fromkeys(names, CARD), **known))
    return policy


def played(arm: Arm, accepted: int = 0, **told: Any) -> Round:
    seconds = {"draft_seconds": STEP * arm.length, "verify_seconds": VERIFY}
    return Round(arm, arm.length, accepted, accepted + 1, **seconds, **told)


def test_a_model_that_cannot_read_keeps_its_draws_and_is_not_asked_to() -> None:
    policy, rng = heads("xyz", apart=0.4), np.random.default_rng(0)
    arm, known = policy.arms[1], {"lag": {"x": 0, "y": 64, "z": 64}, "remaining": 500, "readers": frozenset("xy")}
    expected: dict[str, set[float]] = {"x": set(), "y": set(), "z": set()}
    for _ in range(5):
        policy.choose(Context(policy.arms, **known))
        for option in policy.options():
            if option.arm.length:
                expected[option.arm.drafter].add(option.tokens)
    assert {name for name, tokens in expected.items() if len(tokens) > 1} == {"z"}
    asked = set[str]()
    for _ in range(20):
        context = Context(policy.arms, previous=arm, **known)
        policy.choose(context)
        asked.update(policy.select_readers(context))
        policy.observe(played(arm, run_of(rng, CARD)))
    assert asked == {"y"}


def test_what_idle_models_are_worth_goes_by_the_round_that_was_just_observed() -> None:
    """Where rounds are observed late, that is after the arms were weighed."""
    policy = heads("xy", apart=0.002)
    arm, known, waiting = policy.arms[1], {"lag": {"x": 0, "y": 64}, "remaining": 500}, None
    changed = 0.0
    for number in range(20):
        policy.choose(Context(policy.arms, previous=arm if number else None, unobserved=waiting is not None, **known))
        before = policy._values_in_text(policy._now.rate)
        if waiting is not None:
            policy.observe(waiting)
        values = policy._values_in_text(policy._now.rate)
        policy.positional.settle()
        assert policy._values_in_text(policy._now.rate) == values
        changed = max(changed, abs(values["y"] - before["y"]))
        waiting = played(arm, 4 * (number % 2))
    assert changed > 0.01


@pytest.mark.parametrize("drafts", [False, True])
def test_tokens_that_several_heads_read_fade_what_was_known_once(drafts: bool) -> None:
    """Six heads read 64 tokens that went by in plain decoding, or while the first of them drafted."""
    policy = heads("uvwxyz", apart=0.002)
    known = {"lag": dict.fromkeys("uvwxyz", 64), "remaining": 500}
    policy.choose(Context(policy.arms, **known))
    policy.in_text.pass_by(63, "uvwxyz", aside=False)
    policy.in_text.of("u").missed = 0 if drafts else 63
    for shift in policy.positional.shifts.values():
        shift.information = 100.0
    others = dict.fromkeys("vwxyz" if drafts else "uvwxyz", (1.0, 1.0, 1.0, 0.0, 0.0) * 12 + (1.0,) * 4)
    policy.observe(played(policy.arms[1] if drafts else OFF, others=others, read_seconds=dict.fromkeys(others, STEP)))
    passed = 1 if drafts else 64
    for name in others:
        information = policy.positional.shifts[name].information
        assert information == pytest.approx(100.0 * 1000 / (1000 + passed) + 64 * 0.24, rel=0.01)
