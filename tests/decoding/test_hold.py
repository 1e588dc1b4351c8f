"""Plain decoding that is held: the policy is asked more rarely where asking takes too much of a round."""

from collections.abc import Sequence
from typing import Any

import pytest
from decoders import PROMPT, alike, tiny

import wager
from wager.core import OFF, Arm, Context, Round, Signal
from wager.decoding import hold
from wager.decoding.hold import LONGEST, PATIENCE, PlainHold
from wager.drafters.draft_model import DraftModel
from wager.policies import Policy

DRAFT = Arm("draft", 2)


class Plain(Policy):
    """Plain decoding, but for one draft."""

    needs = frozenset({Signal.HINTS})
    holds = True
    drafts_at = 30  # tokens

    def __init__(self, arms: Sequence[Arm]) -> None:
        super().__init__(arms)
        self.asked: list[int] = []
        self.rounds: list[Round] = []

    def choose(self, context: Context) -> Arm:
        self.asked.append(context.tokens)
        return DRAFT if context.tokens >= self.drafts_at and DRAFT not in (r.arm for r in self.rounds) else OFF

    def observe(self, round: Round) -> None:
        self.rounds.append(round)


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
    monkeypatch.setattr(Plain, "holds", False)
    refused = Plain((OFF, DRAFT))
    written(refused)
    assert len(refused.asked) == len(refused.rounds)


@pytest.mark.parametrize(("deciding", "most"), [(0.5e-5, 0), (2e-5, 2), (1.0, LONGEST)])
def test_as_long_as_keeps_choosing_a_small_share(deciding: float, most: int) -> None:
    held = PlainHold(True)
    for _ in range(PATIENCE + LONGEST + 5):
        held.chosen(OFF, deciding, 1e-3)
    assert held.left == most
    assert sum(held.take() for _ in range(50)) == most
    held.chosen(DRAFT, deciding, 1e-3)
    held.chosen(OFF, deciding, 1e-3)
    assert not held.take()
