"""Drafters whose cards tell kinds of text apart: the prompt says which one to begin with, and acceptance says more."""

import json
from collections.abc import Mapping
from math import exp, log

import numpy as np
import pytest
from auto_lab import CONFIG, run_of

from wager.core import OFF, Arm, Calibration, Context, Round
from wager.policies import build
from wager.policies.auto import Auto
from wager.policies.auto import kinds as module
from wager.policies.auto.kinds import TextKind
from wager.policies.auto.positional import PositionalAcceptance

ARMS = (OFF, Arm("a", 4), Arm("b", 4))
TOLD = {"a": {"x": 1.0, "y": -1.0}, "b": {"x": -1.0, "y": 1.0}}
MEAN = 0.55  # of the cards of both
PLAIN, DRAFT = 1e-3, 3e-4


def chance(drafter: str, kind: str) -> float:
    """What it is worth in texts of a kind."""
    odds = MEAN / (1 - MEAN) * exp(TOLD[drafter][kind])
    return odds / (1 + odds)


def calibrated(kinds: Mapping[str, Mapping[str, float]] = TOLD, seed: int = 0) -> Auto:
    policy = build("auto", ARMS, seed=seed)
    assert isinstance(policy, Auto)
    verify = {width: PLAIN * (1 + 0.01 * width) for width in (1, 5)}
    cards = dict.fromkeys("ab", (MEAN,) * 4)
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


def reference(told: Mapping[str, Mapping[str, float]], tokens: list[tuple[str, float, float]]) -> dict[str, float]:
    """Bayes' rule, one token after the other: which drafter, the odds in all texts, and whether it was accepted."""
    chances = {"x": 0.5, "y": 0.5}
    for drafter, odds, hit in tokens:
        for kind in chances:
            p = odds * exp(told[drafter][kind]) / (1 + odds * exp(told[drafter][kind]))
            chances[kind] *= (p**hit * (1 - p) ** (1 - hit)) ** CONFIG.kind_share
    total = sum(chances.values())
    return {kind: p / total for kind, p in chances.items()}


def learned(tokens: list[tuple[str, float, float]]) -> dict[str, float]:
    kind = TextKind(CONFIG)
    kind.expect(TOLD)
    for drafter, odds, hit in tokens:
        kind.usual = {drafter: [odds]}
        kind.learn(drafter, [hit])
        kind.settle()  # the next token has other odds
    return dict(zip(kind.kinds, kind.chances, strict=True))


def some_tokens(count: int) -> list[tuple[str, float, float]]:
    rng = np.random.default_rng(3)
    return [("ab"[rng.integers(2)], float(rng.uniform(0.3, 3.0)), float(rng.random() < 0.5)) for _ in range(count)]


def test_the_kind_is_learned_by_bayes_rule_and_fades(monkeypatch: pytest.MonkeyPatch) -> None:
    assert learned(some_tokens(5)) == pytest.approx(reference(TOLD, some_tokens(5)), abs=0.02)
    certain = [("a", 1.0, 1.0)] * 100
    assert reference(TOLD, certain)["x"] > learned(certain)["x"] > 0.95
    upside_down = {name: {kind: -x for kind, x in own.items()} for name, own in TOLD.items()}
    assert learned(certain) != pytest.approx(reference(upside_down, certain), abs=0.5), "a planted bug"
    rejected = [("a", 1.0, 0.0)] * 100
    assert learned(rejected)["x"] < 0.05
    monkeypatch.setattr(module, "log", lambda x: -log(x))
    assert learned(rejected)["x"] > 0.5, "and another"


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
    other = build("auto", ARMS, seed=1)
    assert isinstance(other, Auto)
    other.load_state_dict(json.loads(json.dumps(policy.state_dict())))
    cards = Calibration(acceptance=dict.fromkeys("ab", (MEAN,) * 4), apart=0.5, kinds=TOLD)
    other.calibrate(cards)
    for one in (policy, other):
        one.kind.begin({"x": 1.0}, {})
        one.positional.follow(one.kind)
        one.positional.settle_learned()
    for name in "ab":
        assert other.positional.counts[name].odds == pytest.approx(policy.positional.counts[name].odds, rel=1e-6)
