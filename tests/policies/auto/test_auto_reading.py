"""Several models in one text: idle ones read it where that pays, and the right one is found."""

import math
from dataclasses import replace

import numpy as np
import pytest
from reading_lab import CHANGING, VERIFY, heads, played, tokens_a_round

from wager.core import OFF, Arm, Calibration, Context, Round
from wager.policies import build
from wager.policies.auto import Auto, AutoConfig
from wager.policies.auto.latency import DraftLatency
from wager.policies.auto.positional import PositionalAcceptance
from wager.policies.auto.reading import TextAcceptance, expected_gain
from wager.simulation import Drafter, Stream


def test_of_six_heads_the_right_one_is_found_in_sixteen_rounds() -> None:
    six = heads(0.55, 0.5, 0.55, 0.75, 0.5, 0.55)
    found = {
        spec: tokens_a_round(played(six, spec, 40, after=45))
        for spec in ("auto", "meta-ucb", "ucbspec", "exp3spec", "hedge", "fixed:drafter=d3,length=4")
    }
    right = found.pop("fixed:drafter=d3,length=4")
    assert found["auto"] >= 0.97 * right
    assert found["auto"] == max(found.values())


def test_without_reading_it_is_not() -> None:
    six = heads(0.55, 0.5, 0.55, 0.75, 0.5, 0.55)
    right = tokens_a_round(played(six, "fixed:drafter=d3,length=4", 8, after=45))
    assert tokens_a_round(played(six, "auto-no-others", 8, after=45)) < 0.95 * right


def test_who_is_known_is_not_read_again_and_dear_reading_is_rare() -> None:
    late = played(heads(0.55, 0.75, 0.5, tokens=2000), "auto", 3, after=1000)
    assert sum(len(one.read_seconds) for one in late) < 0.02 * len(late)
    dear = played(heads(0.55, 0.6, 0.5, lag=0.003, tokens=1000), "auto", 3)
    assert sum(sum(one.read_seconds.values()) for one in dear) < 0.03 * sum(one.seconds for one in dear)


def test_a_text_that_changes_is_noticed() -> None:
    last = [one.arm.drafter for one in played(CHANGING, "auto", 1, after=3500)]
    assert last.count("y") > 0.9 * len(last)


def test_one_model_has_nobody_to_be_compared_with() -> None:
    """Nobody reads, and it is decided as if nothing were known of tokens that it read."""
    arms = (OFF, Arm("model", 2), Arm("model", 4))
    told, silent = (build("auto", arms, seed=3) for _ in range(2))
    rng = np.random.default_rng(0)
    for number in range(150):
        context = Context(arms, previous=OFF if number else None, lag={"model": int(rng.integers(0, 9))})
        chosen = [policy.choose(context) for policy in (told, silent)]
        assert chosen[0] == chosen[1]
        assert told.select_readers(context) == ()
        accepted = min(chosen[0].length, int(rng.geometric(0.4)) - 1)
        counts = (chosen[0], chosen[0].length, accepted, accepted + 1)
        told.observe(Round(*counts, verify_seconds=0.02, others={"model": (1.0,) * 5}))
        silent.observe(Round(*counts, verify_seconds=0.02))
    assert (
        played(Stream((Drafter("x", (0.8,), 0.002),), (4,), 400, off=True, verify=VERIFY), "auto", 1)[-1].others == {}
    )


def test_a_batch_reads_nothing() -> None:
    arms = (OFF, Arm("x", 2), Arm("y", 2))
    policy = build("auto", arms)
    for _ in range(30):
        context = Context(arms, batch=4, previous=OFF, lag={"x": 5, "y": 5})
        arm = policy.choose(context)
        assert policy.select_readers(context) == ()
        policy.observe(Round(arm, 4 * arm.length, 0, 4, 4, verify_seconds=0.03))


def test_a_state_in_the_middle_of_a_text_goes_on_as_it_was() -> None:
    one, other = (build("auto", heads(0.5, 0.6, 0.7).arms, seed=1) for _ in range(2))
    assert isinstance(one, Auto)
    assert isinstance(other, Auto)
    previous = None
    for number in range(80):
        if number == 40:
            other.load_state_dict(one.state_dict())
            assert one.in_text.factors
        context = Context(one.arms, previous=previous, lag={f"d{i}": 3 + i for i in range(3)}, remaining=300)
        arm, readers = one.choose(context), one.select_readers(context)
        if number >= 40:
            assert other.choose(context) == arm
            assert other.select_readers(context) == readers
        others = dict.fromkeys(readers, (1.0, 0.0, 1.0))
        taken = dict.fromkeys(readers, 0.002)
        round_ = Round(arm, arm.length, arm.length // 2, 1 + arm.length // 2, draft_seconds=0.002 * arm.length,
                       verify_seconds=0.03, others=others, read_seconds=taken)  # fmt: skip
        one.observe(round_)
        other.observe(round_)
        previous = arm


@pytest.mark.parametrize(("value", "deviation"), [(1.9, 0.2), (2.0, 0.5), (2.3, 0.4), (1.0, 0.1), (1.7, 0.3)])
def test_what_knowing_a_value_brings_is_the_mean_of_the_larger_less_the_larger_mean(
    value: float, deviation: float
) -> None:
    drawn = np.random.default_rng(0).normal(value, deviation, 400_000)
    brings = float(np.maximum(2.0, drawn).mean()) - max(2.0, value)
    found = expected_gain(2.0, value, lambda moved: value + moved * deviation)
    assert found == pytest.approx(brings, rel=0.25, abs=0.003)


def test_a_text_shifts_each_drafter_beyond_all_of_them() -> None:
    text = TextAcceptance(AutoConfig())
    for name, accepted in (("x", 30.0), ("y", 20.0), ("z", 20.0)):
        text.learn(name, [0.5] * 40, accepted)
    text.settle()
    assert text.factors == {}, "nobody reads here"
    text.readable.add("x")
    text.settle()
    # a surplus of 10 in 30 units of information, 2 of them the prior; then 10 - 10 · 10/32 in 10 + 2 for x
    common = 10 / 32
    assert math.log(text.factors["x"]) == pytest.approx((10 - 10 * common) / 12)
    assert math.log(text.factors["y"]) == pytest.approx(-10 * common / 12)
    text.begin()
    assert text.factors == {}


@pytest.mark.parametrize(("apart", "texts"), [(0.0, 60), (0.3, 60), (1.0, 60), (1.0, 6)])
def test_how_far_drafters_differ_in_a_text_is_learned_from_texts(apart: float, texts: int) -> None:
    """With shifts of that standard deviation, of three drafters that have drafted for or read 120, 40 and 20 tokens."""
    rng, found = np.random.default_rng(1), []
    for _ in range(20):
        text = TextAcceptance(AutoConfig())
        text.readable.add("x")
        text.familiar.update("xyz")
        for _ in range(texts):
            for name, tokens in (("x", 120), ("y", 40), ("z", 20)):
                shifted = 1.0 / (1.0 + math.exp(-apart * rng.standard_normal()))
                text.learn(name, [0.5] * tokens, float(rng.binomial(tokens, shifted)))
            text.begin()
        found.append(text.variance)
    # accepted tokens are fewer than a line through the middle says, and the first guess of 1/2 counts as one more
    assert np.mean(found) == pytest.approx(0.8 * apart**2, abs=0.03 + 0.15 * apart**2 + 0.5 / texts)
    assert text.prior == pytest.approx(1.0 / max(text.variance, 0.004))


def test_the_first_text_with_a_drafter_does_not_tell_how_far_texts_differ() -> None:
    """Its usual acceptance is that text's own."""
    text = TextAcceptance(AutoConfig())
    text.readable.add("x")
    for name, accepted in (("x", 100.0), ("y", 20.0)) * 2:
        text.learn(name, [0.5] * 120, accepted)
    text.begin()
    assert text.variance == 0.5
    for name, accepted in (("x", 100.0), ("y", 20.0)) * 2:
        text.learn(name, [0.5] * 120, accepted)
    text.begin()
    assert text.variance > 1.0


@pytest.mark.parametrize(("rate", "balance", "remaining", "keeps"), [
    (0.3, -1.0, 250, True),  # others may be better in this text
    (0.3, 1.0, 250, False),  # it does not lose
    (0.01, -1.0, 250, False),  # others are far worse: reading would tell nothing
    (0.3, -1.0, 2, False),  # too few tokens to come
])  # fmt: skip
def test_a_text_that_loses_keeps_what_other_models_need_to_read(
    rate: float, balance: float, remaining: int, keeps: bool
) -> None:
    arms = (OFF, Arm("x", 4), Arm("y", 4), Arm("z", 4))
    policy = build("auto", arms, seed=0)
    assert isinstance(policy, Auto)
    published = {"x": (0.35,) * 4, "y": (rate,) * 4, "z": (rate,) * 4}
    policy.calibrate(
        Calibration({1: 1e-3, 5: 1e-3}, dict.fromkeys(arms[1:], 2e-4), {n: {64: 2e-4} for n in "xyz"}, published)
    )
    first = Context(arms, lag=dict.fromkeys("xyz", 64), remaining=remaining)
    policy.choose(first)
    policy.select_readers(first)
    policy.observe(Round(arms[1], 4, 1, 2, draft_seconds=2e-4, verify_seconds=1e-3))
    policy.exploration.bound.balance, policy.exploration.bound.timed = balance, True
    context = Context(arms, previous=arms[1], lag={"x": 0, "y": 66, "z": 66}, remaining=remaining)
    policy.choose(context)
    bound, reading = policy.exploration.bound, policy._reading_seconds("y", 67, 1e-3)[1] / 1e-3
    assert bound.kept == pytest.approx(min(1.5, 2 * reading) if keeps else 0.0)
    assert bound.draft_room == pytest.approx(bound.room - bound.kept)
    policy.choose(replace(context, readers=frozenset("xy")))
    assert bound.kept == pytest.approx(reading if keeps else 0.0), "z can only draft"
    policy.choose(context)
    if keeps:  # all that is left is kept, and they can read with it
        bound.balance -= bound.draft_room
        for name in "yz":
            policy.in_text.of(name).missed = 64
        assert policy.choose(context) == OFF
        assert bound.room == pytest.approx(bound.kept)
        assert policy.select_readers(context), "somebody reads"
    policy.in_text.of("y").information = 1.0  # it has read
    policy.choose(context)
    assert bound.kept == pytest.approx(reading if keeps else 0.0)


def test_nothing_is_kept_in_an_engine_in_which_nobody_reads() -> None:
    arms = (OFF, Arm("x", 4), Arm("y", 4))
    policy = build("auto", arms, seed=0)
    assert isinstance(policy, Auto)
    for previous in (None, *[arms[1]] * 30):
        policy.choose(Context(arms, previous=previous, lag={"x": 0, "y": 66}, remaining=250))
        assert policy.exploration.bound.kept == 0.0
        policy.observe(Round(arms[1], 4, 0, 1, draft_seconds=2e-4, verify_seconds=1e-3))


def test_reading_tells_the_more_the_less_is_known() -> None:
    text = TextAcceptance(AutoConfig())
    assert text.deviation("x", 0.5, 0.3) == 0.0, "it has missed nothing"
    text.pass_by(16, ("x", "y"), aside=False)
    text.learn("y", [0.5] * 200, 100.0)
    assert text.deviation("x", 0.5, 0.3) > 2 * text.deviation("y", 0.5, 0.1) > 0.0


def test_tokens_that_a_drafter_with_hints_drafted_for_tell_nothing() -> None:
    text = TextAcceptance(AutoConfig())
    text.pass_by(2, ("x",), aside=False)
    text.pass_by(3, ("x",), aside=True)
    text.pass_by(1, ("x",), aside=False)
    assert text.of("x").missed == 3
    assert sorted(text.scored((0.1, 0.2, 0.3, 0.4, 0.5, 0.6))) == [0.1, 0.2, 0.6]
    assert text.scored((0.5, 0.6)) == [0.6]


def test_tokens_that_were_read_move_all_positions_alike() -> None:
    counts = PositionalAcceptance(np.random.default_rng(0), AutoConfig())
    for accepted in (0, 1, 1, 4, 2, 4) * 20:
        counts.learn("x", accepted, 4)
    before = counts.of("x", 4)
    shape, tried, kept = [k / n for k, n in zip(before.kept, before.tried, strict=True)], before.total, sum(before.kept)
    counts.read("x", (0.0,) * 30 + (1.0,) * 10)
    after = counts.of("x", 4)
    assert (after.total, sum(after.kept)) == (pytest.approx(tried + 40), pytest.approx(kept + 10))
    shares = [k / n / old for k, n, old in zip(after.kept, after.tried, shape, strict=True)]
    assert shares == pytest.approx([shares[0]] * 4, rel=0.01)
    assert shares[0] < 1.0
    counts.of("new", 3)
    counts.read("new", (1.0, 0.0, 1.0, 1.0))
    assert counts.of("new", 3).total == pytest.approx(4.0)
    assert counts.of("new", 3).rate == pytest.approx(4 / 6)


def test_a_change_of_drafter_is_paid_for_by_what_the_other_would_have_brought() -> None:
    text = TextAcceptance(AutoConfig())
    text.compare({}, 0.0, "x")
    for _ in range(4):
        text.compare({"x": 1.0, "y": 1.25, "z": 0.5}, 1.0, "x")
    assert text.credit == {"x": 0.0, "y": 1.0, "z": 0.0}
    text.compare({"x": 1.0, "y": 1.25, "z": 0.5}, 1.0, "y")
    assert (text.current, text.credit) == ("y", {})


def test_catching_up_on_more_than_ever_takes_as_the_numbers_timed_suggest() -> None:
    drafts = DraftLatency(AutoConfig())
    drafts.caught_up("flat", 8, 0.002)
    drafts.caught_up("flat", 64, 0.002)
    drafts.caught_up("line", 8, 0.002)
    drafts.caught_up("line", 64, 0.016)
    drafts.caught_up("once", 8, 0.002)
    found = [drafts.long_catch_up(name, 256, 0.02) for name in ("flat", "line", "once")]
    assert found == pytest.approx([0.002, 0.064, 0.002])
    assert drafts.long_catch_up("line", 64, 0.02) == pytest.approx(0.016)


def test_how_far_drafters_differ_is_known_from_their_cards_until_texts_tell() -> None:
    text = TextAcceptance(AutoConfig())
    text.expect(0.002, ("x", "y"))
    assert (text.prior, text.familiar) == (250.0, {"x", "y"})  # no more than a thousand tokens tell
    text.readable.add("x")
    for name, accepted in (("x", 110.0), ("y", 10.0)):
        text.learn(name, [0.5] * 120, accepted)
    text.begin()
    learned = text.variance
    assert learned > 0.02, "the first text counts already"
    text.expect(0.002, ("x", "y"))
    assert text.variance == learned


@pytest.mark.parametrize(("apart", "reads"), [(0.002, False), (0.4, True), (None, True)])
def test_idle_models_read_where_their_cards_say_that_texts_tell_them_apart(apart: float | None, reads: bool) -> None:
    arms = (OFF, Arm("x", 4), Arm("y", 4))
    policy = build("auto", arms, seed=0)
    assert isinstance(policy, Auto)
    published = {"x": (0.62,) * 4, "y": (0.6,) * 4}
    known = Calibration({1: 1e-3, 5: 1e-3}, dict.fromkeys(arms[1:], 1e-4), {n: {64: 1e-4} for n in "xy"}, published)
    policy.calibrate(replace(known, apart=apart))
    policy.positional.shifts["x"].information = policy.positional.shifts["y"].information = 1e6
    for name in "xy":
        policy.positional.learn(name, 2, 4)  # what is usual is known: only this text is not
        policy.positional.of(name, 4).deviation = 0.0
    policy.choose(Context(arms, lag={"x": 64, "y": 64}, remaining=500))
    policy.in_text.of("y").missed = 64
    policy.in_text.readable.update("xy")
    context = Context(arms, previous=arms[1], lag={"x": 0, "y": 64}, remaining=500)
    policy.choose(context)
    assert ("y" in policy.select_readers(context)) is reads
