"""`wager chat` as a user meets it."""

import signal
from collections.abc import Sequence
from typing import Any

import pytest
from commands import SHORT, Wager, one_sentence


def test_chat_through_a_pipe_answers_each_line_and_obeys_commands(wager: Wager) -> None:
    lines = "Hello\n\n/show\nName a fruit.\n/dance\n/help\n/reset\n/show\n/usr/bin is what?\n/quit\nnever read\n"
    done = wager("chat", *SHORT, stdin=lines)
    assert done.code == 0, done.err
    assert done.err.count("tokens/s") == 3
    assert [line.startswith("[plain]") for line in done.out.splitlines()] == [False, True, False]
    assert "there is no /dance; commands are /show, /reset, /quit, /help" in done.err
    assert "starts anew" in done.err
    assert "MAT" in done.err
    assert ">" not in done.out


@pytest.mark.parametrize("word", ["/quit", "/exit"])
def test_chat_ends_where_it_is_told_to(wager: Wager, word: str) -> None:
    done = wager("chat", *SHORT, stdin=f"{word}\nnever read\n")
    assert done.code == 0, done.err
    assert done.out == ""
    assert "there is no" not in done.err


def test_chat_keeps_the_conversation_until_it_is_reset(wager: Wager, monkeypatch: pytest.MonkeyPatch) -> None:
    from wager.decoding.decoder import Decoder

    asked: list[int] = []
    honest = Decoder.generate

    def generate(self: Decoder, ids: Sequence[int], **how: Any) -> Any:
        asked.append(len(ids))
        return honest(self, ids, **how)

    monkeypatch.setattr(Decoder, "generate", generate)
    wager("chat", *SHORT, stdin="Hello\nHello\n/reset\nHello\n")
    assert asked[0] < asked[1]
    assert asked[2] == asked[0]


def test_chat_drops_the_oldest_turns_when_the_context_is_full(
    wager: Wager, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "limit", 80)
    done = wager("chat", *SHORT, stdin="Hello there\nHow are you?\nWhat now?\n" + "word " * 100 + "\nStill here?\n")
    assert done.code == 0, done.err
    assert "no longer fits the model's 80 tokens: the oldest" in done.err
    assert "it was left out" in done.err
    assert done.err.count("tokens/s") == 4


def test_control_c_stops_the_answer_and_not_the_chat(wager: Wager, monkeypatch: pytest.MonkeyPatch) -> None:
    def writer(*_: Any, **__: Any) -> Any:
        return lambda piece: signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("wager.cli.chat.Writer", writer)
    before = signal.getsignal(signal.SIGINT)
    done = wager("chat", "--max-tokens", "40", stdin="Hello\nHello again\n")
    assert done.code == 0
    assert done.err.count("1 token,") == 2
    assert done.err.count("interrupted") == 2
    assert signal.getsignal(signal.SIGINT) is before


def test_chat_refuses_what_generate_refuses_and_a_model_without_a_template(
    wager: Wager, loaded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_sentence(wager("chat", "--max-tokens", "0"), "at least 1")
    one_sentence(wager("chat", "--policy", "best"), "unknown policy")
    monkeypatch.setattr(loaded[1], "chat_template", None)
    one_sentence(wager("chat", stdin="Hi\n"), "has no chat template")
    one_sentence(wager("generate", "Hi", "--system", "x"), "no place for --system")
