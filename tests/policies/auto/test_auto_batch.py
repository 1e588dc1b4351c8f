"""A batch is decided from the same models, request by request."""

import json
import math
import timeit
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from auto_lab import (
    DEARER,
    FLAT,
    GRAPHS,
    STEEP,
    D,
    Seconds,
    Server,
    auto,
    chances_of,
    decide,
    proposal_of,
    random_rows,
    run_of,
    serve,
    shaken,
)
from waiting import allowed

from wager.core import OFF, Context, Hint, Round
from wager.core.batch import BatchRound
from wager.policies import build
from wager.policies.auto import Auto
from wager.policies.auto.features import EMA
from wager.policies.auto.verify import OFF_STEP, RAGGED, UNIFORM


def test_columns_see_the_chances_one_stream_sees() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        drafters, longest, count = (int(rng.integers(low, n)) for low, n in ((1, 4), (1, 7), (2, 6)))
        policy = shaken(rng, auto(drafters=drafters, longest=longest))
        rows = random_rows(rng, count, drafters, longest)
        decide(policy, rows)
        for d in range(drafters):
            for i in range(count):
                expected = chances_of(policy, rows, d, i)
                assert rows.work.chances[: len(expected), d, i] == pytest.approx(expected, abs=1e-9)


def leading(size: int, values: Sequence[float], goodput: Sequence[float]) -> tuple[int, int]:
    """In place of `trial`: nothing is tried out."""
    return max(range(3), key=values.__getitem__), 0


@pytest.mark.parametrize(("drafters", "extra"), [(3, 0.0), (1, 0.002)])
def test_columns_choose_what_is_worth_most(drafters: int, extra: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, kinds = np.random.default_rng(0), [0, 0, 0]
    for number in range(120):
        policy = shaken(rng, auto(drafters=drafters, longest=4))
        base, token = 0.02, float(rng.choice([0.0001, 0.001, 0.004]))
        monkeypatch.setattr(policy.latency.batches, "at", lambda count, costs=(base, token, extra): costs)
        monkeypatch.setattr(policy.exploration.trials, "choose", leading)
        count = 2 + number % 4
        rows = random_rows(rng, count, drafters, 4)
        if number % 2:
            rows.size[:], rows.limit[:] = 4, 4
            rows.agreement = None
        drafter, length = decide(policy, rows)
        rate = count / base
        reached = [  # by request, drafter and tokens drafted: tokens expected
            [np.cumsum([0.0, *np.cumprod(chances_of(policy, rows, d, i))]).tolist() for d in range(drafters)]
            for i in range(count)
        ]

        def value(plays: list[tuple[int, int]]) -> float:
            n = sum(n for _, n in plays)
            brought = sum(own[d][min(n, len(own[d]) - 1)] for own, (d, n) in zip(reached, plays, strict=True))  # noqa: B023
            ragged = extra if n not in (0, 4 * count) else 0.0  # noqa: B023
            return brought - rate * (token * n + ragged)  # noqa: B023

        def allowed(i: int, d: int) -> int:
            return min(int(rows.size[d, i]), int(rows.limit[i]))  # noqa: B023

        best = [
            max(
                ((d, n) for d in range(drafters) for n in range(allowed(i, d) + 1)),
                key=lambda play: reached[i][play[0]][play[1]] - rate * token * play[1],
            )
            for i in range(count)
        ]
        plans = [best, [(0, 0)] * count]
        if min(rows.limit) >= 4:
            plans += [[(d, 4)] * count for d in range(drafters)]
        chosen = [(max(int(d), 0), int(n)) for d, n in zip(drafter, length, strict=True)]
        assert value(chosen) == pytest.approx(max(map(value, plans)), abs=1e-9)
        n = int(length.sum())
        kinds[OFF_STEP if n == 0 else UNIFORM if n == 4 * count else RAGGED] += 1
    assert min(kinds) > 3


@pytest.mark.parametrize("trial", [(RAGGED, 0), (RAGGED, 1), (RAGGED, -1), None])
@pytest.mark.parametrize("token", [0.0, 0.0001, 0.002])
def test_no_choice_exceeds_budget_limit_or_proposal(
    trial: tuple[int, int] | None, token: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    for number in range(60):
        budget = (0, 1, 5, 12)[number % 4]
        policy = shaken(rng, auto(f"auto:budget={budget}", longest=5))
        monkeypatch.setattr(policy.latency.batches, "at", lambda count: (0.02, token, 0.0))
        if trial is not None:
            monkeypatch.setattr(policy.exploration.trials, "choose", lambda *_: trial)
        rows = random_rows(rng, 8, 3, 5)
        if number % 3 == 0:  # all alike
            rows.match[:], rows.size[:], rows.confidence[:], rows.fresh[:], rows.agreement = 3, 5, 0.9, True, None
        drafter, length = decide(policy, rows)
        assert (length >= 0).all()
        assert not budget or length.sum() <= budget
        assert not budget or policy.choose(Context(policy.arms, batch=budget + 1)) == OFF
        assert (length <= rows.limit).all()
        if not (length == 5).all():
            assert ((drafter >= 0) == (length > 0)).all()
            assert (length <= rows.size[drafter, np.arange(8)])[length > 0].all()


def test_slots_grow_and_a_new_request_has_everybodys_luck() -> None:
    policy, rng = auto(), np.random.default_rng(0)
    rows = random_rows(rng, 3, 3, 6, fresh=2.0)
    rows.slots = np.array([2, 15, 300])
    rows.size[:] = 6
    policy.acceptance.mean_ema = [1.0, 0.5, -1.0]
    drafter, length = decide(policy, rows)
    assert policy.acceptance.slot_ema[[2, 300]].tolist() == [[1.0, 0.5, -1.0]] * 2
    emitted = np.ones(3, dtype=int)
    policy.observe_batch(BatchRound(rows, drafter, length, emitted, np.zeros((3, 3), dtype=int), 0.02))
    assert (policy.acceptance.slot_ema[300] < [1.0, 0.5, -1.0]).all()
    assert (policy.acceptance.slot_ema[7] == 0.0).all()
    before = policy.acceptance.slot_ema[300].copy()
    decide(policy, replace(rows, fresh=np.array([True, True, False]), work=None))
    assert (policy.acceptance.slot_ema[300] == before).all()
    assert policy.acceptance.slot_ema[2].tolist() == policy.acceptance.mean_ema


def test_columns_learn_what_one_stream_learns() -> None:
    rng, one, many = np.random.default_rng(0), auto(drafters=2), auto(drafters=2)
    for number in range(600):
        rows = random_rows(rng, 2, 2, 6, fresh=0.0, slots=2)
        rows.slots, rows.agreement = np.array([0, 1]), None
        rows.size[:, 1] = 0  # of the second request nothing is learned
        good = 0.9 if number // 30 % 2 else 0.5  # holds for a while
        runs = [run_of(rng, [rate] * int(size)) for rate, size in zip((good, 0.4), rows.size[:, 0], strict=True)]
        decide(many, rows)
        agreed = np.array([[run, 0] for run in runs])
        many.observe_batch(BatchRound(rows, np.array([0, -1]), np.array([6, 0]), np.array([7, 1]), agreed, 0.02))
        for d in range(2):
            size = int(rows.size[d, 0])
            told = [p for p in rows.confidence[d, 0, :size].tolist() if not math.isnan(p)]
            proposal = proposal_of(Hint(int(rows.match[d, 0]), tuple(told), size), size, (), d)
            one.acceptance.evaluate(proposal)
            one.acceptance.learn(proposal, min(runs[d] + 1, size), runs[d])
    assert many.acceptance.slot_ema[0] == pytest.approx(one.acceptance.text_ema)
    assert many.acceptance.mean_ema == pytest.approx(one.acceptance.mean_ema, abs=0.02)
    # a step's tokens together, or one after the other: nearly the same
    assert [w[EMA] for w in many.acceptance.weights] == pytest.approx([w[EMA] for w in one.acceptance.weights], abs=0.2)
    chances = []
    for policy in (one, many):
        policy.acceptance.text_ema = [0.5, -0.5]
        hints = [Hint(match, (sure,) * 4) for match in (1, 5, 12) for sure in (0.2, 0.6, 0.9)]
        chances.append([policy.acceptance.evaluate(proposal_of(h, 4, (), d), 0.0) for d in range(2) for h in hints])
    assert np.abs(np.subtract(*chances)).mean() < 0.05


def test_a_batch_of_one_is_decided_and_learned_from_exactly_as_one_text() -> None:
    rng, one, many = np.random.default_rng(0), auto(), auto()
    server = Server(DEARER)
    drafted = []
    for number in range(400):
        rows = server.rows(1)
        rows.confidence[:] = rng.random(rows.confidence.shape)
        rows.agreement = np.minimum(rows.size[None], rows.size[:, None]) // 2
        rows.proposal_seconds = [1e-5, 0.004 * (number % 3 > 0), 1e-5]
        hints = {
            name: Hint(int(rows.match[i, 0]), tuple(rows.confidence[i, 0, : rows.size[i, 0]].tolist()))
            for i, name in enumerate(one.drafters)
        }
        agreement = {
            a: {b: int(rows.agreement[i, j, 0]) for j, b in enumerate(one.drafters) if i != j}
            for i, a in enumerate(one.drafters)
        }
        called = {name: s for name, s in zip(one.drafters, rows.proposal_seconds, strict=True) if s}
        previous = None if rows.fresh[0] else OFF
        arm = one.choose(Context(one.arms, 1, 0, previous, {}, hints, agreement, called))
        drafter, length = decide(many, rows)
        assert length[0] == (min(arm.length, hints[arm.drafter].size) if arm.length else 0)
        assert drafter[0] == (one.index[arm.drafter] if length[0] else -1)
        result = server.play(rows, drafter, length)
        many.observe_batch(result)
        accepted = int(result.emitted[0]) - 1
        others = {name: int(result.agreed[i, 0]) for i, name in enumerate(one.drafters) if name != arm.drafter}
        one.observe(Round(arm, int(length[0]), accepted, accepted + 1, verify_seconds=result.seconds, others=others))
        assert many.acceptance.weights == one.acceptance.weights
        assert many.latency.state_dict() == one.latency.state_dict()
        drafted.append(int(length[0]))
    assert len(set(drafted)) > 3


@pytest.mark.parametrize(("seconds", "count"), [(FLAT, 16), (DEARER, 8), (GRAPHS, 8)])
def test_it_beats_every_drafter_alone_at_its_best_length(seconds: Seconds, count: int) -> None:
    load, warm = [count] * 400, 200
    goodput, _ = serve(auto(), seconds, load, warm)
    fixed = [serve((d, n), seconds, load, warm)[0] for d in range(D) for n in (1, 3, 6)]
    assert goodput > 1.2 * max(fixed)


@pytest.mark.parametrize("count", [1, 8, 48])
def test_where_drafting_never_pays_it_is_as_good_as_off(count: int) -> None:
    load, warm = [count] * 800, 100
    goodput, drafted = serve(auto(), STEEP, load, warm)
    # alone, a text may lose 2 % and three tokens; drafts that cost five times a token are found out at once
    assert goodput >= (0.985 if count == 1 else 0.99) * serve((0, 0), STEEP, load, warm)[0]
    assert sum(n > 0 for n in drafted[warm:]) <= 0.02 * len(drafted[warm:])


def test_a_saved_batch_goes_on_as_the_one_it_was_saved_from() -> None:
    policy, server = auto(seed=3), Server(FLAT)
    loads = [1, 5, 130, 17, 2] * 8
    for count in loads:
        rows = server.rows(count)
        policy.observe_batch(server.play(rows, *decide(policy, rows)))
    twin = auto(seed=4)
    twin.load_state_dict(json.loads(json.dumps(policy.state_dict(), allow_nan=False)))
    assert twin.state_dict() == policy.state_dict()
    for count in loads:
        rows = server.rows(count)
        chosen, again = decide(policy, rows), decide(twin, replace(rows, work=None))
        assert [column.tolist() for column in chosen] == [column.tolist() for column in again]
        outcome = server.play(rows, *chosen)
        policy.observe_batch(outcome)
        twin.observe_batch(replace(outcome, batch=replace(rows, work=None)))
    assert twin.state_dict() == policy.state_dict()


def test_any_layout_and_integer_type_gives_the_same_decision() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        rows = random_rows(rng, 5, 3, 4, fresh=2.0)
        small = {name: getattr(rows, name).astype(np.int8) for name in ("slots", "match", "size", "limit")}
        if rows.agreement is not None:
            small["agreement"] = rows.agreement.astype(np.int8)
        outermost = np.ascontiguousarray(rows.confidence.transpose(2, 0, 1)).transpose(1, 2, 0)
        chosen = decide(auto(longest=4), rows)
        again = decide(auto(longest=4), replace(rows, **small, confidence=outermost, work=None))
        assert [column.tolist() for column in chosen] == [column.tolist() for column in again]


def test_empty_batches_and_wrong_numbers_of_drafters() -> None:
    policy, rng = auto(), np.random.default_rng(0)
    drafter, length = decide(policy, random_rows(rng, 0, 3, 4))
    assert len(drafter) == len(length) == 0
    with pytest.raises(ValueError, match="a batch of 2 drafters for a policy of 3"):
        decide(policy, random_rows(rng, 4, 2, 4))
    alone = build("auto", [OFF])
    assert isinstance(alone, Auto)
    assert decide(alone, random_rows(rng, 2, 0, 4))[1].tolist() == [0, 0]
    assert alone.choose(Context((OFF,))) == OFF


@pytest.mark.parametrize(("count", "bound"), [(16, 0.9e-3), (256, 3e-3)])  # three times what it takes on a slow core
def test_a_step_is_decided_and_learned_from_in_little_time(count: int, bound: float) -> None:
    policy, rng = auto(longest=8), np.random.default_rng(0)
    rows = random_rows(rng, count, 3, 8, fresh=0.0, slots=count)
    run = np.minimum(rows.size, 2)

    def step() -> None:
        drafter, length = decide(policy, rows)
        policy.observe_batch(BatchRound(rows, drafter, length, np.full(count, 3), run, 0.02))

    step()
    assert min(timeit.repeat(step, number=5, repeat=20)) / 5 <= allowed(bound)
