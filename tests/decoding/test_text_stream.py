"""Tokens to text: pieces, streamers, stop strings, chat messages."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from threading import Thread
from typing import Any

import pytest
import torch
from decoders import PROMPT, Pair, informed, plain, tiny
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    TextIteratorStreamer,
    TextStreamer,
)

import wager
from wager.drafters.draft_model import DraftModel
from wager.drafters.prompt_lookup import PromptLookup

pytestmark = pytest.mark.usefixtures("one_thread")


class Forced(LogitsProcessor):
    """Makes the text what it is told."""

    def __init__(self, prompt: int, tokens: Sequence[int]) -> None:
        self.prompt, self.tokens = prompt, tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        forced = torch.full_like(scores, float("-inf"))
        forced[:, self.tokens[min(input_ids.shape[1] - self.prompt, len(self.tokens) - 1)]] = 0
        return forced


WRITTEN = "Zwölf Boxkämpfer 🥊👨‍👩‍👧‍👦 jagen 素早い茶色の狐 — naïve café 🇫🇷!\n  ok 🥊👨‍👩‍👧‍👦 done."


def forced(tokenizer: Any, text: str = WRITTEN) -> dict[str, Any]:
    tokens = tokenizer(text).input_ids
    start = len(tokenizer("Say it").input_ids)
    return {
        "logits_processor": LogitsProcessorList([Forced(start, tokens)]),
        "max_new_tokens": len(tokens),
        "do_sample": False,
    }


def test_streamed_pieces_make_up_the_text_and_no_piece_breaks_a_character(smollm2: Pair, speaker: Any) -> None:
    tokenizer = smollm2[1]
    decoder = wager.Decoder(speaker, tokenizer, drafters=["suffix", "prompt-lookup"], policy="random", lengths=(1, 3))
    whole = decoder.generate("Say it", **forced(tokenizer))
    assert whole.text == WRITTEN
    pieces = list(decoder.stream("Say it", **forced(tokenizer)))
    assert "".join(piece.text for piece in pieces) == WRITTEN
    assert not any("\ufffd" in piece.text for piece in pieces)
    assert [t for piece in pieces for t in piece.tokens] == whole.tokens
    assert all(len(piece.tokens) == len(piece.sources) for piece in pieces)
    assert len(pieces) > 10


def test_a_text_cut_in_the_middle_of_a_character_streams_as_it_decodes(smollm2: Pair, speaker: Any) -> None:
    tokenizer = smollm2[1]
    decoder = wager.Decoder(speaker, tokenizer)
    cut = {**forced(tokenizer, "ok 👨‍👩‍👧‍👦"), "max_new_tokens": 3}
    whole = decoder.generate("Say it", **cut)
    assert "\ufffd" in whole.text
    assert "".join(piece.text for piece in decoder.stream("Say it", **cut)) == whole.text


def test_streamers_get_what_transformers_gives_them(
    smollm2: Pair, speaker: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = smollm2[1]
    decoder = wager.Decoder(speaker, tokenizer, policy="random")
    for skip in (False, True):
        decoder.generate("Say it", streamer=TextStreamer(tokenizer, skip_prompt=skip), **forced(tokenizer))
        mine = capsys.readouterr().out
        ids = tokenizer("Say it", return_tensors="pt").input_ids
        speaker.generate(ids, streamer=TextStreamer(tokenizer, skip_prompt=skip), **forced(tokenizer))
        assert mine == capsys.readouterr().out
        streamer = TextStreamer(tokenizer, skip_prompt=skip)
        dropin = functools.partial(wager.generate, streamer=streamer)
        speaker.generate(ids, custom_generate=dropin, **forced(tokenizer))
        assert mine == capsys.readouterr().out


def test_an_iterating_streamer_is_fed_from_a_thread(smollm2: Pair, speaker: Any) -> None:
    tokenizer = smollm2[1]
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=30)
    decoder = wager.Decoder(speaker, tokenizer)
    thread = Thread(target=decoder.generate, args=("Say it",), kwargs={"streamer": streamer, **forced(tokenizer)})
    thread.start()
    assert "".join(streamer) == WRITTEN
    thread.join()


def test_stop_strings_end_the_text_where_transformers_ends_it(smollm2: Pair, speaker: Any) -> None:
    tokenizer = smollm2[1]
    decoder = wager.Decoder(speaker, tokenizer, policy="random")
    ids = tokenizer("Say it", return_tensors="pt").input_ids
    for stops in ("jagen", ["nowhere", "café"]):
        answer = decoder.generate("Say it", stop_strings=stops, **forced(tokenizer))
        theirs = speaker.generate(ids, stop_strings=stops, tokenizer=tokenizer, **forced(tokenizer))
        assert answer.tokens == theirs[0, ids.shape[1] :].tolist()
        assert answer.finish == "stop"
        settings = forced(tokenizer)
        forcing = {"logits_processor": settings.pop("logits_processor")}
        config = GenerationConfig(stop_strings=stops, **settings)
        assert decoder.generate("Say it", generation_config=config, **forcing).tokens == answer.tokens


def test_chat_messages_are_put_into_the_models_template(smollm2: Pair, speaker: Any) -> None:
    tokenizer = smollm2[1]
    messages = [{"role": "user", "content": "Say it"}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    answer = wager.Decoder(speaker, tokenizer).generate(messages, max_new_tokens=5, do_sample=False)
    assert answer.prompt_tokens == len(ids)
    assert answer.tokens == plain(speaker, ids, max_new_tokens=5)


def test_a_seed_repeats_a_sampled_text() -> None:
    decoder = informed(
        tiny(), policy="round-robin", reset_per_request=True, drafters=[PromptLookup(), DraftModel(tiny(seed=1))]
    )
    once, again, other = (decoder.generate(PROMPT, max_new_tokens=40, do_sample=True, seed=s).tokens for s in (1, 1, 2))
    assert once == again != other
