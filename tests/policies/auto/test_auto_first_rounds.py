"""A calibrated policy with a head whose card is known: its first rounds, and when it times plain decoding."""

import math
from itertools import pairwise

import pytest

from wager.core import OFF, Arm, Calibration, Context, Hint, Round, Tree
from wager.policies import build
from wager.policies.auto import Auto
from wager.policies.auto.features import Proposal
from wager.policies.auto.verify import VerifyLatency

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


def test_what_is_expected_counts_as_eight_tokens_of_the_best_arm() -> None:
    policy = with_head()
    policy.choose(Context(policy.arms, 1, 0, None, {"eagle": 0}, {"lookup": Hint()}, remaining=128))
    tokens, seconds = policy.latency.rates.sums[1]
    card = (0.65, 0.6, 0.55, 0.5)  # of the smaller tree, which brings more in a second
    expected = 1 + sum(math.prod(card[: n + 1]) for n in range(4))
    assert tokens == 8
    assert tokens / seconds == pytest.approx(expected / (0.0013 + 0.0003), rel=0.02)


def test_a_model_without_a_card_is_expected_to_bring_nothing() -> None:
    policy = build("auto", (OFF, Arm("draft", 4)))
    assert isinstance(policy, Auto)
    policy.calibrate(Calibration({1: 0.02, 5: 0.025}, {Arm("draft", 4): 0.004}))
    policy.choose(Context(policy.arms, 1, 0, None, {"draft": 0}, remaining=128))
    assert not policy.latency.rates.known(1)


@pytest.mark.parametrize("expecting", [False, True])
def test_expecting_a_rate_leaves_a_round_alone_that_is_observed_late(
    expecting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matching drafters alone: nothing is expected of them, and the second choice comes before the first is learned."""
    if not expecting:
        monkeypatch.setattr(Auto, "_expect_rate", lambda policy, context: None)
    policy = build("auto", (OFF, *(Arm("lookup", n) for n in range(1, 9))))
    assert isinstance(policy, Auto)
    policy.calibrate(Calibration(dict.fromkeys((1, 2, 3, 5, 9), 0.0013)))
    learned, learn = [], policy.acceptance.learn

    def noting(proposal: Proposal, known: int, agreed: int) -> None:
        learned.append((proposal.length, proposal.hint.match, agreed))
        learn(proposal, known, agreed)

    monkeypatch.setattr(policy.acceptance, "learn", noting)
    waiting: Round | None = None
    for number, (match, size) in enumerate(((7, 8), (1, 2), (3, 4))):
        known = (policy.arms, 1, number, waiting.arm if waiting else None, {}, {"lookup": Hint(match, size=size)}, {})
        arm = policy.choose(Context(*known, {"lookup": 1e-6}, remaining=100, unobserved=waiting is not None))
        if waiting is not None:
            policy.observe(waiting)
        drafted = min(arm.length, size)
        waiting = Round(arm, drafted, 0, 1, verify_seconds=0.0013, others={} if drafted else {"lookup": 0})
    assert waiting is not None
    policy.observe(waiting)
    assert learned == [(8, 7, 0), (2, 1, 0), (4, 3, 0)]


def timings(slower: float, rounds: int = 1000) -> list[int]:
    """Rounds in which plain decoding was timed, where drafts bring three tokens and from round 300 on it takes so many
    times as long, every time, and the others what they did."""
    policy, previous, timed = with_head(), None, []
    for number in range(rounds):
        context = Context(policy.arms, 1, number, previous, {"eagle": 0}, {"lookup": Hint()}, remaining=10_000)
        arm = policy.choose(context)
        tokens, drafting = (1, 0.0) if arm == OFF else (3, 0.0003 if arm == HEAD[1] else 0.0008)
        taken = 0.0013 * (slower if arm == OFF and number >= 300 else 1.0)
        policy.observe(Round(arm, arm.budget, tokens - 1, tokens, verify_seconds=taken, draft_seconds=drafting))
        timed += [number] if arm == OFF else []
        previous = arm
    return timed


@pytest.mark.parametrize("planted", [False, True])
def test_that_plain_decoding_has_become_slower_is_no_question_where_drafts_are_ahead(
    planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if planted:
        overdue = VerifyLatency.overdue
        monkeypatch.setattr(VerifyLatency, "overdue", lambda widths, lead: overdue(widths))
    slower, quicker = timings(1.5), timings(0.6)
    assert all(b - a <= 201 for a, b in pairwise(slower))
    runs = [b - a <= 3 for a, b in pairwise(slower)]  # settled at once
    assert any(runs) is planted
    assert sum(b - a <= 3 for a, b in pairwise(quicker)) >= 2, "that it is quicker is settled at once"


@pytest.mark.parametrize("calibrated", [False, True])
def test_a_first_text_is_not_judged_by_eight_tokens_where_plain_decoding_was_timed_before(calibrated: bool) -> None:
    policy = with_head()
    policy._calibrated = calibrated
    chosen: list[Arm] = []
    while OFF not in chosen:  # every round brings one token, as it may, and loses little
        context = Context(policy.arms, 1, len(chosen), chosen[-1] if chosen else None, {"eagle": 0}, remaining=128)
        chosen.append(policy.choose(context))
        policy.observe(Round(chosen[-1], chosen[-1].budget, 0, 1, verify_seconds=0.0013, draft_seconds=0.0001))
    assert len(chosen) - 1 == (8 if calibrated else 1)


def test_it_is_calibrated_from_the_first_timed_width_until_it_is_reset() -> None:
    policy = with_head()
    assert policy._calibrated
    policy.calibrate(Calibration())
    assert policy._calibrated, "what was timed stays"
    policy.reset()
    assert not policy._calibrated
