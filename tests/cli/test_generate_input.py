"""What `wager generate` and `wager chat` refuse, and their help."""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from astray import Astray
from commands import SHORT, Wager, one_sentence

from wager.cli import options
from wager.policies.registry import POLICIES, Entry

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
    (("Hi", "--drafter", "magic"), "unknown drafter 'magic'"),
    (("Hi", "--drafter", "promptlookup"), "unknown drafter 'promptlookup' (did you mean 'prompt-lookup'?)"),
    (("Hi", "--policy", "ucbspec:delta=0.5,delta=0.4"), "parameter 'delta' twice"),
    (("Hi", "--drafters", "suffix,suffix"), "one twice"),
    (("Hi", "--drafters", "eagle=nowhere"), "no folder nowhere with an EAGLE head"),
    (("Hi", "--drafters", "eagle=."), "the folder . has no config.json"),
    (("Hi", "--drafters", "retrieval"), "is written retrieval=PATH"),
    (("Hi", "--drafters", "retrieval=missing"), "no datastore missing"),
    (("Hi", "--drafters", "retrieval=binary"), "is not a wager datastore"),
    (("Hi", "--lengths", "0,2"), "--lengths are 1 or more"),
    (("Hi", "--lengths", "two"), "whole numbers"),
    (("Hi", "--lengths", "99999999999"), "at most 1,024 tokens long, not 99,999,999,999"),
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
    one_sentence(done, names)
    assert [p.name for p in tmp_path.iterdir()] == ["binary"]


def test_a_prompt_beyond_the_context_is_told_in_one_sentence(wager: Wager, tmp_path: Path) -> None:
    done = wager("generate", "word " * 9000, "--trace", "t.jsonl", *SHORT)
    one_sentence(done, "and smollm2-135m holds 8,192")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_model_is_told_in_one_sentence(wager: Wager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wager.models.load", importlib.import_module("wager.models.resolve").load)
    one_sentence(wager("generate", "Hi", "--model", "./nowhere"), "no folder './nowhere'")
    monkeypatch.setattr("wager.models.load", lambda name, **how: pytest.fail("the draft model is looked for first"))
    one_sentence(wager("generate", "Hi", "--drafters", "draft-model=./nowhere"), "no folder './nowhere'")


def test_an_arm_that_is_not_there_is_told_in_one_sentence(wager: Wager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "astray", Entry(Astray, "of one's own"))
    words = ("generate", "Hi", "--policy", "astray", "--lengths", "2", "--no-state", *SHORT)
    said = "wager: policy Astray chose None, which is no arm of this round; there are off, "
    one_sentence(wager(*words, "--json"), said)
    begun = wager(*words)  # a text that was begun is left on a line of its own
    assert (begun.code, begun.out[-1]) == (2, "\n")
    assert said in begun.err


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

    assert (options.POLICY, options.MAX_TOKENS) == (decoder.POLICY, decoder.MAX_NEW_TOKENS)
    assert options.DRAFTERS.split(",") == list(decoder.DRAFTERS)
    assert options.LENGTHS.split(",") == list(map(str, decoder.LENGTHS))


def test_help_and_reports_do_not_import_torch() -> None:
    names = "wager.cli.generate, wager.cli.chat, wager.report.page, wager.report.read, wager.report.live"
    code = f"import sys, {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_model_that_does_not_exist_is_refused_before_anything_heavy_is_imported() -> None:
    code = """
import os, sys
os.environ["HF_HUB_OFFLINE"] = "1"
from wager.cli import main
for words in (["generate", "hi", "--model"], ["tune"], ["bench", "--model"]):
    sys.argv = ["wager", *words, "org/none"]
    try:
        main()
    except SystemExit as end:
        print(end.code, [name for name in ("torch", "transformers", "vllm") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == 3 * "2 []\n", done.stderr
    assert done.stderr.count("wager: no folder 'org/none', nothing downloaded earlier") == 3


def test_a_busy_machine_gets_one_hint_to_use_fewer_threads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)

    def said(load: float, threads: int) -> str:
        monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
        monkeypatch.setattr("torch.get_num_threads", lambda: threads)
        options.hint_if_busy.cache_clear()
        options.hint_if_busy()
        options.hint_if_busy()
        told = capsys.readouterr()
        assert told.out == ""
        return told.err

    hint = "wager: this machine was busy in the last minute (load 6.2 on 4 cores); "
    hint += "fewer threads may be faster: set OMP_NUM_THREADS=2\n"
    assert said(6.2, 4) == hint
    assert said(4.3, 4) == ""  # no more than this process's own threads a moment ago
    assert said(6.2, 1) == ""
