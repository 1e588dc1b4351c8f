"""How a text came about, token by token: which drafts were taken, which were not, and what `wager generate` tells."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from letters import Letters, writer

from wager.cli import main
from wager.core import OFF, Arm, Round
from wager.decoding.decoder import Decoder
from wager.decoding.generation import Piece, token_view
from wager.policies import fixed

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model() -> Any:
    return writer()


@pytest.mark.parametrize("arm", ["suffix:4", "suffix:4@3x12"])
def test_a_round_tells_which_draft_tokens_were_not_taken(model: Any, arm: str) -> None:
    decoder = Decoder(model, Letters(), drafters="suffix", arms=[arm], policy=fixed(Arm.parse(arm)))
    prompt = "say it, say it, " * 4
    for _ in range(2):  # the second time it knows the text
        made = decoder.generate(prompt, max_new_tokens=40, do_sample=False)
        assert len(made.rejected) == len(made.rounds)
        for played, rejected in zip(made.rounds, made.rejected, strict=True):
            assert len(rejected) == played.drafted - played.accepted
    assert sum(map(len, made.rejected)) > 0
    assert sum(r.accepted for r in made.rounds) > 0
    pieces = list(decoder.stream(prompt, max_new_tokens=40, do_sample=False))
    assert all(len(p.rejected) == (p.round.drafted - p.round.accepted if p.round else 0) for p in pieces)


def test_a_rejected_token_is_where_the_target_disagreed(model: Any) -> None:
    decoder = Decoder(model, Letters(), drafters="suffix", arms=["suffix:4"], policy=fixed(Arm("suffix", 4)))
    made = decoder.generate("say it, say it, say it, ", max_new_tokens=60, do_sample=False)
    at = 1
    for played, rejected in zip(made.rounds, made.rejected, strict=True):
        if rejected and played.emitted == played.accepted + 1:
            assert rejected[0] != made.tokens[at + played.accepted]
        at += played.emitted


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


def test_generate_tells_the_same_as_json(
    model: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("wager.models.load", lambda *_, **__: (model, Letters()))
    words = ["say it, say it, say it,", "--model", "tiny", "--json", "--no-state", "--max-tokens", "30", "--explain"]
    monkeypatch.setattr(sys, "argv", ["wager", "generate", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    told = json.loads(capsys.readouterr().out)
    assert "".join(text for _, tokens, _ in told["pieces"] for text, _ in tokens) == told["text"]
    assert [source for _, tokens, _ in told["pieces"] for _, source in tokens] == told["sources"]
    assert len(told["pieces"]) == 1 + told["summary"]["rounds"]
