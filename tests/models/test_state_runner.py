"""Drafts for models with a recurrent state: copies of the state, and tokens read again."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from decoders import NEAR, PROMPT, alike, check, far, ours, plain, tokens_of
from families import ALL, tiny_family

import wager
from wager.drafters.draft_model import DraftModel
from wager.models import compat_transformers as compat
from wager.models.hf_runner import HFRunner
from wager.models.state_runner import MOST_AGAIN, StateRunner

FAMILIES = {family.name: family for family in ALL}


def made(name: str = "lfm2") -> tuple[Any, StateRunner]:
    model = tiny_family(FAMILIES[name])
    runner = StateRunner(model)
    runner.begin()
    return model, runner


def off_after_drafts(name: str, rounds: int = 12) -> float:
    """How far logits after many drafts, kept in part, are from those of a fresh forward over the same text."""
    model, runner = made(name)
    rng = random.Random(3)
    text = tokens_of(rng, 9)
    runner.prefill(text)
    for _ in range(rounds):
        draft = tokens_of(rng, rng.randrange(1, 7))
        runner.forward(draft, len(draft))
        kept = rng.randrange(len(draft) + 1)
        text += draft[:kept]
        runner.crop(len(text))
        assert runner.length == len(text) == len(runner.text)
    with torch.no_grad():
        return far(runner.forward([5, 6], 2), model(torch.tensor([[*text, 5, 6]])).logits[0, -2:])


@pytest.mark.parametrize("name", ["lfm2", "falcon_h1", "mamba2"])
def test_drafts_kept_in_part_leave_no_trace(name: str) -> None:
    assert off_after_drafts(name) < NEAR


@pytest.mark.parametrize("bug", ["the copy is no copy", "nothing is read again"])
def test_a_state_that_is_not_put_back_is_noticed(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if bug == "the copy is no copy":
        monkeypatch.setattr(compat, "_cloned", lambda held: held)
    else:
        again = StateRunner._again
        monkeypatch.setattr(StateRunner, "_again", lambda self: again(self)[:0])
    assert off_after_drafts("mamba2") > 100 * NEAR


def test_tokens_are_read_again_along_with_the_next_until_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    _, runner = made()
    widths: list[int] = []
    forward = HFRunner.forward

    def counted(self: HFRunner, tokens: Sequence[int], keep: int, parents: Sequence[int] | None = None) -> torch.Tensor:
        widths.append(len(tokens))
        return forward(self, tokens, keep, parents)

    runner.prefill(PROMPT)
    monkeypatch.setattr(HFRunner, "forward", counted)
    for _ in range(MOST_AGAIN // 2 + 2):
        runner.forward([1, 2, 3], 3)
        runner.crop(runner.length - 1)
    assert widths == [3 + 2 * n for n in range(MOST_AGAIN // 2 + 1)] + [MOST_AGAIN + 2, 3]


def test_whatever_was_read_before_the_last_copy_is_read_afresh() -> None:
    model, runner = made()
    runner.prefill(PROMPT)
    for token in (7, 8, 9):
        runner.forward([token], 1)
    runner.crop(4)
    with torch.no_grad():
        expected = model(torch.tensor([[*PROMPT[:4], 6]])).logits[0, -1:]
    assert far(runner.forward([6], 1), expected) < NEAR


def test_a_hybrid_drafts_for_a_hybrid() -> None:
    model = tiny_family(FAMILIES["lfm2"])
    decoder = wager.Decoder(model, drafters=[DraftModel(alike(model, 0.02))], policy="random", lengths=(1, 3))
    answer = decoder.generate(PROMPT, max_new_tokens=40, do_sample=False)
    check(model, PROMPT, answer.tokens, plain(model, max_new_tokens=40))
    assert sum(r.accepted for r in answer.rounds) > 10
    assert sum(r.rejected for r in answer.rounds)


def test_trees_and_a_cache_to_be_returned_are_refused_in_one_sentence() -> None:
    model = tiny_family(FAMILIES["lfm2"])
    with pytest.raises(ValueError, match="chains only, so arm suffix:2@2x4"):
        wager.Decoder(model, drafters="suffix", lengths=(2,), trees=["2x4"])
    ids = torch.tensor([PROMPT])
    with pytest.raises(ValueError, match="cannot be cropped") as caught:
        model.generate(ids, custom_generate=wager.generate, max_new_tokens=5, return_dict_in_generate=True)
    assert len(str(caught.value).splitlines()) == 1
    made = model.generate(ids, custom_generate=wager.generate, max_new_tokens=5, do_sample=False)
    assert made[0, len(PROMPT) :].tolist() == plain(model, max_new_tokens=5)
    assert ours(wager.Decoder(model), max_new_tokens=5) == plain(model, max_new_tokens=5)
