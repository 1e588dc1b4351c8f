"""Decisions for one request; whatever is kept between rounds does not show in them."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from auto_lab import NAMES, WITH_TREES, Engine, any_hint, auto, cheap, dear, random_context, random_round
from waiting import allowed

from wager.bench.decisions import hinted_seconds
from wager.core import OFF, Arm, Calibration, Context, Hint, Round, Tree
from wager.policies import build
from wager.policies.auto import Auto


def test_it_learns_from_drafters_it_did_not_play() -> None:
    policy, rng = auto(), np.random.default_rng(0)
    context = Context(policy.arms, previous=OFF, hints={name: Hint(3, size=6) for name in NAMES})
    for _ in range(100):  # the engine has its own way: nobody is ever played
        policy.choose(context)
        others = {name: int(rng.random() < rate) for name, rate in zip(NAMES, (0.2, 0.3, 0.9), strict=True)}
        policy.observe(Round(OFF, 0, 0, 1, verify_seconds=0.02, others=others))
    assert policy.choose(context).drafter == "z"


def test_plain_decoding_is_chosen_where_width_is_dear() -> None:
    assert Engine(auto(drafters=1), {"x": 0.6}, cheap).play(300)[100:].count(OFF) < 10
    assert Engine(auto(drafters=1), {"x": 0.6}, dear).play(300)[100:].count(OFF) > 190


def test_a_proposal_between_two_lengths_is_played_whole_with_the_longer() -> None:
    arms = (OFF, *(Arm("x", n) for n in (2, 4, 8)))
    policy = build("auto", arms)
    for _ in range(60):
        arm = policy.choose(Context(arms, previous=OFF, hints={"x": Hint(9, size=3)}))
        accepted = min(3, arm.length)
        policy.observe(Round(arm, accepted, accepted, accepted + 1, verify_seconds=0.02))
    assert arm == Arm("x", 4)


def test_without_plain_decoding_the_shortest_arm_is_played_where_nobody_proposes() -> None:
    arms = (Arm("x", 4), Arm("x", 2), Arm("y", 3))
    policy = build("auto", arms)
    assert isinstance(policy, Auto)
    for _ in range(20):
        hints = {"x": Hint(), "y": Hint()}
        arm = policy.choose(Context(arms, previous=arms[0], hints=hints))
        assert arm == Arm("x", 2)
        assert policy.options()[0].arm == arm
        policy.observe(Round(arm, 0, 0, 1, verify_seconds=0.02))


def test_without_a_clock_drafts_are_chosen_by_what_they_bring() -> None:
    engine = Engine(auto(drafters=2), {"x": 0.3, "y": 0.9}, lambda width: 0.0)
    assert engine.play(100)[50:].count(Arm("y", 6)) > 40


def test_options_name_the_chosen_arm_first_and_are_positive() -> None:
    policy = auto()
    assert policy.options() == []
    engine = Engine(policy, {"x": 0.2, "y": 0.5, "z": 0.9}, cheap)
    for _ in range(60):
        (arm,) = engine.play(1)
        options = policy.options()
        assert options[0].arm == arm
        assert all(option.goodput > 0 for option in options)
    assert {option.arm.drafter for option in options} == {"off", *NAMES}


def test_a_saved_stream_goes_on_as_the_one_it_was_saved_from() -> None:
    rng, policy = np.random.default_rng(0), build("auto", WITH_TREES)
    assert isinstance(policy, Auto)
    twin: Auto | None = None
    for number in range(160):
        context = random_context(rng, policy, number)
        arm = policy.choose(context)
        if twin is not None:
            assert twin.choose(context) == arm
        came_back = random_round(rng, context, arm)
        policy.observe(came_back)
        if twin is not None:
            twin.observe(came_back)
        if number % 20 == 10:
            twin = Auto(WITH_TREES, seed=9)
            twin.load_state_dict(json.loads(json.dumps(policy.state_dict(), allow_nan=False)))
        if twin is not None:
            assert twin.state_dict() == policy.state_dict()


ARMS = (OFF, *(Arm(name, n) for name in NAMES for n in range(1, 7)))


def context(rng: np.random.Generator, arms: tuple[Arm, ...] = ARMS, longest: int = 6) -> Context:
    """Some of the drafters have a hint, in any order; some say what they have in common, some do not."""
    asked = [str(name) for name in rng.permutation(NAMES)[: rng.integers(0, 4)]]
    hints = {name: any_hint(rng, longest) for name in asked}
    shared = {
        one: {two: int(rng.integers(0, 1 + hints[one].size)) for two in asked if two != one}
        for one in asked
        if rng.random() < 0.8
    }
    seconds = {name: float(rng.choice([1e-5, 0.004])) for name in asked}
    return Context(arms, previous=OFF, hints=hints, agreement=shared, proposal_seconds=seconds)


def outcome(rng: np.random.Generator, context: Context, arm: Arm) -> Round:
    runs = {name: int(rng.integers(0, hint.size + 1)) for name, hint in context.hints.items()}
    drafted = min(arm.length, context.hints[arm.drafter].size) if arm.drafter in runs else arm.length
    accepted = min(drafted, runs.get(arm.drafter, drafted // 2))
    others = {name: min(run, accepted + 1) for name, run in runs.items() if name != arm.drafter and rng.random() < 0.9}
    seconds = (0.02 + 0.002 * drafted) * (1 + 0.05 * rng.standard_normal())
    return Round(arm, drafted, accepted, accepted + 1, verify_seconds=seconds, others=others)


@pytest.mark.parametrize("lengths", [(1, 2, 3, 4, 5, 6), (2, 5)])
def test_whoever_is_asked_decisions_are_those_of_one_that_keeps_no_seats(lengths: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    arms = (OFF, *(Arm(name, n) for name in NAMES for n in lengths))
    policy, forgetful = Auto(arms), Auto(arms)
    chosen = set()
    for _ in range(600):
        now = context(rng, arms)
        forgetful._records.clear()
        arm = policy.choose(now)
        assert forgetful.choose(now) == arm
        assert forgetful.options() == policy.options()
        came = outcome(rng, now, arm)
        for one in (policy, forgetful):
            one.observe(came)
        assert forgetful.state_dict() == policy.state_dict()
        chosen.add(arm)
    assert len(policy._records) == 2 * 15  # every order of every choice of them but none, for two rounds
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


def test_a_round_is_decided_and_learned_from_in_little_time() -> None:
    chosen, observed = zip(*(hinted_seconds("auto", rounds=300, warmup=100) for _ in range(3)), strict=True)
    assert min(chosen) < allowed(55e-6)  # three times what it takes on a slow core, and more on a busy one
    assert min(observed) < allowed(55e-6)


def test_a_prompt_longer_than_any_that_was_timed_does_not_rule_a_head_out() -> None:
    """A GPU: 15 tokens are read from a graph, 63 are not, and widths make next to no difference to the target."""
    arms = (OFF, Arm("eagle", 4))
    policy = build("auto", arms, tokens=1000)
    verify = {1: 0.00136, 2: 0.00134, 3: 0.00134, 5: 0.00136}
    timed = Calibration(verify, {arms[1]: 0.0004}, {"eagle": {15: 0.00003, 63: 0.0013}}, {"eagle": (0.7,) * 4})
    policy.calibrate(timed)
    assert policy.choose(Context(arms, 1, 0, None, {"eagle": 300}, remaining=128)) == arms[1]


def test_a_prompt_is_read_once_however_often_a_head_is_left_for_matches() -> None:
    arms = (OFF, Arm("eagle", 4))
    policy = build("auto", arms, tokens=1000)
    assert isinstance(policy, Auto)
    verify = {1: 0.00145, 2: 0.00145, 3: 0.00145, 5: 0.00145}
    timed = Calibration(verify, {arms[1]: 0.0004}, {"eagle": {15: 0.00005, 63: 0.0025}}, {"eagle": (0.6,) * 4})
    policy.calibrate(timed)
    policy.exploration.expected_stay = 1.0  # every round of the head was followed by one of another kind
    for remaining, arm in ((128, arms[1]), (5, OFF)):
        assert policy.choose(Context(arms, 1, 0, None, {"eagle": 63}, remaining=remaining)) == arm


def test_a_tree_starts_from_what_its_card_says_of_trees() -> None:
    arms = (OFF, Arm("eagle", 4), Arm("eagle", 4, Tree(4, 16)), Arm("eagle", 4, Tree(8, 32)))
    chain, tree = (0.6, 0.6, 0.6, 0.6), (0.85, 0.8, 0.7, 0.7)
    verify, draft = dict.fromkeys((1, 5, 17, 33), 0.0014), dict.fromkeys(arms[1:], 0.0004)
    chosen = []
    for seed in range(40):
        policy = build("auto", arms, seed=seed)
        assert isinstance(policy, Auto)
        policy.calibrate(Calibration(verify, draft, {"eagle": {64: 1e-5}}, {"eagle": chain, "eagle@4x16": tree}))
        known = policy.positional.counts
        assert known["eagle@4x16"].rate > known["eagle@8x32"].rate == known["eagle"].rate  # no card: as its chains
        chosen.append(policy.choose(Context(arms, 1, 0, None, {"eagle": 0}, remaining=128)))
    assert chosen.count(arms[2]) == len(chosen)  # however easy the text is thought to be


@pytest.mark.parametrize("hinted", [False, True])
def test_a_new_text_is_tried_in_an_engine_where_proposals_are_not_known_beforehand(hinted: bool) -> None:
    arms = (OFF, Arm("x", 1), Arm("x", 4))
    policy = build("auto", arms)
    hints = {"x": Hint(1, size=1)} if hinted else {}
    for _ in range(150):  # drafts are never accepted, and cost a third of a step
        arm = policy.choose(Context(arms, previous=OFF, hints=hints))
        others = {"x": 0} if hinted and not arm.length else {}
        seconds = 0.02 if not arm.length else 0.027
        policy.observe(Round(arm, min(1, arm.length), 0, 1, verify_seconds=seconds, others=others))
    assert isinstance(policy, Auto)
    policy.exploration.rounds_since_draft = 100
    begun = policy.choose(Context(arms, previous=None, hints=hints))
    assert (begun.length > 0) is not hinted
    assert policy.choose(Context(arms, previous=OFF, hints=hints)) == OFF, "one draft is awaited"


def test_what_is_foreseen_while_a_device_works_changes_no_choice() -> None:
    rng = np.random.default_rng(3)
    plain, foreseeing = Auto(WITH_TREES), Auto(WITH_TREES)
    chosen, used = [], 0
    waiting: Round | None = None  # observed after the next choice
    for number in range(600):
        now = replace(random_context(rng, plain, number), arms=plain.arms, unobserved=waiting is not None)
        if waiting is not None and now.previous is not None:
            foreseeing.foresee(replace(now, hints={}, agreement={}))
            used += foreseeing._foreseen is not None
        arm = plain.choose(now)
        assert foreseeing.choose(now) == arm, number
        assert foreseeing._foreseen is None
        for one in (plain, foreseeing) if waiting is not None else ():
            one.observe(waiting)
        waiting = random_round(rng, now, arm)
        if number % 7 == 0:
            for one in (plain, foreseeing):
                one.observe(waiting)
            waiting = None
        chosen.append(arm)
    assert used > 300
    assert sum(arm.drafter == "w" for arm in chosen) > 50
    assert foreseeing.state_dict() == plain.state_dict()


def test_what_is_foreseen_in_vain_is_not_drawn_again() -> None:
    rng = np.random.default_rng(3)
    plain, foreseeing = Auto(WITH_TREES), Auto(WITH_TREES)
    card = Calibration(acceptance={"w": (0.6, 0.5, 0.4), "w@2x6": (0.8, 0.7, 0.6)})
    for one in (plain, foreseeing):
        one.calibrate(card)
    for number in range(300):
        now = replace(random_context(rng, plain, number), arms=plain.arms)
        if now.previous is not None:
            for _ in range(number % 3):  # choices that are not made, and one that is made with another lag
                foreseeing.foresee(replace(now, hints={}, agreement={}, lag={"w": 1 + number}))
        arm = plain.choose(now)
        assert foreseeing.choose(now) == arm
        played = random_round(rng, now, arm)
        for one in (plain, foreseeing):
            one.observe(played)
    assert foreseeing.state_dict() == plain.state_dict()


def test_what_a_round_takes_at_most_is_not_that_of_an_earlier_choice() -> None:
    """A match's most seconds go by its length: one that was longer before must not be charged for it."""
    policy = Auto((OFF, *(Arm.parse(name) for name in ("x:4", "w:3"))))
    policy.calibrate(Calibration(verify={1: 0.02, 2: 0.021, 3: 0.022, 4: 0.023, 5: 0.04}))
    policy._worst_of = policy.arms[1], 7.0, 0.0
    now = Context(policy.arms, previous=OFF, lag={"w": 0}, remaining=100, hints={"x": Hint(9, (0.99,))})
    for _ in range(20):
        arm = policy.choose(now)
        if arm.drafter == "x":
            break
        policy.observe(Round(arm, 0, 0, 1, verify_seconds=0.02, others={"x": 1}))
    assert arm.drafter == "x"
    assert policy._now.most_seconds < 0.1


@pytest.mark.parametrize("changed", ["lag", "previous", "observed", "arms", "batch", "calibrated"])
def test_nothing_is_taken_for_foreseen_that_has_changed_since(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arms = (OFF, *(Arm.parse(name) for name in ("w:3", "w:5", "x:4")))
    policy = Auto(arms)
    policy.calibrate(Calibration(verify=dict.fromkeys(range(1, 7), 0.02), draft={arms[1]: 0.001}))
    now = Context(policy.arms, previous=arms[1], lag={"w": 0}, remaining=100, hints={"x": Hint()})
    played = Round(arms[1], 3, 2, 3, draft_seconds=0.001, verify_seconds=0.02)
    for _ in range(5):
        policy.choose(now)
        policy.observe(played)
    weighed = []
    weigh = Auto._weigh_models
    monkeypatch.setattr(Auto, "_weigh_models", lambda *given, **named: weighed.append(1) or weigh(*given, **named))
    policy.foresee(now)
    policy.choose(now)
    assert len(weighed) == 1, "it was foreseen"
    policy.foresee(now)
    if changed == "observed":
        policy.observe(played)
    if changed == "calibrated":
        policy.calibrate(Calibration(verify={1: 0.01}))
    other = {
        "lag": {"lag": {"w": 300}},
        "previous": {"previous": arms[2]},
        "arms": {"arms": arms[:2]},
        "batch": {"batch": 4},
    }
    policy.choose(replace(now, **other.get(changed, {})))
    assert len(weighed) == 3
