"""A choice that is held: the policy is asked more rarely where asking takes too much of a round."""

from collections.abc import Sequence
from time import sleep
from typing import Any

import pytest
from decoders import PROMPT, alike, tiny

import wager
from wager.core import OFF, Arm, Calibration, Context, Hint, Round, Signal
from wager.decoding import hold, loop
from wager.decoding.hold import ATTEMPT, LONGEST, PATIENCE, Hold
from wager.decoding.loop import Loop
from wager.drafters.draft_model import DraftModel
from wager.policies import Policy
from wager.policies.auto import Auto

DRAFT = Arm("draft", 2)


class Plain(Policy):
    """Plain decoding, but for one draft."""

    needs = frozenset({Signal.HINTS})
    drafts_at = 30  # tokens
    stands = 100  # rounds

    def __init__(self, arms: Sequence[Arm]) -> None:
        super().__init__(arms)
        self.asked: list[int] = []
        self.rounds: list[Round] = []

    def choose(self, context: Context) -> Arm:
        self.asked.append(context.tokens)
        return DRAFT if context.tokens >= self.drafts_at and DRAFT not in (r.arm for r in self.rounds) else OFF

    def observe(self, round: Round) -> None:
        self.rounds.append(round)

    def may_stand(self, asking: float) -> int:
        assert asking > 0.0
        return self.stands


def standing(rounds: int) -> Hold:
    """The choices of a policy that lets each stand for so many rounds."""
    policy = Plain((OFF, DRAFT))
    policy.stands = rounds
    return Hold(policy)


def written(policy: Policy, drafters: Sequence[Any] = ()) -> list[int]:
    model = tiny()
    made = [DraftModel(alike(model), "draft"), *drafters]
    decoder = wager.Decoder(model, drafters=made, arms=policy.arms, policy=policy)
    return decoder.generate(PROMPT, max_new_tokens=60, do_sample=False).tokens


def test_asking_that_takes_much_of_a_round_gets_rarer_and_every_round_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold, "DECIDING", 1e-9)
    held = Plain((OFF, DRAFT))
    tokens = written(held)
    gaps = [b - a for a, b in zip(held.asked, held.asked[1:], strict=False)]
    assert gaps[:PATIENCE] == [1] * PATIENCE, "at first nothing is held"
    assert gaps[PATIENCE : PATIENCE + 3] == [2, 4, 8]
    assert sum(r.emitted for r in held.rounds) == 59, "the prompt's forward gave the first"
    assert len(held.asked) < len(held.rounds) / 2
    drafted = next(i for i, r in enumerate(held.rounds) if r.arm == DRAFT)
    after = held.asked.index(sum(r.emitted for r in held.rounds[: drafted + 1]) + 1)
    assert gaps[after] > 1, "one draft between leaves things as they were"
    monkeypatch.setattr(hold, "DECIDING", 1e9)
    always = Plain((OFF, DRAFT))
    assert written(always) == tokens
    assert len(always.asked) == len(always.rounds)


@pytest.mark.parametrize("between", ["nothing", "rehearsal", "reset", "reset_per_request", "policy"])
def test_what_was_chosen_throughout_a_text_is_held_sooner_in_the_next(
    between: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold, "DECIDING", 1e-9)
    model, policy = tiny(), Plain((OFF, DRAFT))
    made = {"drafters": [DraftModel(alike(model), "draft")], "arms": policy.arms, "policy": policy}
    decoder = wager.Decoder(model, **made, reset_per_request=between == "reset_per_request")
    asked = []
    if between == "rehearsal":  # nothing is learned from it
        with decoder.rehearsal():
            decoder.generate(PROMPT, max_new_tokens=25, do_sample=False)
    for text in range(3):
        policy.asked.clear()
        decoder.generate(PROMPT, max_new_tokens=25, do_sample=False)
        asked.append(len(policy.asked))
        if text == 0 and between == "reset":
            decoder.reset()
        if text == 0 and between == "policy":  # as --compare does for plain decoding
            decoder.policy = Plain(policy.arms)
            decoder.generate(PROMPT, max_new_tokens=25, do_sample=False)
            decoder.policy = policy
    first, second, third = asked
    assert first > PATIENCE
    assert second < PATIENCE if between in ("nothing", "rehearsal") else second == first
    assert third == first if between == "reset_per_request" else third < PATIENCE


def test_a_round_that_the_next_does_not_depend_on_is_observed_while_that_is_verified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hold, "DECIDING", 1e-9)
    events: list[str] = []
    play, observe, choose = Loop._play, Plain.observe, Plain.choose

    def noted(name: str, call: Any) -> Any:
        return lambda self, *given: (events.append(name), call(self, *given))[1]

    monkeypatch.setattr(Loop, "_play", noted("play", play))
    monkeypatch.setattr(Plain, "observe", noted("observe", observe))
    monkeypatch.setattr(Plain, "choose", noted("choose", choose))
    alone = Plain((OFF, DRAFT))
    tokens, before = written(alone), list(events)
    assert "play play" not in " ".join(before)
    events.clear()
    monkeypatch.setattr(loop, "WORK_ALONE", {"cpu"})
    beside = Plain((OFF, DRAFT))
    assert written(beside) == tokens
    assert [(r.arm, r.emitted) for r in beside.rounds] == [(r.arm, r.emitted) for r in alone.rounds], "none is lost"
    assert "play play observe" in " ".join(events)
    assert sorted(events) == sorted(before)
    assert "play choose" not in " ".join(events), "a choice knows all rounds before it"


def test_nothing_is_held_for_a_policy_that_does_not_allow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold, "DECIDING", 1e-9)
    monkeypatch.setattr(Plain, "stands", 0)
    refused = Plain((OFF, DRAFT, Arm("suffix", 2)))
    written(refused, ["suffix"])
    assert len(refused.asked) == len(refused.rounds)


@pytest.mark.parametrize(("deciding", "stands", "most"), [(0.5e-5, 99, 0), (2e-5, 99, 2), (1, 99, LONGEST), (1, 4, 4)])
def test_as_long_as_keeps_choosing_a_small_share(deciding: float, stands: int, most: int) -> None:
    held = standing(stands)
    for _ in range(PATIENCE + LONGEST + 5):
        held.chosen(DRAFT, deciding, 1e-3)
    assert held.left == most
    assert [held.take() for _ in range(50)] == [DRAFT] * most + [None] * (50 - most)
    held.chosen(OFF, deciding, 1e-3)
    assert held.take() is None
    held.chosen(DRAFT, deciding, 1e-3)
    assert held.left == most, "another arm that was chosen but once leaves things as they were"
    held.left = 0
    for _ in range(2):
        held.chosen(OFF, deciding, 1e-3)
    held.chosen(DRAFT, deciding, 1e-3)
    assert held.take() is None


def test_learning_from_rounds_that_it_was_asked_in_counts_as_much_as_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []

    def may_stand(self: Plain, asking: float) -> int:
        told.append(asking)
        return self.stands

    monkeypatch.setattr(Plain, "may_stand", may_stand)
    held = standing(99)
    for _ in range(PATIENCE + LONGEST):
        held.chosen(DRAFT, 2e-5, 1e-3, 5e-5)
    assert held.left == 7
    assert set(told) == {2e-5}, "proposals are weighed against asking alone"


def test_the_loop_tells_how_long_learning_took(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    real = Hold.chosen

    def chosen(self: Hold, arm: Arm, asking: float, played: float, learning: float, **how: bool) -> None:
        told.append(learning)
        real(self, arm, asking, played, learning, **how)

    monkeypatch.setattr(Hold, "chosen", chosen)
    monkeypatch.setattr(Plain, "observe", lambda self, played: sleep(0.01))
    written(Plain((OFF, DRAFT, Arm("suffix", 2))), ["suffix"])
    assert min(told) >= 0.01


def test_an_arm_whose_drafts_are_begun_ahead_stays_until_they_are() -> None:
    held = standing(99)
    held.chosen(DRAFT, 1e-9, 1e-3, begun=False)
    assert [held.take() for _ in range(ATTEMPT + 1)] == [DRAFT] * ATTEMPT + [None]
    held.chosen(DRAFT, 1e-9, 1e-3)
    assert held.take() is None, "choosing takes nothing here"
    refused = standing(0)
    refused.chosen(DRAFT, 1e-9, 1e-3, begun=False)
    assert refused.take() is None, "the policy does not allow it"


@pytest.mark.parametrize("lost", [0.4, 1.5])
def test_auto_lets_a_draft_stand_only_as_long_as_its_bound_holds_with_all_of_them_rejected(lost: float) -> None:
    auto, plain = Auto((OFF, DRAFT)), 0.01
    noise = auto.latency.verify.noise
    most = plain * (1.0 + lost) / noise
    auto.choose(Context(auto.arms, tokens=1, remaining=100))
    now = auto._now
    now.best, now.plain_seconds, now.most_seconds = (DRAFT, 2.0, most), plain, most
    bound = auto.exploration.bound
    rounds = 1 + auto.may_stand(0.0)
    assert rounds == int(bound.room / lost)
    for _ in range(rounds):
        bound.drafted(1, most * noise, most * noise, plain)
    assert -bound.balance <= 3.0 + 0.02 * bound.tokens
    now.best = OFF, 1.0, plain
    assert auto.may_stand(0.0) >= LONGEST, "plain decoding loses nothing"


def test_beside_proposals_auto_is_asked_as_long_as_they_bring_more_than_asking_takes() -> None:
    suffix = Arm("suffix", 8)
    auto, plain = Auto((OFF, DRAFT, suffix)), 1e-3
    auto.calibrate(Calibration(verify={1: plain, 9: plain}, draft={DRAFT: 0.1 * plain}))
    silent, sure = {"suffix": Hint()}, {"suffix": Hint(match=9, size=8, confidence=(0.99,) * 8)}

    def play(hints: dict[str, Hint], rounds: int, *, begins: bool = False) -> int:
        stands = 0
        for at in range(rounds):
            known = (auto.arms, 1, 50, None if begins and not at else OFF, {"draft": 1}, hints, {}, {"suffix": 1e-5})
            arm = auto.choose(Context(*known, remaining=500))
            stands = auto.may_stand(0.2 * plain)
            drafted = 8 if arm == suffix else 2 * (arm == DRAFT)
            others = {"suffix": 8 if hints is sure else 0} if arm != suffix else {}
            accepted = 8 if arm == suffix else 0
            auto.observe(
                Round(arm, drafted, accepted, accepted + 1, verify_seconds=plain, draft_seconds=1e-5, others=others)
            )
        return stands

    assert play(sure, 20) == 0, "a proposal is chosen, and the next one is another"
    assert auto.exploration.proposed_gain > 1.0
    assert play(silent, 1) == 0, "they brought much until now"
    few = play(silent, 40)
    assert 0 < few < play(silent, 20), "the less they bring, the longer one may wait"
    play(sure, 3)
    assert play(silent, 1) == 0, "it is asked again as soon as they do"
    play(silent, 400)
    play(sure, 2)
    assert play(silent, 1, begins=True) > 0, "a text starts from what they bring as a rule ..."
    play(sure, 100)
    assert play(silent, 60) > 0
    assert play(silent, 1, begins=True) == 0, "... whatever they brought at the end of the last one"


def test_auto_learns_what_drafts_take_from_those_that_were_begun_ahead() -> None:
    small, large = Arm.parse("eagle:4@4x16"), Arm.parse("eagle:6@8x32")
    auto = Auto((OFF, small, large))
    auto.calibrate(Calibration(verify={1: 1e-3, 33: 1e-3}, draft={small: 0.3e-3, large: 0.8e-3}))
    auto.choose(Context(auto.arms, 1, 0, remaining=500))
    for _ in range(20):
        auto.observe(Round(small, 16, 1, 2, draft_seconds=0.7e-3, verify_seconds=1e-3, begun=False))
    known = auto.latency.drafts
    assert known.line("eagle@4x16", 1).each * 4 == pytest.approx(0.3e-3)
    assert known.starts == {"eagle@4x16": pytest.approx(0.4e-3, rel=0.01)}
    for _ in range(20):
        auto.observe(Round(small, 16, 1, 2, draft_seconds=0.2e-3, verify_seconds=1e-3))
    assert known.line("eagle@4x16", 1).each * 4 < 0.23e-3
