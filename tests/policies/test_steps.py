"""Policies in an engine whose drafts are made in one step and verified in the next."""

import random
from itertools import accumulate
from operator import mul
from typing import Any

import pytest

from wager.core import OFF, Arm, Context, Round
from wager.policies import build
from wager.policies.auto.latency import StepLatency
from wager.policies.steps import StepRounds

ARMS = (OFF, Arm("ngram", 2), Arm("ngram", 4))


def test_a_step_in_which_the_length_changes_is_taken_apart() -> None:
    rng = random.Random(0)
    latency = StepLatency()
    verify = {0: 0.050, 2: 0.055, 5: 0.070}
    draft = {0: 0.0, 2: 0.010, 5: 0.025}
    before = 0
    for _ in range(4000):
        now = rng.choice([0, 2, 5])
        latency.observe(4, before, now, (verify[before] + draft[now]) * rng.uniform(0.95, 1.05))
        before = now
    for length, seconds in draft.items():
        assert latency.drafting(4, length) == pytest.approx(seconds, abs=0.003)
    assert latency.drafting(64, 5) == 0.0, "nothing is known of such a batch"


def test_the_cost_of_resuming_drafting_is_measured() -> None:
    latency = StepLatency()
    for turn in range(400):
        for step in range(8):
            now = 4 if step >= 4 else 0
            was = 4 if step >= 5 or (step == 0 and turn) else 0
            resumed = step == 4
            latency.observe(1, was, now, 0.05 + 0.02 * (was > 0) + 0.01 * (now > 0) + 0.03 * resumed, resumed=resumed)
    assert latency.switching > 0.01


class Script:
    """Plays the arms it is given, and remembers what it is told."""

    def __init__(self, *arms: Arm) -> None:
        self.arms = list(arms)
        self.contexts: list[Context] = []
        self.rounds: list[Round] = []

    def choose(self, context: Context) -> Arm:
        self.contexts.append(context)
        return self.arms.pop(0)

    def observe(self, round: Round) -> None:
        self.rounds.append(round)


def played(*arms: Arm) -> tuple[Any, StepRounds]:
    policy: Any = Script(*arms)
    return policy, StepRounds(policy, ARMS)


def test_a_round_has_the_arm_that_drafted_it_and_not_the_one_that_drafts_meanwhile() -> None:
    _, two, four = ARMS
    policy, rounds = played(two, four, OFF)
    for drafted, accepted in ((0, 0), (2, 1), (4, 4)):
        step = rounds.plan(1, 1, drafted, mixed=False)
        rounds.observe(step, accepted, accepted + 1, 0.05)
    assert [(r.arm, r.drafted, r.accepted, r.emitted) for r in policy.rounds] == [
        (OFF, 0, 0, 1),
        (two, 2, 1, 2),
        (four, 4, 4, 5),
    ]
    assert rounds.tokens == 8
    assert [context.previous for context in policy.contexts] == [OFF, two, four]


def test_a_mixed_step_is_counted_and_not_observed_and_nothing_is_explored_at_an_unknown_load() -> None:
    policy, rounds = played(ARMS[2], ARMS[2], ARMS[2])
    step = rounds.plan(3, 2, 4, mixed=True)
    assert step.length == 0, "no round of three requests was observed yet"
    assert rounds.observe(step, 2, 4, 0.5) == (4, 2, 4, 0.0)
    assert not policy.rounds
    assert not policy.contexts
    rounds.observe(rounds.plan(3, 3, 0, mixed=False), 0, 3, 0.05)
    assert rounds.plan(3, 3, 0, mixed=True).length == 4, "and now it is known"


def test_drafting_after_a_pause_has_a_lag_and_is_charged_the_cost_of_switching() -> None:
    policy, rounds = played(OFF, OFF, ARMS[1], ARMS[1])
    steps = []
    for _ in range(4):
        steps.append(rounds.plan(1, 1, 2 * bool(steps and steps[-1].length), mixed=False))
        rounds.observe(steps[-1], 0, 1, 0.05)
    assert [context.lag for context in policy.contexts] == [{}, {"ngram": 1}, {"ngram": 2}, {}]
    assert [step.resumed for step in steps] == [False, False, True, False]
    assert [one.lag for one in policy.rounds] == [0, 0, 0, 2]


def test_where_nothing_may_be_drafted_the_policy_is_not_called() -> None:
    policy, rounds = played()
    assert rounds.plan(1, 1, 0, mixed=False, off=True).length == 0
    assert not policy.contexts


@pytest.mark.parametrize("policy", ["nightjar", "dsd", "auto"])
def test_counts_that_cannot_be_one_arms_are_not_observed(policy: str) -> None:
    rounds = StepRounds(build(policy, ARMS), ARMS)
    step = rounds.plan(1, 1, 0, mixed=False)
    rounds.observe(step, 0, 3, 0.05)  # more tokens than an arm without drafts can bring
    assert rounds.tokens == 3


def test_where_steps_overlap_a_rounds_seconds_are_those_of_the_step_that_verified_it() -> None:
    """The drafting of one step is then in the next step's seconds: off, 1 and 5 token drafts of 2 ms a token."""
    arms = (OFF, Arm("ngram", 1), Arm("ngram", 5))
    policy: Any = Script(*(arms[n] for n in (1, 1, 0, 1, 2, 2, 0, 0, 1) * 30))
    rounds, length = StepRounds(policy, arms, overlap=True), 0
    for _ in range(270):
        step = rounds.plan(1, 1, length, mixed=False)
        rounds.observe(step, 0, 1, 0.05 + 0.002 * length)
        length = step.length
    for arm in arms:
        seen = {round(one.seconds, 6) for one in policy.rounds if one.arm is arm and not one.lag}
        assert seen == {round(0.05 + 0.002 * arm.length, 6)}
    assert rounds.latency.switching == pytest.approx(0.0, abs=1e-9)


LOADS = {1: (4.74, 0.02, 0.44), 8: (4.75, 0.06, 0.48), 32: (5.13, 0.25, 0.47), 128: (6.37, 2.4, 0.6)}
PROFILES = {"well": (0.9, 0.89, 0.88, 0.86), "fair": (0.75, 0.73, 0.73, 0.7), "bad": (0.4, 0.45, 0.44, 0.38)}


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("batch", LOADS)
@pytest.mark.parametrize("profile", PROFILES)
def test_auto_finds_the_best_length_of_every_load_and_acceptance(profile: str, batch: int, overlap: bool) -> None:
    """Milliseconds as measured with an 8B model and an EAGLE head: of a step, per token verified, per token drafted."""
    base, verify, draft = LOADS[batch]
    chances = PROFILES[profile]
    arms = (OFF, *(Arm("eagle", n) for n in range(1, 5)))

    def seconds(verified: int, drafted: int) -> float:
        return 1e-3 * (base + verify * verified + draft * drafted)

    best = max(batch * sum(accumulate(chances[:n], mul, initial=1.0)) / seconds(n, n) for n in range(5))
    for seed in range(2):
        policy, rng = build("auto", arms, seed=seed, tokens=1_000_000), random.Random(seed)
        rounds, seen = StepRounds(policy, arms, overlap=overlap), set[int]()
        length, tokens, taken = 0, 0, 0.0
        for number in range(800):
            step = rounds.plan(batch, batch, length * batch, False)
            right = [next((n for n in range(length) if rng.random() > chances[n]), length) for _ in range(batch)]
            survivors = tuple(sum(n >= k for n in right) for k in range(1, length + 1))
            accepted = sum(right)
            stalled = 4.0 if rng.random() < 0.01 or (overlap and length not in seen) else 1.0  # one-time work, too
            seen.add(length)
            took = seconds(length, length if overlap else step.length)
            rounds.observe(step, accepted, batch + accepted, took * rng.gauss(1, 0.03) * stalled, survivors)
            if number >= 100:
                tokens, taken = tokens + batch + accepted, taken + took
            length = step.length
        assert tokens / taken >= 0.93 * best
