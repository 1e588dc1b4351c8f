"""Rounds that are observed after the next choice, as on a GPU, teach the same."""

import pytest
from reading_lab import CHANGING, heads, played, played_late, tokens_a_round

from wager.core import Arm, Context
from wager.policies.auto import Auto


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
