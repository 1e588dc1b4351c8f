"""Requests and decoders that cannot be are refused in one sentence."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from astray import Astray
from decoders import PROMPT, VOCABULARY, Grafted, Pair, Told, check, ours, plain, tiny

import wager
from wager.core import OFF, Arm, Tree
from wager.drafters import Draft, DraftSampler
from wager.drafters.draft_model import DraftModel
from wager.models.hf_runner import HFRunner
from wager.policies import build


@pytest.mark.parametrize(
    ("prompt", "settings", "says"),
    [
        ([], {}, "prompt is empty"),
        (list(range(60)), {}, "has 60 tokens, and the model holds 32"),
        (list(range(32)), {}, "has 32 tokens, and the model holds 32"),
        (PROMPT, {"max_new_tokens": 0}, "max_new_tokens is a whole number of at least 1, not 0"),
        (PROMPT, {"max_new_tokens": "5"}, "whole number of at least 1, not '5'"),
        (PROMPT, {"do_sample": True, "temperature": float("nan")}, "temperature"),
        (PROMPT, {"prompt_lookup_num_tokens": 3}, "generate without prompt_lookup_num_tokens"),
        (PROMPT, {"assistant_model": 5}, "no assistant_model; use wager.generate"),
        ([True], {}, "numbers from 0 to 63"),
        ([PROMPT, PROMPT], {}, "one text at a time, not a batch of 2"),
        (torch.tensor([PROMPT, PROMPT]), {}, "one text at a time, not a batch of 2"),
        (PROMPT, {"num_beams": 2}, "no beam search"),
        (PROMPT, {"num_return_sequences": 2, "do_sample": True}, "one sequence at a time, not 2"),
        (PROMPT, {"guidance_scale": 2.0}, "guidance runs the model a second time"),
        ([1, 99], {}, "numbers from 0 to 63"),
        ("words", {}, "needs a tokenizer"),
        (PROMPT, {"stop_strings": "x"}, "needs? a tokenizer"),
    ],
)
def test_a_request_that_cannot_be_is_refused_in_one_sentence(prompt: Any, settings: dict[str, Any], says: str) -> None:
    model = tiny(max_position_embeddings=32)
    decoder = wager.Decoder(model)
    with pytest.raises(ValueError, match=says) as caught:
        decoder.generate(prompt, **{"max_new_tokens": 5, **settings})
    assert len(str(caught.value).splitlines()) == 1
    assert ours(decoder, max_new_tokens=5) == plain(model, max_new_tokens=5)  # and the decoder lives on


def test_what_is_of_a_wrong_type_is_refused_in_one_sentence() -> None:
    model = tiny()
    decoder = wager.Decoder(model)
    for call, says in (
        (lambda: wager.Decoder("smollm2-135m"), "takes a loaded model, not a str"),
        (lambda: wager.Decoder(model, drafters=5), "a drafter is a name or a .*, not a int"),
        (lambda: wager.Decoder(model, arms=[5]), "an arm is written as .*, not a int"),
        (lambda: decoder.generate(5), "a prompt is text, token ids or chat messages, not a int"),
        (lambda: decoder.generate(PROMPT, do_sample=True, seed=1.5), "a seed is a whole number, not 1.5"),
        (lambda: decoder.generate(PROMPT, generation_config={}), "is a transformers.GenerationConfig, not a dict"),
    ):
        with pytest.raises(TypeError, match=says):
            call()
    assert wager.Decoder(model, lengths=3).arms == wager.Decoder(model, lengths=(3,)).arms
    assert ours(decoder, max_new_tokens=5) == plain(model, max_new_tokens=5)


def test_messages_that_the_template_cannot_take_are_one_sentence(smollm2: Pair, speaker: Any) -> None:
    with pytest.raises(ValueError, match="the chat template takes no such messages"):
        wager.Decoder(speaker, smollm2[1]).generate([{"content": "no role"}], max_new_tokens=1)


T5 = transformers.T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
MAMBA = transformers.MambaConfig(
    vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, state_size=4, eos_token_id=None
)
GPT = transformers.OpenAIGPTConfig(vocab_size=VOCABULARY, n_embd=16, n_layer=1, n_head=2, n_positions=64)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: wager.Decoder(tiny(), drafters=[DraftModel(tiny(vocab_size=2000))]), "of 2,000 tokens and the target"),
        (lambda: wager.Decoder(transformers.T5ForConditionalGeneration(T5)), "encoder-decoder"),
        (lambda: wager.Decoder(tiny(), drafters=["suffix", "suffix"]), "two drafters are called 'suffix'"),
        (lambda: wager.Decoder(tiny(), lengths=(0, 2)), "1 or more"),
        (lambda: wager.Decoder(tiny(), arms=["retrieval:4"]), "no drafter here for arm retrieval:4"),
        (lambda: wager.Decoder(tiny(), sampling="greedy"), "sampling is shared-noise or residual, not 'greedy'"),
        (lambda: wager.Decoder(transformers.MambaForCausalLM(MAMBA).eval()), "MambaForCausalLM .*; drafters='off'"),
        (lambda: wager.Decoder(transformers.OpenAIGPTLMHeadModel(GPT).eval()), "verifies no drafts: OpenAIGPT"),
    ],
)
def test_decoders_that_cannot_be_are_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


TREE = Arm("grafted", 2, Tree(2, 3))


@pytest.mark.parametrize("calls", [0, 2])
@pytest.mark.parametrize(
    ("instead", "said"),
    [
        (Arm("told", 3), "told:3"),  # of a length that nobody named
        (Arm("suffix", 2), "suffix:2"),  # of a drafter that is not there
        (Arm("told", 2, None, Arm("suffix", 2)), r"told:2\+suffix:2"),
        (None, "None"),
        ("told:2", "'told:2'"),
    ],
)
def test_a_choice_that_is_not_offered_is_refused_with_the_names_of_policy_and_arm(
    instead: Any, said: str, calls: int
) -> None:
    model, arms = tiny(), [OFF, Arm("told", 2)]
    decoder = wager.Decoder(model, drafters=[Told()], arms=arms, policy=Astray(arms, instead=instead, calls=calls))
    said = f"^policy Astray chose {said}, which is no arm of this round; there are off, told:2$"
    with pytest.raises(ValueError, match=said):
        ours(decoder)
    decoder.policy = build("off", arms)
    check(model, PROMPT, ours(decoder), plain(model))


def test_an_arm_that_cannot_be_had_in_this_round_is_refused_like_one_that_never_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny()
    text = [*PROMPT, *plain(model)]
    arms = [OFF, Arm("grafted", 2), TREE]
    decoder = wager.Decoder(model, drafters=[Grafted(text)], arms=arms, policy=Astray(arms, instead=TREE))
    check(model, PROMPT, ours(decoder), plain(model))
    cache = transformers.DynamicCache(config=model.config)  # over a cache of the caller's own there are chains only
    target = HFRunner(model, cache)
    monkeypatch.setattr(HFRunner, "trees", False)
    request = decoder.prepare(PROMPT, {"max_new_tokens": 8, "do_sample": False})
    with pytest.raises(ValueError, match=r"Astray chose grafted:2@2x3, .*; there are off, grafted:2$"):
        list(decoder.run(request, target))


def test_the_drop_in_refuses_what_it_cannot_do() -> None:
    model, ids = tiny(), torch.tensor([PROMPT])
    for settings, says in (
        ({"num_beams": 2}, "no beam search"),
        ({"output_scores": True, "return_dict_in_generate": True}, "does not collect scores"),
        ({"prompt_lookup_num_tokens": 3}, "generate without prompt_lookup_num_tokens"),
        ({"num_return_sequences": 2, "do_sample": True, "return_dict_in_generate": True}, "one sequence at a time"),
        ({"cache_implementation": "static", "return_dict_in_generate": True}, "cannot be cropped"),
    ):
        with pytest.raises(ValueError, match=says):
            model.generate(ids, custom_generate=wager.generate, max_new_tokens=5, **settings)
    with pytest.raises(ValueError, match="prompt is empty"):
        model.generate(ids[:, :0], custom_generate=wager.generate, max_new_tokens=5)


def test_a_second_text_while_a_stream_is_open_is_refused(smollm2: Pair, speaker: Any) -> None:
    decoder = wager.Decoder(speaker, smollm2[1])
    stream = decoder.stream("Say it", max_new_tokens=9, do_sample=False)
    next(stream)
    with pytest.raises(ValueError, match="in the middle of another text"):
        decoder.generate("Say it", max_new_tokens=9)
    first = next(stream)  # the open one goes on unharmed
    assert first.tokens
    stream.close()
    assert len(decoder.generate("Say it", max_new_tokens=9, do_sample=False).tokens) == 9


def test_a_failing_drafter_leaves_the_decoder_fit_for_the_next_request() -> None:
    class Failing(Told):
        def propose(self, length: int, sample: DraftSampler | None = None) -> Draft:
            raise RuntimeError("broken")

    model = tiny()
    decoder = wager.Decoder(model, drafters=[Failing()], policy="fixed:drafter=told,length=2")
    with pytest.raises(RuntimeError, match="broken"):
        ours(decoder)
    decoder.drafters["told"] = Told()
    check(model, PROMPT, ours(decoder), plain(model))
