"""A calibrated policy with a head whose card is known: its first rounds, and when it times plain decoding."""

import pytest

from wager.core import OFF, Arm, Calibration, Context, Hint, Round, Tree
from wager.policies import build
from wager.policies.auto import Auto

HEAD = (OFF, Arm("eagle", 4, Tree(4, 16)), Arm("eagle", 6, Tree(8, 32)))


def with_head(seed: int = 0) -> Auto:
    """Calibrated as on an H200: the larger tree brings more in a round, the smaller one more in a second."""
    policy = build("auto", (*HEAD, Arm("lookup", 8)), seed=seed)
    assert isinstance(policy, Auto)
    verify, draft = dict.fromkeys((1, 9, 17, 33), 0.0013), {HEAD[1]: 0.0003, HEAD[2]: 0.0008}
    card = {"eagle@4x16": (0.65, 0.6, 0.55, 0.5), "eagle@8x32": (0.75, 0.7, 0.6, 0.55, 0.5, 0.5)}
    policy.calibrate(Calibration(verify, draft, {"eagle": {64: 1e-5}}, card))
    return policy


@pytest.mark.parametrize("planted", [False, True])
def test_the_first_round_has_the_arm_of_the_best_rate_and_not_the_longest(
    planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if planted:  # a second is worth a plain one until a round was timed
        monkeypatch.setattr(Auto, "_expect_rate", lambda policy, context: None)
    chosen = []
    for seed in range(40):
        policy = with_head(seed)
        context = Context(policy.arms, 1, 0, None, {"eagle": 0}, {"lookup": Hint()}, remaining=128)
        chosen.append(policy.choose(context))
    assert (chosen.count(HEAD[1]) > 30) is not planted


@pytest.mark.parametrize("emitted", [1, 3])
def test_plain_decoding_is_timed_less_often_the_further_ahead_drafts_are(emitted: int) -> None:
    policy, previous = with_head(), None
    plain = 0
    for number in range(1000):
        context = Context(policy.arms, 1, number, previous, {"eagle": 0}, {"lookup": Hint()}, remaining=10_000)
        arm = policy.choose(context)
        taken = 0.0013 * (1.2 if arm == OFF and number % 2 else 1.0)  # now and then far from what is expected
        drafts = {} if arm == OFF else {"draft_seconds": 0.0003 if arm == HEAD[1] else 0.0008}
        got = 1 if arm == OFF else emitted
        policy.observe(Round(arm, arm.budget, got - 1, got, verify_seconds=taken, **drafts))
        previous, plain = arm, plain + (arm == OFF)
    if emitted == 1:
        assert plain > 500  # drafts lose: it is what is played
    else:
        assert 0 < plain < 10  # once for each 800 rounds, and until it was timed


@pytest.mark.parametrize("calibrated", [False, True])
def test_a_first_text_is_not_judged_by_its_first_round_where_plain_decoding_was_timed_before(calibrated: bool) -> None:
    policy = with_head()
    policy._calibrated = calibrated
    chosen: list[Arm] = []
    for number in range(6):  # the first rounds bring one token each, as they may
        context = Context(policy.arms, 1, number, chosen[-1] if chosen else None, {"eagle": 0}, remaining=128)
        arm = policy.choose(context)
        chosen.append(arm)
        policy.observe(Round(arm, arm.budget, 0, 1, verify_seconds=0.0013, draft_seconds=0.0003 * (arm != OFF)))
    assert (OFF in chosen[:2]) is not calibrated
