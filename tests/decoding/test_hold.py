"""A choice that is held: the policy is asked more rarely where asking takes too much of a round."""

from collections.abc import Sequence
from typing import Any

import pytest
from decoders import PROMPT, alike, tiny

import wager
from wager.core import OFF, Arm, Context, Round, Signal
from wager.decoding import hold
from wager.decoding.hold import LONGEST, PATIENCE, Hold
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

    def may_stand(self) -> int:
        return self.stands


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
    assert gaps[PATIENCE : PATIENCE + 3] == [2, 3, 4]
    assert sum(r.emitted for r in held.rounds) == 59, "the prompt's forward gave the first"
    assert len(held.asked) < len(held.rounds) / 2
    drafted = next(i for i, r in enumerate(held.rounds) if r.arm == DRAFT)
    after = held.asked.index(sum(r.emitted for r in held.rounds[: drafted + 1]) + 1)
    assert gaps[after : after + 2] == [1, 1], "after a draft it is asked again in every round"
    monkeypatch.setattr(hold, "DECIDING", 1e9)
    always = Plain((OFF, DRAFT))
    assert written(always) == tokens
    assert len(always.asked) == len(always.rounds)


def test_nothing_is_held_beside_drafters_that_propose_or_for_a_policy_that_does_not_allow_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hold, "DECIDING", 1e-9)
    beside = Plain((OFF, DRAFT, Arm("suffix", 2)))
    written(beside, ["suffix"])
    assert len(beside.asked) == len(beside.rounds)
    monkeypatch.setattr(Plain, "stands", 0)
    refused = Plain((OFF, DRAFT))
    written(refused)
    assert len(refused.asked) == len(refused.rounds)


@pytest.mark.parametrize(("deciding", "stands", "most"), [(0.5e-5, 99, 0), (2e-5, 99, 2), (1, 99, LONGEST), (1, 4, 4)])
def test_as_long_as_keeps_choosing_a_small_share(deciding: float, stands: int, most: int) -> None:
    held = Hold(True)
    for _ in range(PATIENCE + LONGEST + 5):
        held.chosen(DRAFT, lambda: stands, deciding, 1e-3)
    assert held.left == most
    assert [held.take() for _ in range(50)] == [DRAFT] * most + [None] * (50 - most)
    held.chosen(OFF, lambda: stands, deciding, 1e-3)
    held.chosen(DRAFT, lambda: stands, deciding, 1e-3)
    assert held.take() is None


@pytest.mark.parametrize("lost", [0.4, 1.5])
def test_auto_lets_a_draft_stand_only_as_long_as_its_bound_holds_with_all_of_them_rejected(lost: float) -> None:
    auto, plain = Auto((OFF, DRAFT)), 0.01
    noise = auto.latency.verify.noise
    most = plain * (1.0 + lost) / noise
    auto.choose(Context(auto.arms, tokens=1, remaining=100))
    auto._chosen, auto._plain_seconds, auto._most_seconds = (DRAFT, 2.0, most), plain, most
    bound = auto.exploration.bound
    rounds = 1 + auto.may_stand()
    assert rounds == int(bound.room / lost)
    for _ in range(rounds):
        bound.drafted(1, most * noise, most * noise, plain)
    assert -bound.balance <= 3.0 + 0.02 * bound.tokens
    auto._chosen = (OFF, 1.0, plain)
    assert auto.may_stand() >= LONGEST, "plain decoding loses nothing"
