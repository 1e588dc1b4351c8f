"""The package's policies decide as the slow references do, round after round."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from agreement import MIXED, SCENARIOS, SEED, Stream, disagreement_of, params_of
from reference import REFERENCES

from wager.core import OFF, Context, Hint
from wager.core.batch import Batch
from wager.policies import POLICIES, Policy, build

SPECS = ["fixed:drafter=alpha,length=3" if name == "fixed" else name for name in REFERENCES]
SPECS += [
    "ucbspec:reward=goodput",
    "ucbspec:delta=0.05,reward=be",
    "exp3spec:reward=goodput",
    "meta-ucb:reward=be,lag_cost=0.01",
    "meta-ucb:beta=0.3,reward=goodput",
    "discounted-ucb:gamma=0.9,beta=0.2,reward=tokens,lag_cost=0.02",
    "sliding-ucb:window=40,beta=0.3,reward=goodput,lag_cost=0.1",
    "meta-exp3:gamma=0.1,reward=goodput",
    "hedge:every=4,length=3",
    "halving:budget=300,reward=goodput",
    "halving:budget=5,reward=be",
    "halving:period=7,reward=tokens",
    "petc:c=20.5,tokens=5000,reward=tokens",
    "analytical:history=20,cap=0.7",
    "fsm:drafter=alpha",
    "cached-fsm:drafter=alpha",
    "qlearning:alpha=0.5,gamma=0.5,epsilon=0.02,reward=goodput",
    "prompt-router:history=3,cap=0.6",
    "ada-bingreedy:reward=tokens",
    "nightjar:max_batch=4",
    "dsd:cap=0.6",
    "tetris:per_request=2,drafter=alpha",
    "linucb:alpha=2,batch_scale=4,reward=tokens",
    "lints:v=0.05,reward=tokens",
    "kl-ucb:reward=goodput",
    "kl-ucb:c=3,reward=goodput",
    "thompson:reward=goodput",
]


def cases() -> Iterator[tuple[str, str]]:
    """Every spec on the first three scenarios; on the others one spec per policy, and those that look at the clock."""
    seen: set[str] = set()
    for spec in SPECS:
        everywhere = params_of(spec)[0] not in seen or "goodput" in spec
        seen.add(params_of(spec)[0])
        for number, (name, scenario) in enumerate(SCENARIOS.items()):
            if (everywhere or number < 3) and (spec != "off" or OFF in scenario.arms):
                yield spec, name


def test_every_policy_with_a_reference_is_compared() -> None:
    assert set(REFERENCES) == set(POLICIES) - {"auto"}


@pytest.mark.parametrize(("spec", "scenario"), list(cases()))
def test_policy_decides_as_its_reference(spec: str, scenario: str) -> None:
    outcome = disagreement_of(spec, scenario)
    assert not outcome.disagreement, f"{spec} on {scenario}: {outcome.disagreement}"
    assert outcome.rounds == SCENARIOS[scenario].rounds
    assert outcome.ties < 0.01 * outcome.rounds


def batches_of(stream: Stream, count: int) -> Iterator[list[Context]]:
    for _ in range(count):
        contexts = [stream.context() for _ in range(stream.integer(1, 12))]
        names = {arm.drafter for arm in MIXED.arms if arm.length}
        yield [
            replace(c, arms=contexts[0].arms, hints={name: c.hints.get(name, Hint()) for name in names})
            for c in contexts
        ]


def as_batch(contexts: Sequence[Context], policy: Policy) -> Batch:
    """Hints as arrays; the first context's arms are those of the step."""
    shape = len(policy.drafters), len(contexts)
    confidence = np.full((*shape, policy.longest), np.nan)
    for d, name in enumerate(policy.drafters):
        for i, context in enumerate(contexts):
            sure = context.hints[name].confidence[: policy.longest]
            confidence[d, i, : len(sure)] = sure
    full = np.full(shape, policy.longest)
    return Batch(
        np.arange(shape[1]), np.zeros(shape[1], np.bool_), full, full, confidence, full[0], context=contexts[0]
    )


@pytest.mark.parametrize("spec", ["tetris", "tetris:per_request=1,drafter=alpha", "tetris:per_request=2,drafter=gamma"])
def test_tetris_shares_a_batch_as_its_reference(spec: str) -> None:
    name, params = params_of(spec)
    fast, slow = build(spec, MIXED.arms, seed=SEED), REFERENCES[name](MIXED.arms, seed=SEED, **params)
    stream = Stream(MIXED)
    for contexts in batches_of(stream, 600):
        expected = slow.choose_batch(contexts)
        chosen = fast.choose_batch(as_batch(contexts, fast))
        assert chosen.length.tolist() == [arm.length for arm in expected]
        names = [fast.drafters[d] if d >= 0 else OFF.drafter for d in chosen.drafter.tolist()]
        assert names == [arm.drafter for arm in expected]
        assert chosen.arm == max(expected, key=lambda arm: arm.length)
        for arm in expected:
            came_back = stream.played(arm)
            fast.observe(came_back)
            slow.observe(came_back)
