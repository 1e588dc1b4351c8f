"""Proposals and readings that take long are within the bound on what a text loses, whatever an adversary does."""

from math import inf

import numpy as np
import pytest
from adversary import PLAIN, Accept, World, arms_of, auto, by_chance, fair, flat, nothing, until

from wager.core import OFF, Arm, Context, Round
from wager.core.batch import Batch, BatchRound
from wager.policies.auto import Auto

ADVERSARIES = {"nothing": nothing, "until 3": until(3), "until 20": until(20), "half": by_chance(0.5)}


def most_lost(world: World, texts: int = 3) -> float:
    policy = world.policy(calibrated=True)
    for _ in range(texts):
        world.text(policy)
    return world.worst


@pytest.mark.parametrize("proposing", [0.3, 0.8])
@pytest.mark.parametrize(("late", "deciding"), [(False, 0.0), (True, 0.0), (True, 0.3)])
@pytest.mark.parametrize("models", [1, 3])
@pytest.mark.parametrize("accept", ADVERSARIES.values(), ids=ADVERSARIES)
def test_the_bound_holds_where_proposals_take_long(
    accept: Accept, models: int, late: bool, deciding: float, proposing: float
) -> None:
    for verify in (fair, flat):
        world = World(verify, accept, models=models, late=late, deciding=deciding, proposing=proposing)
        assert most_lost(world) <= 3.0 + models * max(0.0, world.surprise)


def test_proposals_that_stalled_once_are_asked_for_again() -> None:
    policy, asked = auto(), []
    policy.calibrate(World(flat, nothing).calibration())
    for number in range(400):
        previous = OFF if number % 200 else None  # two texts
        context = Context(policy.arms, previous=previous)
        names = policy.select_drafters(context)
        seconds = {"hinted": 0.1 if number == 200 else 1e-4} if "hinted" in names else {}  # five plain tokens
        policy.choose(Context(policy.arms, previous=previous, proposal_seconds=seconds))
        policy.observe(Round(OFF, 0, 0, 1, draft_seconds=sum(seconds.values()), verify_seconds=0.02))
        asked.append(bool(seconds))
    assert not any(asked[201:290])  # until 2 % of the tokens have made up for the stall
    assert sum(asked[310:]) > 10


def test_what_a_drafter_read_for_a_draft_of_no_tokens_is_charged() -> None:
    policy, model = auto(), Arm("model", 4)
    policy.calibrate(World(flat, nothing).calibration())
    policy.choose(Context(policy.arms, lag={"model": 400}))
    bound = policy.exploration.bound
    before = bound.balance
    # its first token was none of the target's
    policy.observe(Round(model, 0, 0, 1, verify_seconds=0.02, lag=400, lag_seconds=0.02))
    assert before - bound.balance == pytest.approx(1.0, rel=0.05)


def test_readings_leave_the_seconds_that_proposals_took(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = auto(models=3)
    policy.calibrate(World(flat, nothing).calibration())
    monkeypatch.setattr(Auto, "_worth_reading", lambda *given: ({"second": (0.0, 0.9 * PLAIN)}, 0))
    selected = {}
    for proposing in (0.0, 1.2):  # plain tokens
        policy.choose(Context(policy.arms))
        policy.observe(Round(OFF, 0, 0, 1, verify_seconds=PLAIN))
        policy.exploration.bound.balance = -1.0  # two more may be lost, and half of that by readings
        context = Context(policy.arms, previous=OFF, proposal_seconds={"hinted": proposing * PLAIN})
        monkeypatch.setattr(Auto, "_weigh", lambda *given, **named: (-inf, None))
        assert policy.choose(context) == OFF
        selected[proposing] = policy.select_readers(context)
    assert selected == {0.0: ("second",), 1.2: ()}


def test_reading_after_a_merged_draft_is_reckoned_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was merged may be longer than the draft, and all of it is read."""
    policy, tokens, context = auto(models=3), list[int](), Context(arms_of(3), lag={"second": 40})
    policy.calibrate(World(flat, nothing).calibration())
    policy.choose(context)
    monkeypatch.setattr(Auto, "_reading_seconds", lambda policy, name, count, plain: tokens.append(count) or (1.0, 1.0))
    policy._worth_reading(context, (Arm("model", 2, merged=Arm("hinted", 8)), 2.0, PLAIN), 1 / PLAIN)
    assert max(tokens) == 40 + 8 + 1


def test_a_request_of_a_server_does_not_spend_what_another_has_gained() -> None:
    policy = Auto((OFF, *(Arm("hinted", n) for n in range(1, 5))))

    def choose(slot: int, *, fresh: bool) -> None:
        size, sure, true = np.full((1, 1), 4), np.full((1, 1, 4), np.nan), np.full(1, 4)
        batch = Batch(np.array([slot]), np.array([fresh]), np.full((1, 1), 3), size, sure, true)
        chosen = policy.choose_batch(batch)
        drafted = np.maximum(chosen.length, 0)
        policy.observe_batch(BatchRound(batch, chosen.drafter, drafted, drafted + 1, size, PLAIN))

    bound = policy.exploration.bound
    for number in range(40):
        choose(0, fresh=not number)
    gained = bound.balance
    assert gained > 20.0
    choose(0, fresh=False)
    assert bound.balance > gained
    choose(1, fresh=False)  # it had begun beside the first, which is over
    assert bound.balance < 5.0


def test_a_slot_that_was_given_to_another_request_beside_others_has_gained_nothing() -> None:
    """The bug: whose ledger it is was looked at only where one request decodes; the slot was another's by then."""
    policy = Auto((OFF, *(Arm("hinted", n) for n in range(1, 5))))

    def choose(slots: list[int], fresh: list[bool]) -> None:
        count = len(slots)
        size, sure = np.full((1, count), 4), np.full((1, count, 4), np.nan)
        batch = Batch(np.array(slots), np.array(fresh), np.full((1, count), 3), size, sure, np.full(count, 4))
        chosen = policy.choose_batch(batch)
        drafted = np.maximum(chosen.length, 0)
        policy.observe_batch(BatchRound(batch, chosen.drafter, drafted, drafted + 1, size, PLAIN))

    for number in range(40):
        choose([0], [not number])
    assert policy.exploration.bound.balance > 20.0
    choose([0, 1], [True, True])
    choose([0], [False])
    assert policy.exploration.bound.balance < 5.0
