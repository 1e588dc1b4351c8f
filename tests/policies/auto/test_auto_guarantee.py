"""No text falls further behind plain decoding than by 2 % and three plain tokens, whatever an adversary does."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from adversary import Accept, World, auto, by_chance, fair, flat, nothing, short_only, steep, until

import wager.simulation.ablations  # noqa: F401 - makes auto-scaled known
from wager.core import OFF, Arm, Calibration, Context, Hint, Round
from wager.policies.auto import Auto
from wager.policies.auto.config import AutoConfig
from wager.policies.auto.guarantee import LossBound
from wager.policies.auto.verify import VerifyLatency

ADVERSARIES = {"nothing": nothing, "until 3": until(3), "until 20": until(20), "until 60": until(60),
               "half": by_chance(0.5), "three quarters": by_chance(0.75), "short only": short_only}  # fmt: skip
CLOCK = 0.02  # of a text's tokens: what three noisy rounds may get the seconds of plain decoding wrong by


def most_lost(world: World, spec: str = "auto", *, calibrated: bool = True, texts: int = 4) -> float:
    policy = auto(world.seed, spec, world.models)
    if calibrated:
        policy.calibrate(world.calibration())
    for _ in range(texts):
        world.text(policy)
    return world.worst


@pytest.mark.parametrize("calibrated", [True, False])
@pytest.mark.parametrize("accept", ADVERSARIES.values(), ids=ADVERSARIES)
@pytest.mark.parametrize("verify", [steep, fair, flat])
def test_the_bound_holds_strictly_where_seconds_do_not_vary(
    verify: Callable[[int], float], accept: Accept, calibrated: bool
) -> None:
    world = World(verify, accept)
    assert most_lost(world, calibrated=calibrated) <= 3.0 + max(0.0, world.surprise)
    assert world.surprise < 0.25  # of catching up, which is known by the power of two of the tokens


@pytest.mark.parametrize("accept", ADVERSARIES.values(), ids=ADVERSARIES)
@pytest.mark.parametrize("verify", [steep, fair, flat])
def test_the_bound_holds_where_rounds_are_observed_late(verify: Callable[[int], float], accept: Accept) -> None:
    world = World(verify, accept, late=True)
    assert most_lost(world) <= 3.0 + max(0.0, world.surprise)
    assert world.surprise < 0.25


def test_a_round_that_is_not_reckoned_with_until_it_is_observed_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Auto, "_may_lose", lambda policy: 0.0)
    worlds = [World(verify, accept, late=True) for verify in (steep, fair) for accept in ADVERSARIES.values()]
    assert any(most_lost(world) > 3.0 + max(0.0, world.surprise) for world in worlds)


@pytest.mark.parametrize("calibrated", [True, False])
@pytest.mark.parametrize("accept", ADVERSARIES.values(), ids=ADVERSARIES)
@pytest.mark.parametrize("verify", [steep, fair, flat])
def test_reading_by_idle_models_is_within_the_bound_though_all_that_they_tell_is_wrong(
    verify: Callable[[int], float], accept: Accept, calibrated: bool
) -> None:
    world = World(verify, accept, models=3)
    # Catching up on more tokens than ever looks like a stall, which is forgiven: once for each model.
    assert most_lost(world, calibrated=calibrated, texts=2) <= 3.0 + world.models * max(0.0, world.surprise)
    assert world.surprise < 0.3
    assert world.reads > 0 or accept is not nothing


@pytest.mark.parametrize(("late", "models"), [(False, 1), (True, 1), (True, 2), (True, 3)])
@pytest.mark.parametrize("accept", ADVERSARIES.values(), ids=ADVERSARIES)
@pytest.mark.parametrize("verify", [steep, fair, flat])
def test_the_bound_holds_where_choices_stand_without_asking(
    verify: Callable[[int], float], accept: Accept, late: bool, models: int
) -> None:
    world = World(verify, accept, late=late, models=models, deciding=0.3)
    assert most_lost(world, texts=3) <= 3.0 + models * max(0.0, world.surprise)
    assert world.held > 50 or accept is not nothing


@pytest.mark.parametrize("bug", ["may_stand", "most_reading"])
def test_a_choice_that_stands_longer_than_the_bound_allows_would_be_noticed(
    bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bug == "may_stand":
        monkeypatch.setattr(Auto, bug, lambda policy, choosing_seconds: 15)
    else:  # what idle models read in a round that is not observed yet is left out
        keep = Auto._keep_earlier

        def unread(policy: Auto, unobserved: bool) -> None:
            policy._now.most_reading = 0.0
            keep(policy, unobserved)

        monkeypatch.setattr(Auto, "_keep_earlier", unread)
    worlds = (
        World(verify, accept, late=True, models=models, deciding=0.3, seed=seed)
        for models in (2, 1)
        for verify in (flat, fair, steep)
        for accept in ADVERSARIES.values()
        for seed in range(4)
    )
    assert any(most_lost(world, texts=3) > 3.0 + world.models * max(0.0, world.surprise) for world in worlds)


@pytest.mark.parametrize("reading", [0.2, 5.0, 20.0])
@pytest.mark.parametrize("accept", [nothing, by_chance(0.5), until(20)])
def test_reading_that_takes_longer_than_expected_is_charged(accept: Accept, reading: float) -> None:
    for seed in range(3):
        world = World(fair, accept, models=3, reading=reading, noise=0.03, seed=seed)
        # two models may read in one round before what the first took is known
        assert most_lost(world, texts=2) <= 3.0 + 2.0 * max(0.0, world.surprise) + CLOCK * 160


def test_reading_beyond_the_bound_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Auto, "select_readers", lambda policy, context: ("model", "second", "third"))
    world = World(steep, nothing, models=3)
    assert most_lost(world) > 4.0 + max(0.0, world.surprise)


def test_without_the_bound_a_text_loses_more() -> None:
    """The adversary has the power to show a policy that spends more than it may."""
    unbounded = "auto-scaled:field=allowed_tokens,times=1000"
    assert max(most_lost(World(steep, accept), unbounded) for accept in ADVERSARIES.values()) > 4.0


@pytest.mark.parametrize("accept", ADVERSARIES.values(), ids=ADVERSARIES)
def test_a_noisy_clock_that_stalls_costs_no_more_than_its_noise(accept: Accept) -> None:
    for seed in range(3):
        world = World(steep, accept, noise=0.05, stalls=0.01, seed=seed)
        assert most_lost(world) <= 3.0 + max(0.0, world.surprise) + CLOCK * 160


@pytest.mark.parametrize(
    ("machine", "calibrated"), [(0.3, True), (3.0, True), (0.3, False), (0.5, False), (2.0, False)]
)
def test_a_state_of_other_texts_on_another_machine_is_not_trusted_for_long(machine: float, calibrated: bool) -> None:
    for seed in range(3):
        before = auto(seed)
        elsewhere = World(flat, by_chance(0.9), noise=0.05, plain=lambda n: machine, seed=seed)
        for _ in range(4):
            elsewhere.text(before)
        policy, world = auto(seed), World(steep, nothing, noise=0.05, seed=seed)
        policy.load_state_dict(before.state_dict())
        if calibrated:
            policy.calibrate(world.calibration())
        for _ in range(3):
            world.text(policy)
        assert world.worst <= 3.0 + max(0.0, world.surprise) + CLOCK * 160


DRIFTS = {
    "plain decoding gets faster": {"plain": lambda n: max(0.3, 0.997**n)},
    "plain decoding gets slower": {"plain": lambda n: min(3.0, 1.003**n)},
    "drafts get slower": {"draft": lambda n: min(3.0, 1.005**n)},
    "drafts are suddenly slower": {"draft": lambda n: 3.0 if n > 60 else 1.0},
    "and then again not": {"draft": lambda n: 2.5 if 60 < n < 180 else 1.0},
}


@pytest.mark.parametrize("drift", DRIFTS.values(), ids=DRIFTS)
@pytest.mark.parametrize("accept", [nothing, by_chance(0.5), until(20)])
def test_costs_that_drift_are_followed(drift: dict[str, Callable[[int], float]], accept: Accept) -> None:
    for seed in range(3):
        world = World(fair, accept, noise=0.03, seed=seed, **drift)  # type: ignore[arg-type]
        assert most_lost(world) <= 3.0 + max(0.0, world.surprise) + CLOCK * 160


@pytest.mark.parametrize("planted", [False, True])
def test_a_machine_that_becomes_twice_as_quick_is_noticed_though_drafts_were_far_ahead(
    planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if planted:  # whoever believes to be far ahead leaves all doubts alone
        overdue = VerifyLatency.overdue
        monkeypatch.setattr(
            VerifyLatency,
            "overdue",
            lambda widths, lead: overdue(widths) and (lead < 0.2 or widths.since_plain() > 800),
        )
    jump, lost = 300, []
    for seed in range(3):
        world = World(steep, nothing, noise=0.02, seed=seed, plain=lambda n: 0.5 if n >= jump else 1.0)
        world.accept = lambda at, arm: by_chance(0.9 if at.round < jump else 0.5)(at, arm)
        policy = auto(seed)
        policy.calibrate(world.calibration())
        while world.round < jump - 10:
            world.text(policy)
        world.worst = 0.0
        world.text(policy, 2000)
        lost.append(world.worst)
    assert (max(lost) < 20.0) is not planted  # of 40 seeds a quarter loses 6 to 8, by what it takes to notice


def test_a_first_text_loses_little_though_plain_decoding_was_calibrated_twice_too_slow() -> None:
    world = World(steep, nothing, noise=0.02)
    known, policy = world.calibration(), auto()
    policy.calibrate(replace(known, verify={**known.verify, 1: 2 * known.verify[1]}))
    world.text(policy, 2000)
    assert 3.0 < world.worst < 11.0  # without a first timing at all it would be the whole text


def test_a_stall_is_forgiven_and_a_change_is_charged() -> None:
    bound = LossBound(AutoConfig())
    bound.drafted(1, 1.5, 2.0, 1.0)
    assert bound.balance == -0.5
    bound.drafted(1, 7.0, 2.0, 1.0)  # a stall, or a change
    assert bound.balance == -1.5
    assert bound.room == pytest.approx(3.04 - 1.5 - 5.0)
    bound.drafted(2, 2.0, 2.0, 1.0)
    assert bound.room == pytest.approx(3.08 - 1.5)
    bound.drafted(1, 7.0, 2.0, 1.0)
    for _ in range(3):
        bound.decoded(1, 0.0)
    assert bound.room == pytest.approx(3.16 - 2.5)
    bound.drafted(1, 6.0, 2.0, 1.0)  # again, so it is a change: the first is charged, the second still in doubt
    assert bound.balance == pytest.approx(-3.5 - 5.0)


def test_trials_end_where_too_few_tokens_are_to_come() -> None:
    bound = LossBound(AutoConfig())
    assert bound.trials(None) == bound.trials(1000) == 1.0
    assert bound.trials(10) == pytest.approx(0.2)
    policy = auto()
    policy.calibrate(World(steep, nothing).calibration())
    hints = {"hinted": Hint(3, size=8)}
    tried = {}
    for remaining in (1000, 10):
        policy.reset()
        policy.calibrate(World(steep, nothing).calibration())
        tried[remaining] = [
            policy.choose(Context(policy.arms, previous=OFF, hints=hints, lag={"model": 4}, remaining=remaining))
            for _ in range(200)
        ]
    assert any(arm != OFF for arm in tried[1000]) >= any(arm != OFF for arm in tried[10])
    assert set(tried[10]) == {OFF}


def test_proposals_that_cost_more_than_the_text_can_afford_are_not_asked_for() -> None:
    policy, asked = auto(), 0
    for number in range(400):
        previous = OFF if number else None
        names = policy.select_drafters(Context(policy.arms, previous=previous))
        hints = {"hinted": Hint()} if "hinted" in names else {}
        asked += bool(hints)
        seconds = dict.fromkeys(hints, 0.002)  # a tenth of plain decoding, for nothing
        policy.choose(
            Context(policy.arms, previous=previous, hints=hints, lag={"model": 400}, proposal_seconds=seconds)
        )
        policy.observe(Round(OFF, 0, 0, 1, draft_seconds=sum(seconds.values()), verify_seconds=0.02))
    assert 0.1 * asked <= 3.0 + 0.02 * 400
    assert asked > 20


def test_the_most_a_width_can_take() -> None:
    verify = VerifyLatency(9, AutoConfig())
    verify.calibrate({1: 0.02, 9: 0.05})
    noise = verify.noise
    assert verify.worst(9) == pytest.approx(0.05 * noise, rel=0.1)
    assert verify.worst(2) <= 0.04 * noise  # two passes of one token
    assert verify.worst(8) <= verify.worst(9)
    assert verify.widest(verify.worst(4)) >= 4
    assert verify.widest(0.001) == 0
    assert auto().arms[1] == Arm("hinted", 1)


@pytest.mark.parametrize("known", [False, True])
def test_a_head_that_nothing_is_known_of_may_read_a_long_prompt_to_be_tried(known: bool) -> None:
    """Within the bound; once it is known and not expected to pay, the prompt is not read for it."""
    policy, head = Auto((OFF, Arm("head", 4))), Arm("head", 4)
    policy.calibrate(Calibration({1: 1e-3, 5: 1.1e-3}, {head: 3e-4}, {"head": {64: 1e-3, 512: 1.4e-3}}))
    if known:
        for _ in range(20):
            policy.positional.learn("head", 0, 4)
    chosen = set()
    for tokens in range(1, 60):
        previous = OFF if tokens > 1 else None
        chosen.add(policy.choose(Context(policy.arms, 1, tokens, previous, {"head": 400 + tokens}, remaining=400)))
        policy.observe(Round(OFF, 0, 0, 1, verify_seconds=1e-3))
    assert (head in chosen) == (not known)
