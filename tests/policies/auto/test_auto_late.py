"""Rounds that are observed after the next choice, as on a GPU, teach the same."""

import numpy as np
import pytest
from reading_lab import CHANGING, heads, played, played_late, tokens_a_round

from wager.core import OFF, Arm, Context, Hint, Round
from wager.policies import build
from wager.policies.auto import Auto
from wager.policies.auto.features import Proposal


@pytest.mark.parametrize("bug", [False, True])
def test_idle_heads_go_on_reading_where_rounds_are_observed_late(bug: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug: the rounds until the next reading are carried from choice to choice, and never pass."""
    if bug:
        choose = Auto.choose

        def carried(policy: Auto, context: Context) -> Arm:
            wait = policy._now.wait
            arm = choose(policy, context)
            policy._now.wait = wait
            return arm

        monkeypatch.setattr(Auto, "choose", carried)
    last = [one.arm.drafter for one in played_late(CHANGING, 1, after=3500)]
    assert (last.count("y") > 0.9 * len(last)) is not bug


def test_of_six_heads_the_right_one_is_found_where_rounds_are_observed_late() -> None:
    six = heads(0.55, 0.5, 0.55, 0.75, 0.5, 0.55)
    right = tokens_a_round(played(six, "fixed:drafter=d3,length=4", 40, after=45))
    assert tokens_a_round(played_late(six, 40, after=45)) >= 0.96 * right


def filled(proposals: list[Proposal]) -> list[object]:
    return [(one.name, one.hint, one.length, one.chances[: one.length]) for one in proposals]


@pytest.mark.parametrize("bug", [False, True])
def test_a_choice_that_weighs_twice_leaves_the_proposals_of_the_one_before(
    bug: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Near the end of a text, where verifying is slow, and rounds are observed late. A bug: the records are exchanged
    whenever they are filled, not once for every choice."""
    fill, fills, changed, twice = Auto._fill, list[Context](), 0, 0

    def counted(policy: Auto, context: Context) -> list[Proposal]:
        policy._other ^= bug and bool(fills)
        fills.append(context)
        return fill(policy, context)

    monkeypatch.setattr(Auto, "_fill", counted)
    arms = (OFF, *(Arm("x", n) for n in range(1, 9)))
    policy, rng = build("auto", arms, seed=0), np.random.default_rng(0)
    assert isinstance(policy, Auto)
    previous, waiting = None, None
    for _ in range(200):
        hints = {"x": Hint(int(rng.integers(1, 8)), tuple(rng.random(6) ** 0.3), 6)}
        late, earlier = waiting is not None, policy._now.proposals
        before = filled(earlier)
        fills.clear()
        previous = policy.choose(Context(arms, previous=previous, hints=hints, remaining=30, unobserved=late))
        twice += len(fills) > 1
        changed += filled(earlier) != before
        if waiting is not None:
            policy.observe(waiting)
        drafted = min(previous.length, 6)
        others = {} if drafted else {"x": 1}
        waiting = Round(previous, drafted, drafted, drafted + 1, verify_seconds=0.02 + 0.015 * drafted, others=others)
    assert twice > 20
    assert bool(changed) is bug
