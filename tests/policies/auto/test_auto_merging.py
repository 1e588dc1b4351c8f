"""When `auto` merges a proposal into another drafter's draft, and what it learns of that."""

import math
import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from adversary import World, by_chance, fair, flat, nothing, short_only, steep, until
from replays import replay

from wager.core import OFF, Arm, Calibration, Context, Hint, Round
from wager.policies import build
from wager.policies.auto import Auto, weighing
from wager.policies.auto.config import AutoConfig
from wager.policies.auto.features import Proposal
from wager.policies.auto.merging import MergeModel, best_merge

ARMS = (OFF, *(Arm(name, n) for name in ("one", "two", "head") for n in range(1, 9)))
FLAT = Calibration({w: 0.01 * (1 + 0.001 * w) for w in range(1, 18)}, {Arm("head", n): 0.001 * n for n in (1, 8)})
STEEP = Calibration({w: 0.01 * w for w in range(1, 18)}, {Arm("head", n): 0.001 * n for n in (1, 8)})


def slow_merge(chances, longest, own, shared, seconds, width, rate, share):  # type: ignore[no-untyped-def]
    """By going through everything that can happen: how far each of the two is right."""
    best = 0.0, 0, 0.0
    for length in range(shared + 1, min(longest, len(chances)) + 1):
        if width + length - shared > len(seconds) - 1:
            break
        added = 0.0
        for right, far in product(range(length + 1), range(len(own) + 1)):
            p = math.prod(chances[:right]) * (1 - chances[right] if right < length else 1.0)
            reached = own[far - 1] if far else 1.0
            q = reached - (own[far] if far < len(own) else 0.0)
            if shared:  # the draft goes on otherwise, so it is right no further where the proposal is
                added += p * max(0, right - shared) if far == 0 else 0.0
            else:
                added += p * q * max(0, right - far)
        worth = share * added - rate * (seconds[width + length - shared] - seconds[width])
        if worth > best[0] + 1e-12:
            best = worth, length, added
    return best


def test_the_best_merge_is_that_of_all_that_can_happen() -> None:
    rng = random.Random(0)
    merged = 0
    for _ in range(400):
        chances = [rng.random() for _ in range(rng.randrange(1, 7))]
        shared = rng.choice((0, 0, 1, 2)) if len(chances) > 2 else 0
        own: list[float] = []
        while not shared and len(own) < rng.randrange(5):
            own.append((own[-1] if own else 1.0) * rng.random())
        seconds = [0.0]
        while len(seconds) < 12:
            seconds.append(seconds[-1] + rng.random() * rng.choice((0.01, 0.2, 1.0)))
        width, rate, share = rng.randrange(1, 8), rng.random() * 2, rng.choice((0.3, 1.0))
        longest = rng.choice((2, 9))
        proposal, known = Proposal(0, "one", len(chances)), (longest, own, shared, seconds, width, rate, share)
        proposal.chances, proposal.evaluated = chances, len(chances)
        ours, theirs = best_merge(proposal, *known), slow_merge(chances, *known)
        assert ours[1] == theirs[1]
        assert ours == pytest.approx(theirs)
        merged += ours[1] > 0
    assert 50 < merged < 350


def test_the_share_is_what_proposals_added_of_what_was_expected() -> None:
    model = MergeModel(AutoConfig())
    assert model.share == 1.0
    for _ in range(300):
        model.learn(0.5, 1 if _ % 4 == 0 else 0)
    assert model.share == pytest.approx(0.5, abs=0.1)
    for _ in range(300):
        model.learn(0.5, 0)
    assert 0.0 < model.share < 0.2, "never so low that nothing is merged again"


def policy_with(known: Calibration, seed: int = 0) -> Auto:
    policy = build("auto", ARMS, seed=seed)
    assert isinstance(policy, Auto)
    policy.calibrate(known)
    return policy


def context(policy: Auto, at: int, *, merges: bool = True, remaining: int = 200, agree: int = 0) -> Context:
    hints = {name: Hint(6, size=6) for name in ("one", "two")}
    agreement = {"one": {"two": agree}, "two": {"one": agree}}
    asked = dict.fromkeys(hints, 1e-6)
    return Context(ARMS, 1, at, None if at == 0 else OFF, {"head": 0}, hints, agreement, asked, None, remaining,
                   merges=merges)  # fmt: skip


def trained(policy: Auto, merges: bool = True) -> set[Arm]:
    """The arms of rounds in which either proposal or the head may be right, independently of each other."""
    rng, played = random.Random(1), set[Arm]()
    for at in range(150):
        arm = policy.choose(context(policy, at, merges=merges))
        right = {"one": 4 if rng.random() < 0.4 else 0, "head": rng.choice((0, 1, 3))}
        right["two"] = 0 if right["one"] else rng.choice((0, 4))
        own = min(arm.length, right.get(arm.drafter, 0)) if arm.length else 0
        other = min(arm.merged.length, right[arm.merged.drafter]) if arm.merged else 0
        accepted, drafted = max(own, other), arm.budget
        others = {name: right[name] for name in ("one", "two") if name != arm.drafter}
        seconds = policy.latency.verify.seconds[drafted + 1]
        policy.observe(Round(arm, drafted, accepted, accepted + 1, verify_seconds=seconds,
                             draft_seconds=0.001 * arm.length if arm.drafter == "head" else 0.0, others=others,
                             unmerged=own if arm.merged else -1))  # fmt: skip
        if at > 60:
            played.add(arm)
    return played


def test_where_width_is_free_proposals_are_merged_and_where_it_is_dear_they_are_not() -> None:
    assert any(arm.merged for arm in trained(policy_with(FLAT)))
    assert not any(arm.merged for arm in trained(policy_with(STEEP)))
    assert not any(arm.merged for arm in trained(policy_with(FLAT), merges=False)), "the engine does not offer it"


def test_a_merged_draft_is_worth_more_than_both_of_its_parts_are_alone() -> None:
    policy = policy_with(FLAT)
    trained(policy)
    arm = policy.choose(context(policy, 150))
    assert arm.merged is not None
    merged, *others = policy.options()
    rate = policy._now.rate
    worth = merged.tokens - rate * merged.seconds
    assert all(worth >= other.tokens - rate * other.seconds - 1e-9 for other in others)


def test_nothing_is_merged_at_the_end_of_a_text_or_where_proposals_agree() -> None:
    policy = policy_with(FLAT)
    trained(policy)
    assert policy.choose(context(policy, 150)).merged
    assert policy.choose(context(policy, 150, remaining=1)).merged is None
    arm = policy.choose(context(policy, 150, agree=6))
    assert arm.merged is None or "head" in (arm.drafter, arm.merged.drafter), "both proposals are the same"


def test_choices_with_proposals_to_merge_go_on_where_a_state_was_saved() -> None:
    policy = policy_with(FLAT)
    trained(policy)
    other = build("auto", ARMS, seed=5)
    assert isinstance(other, Auto)
    other.load_state_dict(policy.state_dict())
    assert other.merging.share == policy.merging.share
    assert other.choose(context(other, 150)) == policy.choose(context(policy, 150))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("accept", [nothing, until(3), until(60), by_chance(0.5), by_chance(0.75), short_only])
@pytest.mark.parametrize("verify", [steep, fair, flat])
def test_the_bound_on_a_texts_loss_holds_with_merged_drafts(verify, accept, late) -> None:  # type: ignore[no-untyped-def]
    world = World(verify, accept, late=late, merges=True)
    policy = world.policy(calibrated=True)
    for _ in range(4):
        world.text(policy)
    assert world.worst <= 3.0 + max(0.0, world.surprise)
    assert world.surprise < 0.25
    if verify is flat and accept is not nothing and accept is not short_only:
        assert world.merged > 0


def surprise() -> float:
    worlds = [World(v, a, merges=True) for v in (fair, flat) for a in (until(60), by_chance(0.75), by_chance(0.5))]
    for world in worlds:
        policy = world.policy(calibrated=True)
        for _ in range(4):
            world.text(policy)
    assert any(world.merged for world in worlds)
    return max(world.surprise for world in worlds)


def test_a_merged_draft_that_is_taken_to_be_no_wider_than_the_draft_alone_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right, worst = surprise(), weighing.ArmWeighing._worst
    monkeypatch.setattr(weighing.ArmWeighing, "_worst", lambda policy, arm, c, late=None: worst(policy, arm.alone, c))
    assert surprise() > right + 0.1


def test_a_replay_merges_and_is_never_slower_for_it_where_width_is_free() -> None:
    texts = replay(60, calibrated=True)
    free = replace(texts, costs=replace(texts.costs, verify=type(texts.costs.verify)(((1, 0.05), (20, 0.051)))))
    goodput = []
    for merges in (False, True):
        scenario = replace(free, merges=merges)
        policy = build("auto", scenario.arms, seed=0, tokens=scenario.goal)
        environment, merged = scenario.start(0, policy), 0
        while not environment.done:
            outcome = environment.play(policy.choose(environment.context()))
            policy.observe(outcome)
            merged += outcome.arm.merged is not None
        goodput.append(environment.tokens / environment.seconds)
        assert (merged > 20) == merges
    assert goodput[1] > goodput[0]


COPYING = {1: 0.028, 2: 0.031, 3: 0.0335, 5: 0.0485, 9: 0.0605, 10: 0.0615, 17: 0.066}  # width -> seconds


def rounds_of_copying(seed: int) -> list[Arm]:
    """Both proposals are right, the head in half of the rounds; a short text on a CPU, from nothing."""
    policy = build("auto", ARMS, seed=seed)
    drafts, card = {Arm("head", n): 0.0015 * n for n in (1, 8)}, {"head": (0.65, 0.5, 0.45, 0.4)}
    policy.calibrate(Calibration(COPYING, drafts, {"head": {16: 0.004, 64: 0.008}}, card))
    rng, played, hints = random.Random(seed), list[Arm](), {name: Hint(8, size=8) for name in ("one", "two")}
    agreement, asked = {"one": {"two": 8}, "two": {"one": 8}}, dict.fromkeys(hints, 1e-4)
    emitted = lag = 0
    while emitted < 75:
        previous = played[-1].alone if played else None
        arm = policy.choose(Context(ARMS, 1, emitted, previous, {"head": lag}, hints, agreement, asked, None,
                                    96 - emitted, merges=True))  # fmt: skip
        own = min(arm.length, rng.randrange(2)) if arm.drafter == "head" else arm.length
        accepted = max(own, arm.merged.length if arm.merged else 0)
        others = {name: min(8, accepted + 1) for name in hints if name != arm.drafter}
        seconds = float(np.interp(arm.budget + 1, [*COPYING], [*COPYING.values()])) * rng.gauss(1, 0.05)
        drafting = 2e-4 + (0.0015 * arm.length if arm.drafter == "head" else 0.0)
        policy.observe(Round(arm, arm.budget, accepted, accepted + 1, verify_seconds=seconds, draft_seconds=drafting,
                             others=others, unmerged=own if arm.merged else -1))  # fmt: skip
        lag = 0 if arm.drafter == "head" else lag + accepted + 1
        emitted += accepted + 1
        played.append(arm)
    return played


def test_a_merged_draft_that_may_not_be_tried_gives_way_to_the_best_part_of_it() -> None:
    """Not to the head's draft alone, which took 29 rounds for one of these texts."""
    for seed in range(6):
        assert len(rounds_of_copying(seed)) <= 20
