"""What cards say of heads is a beginning: heads inform each other, and what they show wins in the end."""

import math
from itertools import accumulate
from operator import mul

import numpy as np
import pytest
from auto_lab import CONFIG, run_of

from wager.core import OFF, Arm, Calibration
from wager.policies import build
from wager.policies.auto import Auto
from wager.policies.auto.positional import PositionalAcceptance
from wager.policies.auto.shifts import NOTICED


def positional(variance: float | None = None, *names: str, card: tuple[float, ...] = (0.5,)) -> PositionalAcceptance:
    """With so large a variance between drafters by the cards, and one card for all of them."""
    model = PositionalAcceptance(np.random.default_rng(0), CONFIG)
    if variance is not None:
        model.between_drafter_variance = variance
    for name in names or ("x",):
        model.expect(name, card)
    return model


def test_a_card_counts_as_sixteen_tokens() -> None:
    """As many tokens again that contradict it, and half of the surprise is believed."""
    model = positional()
    shift = model.shifts["x"]
    shift.learn([1.0], [16.0], [0.0])
    model.relate()
    assert shift.value == pytest.approx(-8.0 / (4.0 + 4.0), rel=0.03)
    for _ in range(10):
        shift.learn([1.0], [16.0], [8.0])
    before = shift.value
    shift.begin()
    model.relate()
    assert shift.value == before
    assert shift.deviation == 0.5, "after a change no more is known than at first"


def test_hard_texts_make_no_drafter_seem_worse_than_those_that_were_not_run_in_them() -> None:
    """By their cards x is a little better than y; it stays so, however far both are from their cards."""
    model = PositionalAcceptance(np.random.default_rng(0), CONFIG)
    model.between_drafter_variance = 0.002
    model.expect("x", (0.62, 0.6, 0.6))
    model.expect("y", (0.6, 0.6, 0.6))
    rng = np.random.default_rng(0)
    for text in range(20):
        for _ in range(40):
            model.learn("x", run_of(rng, [(0.2, 0.5)[text % 2]] * 3), 3)
        model.settle_learned()
        values = {key: model.tokens(own.odds, 1.0)[3] for key, own in model.counts.items()}
        assert values["x"] > values["y"]
        assert values["x"] == pytest.approx(values["y"], rel=0.04)
        assert values["x"] < 2.0, "both are far from their cards"


def test_a_drafter_that_is_known_by_itself_moves_the_others_little_where_cards_differ_much() -> None:
    alike, unlike = positional(0.002, "x", "y"), positional(1.0, "x", "y")
    for model in (alike, unlike):
        for _ in range(200):
            model.learn("x", 0, 1)
        model.settle_learned()
        assert model.shifts["x"].value < -2.0
    assert alike.shifts["y"].value == pytest.approx(alike.shifts["x"].value, rel=0.1)
    assert unlike.shifts["y"].value > 0.4 * unlike.shifts["x"].value
    assert unlike.shifts["x"].deviation < 0.3
    assert unlike.shifts["y"].deviation > 1.0


def test_what_idle_heads_showed_in_hard_texts_does_not_hold_down_the_one_that_runs_in_easier_ones() -> None:
    model, rng = positional(0.002, *"uvwxyz"), np.random.default_rng(0)
    for name in "uvwxyz":
        for _ in range(200):
            model.learn(name, run_of(rng, [0.5] * 4), 4)
    for _ in range(1500):
        model.learn("x", run_of(rng, [0.62] * 4), 4)
    model.settle_learned()
    brings = sum(0.62**n for n in range(5))
    assert model.tokens(model.counts["x"].odds, 1.0)[4] == pytest.approx(brings, rel=0.05)


def test_luck_with_texts_does_not_tell_heads_apart_that_are_alike() -> None:
    """Each is run in every other text; texts differ by a third of the odds, one standard deviation."""
    off = []
    for seed in range(20):
        rng, model = np.random.default_rng(seed), positional(0.002, "x", "y", card=(0.6,) * 4)
        for text in range(16):
            odds = 1.5 * math.exp(rng.normal(0.0, 0.33))
            for _ in range(35):
                model.learn("xy"[text % 2], run_of(rng, [odds / (1.0 + odds)] * 4), 4)
        model.settle_learned()
        brings = [model.tokens(model.counts[name].odds, 1.0)[4] for name in "xy"]
        off.append(math.log(brings[0] / brings[1]))
    assert np.std(off) < 0.03


@pytest.mark.parametrize(("cards", "texts"), [((0.6, 0.6), 30), ((0.6, 0.62), 60), ((0.6, 0.66), 120)])
@pytest.mark.parametrize("deviation", [0.0, 0.33])
def test_the_better_of_two_heads_is_known_after_some_texts_whatever_their_cards(
    deviation: float, cards: tuple[float, float], texts: int
) -> None:
    """One accepts 0.66 of its tokens, the other 0.6; texts are easier or harder by so many log odds."""
    right = 0
    for seed in range(8):
        rng, model = np.random.default_rng(seed), positional(0.002, "x", card=cards[:1] * 4)
        model.expect("y", cards[1:] * 4)
        for text in range(texts):
            name, rate = (("x", 0.66), ("y", 0.6))[text % 2]
            odds = rate / (1.0 - rate) * math.exp(rng.normal(0.0, deviation))
            for _ in range(35):
                model.learn(name, run_of(rng, [odds / (1.0 + odds)] * 4), 4)
        model.settle_learned()
        better, other = (model.tokens(model.counts[name].odds, 1.0)[4] for name in "xy")
        right += better > other
    assert right >= 7


def test_a_few_lucky_positions_tell_nothing_where_cards_hardly_differ() -> None:
    """One head alone learns its own; beside others, positions that differ from the card by luck decide nothing."""
    off: list[list[float]] = []
    for names in ("x", "xy"):
        rng, found = np.random.default_rng(0), list[float]()
        for _ in range(20):
            model = positional(0.002, *names, card=(0.5, 0.5))
            for _ in range(30):
                model.learn("x", run_of(rng, [0.5, 0.5]), 2)
            first, second = model.counts["x"].odds
            found.append(abs(math.log(second / first)))
        off.append(found)
    assert np.mean(off[1]) < 0.25 * np.mean(off[0])


@pytest.mark.parametrize("variance", [0.0, 0.002, 0.25])
def test_drafters_that_are_not_as_on_their_cards_are_known_in_the_end(variance: float) -> None:
    """Whatever variance the cards tell; both cards say 0.6 at every position."""
    found, truth = [], {"x": 0.7, "y": 0.5}
    for seed in range(4):
        rng, model = np.random.default_rng(seed), positional(variance, "x", "y", card=(0.6,) * 4)
        for _ in range(1500):
            for name, rate in truth.items():
                model.learn(name, run_of(rng, [rate] * 4), 4)
        model.settle_learned()
        odds = [model.counts[name].odds for name in truth]
        found.append([(own[0] / (1.0 + own[0]), model.tokens(own, 1.0)[4]) for own in odds])
    expected = [(rate, sum(rate**n for n in range(5))) for rate in truth.values()]
    assert np.mean(found, axis=0) == pytest.approx(np.array(expected), rel=0.03)


def test_positions_that_are_not_as_on_the_card_are_known_in_the_end() -> None:
    """As well beside another head as alone, though the cards say that heads hardly differ."""
    truth, chances, tokens = (0.75, 0.5, 0.35, 0.25), [], []
    for names in ("x", "xy"):
        rng, model = np.random.default_rng(0), positional(0.002, *names, card=(0.6,) * 4)
        for _ in range(4000):
            model.learn("x", run_of(rng, truth), 4)
        odds = model.counts["x"].odds
        chances.append([x / (1.0 + x) for x in odds])
        tokens.append(model.tokens(odds, 1.0)[4])
    # few drafts come as far as the last positions, and 50 tokens of the card stay at each
    assert chances[0] == pytest.approx((0.73, 0.51, 0.40, 0.40), abs=0.05)
    # beside another they are of more tokens
    assert chances[1] == pytest.approx(chances[0], abs=0.02)
    assert tokens == pytest.approx([1.0 + sum(accumulate(truth, mul))] * 2, rel=0.03)


def test_a_loaded_state_goes_on_with_what_drafters_have_shown_though_cards_are_told_again() -> None:
    arms = (OFF, Arm("x", 4), Arm("y", 4))
    told = Calibration(acceptance=dict.fromkeys("xy", (0.6,) * 4), apart=0.002)
    first, second, rng = build("auto", arms), build("auto", arms), np.random.default_rng(0)
    assert isinstance(first, Auto)
    assert isinstance(second, Auto)
    first.calibrate(told)
    for _ in range(300):
        for name, rate in (("x", 0.7), ("y", 0.5)):
            first.positional.learn(name, run_of(rng, [rate] * 4), 4)
    first.positional.settle_learned()
    second.load_state_dict(first.state_dict())
    second.calibrate(told)
    for name in "xy":
        odds = first.positional.counts[name].odds
        assert second.positional.counts[name].odds == pytest.approx(odds, rel=NOTICED)
        assert second.positional.shifts[name].variance == first.positional.shifts[name].variance > 0.02
