"""What is done while the device works does not change a text: choices made ahead, and drafts begun for them."""

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from device_setup import Setup, run_in_interpreter, settings
from heads import PROMPT

from wager.core import Arm, Context, Round
from wager.decoding import loop
from wager.policies import Policy

INTERPRETED, CUDA = os.environ.get("TRITON_INTERPRET") == "1", torch.cuda.is_available()
needs_kernels = pytest.mark.skipif(not CUDA and not INTERPRETED, reason="needs CUDA, or Triton's interpreter")
CHAIN, TREE, MATCH = (Arm.parse(name) for name in ("eagle:4", "eagle:3@3x8", "suffix:3"))


@pytest.mark.skipif(INTERPRETED or CUDA, reason="starts itself over in the interpreter")
def test_what_is_begun_ahead_agrees_with_the_host_in_the_interpreter() -> None:
    run_in_interpreter(__file__)


class InTurn(Policy):
    """Plays arms in turn, each so often, and learns late; proposals are wanted before a match alone."""

    late = True

    def __init__(self, arms: Sequence[Arm], turns: Sequence[tuple[Arm, int]]) -> None:
        super().__init__(arms)
        self.turns = [arm for arm, times in turns for _ in range(times)]
        self.asked: list[bool] = []  # whether the round before was not observed yet
        self.seen: list[Round] = []

    def choose(self, context: Context) -> Arm:
        self.asked.append(context.unobserved)
        return self.turns[(len(self.asked) - 1) % len(self.turns)]

    def select_drafters(self, context: Context) -> tuple[str, ...]:
        return ("suffix",) if self.turns[len(self.asked) % len(self.turns)] == MATCH else ()

    def observe(self, round: Round) -> None:
        self.seen.append(round)


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    monkeypatch.setattr(loop, "WORK_ALONE", {"cuda", "cpu"})
    return Setup(tmp_path, monkeypatch)


@needs_kernels
@pytest.mark.parametrize("sampled", [False, True])
def test_a_draft_of_another_shape_is_begun_as_soon_as_it_is_chosen(setup: Setup, sampled: bool) -> None:
    policy = InTurn((CHAIN, TREE), [(CHAIN, 3), (TREE, 3)])
    decoder, played = setup.decoder(["eagle:4", "eagle:3@3x8"], policy=policy)
    for prompt in (PROMPT, PROMPT[:3] * 6):
        policy.asked, policy.seen = [], []
        made = decoder.generate(prompt, **settings(sampled, 40))
        assert made.tokens == setup.alone().generate(prompt, **settings(sampled, 40)).tokens
        assert policy.seen == list(made.rounds), "every round is observed once, in order"
        rounds = made.rounds
        changed = [now.begun for before, now in pairwise(rounds) if before.arm != now.arm]
        assert any(changed), "a choice that was made in time is drafted for ahead"
        assert sum(r.begun for r in rounds) > len(rounds) / 2
    assert played[0] > 10
    assert any(policy.asked)


@needs_kernels
@pytest.mark.parametrize("sampled", [False, True])
def test_the_draft_after_a_match_is_begun_before_it_is_chosen(setup: Setup, sampled: bool) -> None:
    policy = InTurn((MATCH, CHAIN, TREE), [(CHAIN, 2), (MATCH, 1)])
    decoder, _ = setup.decoder(["suffix:3", "eagle:4", "eagle:3@3x8"], policy=policy)
    begun = []
    for prompt in (PROMPT, PROMPT[:3] * 6):
        policy.asked, policy.seen = [], []
        made = decoder.generate(prompt, **settings(sampled, 40))
        assert made.tokens == setup.alone().generate(prompt, **settings(sampled, 40)).tokens
        rounds = made.rounds
        pairs = pairwise(rounds)
        begun += [now.begun for before, now in pairs if before.arm == MATCH and now.arm == CHAIN]
    assert begun
    assert all(begun)
