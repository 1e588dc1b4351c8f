"""Intervals cover what they should, a planted effect is found, and too few units decide nothing."""

import numpy as np
import pytest

from reproduction.experiment import decided, decided_within
from reproduction.inference import FAILS, HOLDS, UNDECIDED, Interval, Sample, difference, interval, row_verdict

MANY = Sample(prompts=40, seeds=5)


@pytest.mark.parametrize(("count", "least"), [(5, 0.90), (20, 0.92), (60, 0.92)])
def test_intervals_cover_the_mean_about_as_often_as_they_say(count: int, least: float) -> None:
    rng = np.random.default_rng(0)
    found = [interval(rng.normal(0.2, 1.0, count)) for _ in range(300)]
    assert least <= np.mean([one.low <= 0.2 <= one.high for one in found]) <= 0.985


def test_intervals_of_skewed_data_cover_the_mean_in_nine_of_ten_cases() -> None:
    rng = np.random.default_rng(1)
    found = [interval(rng.exponential(1.0, 30)) for _ in range(300)]
    assert np.mean([one.low <= 1.0 <= one.high for one in found]) >= 0.88


def test_a_planted_effect_is_found_and_a_wrong_claim_is_refused() -> None:
    faster = np.random.default_rng(2).normal(0.05, 0.1, 40)
    assert decided("", interval(faster), MANY).verdict == HOLDS
    assert decided("", interval(-faster), MANY).verdict == FAILS


def test_no_effect_is_mostly_undecided() -> None:
    rng = np.random.default_rng(3)
    verdicts = [decided("", interval(rng.normal(0.0, 0.1, 40)), MANY).verdict for _ in range(200)]
    assert verdicts.count(UNDECIDED) >= 180
    assert abs(verdicts.count(HOLDS) - verdicts.count(FAILS)) < 15


@pytest.mark.parametrize("few", [Sample(prompts=19, seeds=20), Sample(prompts=400, seeds=4), Sample(seeds=4)])
def test_few_prompts_or_seeds_decide_nothing_whatever_the_interval(few: Sample) -> None:
    sure = Interval(1.0, 0.9, 1.1)
    assert decided("", sure, few).verdict == UNDECIDED
    assert decided_within("", sure, few, 2.0).verdict == UNDECIDED
    assert decided("", sure, Sample(prompts=20, seeds=5)).verdict == HOLDS
    assert decided("", sure, Sample(seeds=5)).verdict == HOLDS


def test_likeness_needs_the_whole_interval_within_the_margin() -> None:
    assert decided_within("", Interval(0.0, -0.04, 0.04), MANY, 0.05).verdict == HOLDS
    assert decided_within("", Interval(0.04, 0.02, 0.06), MANY, 0.05).verdict == UNDECIDED
    assert decided_within("", Interval(0.08, 0.06, 0.1), MANY, 0.05).verdict == FAILS


def test_differences_of_two_groups_have_intervals_of_their_own() -> None:
    rng = np.random.default_rng(4)
    one, other = rng.normal(0.3, 0.1, 30), rng.normal(0.0, 0.1, 40)
    assert difference(one, other).decide() == HOLDS
    assert difference(other, one).decide() == FAILS
    assert difference(one[:1], other).decide() == UNDECIDED
    assert interval([0.5]).decide() == UNDECIDED


@pytest.mark.parametrize(
    ("held", "failed", "undecided", "verdict"),
    [
        (5, 0, 0, HOLDS),
        (3, 2, 0, "in part"),
        (3, 0, 2, "in part"),
        (1, 4, 0, FAILS),  # one of five parts is no "in part"
        (2, 2, 0, FAILS),  # no majority
        (2, 1, 2, UNDECIDED),
        (0, 0, 3, UNDECIDED),
        (0, 0, 0, UNDECIDED),
    ],
)
def test_a_row_follows_from_the_share_of_its_parts(held: int, failed: int, undecided: int, verdict: str) -> None:
    assert row_verdict([HOLDS] * held + [FAILS] * failed + [UNDECIDED] * undecided) == verdict
