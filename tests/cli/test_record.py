"""`wager lab record`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from decoders import alike
from recorders import tiny

from wager.bench import workloads
from wager.cli import main
from wager.core import recording as recordings
from wager.decoding.recorder import Recorder

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A tiny Llama of SmolLM2's vocabulary in place of every model that is loaded."""
    from wager.models import load_tokenizer

    model = tiny(vocab_size=49152, max_position_embeddings=512, eos_token_id=2, pad_token_id=2)
    monkeypatch.setattr("wager.models.load", lambda *_, **__: (model, load_tokenizer("smollm2-135m")))
    monkeypatch.setattr("wager.decoding.arms.load", lambda *_, **__: (alike(model), load_tokenizer("smollm2-135m")))
    return model


def run(*words: str) -> int:
    sys.argv = ["wager", "lab", "record", *words]
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


def test_record_writes_what_it_says(tmp_path: Path, small: Any, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "one, two, one, two", "task": "counting"}\n\n{"prompt": "three"}\n')
    out = tmp_path / "r.jsonl.gz"
    drafters = "suffix,prompt-lookup,draft-model=/some/where/model"
    assert run(str(file), "--out", str(out), "--max-tokens", "12", "--longest", "3", "--drafters", drafters) == 0
    meta, texts = recordings.read(out)
    assert {text.label for text in texts} == {"counting", "mine"}
    assert all(list(text.tracks) == ["suffix", "prompt-lookup", "draft-model"] for text in texts)
    assert meta["drafters"] == ["suffix", "prompt-lookup", "draft-model"]
    assert (meta["longest"], meta["max_tokens"], meta["part"], meta["model"]) == (3, 12, None, "smollm2-135m")
    assert meta["command"].startswith("wager lab record")
    costs = meta["costs"]
    assert [width for width, _ in costs["verify"]] == [1, 2, 3, 4]
    assert all(seconds > 0 for _, seconds in costs["verify"])
    assert set(costs["propose"]) == {"suffix", "prompt-lookup"}
    assert set(costs["step"]) == set(costs["lag"]) == {"draft-model"}
    assert 0 < costs["propose"]["prompt-lookup"] < costs["step"]["draft-model"]
    assert "/some/where" not in json.dumps({key: value for key, value in meta.items() if key != "command"})
    printed = capsys.readouterr().out
    assert f"{len(texts)} texts, {sum(text.tokens for text in texts)} tokens" in printed
    counts = [n for text in texts for n in text.tracks["draft-model"].agreed]
    assert f"draft-model: {sum(counts) / len(counts):.2f} of 3.00 proposed tokens" in printed


def test_record_takes_plain_lines_or_the_tasks_in_an_order_of_its_seed(
    tmp_path: Path, small: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("one\ntwo\n\nthree\n")
    short = ("--max-tokens", "4", "--longest", "2", "--drafters", "prompt-lookup")
    assert run(str(tmp_path / "mine.txt"), "--prompts", "2", "--out", str(tmp_path / "a"), *short) == 0
    assert [text.label for text in recordings.read(tmp_path / "a")[1]] == ["mine", "mine"]
    folder = tmp_path / "prompts"
    folder.mkdir()
    turns = [
        {"category": c, "turns": [f"{'word ' * i} {c}"]} for c in (*workloads.SPEC_BENCH, "math") for i in range(8)
    ]
    (folder / "spec_bench.jsonl").write_text("".join(json.dumps(turn) + "\n" for turn in turns))
    tasks = ("--data", str(tmp_path), "--task", "qa", "--task", "rag", "--prompts", "4", "--part", "test")
    shapes = {}
    for name, seed in (("b", "1"), ("c", "1"), ("d", "2")):
        assert run(*tasks, "--out", str(tmp_path / name), "--seed", seed, *short) == 0
        meta, texts = recordings.read(tmp_path / name)
        assert meta["part"] == "test"
        shapes[name] = [(text.label, text.prompt) for text in texts]
        assert sorted(label for label, _ in shapes[name]) == ["qa"] * 4 + ["rag"] * 4
    assert shapes["b"] == shapes["c"] != shapes["d"]
    assert shapes["b"] != sorted(shapes["b"], key=lambda shape: shape[0])  # tasks are mixed
    assert "wager:" not in capsys.readouterr().err


def test_a_recording_that_is_interrupted_keeps_its_texts(
    tmp_path: Path, small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.txt").write_text("one\ntwo\nthree\n")
    record = Recorder.record
    left = [2]

    def stops(self: Recorder, *given: Any) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return record(self, *given)

    monkeypatch.setattr(Recorder, "record", stops)
    assert run(str(tmp_path / "mine.txt"), "--out", str(tmp_path / "r.jsonl.gz"), "--max-tokens", "4") != 0
    assert len(recordings.read(tmp_path / "r.jsonl.gz")[1]) == 2


def test_without_a_chat_template_the_prompt_is_text_and_long_ones_are_cut(
    tmp_path: Path, small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wager.models import load_tokenizer

    tokenizer = load_tokenizer("smollm2-135m")
    tokenizer.chat_template = None
    monkeypatch.setattr("wager.models.load", lambda *_, **__: (small, tokenizer))
    (tmp_path / "mine.jsonl").write_text(json.dumps({"prompt": "one two three"}) + "\n")
    (tmp_path / "long.jsonl").write_text(json.dumps({"prompt": "one two three " * 50}) + "\n")
    for name, length in (("mine", len(tokenizer("one two three").input_ids)), ("long", 20)):
        words = ("--out", str(tmp_path / name), "--max-tokens", "4", "--longest-prompt", "20")
        assert run(str(tmp_path / f"{name}.jsonl"), *words) == 0
        assert recordings.read(tmp_path / name)[1][0].prompt == length


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("mine.txt", "--out", "mine.txt"), "a recording is never overwritten"),
        (("mine.txt", "--out", "nowhere/r.jsonl"), "no folder"),
        (("missing.txt", "--out", "r.jsonl"), "missing.txt"),
        (("empty.txt", "--out", "r.jsonl"), "holds no prompt"),
        (("binary", "--out", "r.jsonl"), "is not text"),
        (("bad.jsonl", "--out", "r.jsonl"), "bad.jsonl, line 2: not a JSON object"),
        (("numbers.jsonl", "--out", "r.jsonl"), "numbers.jsonl, line 1: not a JSON object"),
        (("mine.txt", "--task", "qa", "--out", "r.jsonl"), "leave them out with a file"),
        (("mine.txt", "--part", "test", "--out", "r.jsonl"), "leave them out with a file"),
        (("--out", "r.jsonl"), "pass --data DIR or set WAGER_DATA"),
        (("--task", "chess", "--out", "r.jsonl"), "unknown task 'chess'"),
        (("--part", "third", "--out", "r.jsonl"), "unknown part 'third'"),
        (("mine.txt", "--drafters", "oracle", "--out", "r.jsonl"), "unknown drafter 'oracle'"),
        (("mine.txt", "--drafters", "off", "--out", "r.jsonl"), "at least one drafter"),
        (("mine.txt", "--drafters", "suffix,suffix", "--out", "r.jsonl"), "names one twice"),
        (("mine.txt", "--drafters", "retrieval=missing.store", "--out", "r.jsonl"), "missing.store"),
        (("mine.txt", "--max-tokens", "500", "--out", "r.jsonl"), "holds 512 tokens"),
        (("silent.txt", "--out", "r.jsonl"), "nothing to record"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_no_file(
    tmp_path: Path,
    small: Any,
    words: tuple[str, ...],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WAGER_DATA", raising=False)
    (tmp_path / "mine.txt").write_text("one\n")
    (tmp_path / "silent.txt").write_text("one\n")
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "bad.jsonl").write_text('{"prompt": "one"}\nnot JSON\n')
    (tmp_path / "numbers.jsonl").write_text('{"prompt": 5}\n')
    if words[0] == "silent.txt":
        monkeypatch.setattr(Recorder, "record", lambda *_: None)
    before = sorted(tmp_path.iterdir())
    assert run(*words) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert says in told[-1]
    assert told[-1].startswith("wager: ")
    assert "Traceback" not in "".join(told)
    assert sorted(tmp_path.iterdir()) == before
