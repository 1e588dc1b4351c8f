"""`wager generate` as a user meets it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from commands import COPY, SHORT, Wager

from wager.cli import options
from wager.cli.shown import explained
from wager.core import OFF, Arm, Round
from wager.policies.base import Option


def test_standard_output_holds_the_text_and_nothing_else(wager: Wager, loaded: Any) -> None:
    model, tokenizer = loaded
    done = wager("generate", "Name a colour.", *SHORT)
    asked = [{"role": "user", "content": "Name a colour."}]
    ids = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    plain = model.generate(ids, max_new_tokens=6, do_sample=False)[0, ids.shape[1] :]
    assert done.code == 0, done.err
    assert done.out == tokenizer.decode(plain, skip_special_tokens=True) + "\n"
    assert all(said in done.err for said in ("tokens/s", "MAT", "arms", "cut at --max-tokens"))


def test_the_prompt_comes_from_standard_input_or_a_file_or_follows_the_words(wager: Wager, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("Name a colour.")
    (tmp_path / "rest.txt").write_text("colour.")
    ways = [("Name a colour.",), ("-",), ("--file", "p.txt"), ("Name a\n\ncolour.",), ("Name a", "--file", "rest.txt")]
    done = [wager("generate", *words, "--json", *SHORT, stdin="Name a colour.") for words in ways]
    said, piped, file, apart, both = (json.loads(each.out)["tokens"] for each in done)
    assert said == piped == file
    assert apart == both != said


def test_raw_goes_on_with_the_text_and_system_changes_the_prompt(wager: Wager, loaded: Any) -> None:
    raw = json.loads(wager("generate", "Once upon a", "--raw", "--json", *SHORT).out)
    assert raw["summary"]["prompt_tokens"] == len(loaded[1]("Once upon a").input_ids)
    chat = json.loads(wager("generate", "Once upon a", "--system", "Be brief.", "--json", *SHORT).out)
    assert chat["summary"]["prompt_tokens"] > raw["summary"]["prompt_tokens"]


def test_json_is_one_object_with_everything_in_it(wager: Wager) -> None:
    done = wager("generate", COPY, "--json", "--lengths", "2,3", "--drafters", "suffix,prompt-lookup", *SHORT)
    told = json.loads(done.out)
    assert done.code == 0
    assert told["command"].startswith("wager generate")
    assert told["drafters"] == ["suffix", "prompt-lookup"]
    assert told["lengths"] == [2, 3]
    assert {"torch", "transformers", "wager"} <= set(told["versions"])
    assert told["dtype"] == "float32"
    assert told["device"].startswith("CPU, ")
    assert told["settings"] == {"max_new_tokens": 6, "do_sample": False}
    assert told["compare"] is None
    assert len(told["tokens"]) == len(told["sources"]) == told["summary"]["tokens"]
    assert set(told["sources"]) <= {"suffix", "prompt-lookup", "bonus", "plain"}
    assert set(told["summary"]["arms"]) <= {"off", *(f"{d}:{n}" for d in told["drafters"] for n in (2, 3))}
    assert "tokens/s" not in done.err


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
    words = ("generate", "Tell a story.", "-t", "1.5", "--top-p", "0.95", "--top-k", "0", "--min-p", "0.00001")
    words = (*words, "--repetition-penalty", "1.1", "--json", "--policy", "round-robin", *SHORT)  # looks at no clock
    first, again, other = (json.loads(wager(*words, "--seed", seed).out) for seed in ("7", "7", "8"))
    assert first["tokens"] == again["tokens"] != other["tokens"]
    assert first["settings"]["top_p"] == 0.95
    assert json.loads(wager(*words).out)["seed"] != json.loads(wager(*words).out)["seed"]


def test_stop_ends_the_text_after_these_characters(wager: Wager) -> None:
    words = ("generate", "Count: 1, 2, 3", "--raw", "--json", "--max-tokens", "12")
    whole = json.loads(wager(*words).out)["text"]
    end = whole[len(whole) // 2 :][:2]
    told = json.loads(wager(*words, "--stop", end).out)
    assert whole.startswith(told["text"])
    assert told["text"].count(end) == 1
    assert told["summary"]["finish"] == "stop"


def test_a_policy_that_needs_the_number_of_tokens_gets_it(wager: Wager) -> None:
    assert wager("generate", "Hi", "--policy", "halving", *SHORT).code == 0
    assert wager("generate", "Hi", "--drafters", "off", *SHORT).code == 0


def test_the_trace_tells_what_was_run_and_wager_trace_reads_it(wager: Wager, tmp_path: Path) -> None:
    assert wager("generate", "Hi", "--trace", "t.jsonl", *SHORT).code == 0
    told = json.loads(wager("lab", "trace", "t.jsonl", "--json").out)
    assert told["requests"] == 1
    assert told["tokens"] == 5  # the first comes from the prompt's own forward
    assert told["meta"]["model"] == "smollm2-135m"
    assert told["meta"]["policy"] == options.POLICY
    assert told["meta"]["drafters"] == options.DRAFTERS.split(",")
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


def test_an_interrupted_generation_keeps_its_trace(
    wager: Wager, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from wager.decoding.loop import Loop

    played, rounds = Loop._round, list[object]()

    def interrupted(self: Loop) -> object:
        if len(rounds) == 2:
            raise KeyboardInterrupt
        rounds.append(played(self))
        return rounds[-1]

    monkeypatch.setattr(Loop, "_round", interrupted)
    assert wager("generate", "Hi", "--trace", "t.jsonl", *SHORT).code == 130
    told = json.loads(wager("lab", "trace", "t.jsonl", "--json").out)
    assert told["rounds"] == 2


def test_explain_tells_for_every_round_what_was_expected_and_what_came(wager: Wager) -> None:
    words = ("generate", COPY, "--explain", "--max-tokens", "24")
    done = wager(*words)
    plain = wager("generate", COPY, "--max-tokens", "24")
    assert done.code == 0, done.err
    assert done.out == plain.out
    loading, preparing, *lines, closing = done.err.splitlines()  # nothing is silent without a terminal
    assert (loading, preparing) == ("loading smollm2-135m …", "preparing smollm2-135m …")
    assert "tokens/s" in closing
    first = r" +1 +off \| off: 1\.00 tokens \| nothing was timed yet \| 0/0 accepted, \d+\.\d\d ms"
    assert re.fullmatch(first, lines[0]), "a short first text is not timed beforehand"
    expected = r"\S+: \d+\.\d\d tokens, \d+\.\d\d ms, \d+\.\d/s"
    for number, line in enumerate(lines[1:], 2):
        trial = r"(?: \| exploration: costs about \d+\.\d\d ms, (?:may bring \d+\.\d/s|times plain decoding))?"
        trial += r"(?: \| times plain decoding, or nothing was proposed)?"
        whole = rf" *{number} +(\S+) \| {expected}(?: \| {expected})?{trial} \| \d+/\d+ accepted, \d+\.\d\d ms"
        said = re.fullmatch(whole, line)
        if re.fullmatch(rf" *{number} +\S+ \| the last choice stands \| \d+/\d+ accepted, \d+\.\d\d ms", line):
            continue
        assert said, line
        assert f"| {said[1]}: " in line
        speeds = [float(each) for each in re.findall(r"ms, (\d+\.\d)/s", line)]
        slower = len(speeds) > 1 and speeds[0] < speeds[1]
        assert ("exploration" in line) >= slower, "an arm that seems slower is not played without saying why"
    assert any(line.count(" | ") >= 3 for line in lines), "some round had a choice"


def test_a_round_that_is_not_expected_to_pay_is_marked_with_what_it_may_cost_and_bring() -> None:
    slow, fast = Option(Arm("suffix", 3), 1.0, 0.2), Option(OFF, 1.0, 0.1)  # 5/s and 10/s
    played = Round(Arm("suffix", 3), drafted=3, accepted=1, emitted=2, draft_seconds=0.0, verify_seconds=0.21)
    said = "exploration: costs about 100.00 ms, may bring 20.0/s"
    assert said in explained(1, played, slow, fast)
    assert "exploration" not in explained(1, played, fast, slow)
    assert "exploration" not in explained(1, played, slow, None)
    guessed = [Option(option.arm, option.tokens, option.seconds, timed=False) for option in (slow, fast)]
    said = explained(1, played, *guessed)
    assert "| suffix:3: 1.00 tokens | off: 1.00 tokens | nothing was timed yet | 1/3 accepted, 210.00 ms" in said
    plain = Round(OFF, drafted=0, accepted=0, emitted=1, draft_seconds=0.0, verify_seconds=0.2)
    assert "off | the last choice stands | 0/0 accepted" in explained(1, plain, None, None)
    assert "times plain decoding" in explained(1, plain, Option(OFF, 1.0, 0.2), Option(Arm("suffix", 3), 1.0, 0.1))


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
    assert len(rounds) == told["summary"]["rounds"]
    assert [each["round"] for each in rounds] == list(range(1, len(rounds) + 1))
    assert sum(each["accepted"] for each in rounds) >= sum(source in told["drafters"] for source in told["sources"])
    assert all(each["expected"] is each["runner_up"] is None for each in rounds if each["stands"])
    chosen = [each for each in rounds if not each["stands"]]  # asked once for each, and in the run that is shown
    for each, options_then in zip(chosen, said, strict=True):
        best, *others = options_then
        assert each["arm"] == each["expected"]["arm"] == str(best.arm)
        assert each["expected"]["tokens"] == pytest.approx(best.tokens, abs=1e-3)
        assert each["expected"]["seconds"] == pytest.approx(best.seconds, abs=1e-6)
        assert each["expected"]["tokens_per_second"] == pytest.approx(best.goodput, abs=1e-2)
        assert (each["runner_up"] or {}).get("arm") == (str(others[0].arm) if others else None)
        assert each["seconds"] > 0
    assert json.loads(wager("generate", "Hi", "--json", *SHORT).out)["explained"] is None
