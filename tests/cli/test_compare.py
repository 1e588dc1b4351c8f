"""`wager generate --compare`: the same text, and speeds that can be relied on."""

import dataclasses
import json
import re
from typing import Any

import pytest
import torch
from commands import COPY, SHORT, Wager

from wager.bench import compare
from wager.bench.compare import Request
from wager.decoding.decoder import Decoder
from wager.decoding.generation import Generation


def test_compare_finds_identical_texts_and_tells_all_speeds(wager: Wager) -> None:
    done = wager("generate", COPY, "--compare", "--repeat", "1", *SHORT)
    assert done.code == 0, done.err
    assert "texts are identical: 6 tokens in each of 3 runs" in done.err
    assert "prompt's own forward left out of each" in done.err
    assert "times as fast as off" in done.err.splitlines()[-1]
    assert "warming up …" in done.err.splitlines()
    assert re.search(r"^comparing with plain decoding, run 2 of 3: wager, off, about \d+ s left …$", done.err, re.M)
    assert "MAT: mean tokens emitted per round" in done.err
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
    honest = Request.off
    monkeypatch.setattr(Request, "off", lambda self: honest(dataclasses.replace(self, seed=self.seed + 1)))
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
    honest = Request.plain

    def planted(self: Request, tokens: int | None = None) -> Any:
        made = honest(self, tokens)
        made.tokens[2] += 1
        return made

    monkeypatch.setattr(Request, "plain", planted)
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
    steady = compare.Comparison(calm, greedy=True, mismatch=None)
    busy = compare.Comparison({**calm, compare.PLAIN: [run(1.0), run(40.0)]}, greedy=True, mismatch=None)
    assert steady.unsteady() == ""
    assert steady.json()["reliable"] is True
    assert "runs of transformers differ 40.0 times" in busy.unsteady()
    assert busy.against().endswith("(not reliable)")
    assert busy.outcome().endswith("(not reliable: see below)")
    assert busy.json()["reliable"] is False


def test_the_speed_over_the_same_engine_without_speculation_comes_first() -> None:
    def run(seconds: float, tokens: int = 11) -> Generation:
        return Generation("", [1] * tokens, ["plain"] * tokens, 5, "", 0.1, seconds)

    def compared(wager: float, off: float, plain: float) -> compare.Comparison:
        runs = {compare.WAGER: [run(wager)], compare.OFF: [run(off)], compare.PLAIN: [run(plain)]}
        return compare.Comparison(runs, greedy=True, mismatch=None)

    faster, slower = compared(1.0, 1.5, 3.0), compared(2.0, 1.5, 3.0)
    engine = "off, the same engine without speculation"
    assert faster.outcome() == f"wager is 1.50 times as fast as {engine}, and 3.00 times as fast as transformers"
    assert faster.against() == "1.50 times as fast as off"
    said = f"wager is slower than {engine}: 0.75 times its speed; it is 1.50 times as fast as transformers"
    assert slower.outcome() == said
    short = compare.Comparison({name: [run(0.0, 1)] for name in compare.WHAT}, greedy=True, mismatch=None)
    assert short.outcome() == "the text is too short to compare speeds"


def test_every_run_of_a_comparison_starts_without_memory(wager: Wager, monkeypatch: pytest.MonkeyPatch) -> None:
    # a policy that looks at no clock: what is drafted then depends on the drafter's memory alone
    words = ("generate", "Name a colour.", "--policy", "fixed:drafter=suffix,length=4", "--max-tokens", "10")
    told = json.loads(wager(*words, "--compare", "--json").out)
    runs = told["compare"]["ways"]["wager"]["runs"]
    assert runs[0]["mat"] == runs[1]["mat"] == json.loads(wager(*words, "--json").out)["summary"]["mat"]
    monkeypatch.setattr(Decoder, "reset", lambda decoder: None)
    told = json.loads(wager(*words, "--compare", "--json").out)
    assert told["compare"]["ways"]["wager"]["runs"][1]["mat"] > runs[1]["mat"], "the test sees no memory"
