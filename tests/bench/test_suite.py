"""`wager bench`: what the command runs, writes, says and refuses."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from commands import Wager
from letters import Letters

from wager.bench import methods as made
from wager.bench.run_folder import ANSWERS, RUN, read
from wager.bench.runs import Run

pytestmark = pytest.mark.usefixtures("one_thread")
TOKENS = 10


@pytest.fixture
def bench(calm: None, model: Any, cli: Wager, monkeypatch: pytest.MonkeyPatch) -> Wager:
    """`wager bench` with the tiny model, in a folder of the test's own."""
    monkeypatch.setattr("wager.models.load", lambda *_, **__: (model, Letters()))
    monkeypatch.setattr("wager.cli.session.check_name", str)
    return lambda *words: cli("bench", *words)


SHORT = ("--model", "tiny", "--max-tokens", str(TOKENS), "--longest-prompt", "60", "--limit", "1")
SMALL = (*SHORT, "--suite", "humaneval", "--methods", "off,suffix:2,auto")


def test_the_command_writes_a_run_and_says_what_is_fastest(bench: Any, tmp_path: Path) -> None:
    code, out, err = bench(*SHORT, "--out", "made", "--methods", "transformers-lookup,off,suffix:2,suffix:3@2x6,auto")
    assert code == 0, err
    run = read(tmp_path / "made" / RUN)
    kinds = ["plain", "peer", "off", "arm", "arm", "policy"]
    assert [method["kind"] for method in run["methods"]] == kinds
    assert run["arms"] == ["off", "suffix:2", "suffix:3@2x6"]
    assert run["complete"]
    assert (run["suite"], run["model"], run["max_tokens"], run["seed"]) == ("quick", "tiny", TOKENS, 0)
    assert len(run["prompts"]) == 7
    assert len(run["answers"]) == 7 * 6
    assert all(answer["same"] for answer in run["answers"])
    assert str(tmp_path) not in json.dumps(run)
    for answer in run["answers"]:
        ours = answer["method"] not in ("transformers", "transformers prompt lookup")
        assert answer["tokens"] == TOKENS
        assert (1 + sum(emitted for _, _, _, emitted, _, _ in answer["rounds"]) == TOKENS) is ours
        assert 0 < answer["prefill_seconds"] <= answer["seconds"]
        assert ("pieces" in answer) is (answer["method"] == "auto")
    tasks = [task["task"] for task in run["summary"]["tasks"]]
    assert tasks[0] == "all"
    assert set(tasks[1:]) == {prompt["task"] for prompt in run["prompts"]}
    assert run["summary"]["differences"]["unexplained"] == 0
    assert "All 35 texts are identical to plain decoding's" in out
    assert out.index("x off") < out.index("x transformers") < out.index("On this machine `auto`")
    assert "MAT: mean tokens emitted per round" in out
    assert "negative: faster than every fixed arm" in out
    assert "7 prompts x 6 methods, 10 tokens per answer; Ctrl-C stops it" in err
    assert all(sentence in out for sentence in run["verdict"])
    assert "wager report made/run.json -o report.html" in out


def test_a_run_with_other_settings_is_refused_by_name_unless_it_may_be_overwritten(
    bench: Any, tmp_path: Path, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench(*SMALL)[0] == 0
    content = (tmp_path / "wager-bench" / ANSWERS).read_text()
    others = {
        "--max-tokens: 10 there, 11 here": ("--max-tokens", "11"),
        "--methods: transformers, off, suffix:2, auto there, transformers, off here": ("--methods", "off"),
        "--suite: humaneval there, debug-bench here": ("--suite", "debug-bench"),
        "--seed: 0 there, 4 here": ("--seed", "4"),
        "the prompts: they are not the same": ("--prompts", "2"),
    }
    for said, change in others.items():
        code, _, err = bench(*SMALL, *change)
        assert code == 2
        assert f"holds a run with other settings ({said}); give another --out, or --afresh to overwrite" in err
    assert (tmp_path / "wager-bench" / ANSWERS).read_text() == content
    code, _, err = bench(*SMALL)
    assert (code, "complete" in err) == (0, True)
    assert (tmp_path / "wager-bench" / ANSWERS).read_text() == content
    assert bench(*SMALL, "--max-tokens", "11", "--afresh")[0] == 0
    assert read(tmp_path / "wager-bench" / RUN)["max_tokens"] == 11
    other = copy.deepcopy(model)  # of the same name
    other.get_input_embeddings().weight.data.mul_(1.5)
    monkeypatch.setattr("wager.models.load", lambda *_, **__: (other, Letters()))
    code, _, err = bench(*SMALL, "--max-tokens", "11")
    assert (code, "other settings (the model's weights: they are not the same)" in err) == (2, True)


def test_a_run_that_ended_before_its_first_answer_is_no_obstacle(bench: Any, tmp_path: Path) -> None:
    """Such as one with a head that is not shipped for the model."""
    folder = tmp_path / "wager-bench"
    code, _, err = bench(*SMALL, "--methods", "off,eagle:none:2")
    assert (code, "eagle:none" in err, (folder / RUN).exists()) == (2, True, True)
    (folder / ANSWERS).touch()  # and one that ended while its first answer was written
    assert bench(*SMALL, "--methods", "off,suffix:2")[0] == 0
    assert [method["name"] for method in read(tmp_path / "wager-bench" / RUN)["methods"]][1:] == ["off", "suffix:2"]


def test_a_drafter_that_there_is_not_is_refused_before_anything_is_written(bench: Any, tmp_path: Path) -> None:
    code, _, err = bench(*SMALL, "--methods", "off,sufix:2")
    assert (code, "unknown drafter 'sufix'" in err) == (2, True)
    assert not (tmp_path / "wager-bench").exists()


def test_an_interrupted_command_says_that_it_can_go_on(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, many = Run.add, 0

    def interrupted(self: Run, *given: Any, **more: Any) -> None:
        nonlocal many
        many += 1
        if many == 3:
            raise KeyboardInterrupt
        add(self, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "add", interrupted)
        code, _, err = bench(*SMALL)
    assert code == 130
    assert "2 of 4 answers are kept, and the same command resumes the run" in err
    assert len(read(tmp_path / "wager-bench" / RUN)["answers"]) == 2
    code, out, err = bench(*SMALL)
    assert code == 0
    assert "resuming: 2 of 4 answers are there" in err
    assert "no data folder: humaneval is run on wager's own prompts" in " ".join(err.split())
    assert "On this machine" in out


def test_bad_input_is_one_sentence(bench: Any, tmp_path: Path) -> None:
    for words, said in {
        ("--suite", "nonsense"): "unknown suite 'nonsense'; choose from quick, spec-bench",
        ("--suite", "math-then-code"): "pass --data DIR or set WAGER_DATA",
        ("--data", "."): "the quick suite has prompts of its own",
        ("--methods", "auto,nobody"): "'nobody' is no method",
        ("--methods", "suffix:x"): "an arm is a drafter and a length, such as suffix:4",
        ("--methods", ","): "--methods names at least one",
        ("--methods", "ucbspec:colour=red"): "has no parameter 'colour'",
        ("--model", "tiny", "--max-tokens", "2000"): "tiny holds 1,024 tokens: too few",
        ("--limit", "3", "generate"): "--prompts before generate does nothing",
    }.items():
        code, _, err = bench(*words)
        assert code == 2
        assert said in err
        assert "Traceback" not in err
    assert not (tmp_path / "wager-bench").exists()


def test_without_arms_of_their_own_policies_choose_among_those_of_generate(
    bench: Any, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench(*SHORT, "--suite", "humaneval", "--methods", "off,auto")[0] == 0
    assert read(tmp_path / "wager-bench" / RUN)["arms"] == [
        "off",
        *(f"{drafter}:{length}" for drafter in ("suffix", "prompt-lookup") for length in range(1, 9)),
    ]
    monkeypatch.setattr("wager.drafters.shipped.available", lambda *_: {"eagle:ofa": object()})
    assert made.arms_of(made.parse_methods("auto"), model)[-8:] == [f"eagle:ofa:{n}" for n in range(1, 9)]
    assert made.arms_of(made.parse_methods("auto,suffix:3"), model) == ["off", "suffix:3"]
