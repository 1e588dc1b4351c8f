"""Policies in an engine whose drafts are made in one step and verified in the next."""

import itertools
import random
from typing import Any

import pytest
from step_engine import CHAT, COPYING, LOADS, PROFILES, SMALL_LOADS, MixedEngine, Script, StepEngine

from wager.core import OFF, Arm, Context
from wager.policies import build
from wager.policies.auto.latency import StepLatency
from wager.policies.steps import Step, StepRounds
from wager.policies.trials import LONG_BURST, CheaperTrials

ARMS = (OFF, Arm("ngram", 2), Arm("ngram", 4))


def test_a_step_in_which_the_length_changes_is_taken_apart() -> None:
    rng = random.Random(0)
    latency = StepLatency()
    verify = {0: 0.050, 2: 0.055, 5: 0.070}
    draft = {0: 0.0, 2: 0.010, 5: 0.025}
    before = 0
    for _ in range(4000):
        now = rng.choice([0, 2, 5])
        latency.observe(4, before, now, (verify[before] + draft[now]) * rng.uniform(0.95, 1.05))
        before = now
    for length, seconds in draft.items():
        assert latency.drafting(4, length) == pytest.approx(seconds, abs=0.003)
    assert latency.drafting(64, 5) == 0.0, "nothing is known of such a batch"


def test_the_cost_of_resuming_drafting_is_measured() -> None:
    latency = StepLatency()
    for turn in range(400):
        for step in range(8):
            now = 4 if step >= 4 else 0
            was = 4 if step >= 5 or (step == 0 and turn) else 0
            resumed = step == 4
            latency.observe(1, was, now, 0.05 + 0.02 * (was > 0) + 0.01 * (now > 0) + 0.03 * resumed, resumed=resumed)
    assert latency.switching > 0.01


def played(*arms: Arm) -> tuple[Any, StepRounds]:
    policy: Any = Script(*arms)
    return policy, StepRounds(policy, ARMS)


def test_a_round_has_the_arm_that_drafted_it_and_not_the_one_that_drafts_meanwhile() -> None:
    _, two, four = ARMS
    policy, rounds = played(two, four, OFF)
    for drafted, accepted in ((0, 0), (2, 1), (4, 4)):
        step = rounds.plan(1, 1, drafted, mixed=False)
        rounds.observe(step, accepted, accepted + 1, 0.05)
    assert [(r.arm, r.drafted, r.accepted, r.emitted) for r in policy.rounds] == [
        (OFF, 0, 0, 1),
        (two, 2, 1, 2),
        (four, 4, 4, 5),
    ]
    assert rounds.tokens == 8
    assert [context.previous for context in policy.contexts] == [OFF, two, four]


def test_a_mixed_step_is_counted_and_not_observed_and_nothing_is_explored_at_an_unknown_load() -> None:
    policy, rounds = played(ARMS[2], ARMS[2], ARMS[2])
    step = rounds.plan(3, 2, 4, mixed=True)
    assert step.length == 0, "no round of three requests was observed yet"
    assert rounds.observe(step, 2, 4, 0.5) == (4, 2, 4, 0.0)
    assert not policy.rounds
    assert not policy.contexts
    rounds.observe(rounds.plan(3, 3, 0, mixed=False), 0, 3, 0.05)
    assert rounds.plan(3, 3, 0, mixed=True).length == 4, "and now it is known"


def test_drafting_after_a_pause_has_a_lag_and_is_charged_the_cost_of_switching() -> None:
    policy, rounds = played(OFF, OFF, ARMS[1], ARMS[1])
    steps = []
    for _ in range(4):
        steps.append(rounds.plan(1, 1, 2 * bool(steps and steps[-1].length), mixed=False))
        rounds.observe(steps[-1], 0, 1, 0.05)
    assert [context.lag for context in policy.contexts] == [{}, {"ngram": 1}, {"ngram": 2}, {}]
    assert [step.resumed for step in steps] == [False, False, True, False]
    assert [one.lag for one in policy.rounds] == [0, 0, 0, 2]


def test_where_nothing_may_be_drafted_the_policy_is_not_called() -> None:
    policy, rounds = played()
    assert rounds.plan(1, 1, 0, mixed=False, off=True).length == 0
    assert not policy.contexts


@pytest.mark.parametrize("policy", ["nightjar", "dsd", "auto"])
def test_counts_that_cannot_be_one_arms_are_not_observed(policy: str) -> None:
    rounds = StepRounds(build(policy, ARMS), ARMS)
    step = rounds.plan(1, 1, 0, mixed=False)
    rounds.observe(step, 0, 3, 0.05)  # more tokens than an arm without drafts can bring
    assert rounds.tokens == 3


def test_where_steps_overlap_a_rounds_seconds_are_those_of_the_step_that_verified_it() -> None:
    """The drafting of one step is then in the next step's seconds: off, 1 and 5 token drafts of 2 ms a token."""
    arms = (OFF, Arm("ngram", 1), Arm("ngram", 5))
    policy: Any = Script(*(arms[n] for n in (1, 1, 0, 1, 2, 2, 0, 0, 1) * 30))
    rounds, length = StepRounds(policy, arms, overlap=True), 0
    for _ in range(270):
        step = rounds.plan(1, 1, length, mixed=False)
        rounds.observe(step, 0, 1, 0.05 + 0.002 * length)
        length = step.length
    for arm in arms:
        seen = {round(one.seconds, 6) for one in policy.rounds if one.arm is arm and not one.lag}
        assert seen == {round(0.05 + 0.002 * arm.length, 6)}
    assert rounds.latency.switching == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("batch", LOADS)
@pytest.mark.parametrize("profile", PROFILES)
def test_auto_finds_the_best_length_of_every_load_and_acceptance(profile: str, batch: int, overlap: bool) -> None:
    for seed in range(2):
        engine = StepEngine(overlap, seed=seed)
        engine.run(100, batch, PROFILES[profile])
        assert engine.run(600, batch, PROFILES[profile]) >= 0.95


@pytest.mark.parametrize("profile", PROFILES)
def test_a_new_load_is_explored_at_little_cost(profile: str) -> None:
    """With 128 requests a draft of four tokens takes three steps, and one of a single token tells as much."""
    shares = [StepEngine(True, seed=seed).run(100, 128, PROFILES[profile]) for seed in range(3)]
    assert sum(shares) / 3 >= 0.97


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_after_a_poor_phase_a_head_that_has_to_catch_up_is_resumed(batch: int) -> None:
    """Catching up takes 2 ms, which is no part of what drafts cost."""
    engine = StepEngine(True, (2e-3, 1e-6), seed=1)
    for chances in (PROFILES["fair"], (0.05,) * 4):
        engine.run(300, batch, chances)
    assert engine.lengths[-40:].count(0) >= 35
    soon, later = (engine.run(steps, batch, PROFILES["fair"]) for steps in (300, 300))
    assert soon >= (0.75 if batch == 1 else 0.85)
    assert later >= 0.97


def test_where_steps_overlap_the_cost_of_resuming_is_measured_and_is_no_part_of_verifying() -> None:
    two = Arm("eagle", 2)
    policy: Any = Script(*((two,) * 4 + (OFF,) * 4) * 40)
    rounds, length, pause = StepRounds(policy, (OFF, two), overlap=True), 0, 0
    for _ in range(320):
        step = rounds.plan(1, 1, length, mixed=False)
        rounds.observe(step, 0, 1, 0.05 + 0.01 * length + (0.03 if pause and length else 0.0))
        length, pause = step.length, 0 if length else pause + 1
    assert rounds.latency.switching == pytest.approx(0.03, rel=0.05)
    resumed = [one for one in policy.rounds if one.lag]
    assert [one.lag_seconds for one in resumed[3:]] == pytest.approx([0.03] * len(resumed[3:]), rel=0.05)
    drafted = [one.verify_seconds for one in policy.rounds if one.arm is two and one.verify_seconds > 1e-9]
    assert drafted == pytest.approx([0.07] * len(drafted), rel=0.05)


def test_where_the_arm_changes_a_rounds_seconds_are_those_of_such_rounds_between_their_like() -> None:
    """A slow host: the seconds from one step's end to the next's are those of launching the next arm's."""
    off, two = OFF, Arm("ngram", 2)
    policy: Any = Script(*((two,) * 3 + (off,) * 3) * 40)
    rounds = StepRounds(policy, (off, two), overlap=True)
    arm, flight = off, None
    for _ in range(240):
        step = rounds.plan(1, 1, arm.length, mixed=False)
        if flight is not None:
            rounds.observe(flight, 0, 1, 0.003 if arm is two else 0.002)
        arm, flight = step.next_arm, step
    late = policy.rounds[30:]
    for own, seconds in ((off, 0.002), (two, 0.003)):
        seen = [one.seconds for one in late if one.arm is own and not one.lag]
        assert seen == pytest.approx([seconds] * len(seen))


@pytest.mark.parametrize(("carries", "lengths"), [(True, [4, 0, 0]), (False, [0, 0, 0])])
def test_beside_a_prefill_what_was_learned_at_half_the_load_serves_a_policy_that_carries_it(
    carries: bool, lengths: list[int]
) -> None:
    policy, rounds = played(*(ARMS[2],) * 4)
    policy.carries = carries
    rounds.observe(rounds.plan(8, 8, 0, mixed=False), 0, 8, 0.05)
    assert [rounds.plan(batch, batch, 0, mixed=True).length for batch in (16, 32, 2)] == lengths


def test_a_choice_is_held_while_the_load_is_about_the_same() -> None:
    _, two, _ = ARMS
    policy, rounds = played(OFF, two, two)
    rounds.plan(64, 64, 0, mixed=False)
    rounds.plan(64, 64, 0, mixed=False)
    assert rounds.hold(64, 64, 128, False) is None, "drafting was just resumed"
    rounds.plan(64, 64, 128, mixed=False)
    held, again, fewer = (rounds.hold(batch, batch, 2 * batch, False) for batch in (64, 64, 61))
    assert held is again, "one object for all that are alike"
    assert held == Step(policy, 64, 128, False, two, 0, two, held=True)
    assert fewer == Step(policy, 61, 122, False, two, 0, two, held=True)
    joined = rounds.hold(62, 61, 122, True)
    assert joined == Step(policy, 61, 122, True, two, 0, two, held=True)
    assert rounds.hold(61, 61, 122, False) is not joined
    assert rounds.hold(59, 59, 118, False) is None, "another load"
    assert len(policy.contexts) == 3


def test_while_prompts_keep_coming_nothing_is_played_to_learn_of_it() -> None:
    """The bug: at 128 requests, where most steps also prefill, a probe of one token was made in 45 steps in a row."""
    off, two, four = ARMS
    policy, rounds = played(two, two, four, four, four, off)
    lengths = []
    for number, mixed in enumerate((False, False, True, True, True, False)):
        policy.exploring = number >= 2
        step = rounds.plan(32, 32, 0, mixed)
        lengths.append(step.length)
        rounds.observe(step, 0, 32, 0.01)
        assert rounds.trying == (number in (2, 5))
    assert lengths == [2, 2, 4, 2, 2, 0]


def test_a_text_that_begins_alone_has_as_much_lag_as_nobody_drafted() -> None:
    """The bug: what a head had missed while matching drafted counted as steps without drafts, and a probe was made."""
    arms = (OFF, Arm("suffix", 4), Arm("eagle", 4))
    policy: Any = Script(*[arms[1]] * 20, *[OFF] * 4)
    policy.tries_cheaper = False
    rounds, lags = StepRounds(policy, arms), []
    for number in range(24):
        rounds.observe(rounds.plan(1, 1, 0, number in (10, 23)), 0, 1, 0.01)
        lags.append(policy.contexts[-1].lag.get("eagle", 0))
    assert lags[9] == 9 * 5
    assert lags[10] == 0
    assert lags[22] == 20 * 5 + 2
    assert lags[23] == 3


def test_a_probe_is_due_by_the_steps_that_a_drafter_has_missed() -> None:
    """Steps in which a choice was held are no rounds, but they are steps without drafts."""
    engine = StepEngine(True, seed=1)
    engine.run(150, 8, (0.01,) * 4)
    choices = [engine.rounds.policy.choose(Context(engine.rounds.arms, 8, 0, OFF, {"eagle": lag})) for lag in (3, 500)]
    assert [arm.length for arm in choices] == [0, 1]


def test_a_few_slow_steps_do_not_end_drafting_for_long() -> None:
    """Four steps take half as long again, as after a pause of the GPU: what drafting costs is soon looked at again."""
    without = []
    for seed in range(8):
        engine = StepEngine(True, seed=seed, stalls=0.0)
        engine.run(400, 128, PROFILES["fair"])
        usual = engine.seconds
        engine.seconds = lambda *step, usual=usual: 1.5 * usual(*step)  # type: ignore[method-assign]
        engine.run(4, 128, PROFILES["fair"])
        engine.seconds = usual  # type: ignore[method-assign]
        engine.run(300, 128, PROFILES["fair"])
        without.append(engine.lengths[-300:].count(0))
    assert sorted(without)[len(without) // 2] < 40


@pytest.mark.parametrize("batch", SMALL_LOADS)
def test_auto_leaves_a_head_out_where_matching_brings_as_much_and_takes_it_back(batch: int) -> None:
    for seed in range(2):
        engine = MixedEngine(seed)
        shares = []
        for chances in (CHAT, COPYING, CHAT, COPYING):
            engine.run(100, batch, chances)
            shares.append(engine.run(400, batch, chances))
            alone = sum(arm.drafter == "suffix" for arm in engine.arms[-300:])
            assert alone > 270 if chances is COPYING else alone < 60
        assert min(shares[1::2]) >= 0.9
        assert min(shares) >= 0.8


def test_trials_are_what_makes_auto_leave_the_head_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug: rounds of both tell nothing of matching alone, so a policy that knew it as bad stays with both."""
    monkeypatch.setattr(CheaperTrials, "play", lambda self, arm: arm)
    engine = MixedEngine()
    for chances in (CHAT, COPYING):
        engine.run(500, 32, chances)
    assert sum(arm.drafter == "suffix" for arm in engine.arms[-300:]) < 100


def test_trials_get_rarer_unless_acceptance_rises_and_end_where_they_bring_little() -> None:
    suffix, eagle = (Arm(name, 5) for name in ("suffix", "eagle"))
    trials = CheaperTrials((OFF, suffix, eagle))

    def steps(count: int, tokens: float, alone: float) -> list[int]:
        """Tokens of a round with both, and by matching alone; the steps of the trials."""
        seen = []
        for step in range(count):
            arm = trials.play(eagle)
            trials.note(arm, tokens if arm is eagle else alone, 32)
            seen += [step] * (arm is suffix)
        return seen

    poor = steps(2000, 2.5, 1.1)
    starts = [step for step in poor if step - 1 not in poor]
    assert starts[0] < 30
    gaps = [after - before for before, after in itertools.pairwise(starts)]
    assert all(after > 1.7 * before for before, after in itertools.pairwise(gaps))
    assert len(poor) <= 4 * len(starts)
    good = steps(60, 5.5, 5.0)
    assert len(good) >= LONG_BURST - 1
    assert good[0] < 20
    assert trials.play(OFF) is OFF
    assert trials.play(suffix) is suffix


def test_what_a_head_costs_is_told_by_steps_in_which_matching_drafted_as_much() -> None:
    suffix, eagle = (Arm(name, 4) for name in ("suffix", "eagle"))
    policy: Any = Script(*((eagle,) * 6 + (suffix,) * 6) * 20)
    policy.tries_cheaper = False
    rounds, arm, lag = StepRounds(policy, (OFF, suffix, eagle), overlap=True), OFF, 0
    for _ in range(240):
        step = rounds.plan(8, 8, 8 * arm.length, mixed=False)
        rounds.observe(
            step, 0, 8, 0.010 + 0.003 * (arm is eagle) + 0.002 * (arm is eagle and lag > 0), (0,) * arm.length
        )
        arm, lag = step.next_arm, step.lag if step.next_arm is not eagle else lag
        lag = 1 if step.resumed else 0
    late = policy.rounds[60:]
    drafts = [one.draft_seconds for one in late if one.arm is eagle]
    assert drafts == pytest.approx([0.003] * len(drafts), abs=4e-4)
    assert {one.draft_seconds for one in late if one.arm is suffix} == {0.0}
    assert all(one.verify_seconds == pytest.approx(0.010, abs=5e-4) for one in late)
    assert {one.lag for one in late if one.arm is eagle} == {0, 30}, "six steps of five tokens each"
    assert {one.lag for one in late if one.arm is suffix} == {0}
