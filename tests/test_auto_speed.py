"""`auto` decides quickly because it fills in the same few objects round after round: none of that may show."""

from __future__ import annotations

import json
import math
import sys
from itertools import accumulate
from operator import mul

import numpy as np
import pytest

from wager.bench.decisions import hinted_seconds
from wager.core import OFF, Arm, Context, Hint, Round
from wager.policies.auto import Auto
from wager.policies.auto.acceptance import AGREEMENT, EMA, AcceptanceModel, Other, Proposal

NAMES = ("x", "y", "z")
ARMS = (OFF, *(Arm(name, n) for name in NAMES for n in range(1, 7)))


def hint(rng: np.random.Generator, longest: int) -> Hint:
    size = int(rng.integers(0, longest + 1))
    sure = tuple((rng.random(int(rng.integers(0, size + 1))) ** 0.3).tolist())
    return Hint(int(rng.integers(0, 14)), sure, size)  # a match without a size: it may propose any number of tokens


def context(rng: np.random.Generator, arms: tuple[Arm, ...] = ARMS, longest: int = 6) -> Context:
    """Some of the drafters have a hint, in any order; some say what they have in common, some do not."""
    asked = [str(name) for name in rng.permutation(NAMES)[: rng.integers(0, 4)]]
    hints = {name: hint(rng, longest) for name in asked}
    shared = {
        one: {two: int(rng.integers(0, 1 + hints[one].size)) for two in asked if two != one}
        for one in asked
        if rng.random() < 0.8
    }
    seconds = {name: float(rng.choice([1e-5, 0.004])) for name in asked}
    return Context(arms, previous=OFF, hints=hints, shared=shared, asked=seconds)


def outcome(rng: np.random.Generator, context: Context, arm: Arm) -> Round:
    runs = {name: int(rng.integers(0, hint.size + 1)) for name, hint in context.hints.items()}
    drafted = min(arm.length, context.hints[arm.drafter].size) if arm.drafter in runs else arm.length
    accepted = min(drafted, runs.get(arm.drafter, drafted // 2))
    others = {name: min(run, accepted + 1) for name, run in runs.items() if name != arm.drafter and rng.random() < 0.9}
    seconds = (0.02 + 0.002 * drafted) * (1 + 0.05 * rng.standard_normal())
    return Round(arm, drafted, accepted, accepted + 1, verify_seconds=seconds, others=others)


def shaken(rng: np.random.Generator) -> AcceptanceModel:
    survival = AcceptanceModel(3)
    survival.weights = [(np.array(w) + rng.normal(0, 0.7, len(w))).tolist() for w in survival.weights]
    survival.acceptance_ema = rng.uniform(-2, 2, 3).tolist()
    return survival


def beside(rng: np.random.Generator, own: Hint) -> list[Other]:
    """What drafters 1 and 2 say to a proposal of drafter 0; one of size 0 may propose any number of tokens."""
    sizes = rng.integers(0, 8, 2).tolist()
    return [(AGREEMENT + 4 * j, int(rng.integers(0, 1 + own.size)), size) for j, size in enumerate(sizes, 1)]


def test_the_part_worth_most_is_that_of_all_parts_one_by_one() -> None:
    rng, lengths, stopped = np.random.default_rng(0), set(), 0
    for _ in range(500):
        survival, own = shaken(rng), hint(rng, 8)
        if not own.size:
            continue
        seconds = [0.0, *np.sort(rng.uniform(0.01, 0.05, 9)).tolist()]
        rate = float(rng.choice([0.0, 20.0, 100.0]))
        proposal = Proposal(own, own.size, beside(rng, own))
        value, n, tokens = survival.cut(0, proposal, seconds, rate)
        chances = proposal.chances[: proposal.looked]
        assert chances == survival.look(0, Proposal(own, own.size, [tuple(other) for other in proposal.saved[2]]))
        expected = list(accumulate(accumulate(chances, mul), initial=1.0))
        values = [t - rate * s for t, s in zip(expected[1:], seconds[2:], strict=False)]
        assert (value, n, tokens) == (max(values), 1 + values.index(max(values)), expected[n])
        lengths.add(n)
        stopped += proposal.looked < own.size
    assert lengths == set(range(1, 9))
    assert stopped > 50


def test_tokens_are_looked_at_by_the_weights_they_teach() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        survival, own = shaken(rng), hint(rng, 8)
        proposal = Proposal(own, own.size, beside(rng, own))
        w, luck = survival.weights[0], survival.weights[0][EMA] * survival.acceptance_ema[0]
        for j, chance in enumerate(survival.look(0, proposal, 0.0)):
            z = luck + sum(w[place] for place in proposal.places(j))
            assert chance == pytest.approx(min(0.99, 1 / (1 + math.exp(-z))), abs=1e-3)


def test_a_proposal_filled_in_again_is_looked_at_and_learned_from_as_a_new_one() -> None:
    rng = np.random.default_rng(0)
    again, fresh = shaken(rng), AcceptanceModel(3)
    fresh.saved = json.loads(json.dumps(again.saved))
    used = Proposal(Hint(), 8)
    for _ in range(400):
        own = hint(rng, 8)
        others, run = beside(rng, own), int(rng.integers(0, own.size + 1))
        new = Proposal(own, own.size, others)
        used.hint, used.length, used.drafter_agreement, used.common, used.hints = (
            own,
            own.size,
            new.drafter_agreement,
            new.common,
            new.hints,
        )
        assert again.look(0, used) == fresh.look(0, new)
        assert used.saved == new.saved
        for survival, proposal in ((again, used), (fresh, new)):
            survival.learn(0, proposal, min(run + 1, own.size), run)
        assert again.saved == fresh.saved


@pytest.mark.parametrize("lengths", [(1, 2, 3, 4, 5, 6), (2, 5)])
def test_whoever_is_asked_decisions_are_those_of_one_that_keeps_no_seats(lengths: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    arms = (OFF, *(Arm(name, n) for name in NAMES for n in lengths))
    policy, forgetful = Auto(arms), Auto(arms)
    chosen = set()
    for _ in range(600):
        now = context(rng, arms)
        forgetful._seats.clear()
        arm = policy.choose(now)
        assert forgetful.choose(now) == arm
        assert forgetful.options() == policy.options()
        came = outcome(rng, now, arm)
        for one in (policy, forgetful):
            one.observe(came)
        assert forgetful.saved == policy.saved
        chosen.add(arm)
    assert len(policy._seats) == 16  # every order of every choice of them
    assert len(chosen) > len(arms) // 2


def test_a_round_that_is_over_is_not_held_on_to() -> None:
    rng, policy = np.random.default_rng(0), Auto(ARMS)
    held = 0
    for _ in range(50):
        now = context(rng)
        alone = sys.getrefcount(now.hints)
        arm = policy.choose(now)
        held += sys.getrefcount(now.hints) > alone
        policy.observe(outcome(rng, now, arm))
        after = sys.getrefcount(now.hints)
        assert after == alone
    assert held > 20


def test_proposals_may_be_as_long_as_they_like() -> None:
    survival, proposal = AcceptanceModel(1), Proposal(Hint(9, (0.9,) * 300), 300)
    chances = survival.look(0, proposal, 0.0)
    assert len(chances) == 300
    assert len(set(chances[:4])) == 4  # first, second, third, and all that follow
    assert set(chances[4:]) == {chances[3]}
    survival.learn(0, proposal, 300, 300)
    assert survival.look(0, proposal, 0.0)[299] > chances[299]


def test_a_round_is_decided_and_learned_from_in_little_time() -> None:
    chosen, observed = zip(*(hinted_seconds("auto", rounds=300, warmup=100) for _ in range(3)), strict=True)
    assert min(chosen) < 55e-6  # three times what it takes on a slow core
    assert min(observed) < 55e-6
