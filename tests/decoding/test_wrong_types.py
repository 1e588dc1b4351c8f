"""Whatever is passed to the public functions, a wrong type or value is one sentence and no error from deep inside."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from decoders import PROMPT, Pair, ours, plain, tiny

import wager
from wager.core import OFF, Arm, Tree
from wager.drafters import registry
from wager.models import load, load_tokenizer, resolve
from wager.policies import build

NAN = float("nan")
ARMS = (OFF, Arm("suffix", 2))
RAW = re.compile(
    r"object (is not|has no)|not supported between|not iterable|expected str|ambiguous|invalid combination"
)


def refused(call: Callable[[], object], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says) as caught:
        call()
    said = str(caught.value)
    assert len(said.splitlines()) == 1
    assert not RAW.search(said)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tokenizer": "smollm2-135m"}, "takes a loaded tokenizer, not a str"),
        ({"drafters": None}, "a drafter is a name or .*, not a NoneType"),
        ({"drafters": [None]}, "a drafter is a name or .*, not a NoneType"),
        ({"lengths": None}, "whole numbers, 1 or more, not .None"),
        ({"lengths": 2.5}, "whole numbers, 1 or more, not .2.5"),
        ({"lengths": "1,2"}, "whole numbers, 1 or more, not .'1,2'"),
        ({"lengths": True}, "whole numbers, 1 or more, not .True"),
        ({"lengths": torch.tensor([1, 2])}, "whole numbers, 1 or more"),
        ({"trees": 5}, "a tree is written as .*, not a int"),
        ({"trees": [None]}, "a tree is written as .*, not a NoneType"),
        ({"arms": 5}, "an arm is written as .*, not a int"),
        ({"arms": ["suffix:2@"]}, "'suffix:2@' is not an arm"),
        ({"state": 5}, "state is True, False or a file's path, not a int"),
        ({"state": None}, "state is True, False or a file's path, not a NoneType"),
        ({"seed": "x"}, "seed is a whole number, 0 or more, not 'x'"),
        ({"seed": 1.5}, "seed is a whole number, 0 or more, not 1.5"),
        ({"seed": -1}, "seed is a whole number, 0 or more, not -1"),
        ({"seed": None}, "seed is a whole number, 0 or more, not None"),
        ({"tokens": "x"}, "tokens is a whole number above 0, not 'x'"),
        ({"tokens": NAN}, "tokens is a whole number above 0, not nan"),
        ({"tokens": 0, "policy": "halving"}, "tokens is a whole number above 0, not 0"),
        ({"trace": "trace.jsonl"}, "trace is a wager.core.TraceWriter, .*, not a str"),
        ({"policy": build("ucbspec", (OFF, Arm("other", 3)))}, "made for the arms off, other:3, and .* pass arms="),
    ],
)
def test_a_decoder_says_which_argument_is_wrong(given: dict[str, Any], says: str) -> None:
    model = tiny()
    refused(lambda: wager.Decoder(model, **given), says)


def test_one_thing_is_as_good_as_a_list_of_one() -> None:
    model = tiny()
    arms = wager.Decoder(model, arms=["suffix:2", "suffix:3"]).arms
    assert wager.Decoder(model, arms="suffix:2,suffix:3").arms == arms
    assert wager.Decoder(model, drafters="suffix", lengths=np.array([2, 3])).arms == arms
    shaped = [wager.Decoder(model, trees=trees).arms for trees in (Tree(2, 4), "2x4", [Tree(2, 4)])]
    assert shaped[0] == shaped[1] == shaped[2]


def test_a_model_without_a_head_is_refused_for_that() -> None:
    refused(lambda: wager.Decoder(tiny().model), "LlamaModel has no language-model head; .*AutoModelForCausalLM")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        *(({name: "x"}, f"{name} is a whole number of at least") for name in ("max_length", "min_new_tokens", "top_k")),
        *(({name: "x"}, f"{name} is a whole number of at least") for name in ("num_beams", "no_repeat_ngram_size")),
        ({"max_new_tokens": True}, "max_new_tokens is a whole number of at least 1, not True"),
        ({"temperature": -1.0}, "temperature is at least 0, not -1.0"),
        ({"num_return_sequences": 0}, "num_return_sequences is a whole number of at least 1, not 0"),
        *(({name: NAN, "do_sample": True}, f"{name} is a finite number, not nan") for name in ("top_p", "temperature")),
        *(({name: "x", "do_sample": True}, f"{name} is a finite number, not 'x'") for name in ("top_p", "max_time")),
        *(({name: "x"}, f"{name} is a token's number .*, not 'x'") for name in ("eos_token_id", "pad_token_id")),
        ({"eos_token_id": [None]}, "eos_token_id is a token's number"),
        ({"forced_eos_token_id": 999}, "forced_eos_token_id is a number from 0 to 63, not 999"),
        ({"do_sample": "yes"}, "do_sample is True or False, not 'yes'"),
        ({"logits_processor": len}, "logits_processor is a list of functions"),
        ({"logits_processor": [5]}, "logits_processor is a list of functions"),
        ({"stopping_criteria": 5}, "stopping_criteria is a list of functions"),
        ({"prefix_allowed_tokens_fn": 5}, "prefix_allowed_tokens_fn is a function"),
        ({"stop_strings": [5]}, "stop_strings is a text or a list of texts"),
        ({"streamer": True}, "a streamer has put.. and end.., .*, not a bool"),
        ({"watch": 5}, "watch is a function of a piece, not a int"),
        ({"generation_config": "x"}, "is a transformers.GenerationConfig, not a str"),
        ({"input_ids": torch.tensor([PROMPT])}, "takes a prompt, and no input_ids"),
        ({"penalty_alpha": 0.5, "top_k": 4}, "it has no contrastive search"),
        ({"dola_layers": "high"}, "it has no dola generation"),
        ({"force_words_ids": [[1]]}, "it has no constrained beam search"),
    ],
)
def test_a_request_says_which_setting_is_wrong(settings: dict[str, Any], says: str) -> None:
    model = tiny()
    decoder = wager.Decoder(model)
    refused(lambda: decoder.generate(PROMPT, **{"max_new_tokens": 3, **settings}), says)
    assert ours(decoder, max_new_tokens=5) == plain(model, max_new_tokens=5)


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        (b"words", "a prompt is text, token ids or chat messages, not a bytes"),
        (torch.tensor(5), "a prompt is text, token ids or chat messages, not a int"),
        (["one", "two"], "give several texts one by one"),
        ([1.0], "numbers from 0 to 63, not 1.0"),
        ([-1], "numbers from 0 to 63, not -1"),
    ],
)
def test_a_prompt_that_is_none_is_named(prompt: Any, says: str) -> None:
    refused(lambda: wager.Decoder(tiny()).generate(prompt, max_new_tokens=3), says)


def test_an_array_of_tokens_is_a_prompt_and_a_criterion_may_answer_with_a_bool() -> None:
    model = tiny()
    decoder = wager.Decoder(model)
    text = decoder.generate(np.array(PROMPT), max_new_tokens=9, do_sample=False).tokens
    assert text == plain(model, max_new_tokens=9)
    stopped = decoder.generate(PROMPT, max_new_tokens=9, do_sample=False, stopping_criteria=[lambda ids, _: True])
    assert (stopped.tokens, stopped.finish) == (text[:1], "stop")


def test_messages_and_streams_that_cannot_be(smollm2: Pair, speaker: Any) -> None:
    decoder = wager.Decoder(speaker, smollm2[1])
    for content in (None, 5, [{"type": "text", "text": "hello"}]):
        message = [{"role": "user", "content": content}]
        refused(lambda message=message: decoder.generate(message, max_new_tokens=1), "chat template takes no such")  # type: ignore[misc]
    for name in ("streamer", "watch"):
        refused(
            lambda name=name: next(decoder.stream("Say", **{name: print})), f"yields the pieces itself; pass {name}"
        )  # type: ignore[misc]
    bare = load_tokenizer("smollm2-135m")
    bare.chat_template = None
    refused(
        lambda: wager.Decoder(speaker, bare).generate([{"role": "user", "content": "Hello"}]), "has no chat template"
    )


def test_the_drop_in_says_what_is_wrong() -> None:
    model, ids = tiny(), torch.tensor([PROMPT])

    def generate(ids: torch.Tensor = ids, **settings: Any) -> object:
        return model.generate(ids, custom_generate=wager.generate, max_new_tokens=3, **settings)

    refused(lambda: generate(ids.float()), "input_ids are whole numbers, not float32")
    refused(lambda: generate(torch.tensor([[1, 99]])), "numbers from 0 to 63, not 99")
    refused(lambda: generate(torch.tensor([[1, -1]])), "numbers from 0 to 63, not -1")
    refused(lambda: generate(decoder=5), "decoder is a wager.Decoder, not a int")
    refused(lambda: generate(decoder=wager.Decoder), "decoder is a wager.Decoder, not a type")
    refused(lambda: generate(assistant_model=5), "assistant_model is a loaded model, not a int")
    refused(lambda: generate(top_p=NAN, do_sample=True), "top_p is a finite number, not nan")
    refused(lambda: generate(penalty_alpha=0.5, top_k=4), "it has no contrastive search")
    refused(lambda: wager.generate(model, ids), "is called by transformers: model.generate")
    with pytest.raises(ValueError, match="stop strings"):  # transformers keeps the tokenizer to itself, and says so
        generate(stop_strings="x")
    criterion = transformers.StopStringCriteria(load_tokenizer("smollm2-135m"), "x")
    assert generate(stopping_criteria=[criterion]).shape == (1, 13)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [None, 5, ["x"], b"smollm2-135m", tiny])
def test_a_model_is_given_by_name(name: Any) -> None:
    refused(lambda: load(name), "a model is given by its name or path, not by a")
    refused(lambda: resolve(name), "a model is given by its name or path, not by a")


@pytest.mark.parametrize("device", [None, [], "x", 5])
def test_a_device_is_one_of_this_machine(device: Any) -> None:
    refused(lambda: load("smollm2-135m", device=device), "this machine has no device")


def test_policies_arms_and_drafters_say_what_is_wrong(tmp_path: Path) -> None:
    refused(lambda: build(5, ARMS), "a policy is named by a text such as .*, not 5")  # type: ignore[arg-type]
    refused(lambda: build("auto", ["suffix:2"]), "arms are a list of wager.core.Arm, not 'suffix:2'")  # type: ignore[list-item]
    refused(lambda: build("ucbspec", None), "arms are a list of wager.core.Arm, not None")  # type: ignore[arg-type]
    refused(lambda: build("petc", ARMS, tokens="x"), "parameter 'tokens' of policy 'petc' is a number, not 'x'")
    refused(lambda: build("auto", ARMS).load_state_dict(5), "state is a dict, .*, not 5")  # type: ignore[arg-type]
    refused(lambda: Arm(5, 2), "drafter is its name, not 5")  # type: ignore[arg-type]
    refused(lambda: Arm("x", 2.5), "length is a whole number, not 2.5")  # type: ignore[arg-type]
    refused(lambda: Arm("x", 2, "4x16"), "tree is a wager.core.Tree, not '4x16'")  # type: ignore[arg-type]
    refused(lambda: Arm.parse(5), "an arm is written as a text .*, not 5")  # type: ignore[arg-type]
    refused(lambda: Tree(2.5, 3), "whole numbers, not 2.5 and 3")  # type: ignore[arg-type]
    refused(lambda: Tree.parse(5), "written as a text such as '4x16', not 5")  # type: ignore[arg-type]
    refused(lambda: registry.build(5), "a drafter is named by a text such as 'suffix', not 5")  # type: ignore[arg-type]
