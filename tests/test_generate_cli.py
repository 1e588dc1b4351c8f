"""`wager generate` and `wager chat` as a user meets them, on the embedded model."""

from __future__ import annotations

import importlib
import inspect
import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from wager.cli import compare, main, options
from wager.decoding.generation import Generation

SHORT = ("--max-tokens", "6")
COPY = "Repeat this exactly: the cat sat on the mat, the cat sat on the mat, the cat sat on the mat."


class Done(NamedTuple):
    code: int
    out: str
    err: str


Wager = Callable[..., Done]


@pytest.fixture(scope="session")
def target(smollm2: Any) -> Any:
    from wager.models.select import runner

    return runner(smollm2[0])


@pytest.fixture
def memories(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where policies are remembered: a folder of the test's own. The model stays where it is."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr("wager.decoding.memory.cache", lambda: folder)
    return folder / "memory"


@pytest.fixture
def wager(
    smollm2: Any,
    target: Any,
    memories: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Wager:
    """The command line in this process, with the model loaded once for all tests."""
    import wager.models
    from wager.decoding import decoder

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(wager.models, "load", lambda name, **how: smollm2)
    monkeypatch.setattr(decoder, "runner", lambda model: target)
    for name in ("FORCE_COLOR", "NO_COLOR", "WAGER_DEBUG"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: str, stdin: str = "") -> Done:
        monkeypatch.setattr(sys, "argv", ["wager", *words])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        return Done(int(code or 0), *capsys.readouterr())

    return run


def test_standard_output_holds_the_text_and_nothing_else(wager: Wager, smollm2: Any) -> None:
    model, tokenizer = smollm2
    done = wager("generate", "Name a colour.", *SHORT)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Name a colour."}], add_generation_prompt=True, return_tensors="pt"
    )["input_ids"]
    plain = model.generate(ids, max_new_tokens=6, do_sample=False)[0, ids.shape[1] :]
    assert done.code == 0, done.err
    assert done.out == tokenizer.decode(plain, skip_special_tokens=True) + "\n"
    assert "tokens/s" in done.err
    assert "MAT" in done.err
    assert "arms" in done.err
    assert "cut at --max-tokens" in done.err


def test_the_prompt_comes_from_standard_input_or_a_file_or_follows_the_words(wager: Wager, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("Name a colour.")
    (tmp_path / "rest.txt").write_text("colour.")
    said = wager("generate", "Name a\n\ncolour.", "--json", *SHORT)
    texts = [
        json.loads(done.out)["summary"]["prompt_tokens"]
        for done in (
            wager("generate", "Name a colour.", "--json", *SHORT),
            wager("generate", "-", "--json", *SHORT, stdin="Name a colour."),
            wager("generate", "--file", "p.txt", "--json", *SHORT),
        )
    ]
    both = wager("generate", "Name a", "--file", "rest.txt", "--json", *SHORT)
    assert len(set(texts)) == 1
    assert json.loads(both.out)["tokens"] == json.loads(said.out)["tokens"]


def test_raw_goes_on_with_the_text_and_system_changes_the_prompt(wager: Wager, smollm2: Any) -> None:
    raw = json.loads(wager("generate", "Once upon a", "--raw", "--json", *SHORT).out)
    assert raw["summary"]["prompt_tokens"] == len(smollm2[1]("Once upon a").input_ids)
    chat = json.loads(wager("generate", "Once upon a", "--system", "Be brief.", "--json", *SHORT).out)
    assert chat["summary"]["prompt_tokens"] > raw["summary"]["prompt_tokens"]


def test_json_is_one_object_with_everything_in_it(wager: Wager) -> None:
    done = wager("generate", COPY, "--json", "--lengths", "2,3", "--drafters", "suffix,prompt-lookup", *SHORT)
    told = json.loads(done.out)
    assert done.code == 0
    assert told["command"].startswith("wager generate")
    assert told["drafters"] == ["suffix", "prompt-lookup"]
    assert told["lengths"] == [2, 3]
    assert told["settings"] == {"max_new_tokens": 6, "do_sample": False}
    assert told["compare"] is None
    assert len(told["tokens"]) == len(told["sources"]) == told["summary"]["tokens"]
    assert set(told["sources"]) <= {"suffix", "prompt-lookup", "bonus", "plain"}
    assert set(told["summary"]["arms"]) <= {"off", *(f"{d}:{n}" for d in told["drafters"] for n in (2, 3))}
    assert "tokens/s" not in done.err


def test_compare_finds_identical_texts_and_tells_all_speeds(wager: Wager) -> None:
    done = wager("generate", COPY, "--compare", "--repeat", "1", *SHORT)
    assert done.code == 0, done.err
    assert "texts are identical: 6 tokens in each of 3 runs" in done.err
    assert "prompt's own forward left out of each" in done.err
    assert "x transformers" in done.err.splitlines()[-1]
    told = json.loads(wager("generate", COPY, "--compare", "--trace", "t.jsonl", "--json", *SHORT).out)["compare"]
    assert told["identical"] is True
    assert told["difference"] is None
    assert told["speedup"] > 0
    assert {name: len(way["runs"]) for name, way in told["ways"].items()} == dict.fromkeys(compare.WHAT, 2)


def test_compare_when_sampling_finds_the_seeds_text_with_drafts_and_without(
    wager: Wager, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("generate", "Hi", "--compare", "--repeat", "1", "--temperature", "0.8", "--seed", "1", *SHORT)
    done = wager(*words)
    assert done.code == 0, done.err
    assert "the seed's text is the same with drafts and without: 6 tokens in each of 2 runs" in done.err
    off = compare._off
    monkeypatch.setattr(compare, "_off", lambda session, ids, seed: off(session, ids, seed + 1))
    done = wager(*words)
    assert done.code == 1
    assert "texts differ at token" in done.err
    assert "no tie: this is a bug" in done.err
    monkeypatch.setattr("wager.decoding.identity.FLOAT_ERROR", {torch.float32: 1e9})  # everything is a tie
    done = wager(*words)
    assert (done.code, "a tie within float error" in done.err) == (0, True)


@pytest.mark.parametrize(("likely", "code", "says"), [(0, 1, "no tie: this is a bug"), (1, 0, "a tie within")])
def test_texts_that_differ_are_a_failure_unless_two_logits_tie(
    wager: Wager, monkeypatch: pytest.MonkeyPatch, likely: int, code: int, says: str
) -> None:
    honest = compare.plain

    def planted(session: Any, ids: Sequence[int], seed: int | None, tokens: int | None = None) -> Any:
        made = honest(session, ids, seed, tokens)
        made.tokens[2] += 1
        return made

    monkeypatch.setattr(compare, "plain", planted)
    if likely:  # a tolerance under which everything is a tie
        monkeypatch.setattr("wager.decoding.identity.FLOAT_ERROR", {torch.float32: 1e9})
    done = wager("generate", "Name a colour.", "--compare", "--repeat", "1", *SHORT)
    assert done.code == code, done.err
    assert "texts differ at token 3" in done.err
    assert says in done.err


def test_a_comparison_on_a_busy_machine_says_that_its_speeds_are_not_reliable() -> None:
    def run(seconds: float) -> Generation:
        return Generation("", [1] * 11, ["plain"] * 11, 5, "", 0.1, seconds)

    calm = {name: [run(1.0), run(1.1)] for name in compare.WHAT}
    steady = compare.Comparison(calm, greedy=True, difference=None)
    busy = compare.Comparison({**calm, compare.PLAIN: [run(1.0), run(40.0)]}, greedy=True, difference=None)
    assert steady.unsteady() == ""
    assert steady.json()["reliable"] is True
    assert "runs of transformers differ 40.0 times" in busy.unsteady()
    assert busy.against().endswith("not reliable")
    assert busy.json()["reliable"] is False


def test_every_run_of_a_comparison_starts_without_memory(wager: Wager, monkeypatch: pytest.MonkeyPatch) -> None:
    from wager.cli.session import Session

    # a policy that looks at no clock: what is drafted then depends on the drafter's memory alone
    words = ("generate", "Name a colour.", "--policy", "fixed:drafter=suffix,length=4", "--max-tokens", "10")
    told = json.loads(wager(*words, "--compare", "--json").out)
    runs = told["compare"]["ways"]["wager"]["runs"]
    assert runs[0]["mat"] == runs[1]["mat"] == json.loads(wager(*words, "--json").out)["summary"]["mat"]
    monkeypatch.setattr(Session, "afresh", lambda self: None)
    told = json.loads(wager(*words, "--compare", "--json").out)
    assert told["compare"]["ways"]["wager"]["runs"][1]["mat"] > runs[1]["mat"], "the test sees no memory"


def test_show_marks_sources_without_colours_and_colours_them_with(
    wager: Wager, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("generate", COPY, "--show", "--policy", "fixed:drafter=suffix,length=4", "--max-tokens", "16")
    told = wager("generate", COPY, *words[3:])
    marked = wager(*words)
    assert marked.out.startswith("[plain]")
    assert "[suffix]" in marked.out
    for source in ("plain", "suffix", "bonus"):
        marked = marked._replace(out=marked.out.replace(f"[{source}]", ""))
    assert marked.out == told.out
    assert "tokens by source: suffix" in marked.err
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[1;32m" in wager(*words).out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "[suffix]" in wager(*words).out


def test_sampling_is_repeatable_with_a_seed_and_takes_every_option(wager: Wager) -> None:
    words = ("generate", "Tell a story.", "-t", "1.5", "--top-p", "0.95", "--top-k", "0", "--min-p", "0.01")
    words = (
        *words,
        "--repetition-penalty",
        "1.1",
        "--json",
        "--policy",
        "round-robin",
        *SHORT,
    )  # whatever the clock says
    first, again, other = (json.loads(wager(*words, "--seed", seed).out) for seed in ("7", "7", "8"))
    assert first["tokens"] == again["tokens"] != other["tokens"]
    assert first["settings"]["top_p"] == 0.95
    assert json.loads(wager(*words).out)["seed"] != json.loads(wager(*words).out)["seed"]


def test_stop_ends_the_text_after_these_characters(wager: Wager) -> None:
    done = wager("generate", "Count: 1, 2, 3, 4, 5,", "--raw", "--stop", ",", "--json", "--max-tokens", "12")
    told = json.loads(done.out)
    assert told["text"].count(",") == 1
    assert told["summary"]["finish"] == "stop"


def test_a_policy_that_needs_the_number_of_tokens_gets_it(wager: Wager) -> None:
    assert wager("generate", "Hi", "--policy", "halving", *SHORT).code == 0
    assert wager("generate", "Hi", "--drafters", "off", *SHORT).code == 0


def test_the_trace_tells_what_was_run_and_wager_trace_reads_it(wager: Wager, tmp_path: Path) -> None:
    assert wager("generate", "Hi", "--trace", "t.jsonl", *SHORT).code == 0
    told = json.loads(wager("trace", "t.jsonl", "--json").out)
    assert told["requests"] == 1
    assert told["tokens"] == 5  # the first comes from the prompt's own forward
    assert told["meta"]["model"] == "smollm2-135m"
    assert told["meta"]["policy"] == options.POLICY
    assert told["meta"]["drafters"] == ["suffix", "prompt-lookup", "eagle:ofa"]
    assert told["meta"]["command"].startswith("wager generate Hi")
    again = wager("generate", "Hi", "--trace", "t.jsonl", *SHORT)
    assert again.code == 2
    assert "never overwritten" in again.err


def test_a_failed_generation_leaves_no_trace(wager: Wager, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from wager.decoding.loop import Loop

    def broken(self: Loop) -> None:
        raise ValueError("out of luck")

    monkeypatch.setattr(Loop, "_round", broken)
    done = wager("generate", "Hi", "--trace", "t.jsonl", *SHORT)
    assert done.code == 2
    assert "out of luck" in done.err
    assert list(tmp_path.iterdir()) == []


BAD = [
    (("",), "the prompt is empty"),
    ((" \n",), "the prompt is empty"),
    ((), "give a prompt"),
    (("-",), "the prompt is empty"),
    (("--file", "missing.txt"), "missing.txt"),
    (("--file", "binary"), "not text in UTF-8"),
    (("Hi", "--max-tokens", "0"), "--max-tokens is at least 1, not 0"),
    (("Hi", "--temperature", "-1"), "0 (greedy) or above, not -1"),
    (("Hi", "--temperature", "nan"), "0 (greedy) or above, not nan"),
    (("Hi", "-t", "1", "--top-p", "0"), "above 0 and at most 1"),
    (("Hi", "-t", "1", "--top-k", "-1"), "0 or more"),
    (("Hi", "-t", "1", "--min-p", "2"), "from 0 to 1"),
    (("Hi", "--top-p", "0.5"), "give --temperature too"),
    (("Hi", "--repetition-penalty", "0"), "above 0"),
    (("Hi", "--seed", "-3"), "--seed is"),
    (("Hi", "--stop", ""), "at least one character"),
    (("Hi", "--repeat", "0"), "--repeat is at least 1"),
    (("Hi", "--policy", "best"), "unknown policy 'best'"),
    (("Hi", "--policy", "ucbspec:delta=two"), "is a number, not 'two'"),
    (("Hi", "--policy", "fixed", "--drafters", "suffix"), "as in fixed:drafter=suffix,length=4"),
    (("Hi", "--policy", "fixed:drafter=suffix,length=9"), "the arms are off"),
    (("Hi", "--drafters", "magic"), "unknown drafter 'magic'"),
    (("Hi", "--drafters", "suffix,suffix"), "one twice"),
    (("Hi", "--drafters", "retrieval"), "is written retrieval=PATH"),
    (("Hi", "--drafters", "retrieval=missing"), "no datastore missing"),
    (("Hi", "--drafters", "retrieval=binary"), "is not a wager datastore"),
    (("Hi", "--lengths", "0,2"), "--lengths are 1 or more"),
    (("Hi", "--lengths", "two"), "whole numbers"),
    (("Hi", "--trace", "binary"), "never overwritten"),
    (("Hi", "--trace", "nowhere/t.jsonl"), "cannot write"),
    (("Hi", "--json", "--show"), "leave out --show"),
    (("Hi", "--raw", "--system", "x"), "--raw is none"),
    (("Hi", "--explain", "--policy", "ucbspec"), "policy 'ucbspec' does not say what it expects of its arms"),
]


@pytest.mark.parametrize(("words", "names"), BAD, ids=lambda value: "" if isinstance(value, str) else " ".join(value))
def test_bad_input_is_told_in_one_sentence_before_a_model_is_loaded(
    wager: Wager, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...], names: str
) -> None:
    def load(name: str, **how: Any) -> None:
        raise AssertionError("loaded a model for nothing")

    monkeypatch.setattr("wager.models.load", load)
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    done = wager("generate", *words)
    _one_sentence(done, names)
    assert [p.name for p in tmp_path.iterdir()] == ["binary"]


def test_a_prompt_beyond_the_context_is_told_in_one_sentence(wager: Wager, tmp_path: Path) -> None:
    done = wager("generate", "word " * 9000, "--trace", "t.jsonl", *SHORT)
    _one_sentence(done, "and smollm2-135m holds 8,192")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_model_is_told_in_one_sentence(wager: Wager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wager.models.load", importlib.import_module("wager.models.resolve").load)
    _one_sentence(wager("generate", "Hi", "--model", "./nowhere"), "no folder './nowhere'")
    monkeypatch.setattr("wager.models.load", lambda name, **how: pytest.fail("the draft model is looked for first"))
    _one_sentence(wager("generate", "Hi", "--drafters", "draft-model=./nowhere"), "no folder './nowhere'")


def test_a_draft_model_of_another_vocabulary_is_told_in_one_sentence(
    wager: Wager, smollm2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other:
        def get_vocab(self) -> dict[str, int]:
            return {"a": 0}

    monkeypatch.setattr("wager.decoding.arms.load", lambda name, **how: (smollm2[0], Other()))
    _one_sentence(wager("generate", "Hi", "--drafters", "draft-model=smollm2-135m"), "another vocabulary")


def _one_sentence(done: Done, names: str) -> None:
    assert done.code == 2, done.out + done.err
    assert names in done.err
    assert done.out == ""
    assert len(done.err.strip().splitlines()) == 1
    assert done.err.startswith("wager: ")


# -- memory


# a policy that looks at no clock: it tries every arm once, so that it shows where it begins
LEARNING = ("Name a colour.", "--policy", "ucbspec", "--max-tokens", "9", "--json")


def _arms(done: Done) -> list[str]:
    return list(json.loads(done.out)["summary"]["arms"])


def test_what_one_run_learns_the_next_begins_with_unless_told_not_to(wager: Wager, memories: Path) -> None:
    first = wager("generate", *LEARNING)
    (file,) = memories.iterdir()
    saved = file.read_text()
    forgetful = [wager("generate", *LEARNING, *words) for words in (("--no-memory",), ("--seed", "0"))]
    assert file.read_text() == saved
    second = wager("generate", *LEARNING)
    assert [json.loads(done.out)["remembered"] for done in (first, second, *forgetful)] == [False, True, False, False]
    assert [_arms(done) for done in forgetful] == [_arms(first)] * 2
    assert not set(_arms(first)) & set(_arms(second))
    assert json.loads(first.out)["text"] == json.loads(second.out)["text"]
    assert json.loads(wager("generate", *LEARNING, "--seed", "0", "--memory").out)["remembered"] is True


def test_what_a_chat_learns_generate_begins_with(wager: Wager, memories: Path) -> None:
    assert wager("chat", "--no-memory", *SHORT, stdin="Hello\n").code == 0
    assert not memories.exists()
    assert wager("chat", *SHORT, stdin="Hello\n").code == 0
    assert json.loads(wager("generate", "Hi", "--json", *SHORT).out)["remembered"] is True


def test_a_damaged_memory_and_one_that_cannot_be_kept_are_told_in_a_line_each(wager: Wager, memories: Path) -> None:
    wager("generate", *LEARNING)
    (file,) = memories.iterdir()
    file.write_text("{")
    done = wager("generate", *LEARNING)
    assert done.code == 0
    (line,) = done.err.splitlines()
    assert line.startswith(f"wager: memory {file} is not used and will be replaced: it is damaged")
    assert wager("generate", *LEARNING).err == ""
    file.unlink()
    memories.rmdir()
    memories.write_text("")
    done = wager("generate", *LEARNING)
    assert done.code == 0
    (line,) = done.err.splitlines()
    assert line.startswith(f"wager: cannot keep what was learned in {file}: ")


def test_every_run_of_a_comparison_starts_from_the_memory_and_one_of_them_is_kept(
    wager: Wager, memories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pulls() -> int:
        (file,) = memories.iterdir()
        return int(sum(json.loads(file.read_text())["state"]["learned"]["pulls"]))

    first = wager("generate", *LEARNING)
    learned = pulls()
    runs = json.loads(wager("generate", *LEARNING, "--compare").out)["compare"]["ways"]["wager"]["runs"]
    assert list(runs[0]["arms"]) == list(runs[1]["arms"])
    assert not set(runs[0]["arms"]) & set(_arms(first))
    assert pulls() == learned + runs[1]["rounds"]
    monkeypatch.setattr("wager.decoding.memory.Memory.restore", lambda self: None)
    runs = json.loads(wager("generate", *LEARNING, "--compare").out)["compare"]["ways"]["wager"]["runs"]
    assert list(runs[1]["arms"]) == _arms(first), "the test sees no memory"


# -- why


def test_explain_tells_for_every_round_what_was_expected_and_what_came(wager: Wager) -> None:
    words = ("generate", COPY, "--explain", "--max-tokens", "24")
    done = wager(*words)
    plain = wager("generate", COPY, "--max-tokens", "24")
    assert done.code == 0, done.err
    assert done.out == plain.out
    *lines, closing = done.err.splitlines()
    assert "tokens/s" in closing
    expected = r"\S+: \d+\.\d\d tokens, \d+\.\d\d ms, \d+\.\d/s"
    for number, line in enumerate(lines, 1):
        said = re.fullmatch(
            rf" *{number} +(\S+) \| {expected}(?: \| {expected})? \| \d+/\d+ accepted, \d+\.\d\d ms", line
        )
        assert said, line
        assert f"| {said[1]}: " in line
    assert any(line.count(" | ") == 3 for line in lines), "some round had a choice"


def test_explain_in_json_is_what_the_policy_said_and_the_rounds_that_came(
    wager: Wager, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wager.policies.auto import Auto

    said: list[Any] = []
    honest = Auto.options

    def options(self: Auto) -> Any:
        said.append(honest(self))
        return said[-1]

    monkeypatch.setattr(Auto, "options", options)
    done = wager("generate", COPY, "--explain", "--json", "--compare", "--repeat", "1", "--max-tokens", "24")
    told = json.loads(done.out)
    rounds = told["explained"]
    assert len(rounds) == told["summary"]["rounds"] == len(said), "asked once a round, and in the run that is shown"
    assert [each["round"] for each in rounds] == list(range(1, len(rounds) + 1))
    assert sum(each["accepted"] for each in rounds) >= sum(source in told["drafters"] for source in told["sources"])
    for each, options_then in zip(rounds, said, strict=True):
        best, *others = options_then
        assert each["arm"] == each["expected"]["arm"] == str(best.arm)
        assert each["expected"]["tokens"] == pytest.approx(best.tokens, abs=1e-3)
        assert each["expected"]["seconds"] == pytest.approx(best.seconds, abs=1e-6)
        assert each["expected"]["tokens_per_second"] == pytest.approx(best.goodput, abs=1e-2)
        assert (each["runner_up"] or {}).get("arm") == (str(others[0].arm) if others else None)
        assert each["seconds"] > 0
    assert json.loads(wager("generate", "Hi", "--json", *SHORT).out)["explained"] is None


# -- chat


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


def test_chat_keeps_the_conversation_until_it_is_reset(wager: Wager, monkeypatch: pytest.MonkeyPatch) -> None:
    from wager.cli.session import Session

    asked: list[int] = []
    honest = Session.play

    def play(self: Session, ids: Sequence[int], **how: Any) -> Any:
        asked.append(len(ids))
        return honest(self, ids, **how)

    monkeypatch.setattr(Session, "play", play)
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
    from wager.cli import chat

    def writer(console: Any) -> Any:
        return lambda piece: signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(chat, "plain_writer", writer)
    before = signal.getsignal(signal.SIGINT)
    done = wager("chat", "--max-tokens", "40", stdin="Hello\nHello again\n")
    assert done.code == 0
    assert done.err.count("1 token,") == 2
    assert done.err.count("interrupted") == 2
    assert signal.getsignal(signal.SIGINT) is before


def test_chat_refuses_what_generate_refuses_and_a_model_without_a_template(
    wager: Wager, smollm2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _one_sentence(wager("chat", "--max-tokens", "0"), "at least 1")
    _one_sentence(wager("chat", "--policy", "best"), "unknown policy")
    monkeypatch.setattr(smollm2[1], "chat_template", None)
    _one_sentence(wager("chat", stdin="Hi\n"), "has no chat template")
    _one_sentence(wager("generate", "Hi", "--system", "x"), "no place for --system")


# -- help and defaults


@pytest.mark.parametrize("name", ["generate", "chat"])
def test_help_explains_every_option(wager: Wager, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    done = wager(name, "--help")
    assert done.code == 0
    hints = inspect.get_annotations(importlib.import_module(f"wager.cli.{name}").command, eval_str=True)
    assert all(hint.__metadata__[0].help for key, hint in hints.items() if key != "return")
    for said in ("--model", "--policy", "--drafters", "--temperature", "smollm2-135m", options.POLICY):
        assert said in done.out


def test_the_defaults_are_the_decoders_own() -> None:
    from wager.decoding import decoder

    assert options.POLICY == decoder.POLICY
    assert ",".join(decoder.DRAFTERS) == options.DRAFTERS
    assert ",".join(map(str, decoder.LENGTHS)) == options.LENGTHS
    assert options.MAX_TOKENS == decoder.MAX_NEW_TOKENS


def test_help_does_not_import_torch() -> None:
    code = "import sys, wager.cli.generate, wager.cli.chat; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
