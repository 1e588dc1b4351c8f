"""What catching up costs in replays, how it is timed, and when policies are told what rounds cost."""

from dataclasses import replace

import pytest
from replays import COSTS, replay

from wager.bench.recording import straight_line
from wager.core import Calibration, Signal
from wager.policies.plain import Off


def test_catching_up_costs_a_fixed_part_and_one_by_the_token() -> None:
    costs = replace(COSTS, lag={"model": 5e-4}, lag_fixed={"model": 1e-3})
    assert costs.catch_up("model", 22) == pytest.approx(1e-3 + 22 * 5e-4)
    assert costs.catch_up("model", 1) == 0  # read along with the next
    assert costs.catch_up("suffix", 22) == 0
    with pytest.raises(ValueError, match="at least 0 seconds"):
        replace(COSTS, lag_fixed={"model": -1.0})


@pytest.mark.parametrize(
    ("seconds", "each", "fixed"),
    [
        ((1.016, 1.064), 1e-3, 1.0),  # a fixed second and a thousandth a token
        ((0.16, 0.64), 1e-2, 0.0),  # by the token
        ((1.2, 1.0), 0.0, 1.0),  # more tokens in less time: noise
        ((0.01, 0.64), 1e-2, 0.0),  # nothing is below 0
        ((-1.0, -1.0), 0.0, 0.0),
    ],
)
def test_two_timings_give_the_fixed_seconds_and_those_of_a_token(
    seconds: tuple[float, float], each: float, fixed: float
) -> None:
    assert straight_line((16, 64), seconds) == pytest.approx((each, fixed))


def test_a_context_too_small_for_two_timings_counts_by_the_token() -> None:
    assert straight_line((8, 8), (0.4, 0.4)) == pytest.approx((0.05, 0.0))


class Told(Off):
    """Plain decoding that wants to know what rounds cost."""

    needs = frozenset({Signal.COSTS})
    told: list[Calibration]

    def calibrate(self, known: Calibration) -> None:
        self.told.append(known)


@pytest.mark.parametrize(("reset", "times"), [("never", 1), ("text", 4)])
def test_a_policy_that_forgets_is_told_again_what_rounds_cost(reset: str, times: int) -> None:
    scenario = replay(3, reset=reset, calibrated=True)
    policy = Told(scenario.arms)
    policy.told = []
    environment = scenario.start(0, policy)
    while not environment.done:
        policy.observe(environment.play(policy.choose(environment.context())))
    assert policy.told == [scenario.calibration] * times  # at the start, and before every text
