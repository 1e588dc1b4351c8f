"""Tokens to text: streams, stop strings, chat messages; where a text ends, and how it came about token by token."""

import functools
import json
import sys
from collections.abc import Sequence
from threading import Thread
from typing import Any

import pytest
import torch
import transformers
from decoders import PROMPT, Pair, Told, check, informed, ours, plain, tiny
from letters import Letters, writer
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

import wager
from wager.cli import main
from wager.core import OFF, Arm, Round
from wager.decoding.decoder import Decoder
from wager.decoding.generation import Piece, token_view
from wager.drafters.draft_model import DraftModel
from wager.policies import fixed


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


def test_streamers_get_what_transformers_gives(smollm2: Pair, speaker: Any, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = smollm2[1]
    decoder = wager.Decoder(speaker, tokenizer, policy="random")
    for skip in (False, True):
        decoder.generate("Say it", streamer=transformers.TextStreamer(tokenizer, skip_prompt=skip), **forced(tokenizer))
        mine = capsys.readouterr().out
        ids = tokenizer("Say it", return_tensors="pt").input_ids
        speaker.generate(ids, streamer=transformers.TextStreamer(tokenizer, skip_prompt=skip), **forced(tokenizer))
        assert mine == capsys.readouterr().out
        streamer = transformers.TextStreamer(tokenizer, skip_prompt=skip)
        dropin = functools.partial(wager.generate, streamer=streamer)
        speaker.generate(ids, custom_generate=dropin, **forced(tokenizer))
        assert mine == capsys.readouterr().out


def test_an_iterating_streamer_is_fed_from_a_thread(smollm2: Pair, speaker: Any) -> None:
    tokenizer = smollm2[1]
    streamer = transformers.TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=30)
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
        config = transformers.GenerationConfig(stop_strings=stops, **settings)
        assert decoder.generate("Say it", generation_config=config, **forcing).tokens == answer.tokens


def test_chat_messages_are_put_into_the_models_template(smollm2: Pair, speaker: Any) -> None:
    tokenizer = smollm2[1]
    messages = [{"role": "user", "content": "Say it"}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    answer = wager.Decoder(speaker, tokenizer).generate(messages, max_new_tokens=5, do_sample=False)
    assert answer.prompt_tokens == len(ids)
    assert answer.tokens == plain(speaker, ids, max_new_tokens=5)


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
    config = transformers.GenerationConfig(max_new_tokens=7, do_sample=False, repetition_penalty=1.4, pad_token_id=0)
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


@pytest.fixture(scope="module")
def model() -> Any:
    return writer()


@pytest.mark.parametrize("arm", ["suffix:4", "suffix:4@3x12"])
def test_a_round_tells_which_draft_tokens_were_not_taken(model: Any, arm: str) -> None:
    decoder = Decoder(model, Letters(), drafters="suffix", arms=[arm], policy=fixed(Arm.parse(arm)))
    prompt = "say it, say it, " * 4
    for _ in range(2):  # the second time it knows the text
        made = decoder.generate(prompt, max_new_tokens=40, do_sample=False)
        at = 1
        for played, step in zip(made.rounds, made.steps[1:], strict=True):
            assert len(step.rejected) == played.drafted - played.accepted
            if step.rejected and played.emitted == played.accepted + 1:  # it is where the target disagreed
                assert made.tokens[at + played.accepted] not in step.rejected[:1]
            at += played.emitted
    assert any(step.rejected for step in made.steps)
    assert sum(r.accepted for r in made.rounds) > 0
    pieces = list(decoder.stream(prompt, max_new_tokens=40, do_sample=False))
    assert all(len(p.rejected) == (p.round.drafted - p.round.accepted if p.round else 0) for p in pieces)


def test_pieces_hold_the_whole_text_token_by_token(model: Any) -> None:
    tokenizer = Letters()
    decoder = Decoder(model, tokenizer, drafters="suffix,prompt-lookup", policy="ucbspec")
    made = decoder.generate("say it, say it, say it, ", max_new_tokens=50, do_sample=False)
    pieces = made.pieces(tokenizer)
    assert len(pieces) == 1 + len(made.rounds)
    assert pieces[0][0] == str(OFF)
    assert [arm for arm, _, _ in pieces[1:]] == [str(r.arm) for r in made.rounds]
    shown = [pair for _, tokens, _ in pieces for pair in tokens]
    assert "".join(text for text, _ in shown) == made.text
    assert [source for _, source in shown] == made.sources
    assert [len(rejected) for _, _, rejected in pieces[1:]] == [r.drafted - r.accepted for r in made.rounds]
    json.dumps(pieces)


def test_a_character_of_several_tokens_is_shown_once_and_whole() -> None:
    class Bytes:
        def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
            return bytes(ids).decode(errors="replace")

    word = tuple("für".encode())
    played = Round(Arm("suffix", 4), 4, 2, 3)
    steps = [
        Piece("", word[:1], ("plain",), None),
        Piece("", word[1:], ("suffix", "suffix", "bonus"), played, tuple(b"xy")),
    ]
    assert token_view(steps, Bytes()) == [
        ["off", [["f", "plain"]], []],
        ["suffix:4", [["", "suffix"], ["ü", "suffix"], ["r", "bonus"]], ["x", "y"]],
    ]


def test_json_tells_the_same(model: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("wager.models.load", lambda *_, **__: (model, Letters()))
    monkeypatch.setattr("wager.cli.session.check_name", str)
    words = ["say it, say it, say it,", "--model", "tiny", "--json", "--no-state", "--max-tokens", "30", "--explain"]
    monkeypatch.setattr(sys, "argv", ["wager", "generate", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    told = json.loads(capsys.readouterr().out)
    assert "".join(text for _, tokens, _ in told["pieces"] for text, _ in tokens) == told["text"]
    assert [source for _, tokens, _ in told["pieces"] for _, source in tokens] == told["sources"]
    assert len(told["pieces"]) == 1 + told["summary"]["rounds"]
