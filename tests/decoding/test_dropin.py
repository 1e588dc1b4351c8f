"""``custom_generate=wager.generate`` gives what ``generate`` gives."""

import copy
import gc
import weakref

import pytest
import torch
from decoders import PROMPT, Told, informed, plain, tiny
from transformers import StoppingCriteriaList, StopStringCriteria
from transformers.generation.streamers import BaseStreamer

import wager
from wager.models import load_tokenizer


def test_the_drop_in_gives_what_generate_gives() -> None:
    model, ids = tiny(), torch.tensor([PROMPT])
    settings = {"max_new_tokens": 40, "do_sample": False}
    theirs = model.generate(ids, **settings)
    assert torch.equal(model.generate(ids, custom_generate=wager.generate, **settings), theirs)
    assert torch.equal(model.generate(ids, custom_generate=wager.generate, use_cache=False, **settings), theirs)
    own = informed(model)
    assert torch.equal(model.generate(ids, custom_generate=wager.generate, decoder=own, **settings), theirs)
    assert own.loop.text == theirs[0].tolist()


@pytest.mark.parametrize("use_cache", [True, False])
def test_the_drop_in_heeds_padding_on_the_left(use_cache: bool) -> None:
    for family in ("llama", "gpt2", "mistral, window"):
        model = tiny(family)
        ids = torch.tensor([[0, 0, 0, *PROMPT]])
        mask = (ids > 0).long()
        settings = {"attention_mask": mask, "max_new_tokens": 40, "do_sample": False}
        theirs = model.generate(ids, **settings)
        decoder = wager.Decoder(model, drafters=[Told([theirs[0].tolist()]), "suffix"], policy="random")
        mine = model.generate(ids, custom_generate=wager.generate, decoder=decoder, use_cache=use_cache, **settings)
        assert torch.equal(mine, theirs)
        if family != "mistral, window":  # which has lost sight of the padding
            assert theirs[0, 13:].tolist() != plain(model, ids[0].tolist(), max_new_tokens=40)


def test_a_batch_is_decoded_text_by_text() -> None:
    model = tiny()
    ids = torch.tensor([[0, 0, 0, *PROMPT], [*PROMPT, 7, 8, 9]])
    settings = {"attention_mask": (ids > 0).long(), "max_new_tokens": 30, "do_sample": False}
    theirs = model.generate(ids, **settings)
    assert torch.equal(model.generate(ids, custom_generate=wager.generate, **settings), theirs)
    settings["eos_token_id"] = int(theirs[0, 20])  # one text ends before the other, and is filled up with that
    model.generation_config.pad_token_id = model.config.pad_token_id = None
    assert torch.equal(model.generate(ids, custom_generate=wager.generate, **settings), model.generate(ids, **settings))
    how = {"do_sample": True, "num_return_sequences": 2, "max_new_tokens": 30}
    two = model.generate(ids[1:], custom_generate=wager.generate, **how)
    assert two.shape == (2, 43)
    assert not torch.equal(two[0], two[1])


def test_a_streamer_gets_the_prompt_once_every_token_and_the_end() -> None:
    class Listening(BaseStreamer):
        def __init__(self) -> None:
            self.heard: list[int] = []

        def put(self, value: torch.Tensor) -> None:
            self.heard += value.flatten().tolist()

        def end(self) -> None:
            self.heard.append(-1)

    model, ids, streamer = tiny(), torch.tensor([PROMPT]), Listening()
    text = model.generate(ids, custom_generate=wager.generate, streamer=streamer, max_new_tokens=9, do_sample=False)
    assert streamer.heard == [*text[0].tolist(), -1]
    assert text[0, len(PROMPT) :].tolist() == plain(model, max_new_tokens=9)


def test_stop_strings_work_with_the_tokenizer_and_as_a_stopping_criterion() -> None:
    model, ids = tiny(), torch.tensor([PROMPT])
    tokenizer = load_tokenizer("smollm2-135m")
    tokens = plain(model, max_new_tokens=30)
    end = next(i for i in range(6, 30) if tokens[i] not in tokens[:i])
    stops = [tokenizer.decode(tokens[end])]
    how = {"max_new_tokens": 30, "do_sample": False}
    theirs = model.generate(ids, stop_strings=stops, tokenizer=tokenizer, **how)
    assert len(PROMPT) < theirs.shape[1] < len(PROMPT) + 30
    criteria = StoppingCriteriaList([StopStringCriteria(tokenizer, stops)])
    mine = model.generate(ids, stopping_criteria=criteria, custom_generate=wager.generate, **how)
    assert torch.equal(mine, theirs)
    both = torch.cat((ids, ids))
    for given in (ids, both):
        mine = model.generate(given, stop_strings=stops, tokenizer=tokenizer, custom_generate=wager.generate, **how)
        assert torch.equal(mine, theirs.expand(len(given), -1))
    with pytest.raises(ValueError, match="could not locate a tokenizer"):  # none was given
        model.generate(ids, stop_strings=stops, custom_generate=wager.generate, **how)


def test_an_assistant_model_is_a_drafter() -> None:
    model, assistant, ids = tiny(), tiny(seed=1), torch.tensor([PROMPT])
    for given in (assistant, assistant, None):
        how = {"assistant_model": given, "max_new_tokens": 9, "do_sample": False}
        text = model.generate(ids, custom_generate=wager.generate, **how)
        assert text[0, len(PROMPT) :].tolist() == plain(model, max_new_tokens=9)
        assert model._wager_decoder.drafters["draft-model"].runner.model is assistant


@pytest.mark.parametrize("use_cache", [True, False])
def test_the_drop_in_returns_a_dictionary_where_asked(use_cache: bool) -> None:
    model, ids = tiny(), torch.tensor([PROMPT])
    settings = {"max_new_tokens": 20, "do_sample": False, "return_dict_in_generate": True, "use_cache": use_cache}
    mine = model.generate(ids, custom_generate=wager.generate, **settings)
    theirs = model.generate(ids, **settings)
    assert torch.equal(mine.sequences, theirs.sequences)
    assert (mine.past_key_values is None) == (theirs.past_key_values is None) == (not use_cache)


@pytest.mark.parametrize("family", ["llama", "mistral, window", "gpt2"])
def test_the_drop_in_goes_on_from_a_cache(family: str) -> None:
    model, ids = tiny(family), torch.tensor([PROMPT])
    settings = {"max_new_tokens": 20, "do_sample": False, "return_dict_in_generate": True}
    both = []
    for how in ({"custom_generate": wager.generate}, {}):
        first = model.generate(ids, **settings, **how)
        cache = first.past_key_values
        assert cache.get_seq_length() == first.sequences.shape[1] - 1
        longer = torch.cat((first.sequences, torch.tensor([[5, 6, 7]])), dim=1)
        second = model.generate(longer, past_key_values=cache, **settings, **how)
        assert cache.get_seq_length() == second.sequences.shape[1] - 1
        both.append(second.sequences.tolist())
    assert both[0] == both[1]


def test_a_text_that_ended_inside_its_draft_leaves_nothing_behind_in_the_cache() -> None:
    model = tiny()
    whole = plain(model)
    end = next(t for i, t in enumerate(whole) if i > 8 and t not in whole[:i])
    decoder = wager.Decoder(model, drafters=[Told([[*PROMPT, *whole]], 1000)], policy="fixed:drafter=told,length=8")
    settings = {"max_new_tokens": 60, "do_sample": False, "eos_token_id": end, "return_dict_in_generate": True}
    first = model.generate(torch.tensor([PROMPT]), custom_generate=wager.generate, decoder=decoder, **settings)
    assert first.past_key_values.get_seq_length() == first.sequences.shape[1] - 1
    longer = torch.cat((first.sequences, torch.tensor([[5, 6, 7]])), dim=1)
    settings["eos_token_id"] = None
    second = model.generate(longer, past_key_values=first.past_key_values, custom_generate=wager.generate, **settings)
    assert second.sequences.tolist() == model.generate(longer, **settings).sequences.tolist()


def test_a_decoder_of_another_model_and_a_cache_without_its_text_are_refused() -> None:
    model, ids = tiny(), torch.tensor([PROMPT])
    how = {"max_new_tokens": 3, "custom_generate": wager.generate}
    with pytest.raises(ValueError, match="made for another"):
        model.generate(ids, decoder=wager.Decoder(tiny(seed=1)), **how)
    first = model.generate(ids, max_new_tokens=5, return_dict_in_generate=True)
    for given in (first.sequences[:, :-1], torch.ones(1, 30, dtype=torch.long)):
        mask = torch.ones(1, max(given.shape[1], 14) + (given.shape[1] == 30), dtype=torch.long)
        with pytest.raises(ValueError, match="pass the whole text"):
            model.generate(given, attention_mask=mask, past_key_values=copy.deepcopy(first.past_key_values), **how)


def test_the_drop_ins_decoder_is_kept_and_goes_with_the_model() -> None:
    model, ids = tiny(), torch.tensor([PROMPT])
    for _ in range(2):
        model.generate(ids, max_new_tokens=3, custom_generate=wager.generate)
        kept = model._wager_decoder
    assert model._wager_decoder is kept
    twin = copy.deepcopy(model)
    assert twin._wager_decoder is None
    made = twin.generate(ids, max_new_tokens=9, do_sample=False, custom_generate=wager.generate)
    assert torch.equal(made, model.generate(ids, max_new_tokens=9, do_sample=False))
    gone = [weakref.ref(model), weakref.ref(kept)]
    del model, kept
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
