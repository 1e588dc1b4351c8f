"""Texts end where transformers ends them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from decoders import PROMPT, Told, check, informed, ours, plain, tiny
from transformers import (
    GenerationConfig,
    StoppingCriteria,
    StoppingCriteriaList,
)

import wager
from wager.drafters.draft_model import DraftModel

pytestmark = pytest.mark.usefixtures("one_thread")


def test_any_of_several_ends_ends_the_text() -> None:
    model = tiny()
    whole = plain(model)
    decoder = informed(model)
    for ends in (whole[10], [whole[30], whole[7]], [63, whole[3]], whole[0]):
        answer = decoder.generate(PROMPT, max_new_tokens=60, do_sample=False, eos_token_id=ends)
        assert answer.tokens == plain(model, eos_token_id=ends)
        assert answer.finish == "eos"
        assert len(answer.tokens) == len(answer.sources)


def test_an_end_inside_a_kept_draft_cuts_it() -> None:
    model = tiny()
    whole = plain(model)
    end = next(t for i, t in enumerate(whole) if i > 8 and t not in whole[:i])
    decoder = wager.Decoder(model, drafters=[Told([[*PROMPT, *whole]], 1000)], policy="fixed:drafter=told,length=8")
    answer = decoder.generate(PROMPT, max_new_tokens=60, do_sample=False, eos_token_id=end)
    assert answer.tokens == whole[: whole.index(end) + 1]
    assert sum(r.emitted for r in answer.rounds) == len(answer.tokens) - 1


@pytest.mark.parametrize("limit", [1, 2, 3, 9])
def test_no_text_is_longer_than_asked(limit: int) -> None:
    model = tiny()
    for settings in ({"max_new_tokens": limit}, {"max_length": len(PROMPT) + limit, "max_new_tokens": None}):
        answer = informed(model).generate(PROMPT, do_sample=False, **settings)
        assert answer.tokens == plain(model)[:limit]
        assert answer.finish == "length"


def test_a_generation_config_object_is_heeded() -> None:
    model = tiny()
    config = GenerationConfig(max_new_tokens=7, do_sample=False, repetition_penalty=1.4, pad_token_id=0)
    tokens = informed(model).generate(PROMPT, generation_config=config).tokens
    assert tokens == model.generate(torch.tensor([PROMPT]), generation_config=config)[0, len(PROMPT) :].tolist()
    model.generation_config.max_new_tokens = 5
    assert len(informed(model).generate(PROMPT).tokens) == 5
    model.generation_config.max_new_tokens = model.generation_config.max_length = None
    assert len(informed(model).generate(PROMPT[:2]).tokens) == 256  # the default


def test_the_context_limit_ends_the_text() -> None:
    model = tiny(max_position_embeddings=24)
    decoder = wager.Decoder(model, drafters=["suffix", "prompt-lookup"], policy="random")
    answer = decoder.generate(PROMPT, max_new_tokens=60, do_sample=False)
    assert len(answer.tokens) == 14
    assert answer.finish == "context"
    assert answer.tokens == plain(model, max_new_tokens=14)


def test_a_draft_model_with_a_shorter_context_falls_silent() -> None:
    model, draft = tiny(), tiny(max_position_embeddings=24)
    decoder = wager.Decoder(model, drafters=[DraftModel(draft)], policy="fixed:drafter=draft-model,length=4")
    check(model, PROMPT, ours(decoder), plain(model))
    assert not any(r.drafted for r in decoder.generate(range(1, 30), max_new_tokens=9).rounds)


def test_own_stopping_criteria_end_the_text() -> None:
    class Sum(StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: Any, **more: Any) -> torch.Tensor:
            return input_ids.sum(-1) > 500

    model = tiny()
    criteria = StoppingCriteriaList([Sum()])
    answer = informed(model).generate(PROMPT, max_new_tokens=60, do_sample=False, stopping_criteria=criteria)
    assert answer.tokens == plain(model, stopping_criteria=criteria)
    assert answer.finish == "stop"
