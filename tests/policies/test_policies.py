"""What must hold for every policy."""

import json
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import ARMS, contexts, rounds

from wager.core import OFF, Arm, Context, Hint, Round
from wager.core.batch import Batch, BatchRound
from wager.policies import POLICIES, build
from wager.policies.posterior import upper_bound
from wager.simulation import Drafter, Serving, Stream, VerifyCost, play

SPECS = ["fixed:drafter=a,length=3" if name == "fixed" else name for name in POLICIES]
# Every policy also under the rewards it takes but does not default to.
SPECS += [
    f"{name}:reward={reward}"
    for name, entry in POLICIES.items()
    for reward in entry.rewards
    if reward != entry.parameters["reward"]
]
SPECS += ["meta-ucb:lag_cost=0.05", "discounted-ucb:gamma=0.5", "sliding-ucb:window=3", "kl-ucb:c=3"]
SPECS += ["tetris:drafter=b", "auto:budget=3"]

Event = Context | Round
streams = st.lists(contexts() | rounds(), max_size=60)


@given(events=streams, later=streams, seed=st.integers(0, 2**32))
def test_any_legal_stream_gets_available_arms_and_survives_saving(
    events: list[Event], later: list[Event], seed: int
) -> None:
    for spec in SPECS:
        policy = build(spec, ARMS, seed=seed)
        _follow(policy, [*events, Round(OFF, 0, 0, 1)])  # a state is saved between rounds
        saved = json.loads(json.dumps(policy.state_dict(), allow_nan=False))
        twin = build(spec, ARMS, seed=seed + 1)
        twin.load_state_dict(saved)
        assert _follow(policy, later) == _follow(twin, later), spec


def _follow(policy: object, events: list[Event]) -> list[Arm]:
    chosen = []
    for event in events:
        if isinstance(event, Round):
            policy.observe(event)  # type: ignore[attr-defined]
        else:
            chosen.append(policy.choose(event))  # type: ignore[attr-defined]
            assert chosen[-1] in event.arms
    return chosen


@pytest.mark.parametrize("spec", SPECS)
def test_reset_forgets_everything(spec: str) -> None:
    policy = build(spec, ARMS, seed=7)
    fresh = json.dumps(policy.state_dict())
    rng = np.random.default_rng(0)
    for _ in range(50):
        arm = policy.choose(Context(ARMS))
        accepted = int(rng.integers(0, arm.length + 1))
        policy.observe(Round(arm, arm.length, accepted, accepted + 1, verify_seconds=0.1))
    assert spec.startswith(("off", "fixed")) or json.dumps(policy.state_dict()) != fresh
    policy.reset()
    assert json.dumps(policy.state_dict()) == fresh


@pytest.mark.parametrize("spec", [spec for spec in SPECS if ":reward=" not in spec])
def test_memory_does_not_grow_with_rounds(spec: str) -> None:
    policy = build(spec, ARMS, seed=1)
    rng = np.random.default_rng(0)
    outcomes = {
        arm: [Round(arm, arm.length, a, a + 1, batch=1, verify_seconds=0.1) for a in range(arm.length + 1)]
        for arm in ARMS
    }
    contexts_ = [Context(ARMS, batch=b, lag={"a": b}) for b in (1, 2, 3)]

    def run(n: int) -> None:
        for t in range(n):
            arm = policy.choose(contexts_[t % 3])
            policy.observe(outcomes[arm][int(rng.integers(0, arm.length + 1))])

    run(600)
    tracemalloc.start()
    run(1200)
    grown = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert grown < 25_000  # bytes; a list of 1,200 floats alone would be 38,000


def test_saved_state_of_another_policy_or_other_arms_is_refused() -> None:
    saved = build("ucbspec", ARMS).state_dict()
    with pytest.raises(ValueError, match="saved state is for policy UCBSpec, not EXP3Spec"):
        build("exp3spec", ARMS).load_state_dict(saved)
    with pytest.raises(ValueError, match="saved state is for arms"):
        build("ucbspec", ARMS[:3]).load_state_dict(saved)
    with pytest.raises(ValueError, match="saved state is for parameters"):
        build("ucbspec:reward=goodput", ARMS).load_state_dict(saved)
    untouched = build("ucbspec", ARMS)
    untouched.observe(Round(ARMS[1], 1, 1, 2))
    before = untouched.state_dict()
    with pytest.raises(ValueError, match="saved state lacks pulls"):
        untouched.load_state_dict({**saved, "learned": {k: v for k, v in saved["learned"].items() if k != "pulls"}})
    assert untouched.state_dict() == before


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("ucb", "ucbspec"),
        ("", "ucbspec"),
        ("ucbspec:gamma=1", "delta, reward"),
        ("ucbspec:delta", "delta=VALUE"),
        ("ucbspec:delta=0.5,delta=0.4", "is given parameter 'delta' twice: 'ucbspec:delta=0.5,delta=0.4'"),
        ("ucbspec:delta=x", "a number"),
        ("ucbspec:delta=0", "above 0"),
        ("ucbspec:reward=speed", "tokens, be, bd"),
        ("kl-ucb:reward=bd", "tokens, goodput"),
        ("sliding-ucb:window=1.5", "a whole number"),
        ("fixed", "drafter and length"),
        ("fixed:drafter=z,length=3", "a:3"),
        ("fixed:drafter=c,length=4,tree=2x8", "c:4@2x9"),
        ("kl-ucb:c=inf", "a number"),
        ("analytical:history=10000000000000000000000000", "1 to 1,000,000 rounds"),
        ("prompt-router:history=1000001", "1 to 1,000,000 rounds"),
        ("petc:c=1e308", "too large for c 1e\\+308"),
        ("tetris:drafter=z", "a, b, c"),
        ("off:length=3", "none"),
    ],
)
def test_a_bad_specification_is_refused_in_a_sentence_that_names_the_choices(spec: str, names: str) -> None:
    with pytest.raises(ValueError, match=names):
        build(spec, ARMS)


def test_an_arm_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="no arm off here"):
        build("off", [Arm("a", 2)])
    with pytest.raises(ValueError, match="z:2 is not one of"):
        build("ucbspec", ARMS).choose(Context((Arm("z", 2),)))


@given(
    wins=st.integers(0, 10**6),
    losses=st.integers(0, 10**6),
    level=st.floats(0, 20) | st.floats(0, 1e308),
    guess=st.floats(0, 1) | st.just(1 - 1e-12),
)
@example(wins=3, losses=1, level=100.0, guess=1.0)  # the bound is nearer 1 than any number
@example(wins=3, losses=1, level=math.inf, guess=0.9)
def test_kl_ucbs_bound_is_the_root_whatever_the_guess(wins: int, losses: int, level: float, guess: float) -> None:
    trials = wins + losses
    bound = upper_bound(wins, losses, level, guess)
    low, high = (wins / trials if trials else 1.0), 1.0
    for _ in range(100):
        middle = (low + high) / 2
        inside = middle < 1 and trials * bernoulli_kl(wins / trials, middle) <= level if trials else True
        low, high = (middle, high) if inside else (low, middle)
    assert bound == pytest.approx(low, abs=1e-7)


def bernoulli_kl(p: float, q: float) -> float:
    if p == q:
        return 0.0
    return (p * math.log(p / q) if p else 0.0) + ((1 - p) * math.log((1 - p) / (1 - q)) if p < 1 else 0.0)


def test_drafters_and_lengths_are_arms_alike() -> None:
    by_drafter = Stream((Drafter("x", (0.8,)), Drafter("y", (0.3,))), (4,), 2000)
    by_length = Stream((Drafter("x", (0.2,)),), (1, 8), 2000, verify=VerifyCost(((1, 1.0), (9, 5.0))))
    for scenario, best in ((by_drafter, Arm("x", 4)), (by_length, Arm("x", 1))):
        for spec in ("ucbspec:reward=goodput", "kl-ucb:reward=goodput", "ada-bingreedy", "thompson:reward=goodput"):
            run = play(scenario, spec, 0)
            assert run.pulls[best] > 0.6 * run.rounds, spec


def test_tetris_spends_its_budget_on_the_surest_drafts() -> None:
    arms = (OFF, *(Arm("d", n) for n in range(1, 6)))
    policy = build("tetris:per_request=2", arms)
    chosen = policy.choose_batch(batch(np.array([[[0.3] * 5, [0.9] * 5]])))
    assert chosen.length.tolist() == [0, 4]
    assert chosen.drafter.tolist() == [-1, 0]
    assert chosen.arm == Arm("d", 4)
    assert policy.choose(Context(arms, hints={"d": Hint(confidence=(0.3,) * 5)})) == Arm("d", 2)
    assert play(Serving(goal=2000, load=(4,)), "tetris", 0).rounds > 0


def batch(confidence: np.ndarray) -> Batch:
    """Requests whose drafters all propose as many tokens, with these confidences (drafters, requests, tokens)."""
    drafters, count, longest = confidence.shape
    match, size = np.ones((drafters, count), np.int64), np.full((drafters, count), longest)
    return Batch(np.arange(count), np.ones(count, np.bool_), match, size, confidence, np.full(count, longest))


@pytest.mark.parametrize("spec", [spec for spec in SPECS if not spec.startswith(("auto", "tetris"))])
def test_a_policy_that_decides_one_arm_decides_it_for_a_whole_batch(spec: str) -> None:
    """The default of the batch side of the contract: one choice, and one round that comes back."""
    alone, many = build(spec, ARMS, seed=3), build(spec, ARMS, seed=3)
    for step in range(60):
        rows = batch(np.full((len(many.drafters), 4, many.longest), 0.5))
        rows.size[:, 0] = step % 3
        arm, chosen = alone.choose(Context(ARMS, batch=4)), many.choose_batch(rows)
        assert chosen.arm == arm
        assert chosen.length.tolist() == [min(arm.length, size) for size in rows.size[0].tolist()]
        own = many.drafters.index(arm.drafter) if arm.length else -1
        assert chosen.drafter.tolist() == [own if n else -1 for n in chosen.length.tolist()]
        emitted = np.minimum(chosen.length, [0, 1, 2, 9]) + 1
        agreed, tokens = np.zeros_like(rows.size), int(emitted.sum())
        many.observe_batch(BatchRound(rows, chosen.drafter, chosen.length, emitted, agreed, 0.02, 0.01, chosen.arm))
        rejected = int((emitted - 1 < chosen.length).sum())
        alone.observe(Round(arm, int(chosen.length.sum()), tokens - 4, tokens, 4, rejected, 0.01, 0.02))
        assert many.state_dict() == alone.state_dict()


def test_switching_cost_keeps_meta_ucb_with_a_drafter() -> None:
    scenario = Stream(tuple(Drafter(f"d{i}", (0.5,)) for i in range(4)), (4,), 4000, lag_seconds=0.01)
    switches = [
        np.mean([play(scenario, f"meta-ucb:beta=0.3,lag_cost={cost}", seed).switches for seed in range(3)])
        for cost in (0.0, 0.02)
    ]
    assert switches[1] < switches[0] / 2
