"""Drafters whose cards tell kinds of text apart: the prompt says which one to begin with, and acceptance says more."""

import json
from collections.abc import Mapping, Sequence
from math import exp, log
from typing import NamedTuple

import numpy as np
import pytest
from auto_lab import CONFIG, run_of

from wager.core import OFF, Arm, Calibration, Context, Round
from wager.policies import build
from wager.policies.auto import Auto
from wager.policies.auto import kinds as module
from wager.policies.auto.kinds import TextKind
from wager.policies.auto.positional import PositionalAcceptance
from wager.policies.auto.shifts import NOTICED

ARMS = (OFF, Arm("a", 4), Arm("b", 4))
TOLD = {"a": {"x": 1.0, "y": -1.0}, "b": {"x": -1.0, "y": 1.0}}
MEAN = 0.55  # of the cards of both
PLAIN, DRAFT = 1e-3, 3e-4


def chance(drafter: str, kind: str) -> float:
    """What it is worth in texts of a kind."""
    odds = MEAN / (1 - MEAN) * exp(TOLD[drafter][kind])
    return odds / (1 + odds)


def calibrated(kinds: Mapping[str, Mapping[str, float]] = TOLD, seed: int = 0, after: Auto | None = None,
               card: tuple[float, ...] = (MEAN,) * 4) -> Auto:  # fmt: skip
    policy = build("auto", ARMS, seed=seed)
    assert isinstance(policy, Auto)
    if after is not None:  # its state was kept
        policy.load_state_dict(json.loads(json.dumps(after.state_dict())))
    verify = {width: PLAIN * (1 + 0.01 * width) for width in (1, 5)}
    cards = dict.fromkeys("ab", card)
    known = Calibration(verify, dict.fromkeys(ARMS[1:], DRAFT), {n: {64: 1e-4} for n in "ab"}, cards, 0.5, dict(kinds))
    policy.calibrate(known)
    return policy


def text(policy: Auto, kind: str, said: Mapping[str, float], tokens: int = 128, seed: int = 0) -> list[Round]:
    """A text of a kind, of which the prompt says what it says."""
    rng, done, rounds = np.random.default_rng(seed), 1, list[Round]()
    previous: Arm | None = None
    lag = dict.fromkeys("ab", 30)
    while done < tokens:
        context = Context(
            ARMS, tokens=done, previous=previous, lag=dict(lag), remaining=tokens - done,
            kinds=said if previous is None else {},
        )  # fmt: skip
        arm = policy.choose(context)
        accepted = run_of(rng, [chance(arm.drafter, kind)] * 4) if arm.length else 0
        readers = [name for name in policy.select_readers(context) if name != arm.drafter]
        missed = lag
        lag = {name: 0 if name in (arm.drafter, *readers) else n for name, n in lag.items()}
        lag = {name: n + accepted + 1 for name, n in lag.items()}
        scored = {
            name: tuple(float(rng.random() < chance(name, kind)) for _ in range(min(32, missed[name] + accepted)))
            for name in readers
        }
        played = Round(
            arm, arm.length, accepted, accepted + 1, draft_seconds=DRAFT if arm.length else 0.0,
            verify_seconds=PLAIN * (1.05 if arm.length else 1.01), lag=missed.get(arm.drafter, 0), others=scored,
            read_seconds=dict.fromkeys(readers, 1e-4),
        )  # fmt: skip
        policy.observe(played)
        for name, shift in policy.positional.shifts.items():
            assert shift.kind == pytest.approx(policy.kind.shift(name), abs=NOTICED)
        rounds.append(played)
        previous, done = arm, done + accepted + 1
    return rounds


def likely(policy: Auto, kind: str) -> float:
    """How likely it is that the text is of a kind."""
    return policy.kind.chances[policy.kind.kinds.index(kind)]


def share(rounds: list[Round], drafter: str) -> float:
    """Of the rounds with a draft, those of one drafter."""
    drafts = [played.arm.drafter for played in rounds if played.arm.length]
    return drafts.count(drafter) / len(drafts)


@pytest.mark.parametrize(("kind", "right"), [("x", "a"), ("y", "b")])
def test_the_drafter_for_the_kind_is_the_first_to_be_run(kind: str, right: str) -> None:
    for seed in range(5):
        rounds = text(calibrated(seed=seed), kind, {kind: 0.95, "xy"[kind == "x"]: 0.05}, seed=seed)
        first = next(played.arm for played in rounds if played.arm.length)
        assert first.drafter == right
        assert share(rounds, right) > 0.9


def test_texts_of_kinds_in_turn_each_have_their_drafter() -> None:
    policy, shares = calibrated(), list[float]()
    for n in range(12):
        kind = "xy"[n % 2]
        rounds = text(policy, kind, {kind: 0.9, "yx"[n % 2]: 0.1}, seed=n)
        shares.append(share(rounds, "ab"[n % 2]))
    assert min(shares[2:]) > 0.85
    assert sum(shares[2:]) / 10 > 0.95


def test_without_what_cards_tell_of_kinds_the_prompt_says_nothing() -> None:
    def arms(said: Mapping[str, float], kinds: Mapping[str, Mapping[str, float]]) -> list[Arm]:
        return [played.arm for played in text(calibrated(kinds), "x", said)]

    assert arms({"x": 1.0}, {}) == arms({"y": 1.0}, {}) == arms({}, {})
    assert arms({"x": 1.0}, TOLD) != arms({"y": 1.0}, TOLD)


def test_a_prompt_that_says_the_wrong_kind_is_not_believed_for_long() -> None:
    for seed in range(5):
        policy = calibrated(seed=seed)
        rounds = text(policy, "y", {"x": 0.95, "y": 0.05}, tokens=400, seed=seed)
        assert likely(policy, "y") > 0.5
        assert share(rounds[len(rounds) // 2 :], "b") > 0.8


def test_what_was_learned_moves_by_what_the_cards_tell_and_back() -> None:
    model, kind = PositionalAcceptance(np.random.default_rng(0), CONFIG), TextKind(CONFIG)
    model.expect("a", (0.6, 0.5))
    kind.expect({"a": {"x": 0.8, "y": -0.4}})
    model.follow(kind)
    rng = np.random.default_rng(1)
    for _ in range(100):
        model.learn("a", run_of(rng, [0.7, 0.6]), 2)
    before, latest = list(model.counts["a"].odds), model.counts["a"].latest
    start = kind.shift("a")
    kind.begin({"x": 1.0}, {})
    model.follow(kind)
    model.settle_learned()
    moved = kind.shift("a") - start
    assert moved > 0.5
    assert model.counts["a"].odds == pytest.approx([x * exp(moved) for x in before], rel=1e-3)
    tried, kept = model.counts["a"].latest
    assert log(kept / (tried - kept)) == pytest.approx(log(latest[1] / (latest[0] - latest[1])) + moved)
    kind.begin({}, {})
    model.follow(kind)
    model.settle_learned()
    assert model.counts["a"].odds == pytest.approx(before, rel=1e-3)


def test_what_is_known_of_all_kinds_together_is_no_more_in_one_than_in_another() -> None:
    model, kind = PositionalAcceptance(np.random.default_rng(0), CONFIG), TextKind(CONFIG)
    model.expect("a", (0.6, 0.5))
    kind.expect({"a": {"x": 0.8, "y": -0.8}})
    before = model.in_all_kinds()["a"]
    for said in ("x", "y"):
        kind.begin({said: 1.0}, {})
        model.follow(kind)
        assert model.in_all_kinds()["a"] == pytest.approx(before, rel=1e-3)
        assert model.counts["a"].odds != pytest.approx(before, rel=0.3)


class Scored(NamedTuple):
    """Tokens of a drafter in one draft, or one by one."""

    drafter: str
    odds: Sequence[float]  # at each position, in all kinds together
    hits: Sequence[float]
    first: bool = False  # each is the first one of a draft


def reference(told: Mapping[str, Mapping[str, float]], scored: Sequence[Scored]) -> dict[str, float]:
    """Bayes' rule, one token after the other."""
    chances = {"x": 0.5, "y": 0.5}
    for drafter, odds, hits, first in scored:
        for kind in chances:
            for at, hit in enumerate(hits):
                here = odds[0 if first else at] * exp(told[drafter][kind])
                chances[kind] *= ((here if hit else 1.0) / (1.0 + here)) ** CONFIG.kind_share
    total = sum(chances.values())
    return {kind: p / total for kind, p in chances.items()}


def learned(scored: Sequence[Scored]) -> dict[str, float]:
    kind = TextKind(CONFIG)
    kind.expect(TOLD)
    for drafter, odds, hits, first in scored:
        kind.usual = {drafter: odds}
        kind.settle()  # the next draft has other odds
        kind.learn(drafter, hits, first=first)
    return dict(zip(kind.kinds, kind.chances, strict=True))


def some_scored(count: int) -> list[Scored]:
    rng = np.random.default_rng(3)
    found = []
    for n in range(count):
        odds = [float(x) for x in rng.uniform(0.3, 3.0, 4)]
        own = run_of(rng, [0.6] * 4)
        run = [1.0] * own + [0.0] * (own < 4)
        read = [float(hit) for hit in rng.random(6) < 0.5]
        found.append(Scored("ab"[n % 2], odds, read if n % 3 == 0 else run, first=n % 3 == 0))
    return found


def test_the_kind_is_learned_by_bayes_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    assert learned(some_scored(12)) == pytest.approx(reference(TOLD, some_scored(12)), abs=1e-6)
    turned = [one._replace(first=not one.first, hits=one.hits[:4]) for one in some_scored(12)]
    cut = [one._replace(hits=one.hits[:4]) for one in some_scored(12)]
    assert log(learned(turned)["y"]) != pytest.approx(log(reference(TOLD, cut)["y"]), abs=0.1), "a planted bug"
    rejected = [Scored("a", [1.0], [0.0])] * 100
    assert learned(rejected)["x"] < 0.05
    monkeypatch.setattr(module, "log", lambda x: -log(x))
    assert learned(rejected)["x"] > 0.5, "and another"


def test_a_kind_that_the_prompt_does_not_name_is_not_ruled_out() -> None:
    policy = calibrated()
    text(policy, "y", {"x": 1.0}, tokens=300)
    assert likely(policy, "y") > 0.5


def test_evidence_fades_by_tokens_of_the_text_however_many_drafters_read_them() -> None:
    """The same tokens, at which one drafter shows kind x and all others nothing."""
    names, gaps = "abcdef", []
    for readers in ("a", names):
        arms = (OFF, *(Arm(name, 4) for name in names))
        policy = build("auto", arms, seed=0)
        assert isinstance(policy, Auto)
        told = {name: {"x": 0.3 * (name == "a"), "y": -0.3 * (name == "a")} for name in names}
        policy.calibrate(Calibration(acceptance=dict.fromkeys(names, (MEAN,) * 4), apart=0.5, kinds=told))
        policy.kind.begin({}, policy.positional.in_all_kinds())
        for n in range(200):
            policy.choose(Context(arms, tokens=n + 1, previous=OFF, lag=dict.fromkeys(names, 1), remaining=300))
            policy.observe(
                Round(OFF, 0, 0, 1, verify_seconds=PLAIN, others={name: (float(n % 3 > 0),) for name in readers},
                      read_seconds=dict.fromkeys(readers, 1e-4))
            )  # fmt: skip
        x, y = policy.kind.evidence
        gaps.append(x - y)
    assert gaps[0] == pytest.approx(gaps[1], rel=0.02)
    assert gaps[0] > 0.5


def test_reading_tells_the_kind_too() -> None:
    """The idle drafter fares as it does in the other kind of text."""
    policy = calibrated()
    policy.choose(Context(ARMS, tokens=1, lag={"a": 5, "b": 5}, remaining=100))
    before = likely(policy, "y")
    policy.observe(Round(OFF, 0, 0, 1, verify_seconds=PLAIN, others={"b": (1.0,)}, read_seconds={"b": 1e-4}))
    assert likely(policy, "y") > before + 0.1


def test_a_state_goes_on_in_a_text_of_another_kind() -> None:
    policy = calibrated()
    for n in range(4):
        text(policy, "xy"[n % 2], {"xy"[n % 2]: 0.9, "yx"[n % 2]: 0.1}, seed=n)
    other = calibrated(seed=1, after=policy)
    for one in (policy, other):
        one.kind.begin({"x": 1.0}, {})
        one.positional.follow(one.kind)
        one.positional.settle_learned()
    for name in "ab":
        assert other.positional.counts[name].odds == pytest.approx(policy.positional.counts[name].odds, rel=1e-6)


def test_a_state_from_the_middle_of_a_text_knows_what_was_usual_before_it() -> None:
    policy = calibrated()
    text(policy, "x", {"x": 0.9, "y": 0.1}, tokens=40)
    other = calibrated(seed=1, after=policy)
    for one in (policy, other):
        one.kind.learn("a", [1.0, 0.0])
    assert other.kind.chances == pytest.approx(policy.kind.chances)
    assert other.kind.usual


@pytest.mark.parametrize("calibrates", [False, True], ids=["before", "without kinds"])
def test_the_kind_of_an_earlier_session_does_not_stay(calibrates: bool) -> None:
    """Before rounds are timed again, and with cards that tell no kinds any more."""
    policy = calibrated()
    text(policy, "x", {"x": 1.0}, tokens=60)
    assert abs(policy.positional.shifts["a"].kind) > 0.5
    other = build("auto", ARMS, seed=1)
    assert isinstance(other, Auto)
    other.load_state_dict(json.loads(json.dumps(policy.state_dict())))
    if calibrates:
        other.calibrate(Calibration(acceptance=dict.fromkeys("ab", (MEAN,) * 4), apart=0.5))
    other.choose(Context(ARMS, tokens=1, remaining=100, kinds={"y": 0.95, "x": 0.05}))
    assert [shift.kind for shift in other.positional.shifts.values()] == [0.0, 0.0]


def test_every_token_that_was_read_is_the_first_of_a_draft() -> None:
    policy, hits = calibrated(card=(0.7, 0.5, 0.3, 0.2)), (1.0, 0.0, 1.0)
    for n in range(3):
        policy.choose(Context(ARMS, tokens=n + 1, previous=OFF if n else None, lag={"a": 5, "b": 5}, remaining=100 - n))
        read = {"others": {"b": hits}, "read_seconds": {"b": 1e-4}} if n == 2 else {}
        policy.observe(Round(OFF, 0, 0, 1, verify_seconds=PLAIN, **read))
    odds = policy.kind.usual["b"]
    expected = reference(TOLD, [Scored("b", odds, hits, first=True)])
    assert likely(policy, "x") == pytest.approx(expected["x"])
    assert expected["x"] != pytest.approx(reference(TOLD, [Scored("b", odds, hits)])["x"], abs=0.02)


def test_evidence_fades_by_what_drafts_show_too() -> None:
    """Of a drafter whose card says nothing of kinds."""
    policy, arm = calibrated({"b": TOLD["b"]}), Arm("a", 4)
    policy.choose(Context(ARMS, tokens=1, remaining=100))
    policy.kind.evidence = [0.0, -2.0]
    for n in range(10):
        policy.observe(Round(arm, 4, 4, 5, draft_seconds=DRAFT, verify_seconds=PLAIN))
        policy.choose(Context(ARMS, tokens=2 + 5 * n, previous=arm, remaining=100 - 5 * n))
    assert policy.kind.evidence[1] == pytest.approx(-2.0 * (100 / 104) ** 10)
