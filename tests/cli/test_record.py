"""`wager lab record`."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import Wager
from decoders import alike
from recorders import tiny

from wager.bench import workloads
from wager.core import recording as recordings
from wager.decoding.recorder import Recorder

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny(vocab_size=49152, max_position_embeddings=512, eos_token_id=2, pad_token_id=2)


@pytest.fixture
def run(cli: Wager, model: Any, loaded: Any, monkeypatch: pytest.MonkeyPatch) -> Wager:
    """The command with a tiny Llama of SmolLM2's vocabulary in place of every model that is loaded."""
    monkeypatch.setattr("wager.models.load", lambda *_, **__: (model, loaded[1]))
    monkeypatch.setattr("wager.decoding.arms.load", lambda *_, **__: (alike(model), loaded[1]))
    return lambda *words: cli("lab", "record", *words)


def test_record_writes_what_it_says(tmp_path: Path, run: Wager) -> None:
    (tmp_path / "mine.jsonl").write_text(
        '{"prompt": "one, two, one, two", "task": "counting"}\n\n{"prompt": "three"}\n'
    )
    drafters = "suffix,prompt-lookup,draft-model=/some/where/model"
    done = run("mine.jsonl", "--out", "r.jsonl.gz", "--max-tokens", "12", "--longest", "3", "--drafters", drafters)
    assert done.code == 0, done.err
    meta, texts = recordings.read(tmp_path / "r.jsonl.gz")
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
    assert f"{len(texts)} texts, {sum(text.tokens for text in texts)} tokens" in done.out
    counts = [n for text in texts for n in text.tracks["draft-model"].agreed]
    assert f"draft-model: {sum(counts) / len(counts):.2f} of 3.00 proposed tokens" in done.out


def test_record_takes_plain_lines_or_the_tasks_in_an_order_of_its_seed(tmp_path: Path, run: Wager) -> None:
    (tmp_path / "mine.txt").write_text("one\ntwo\n\nthree\n")
    short = ("--max-tokens", "4", "--longest", "2", "--drafters", "prompt-lookup")
    assert run("mine.txt", "--prompts", "2", "--out", "a", *short).code == 0
    assert [text.label for text in recordings.read(tmp_path / "a")[1]] == ["mine", "mine"]
    folder = tmp_path / "prompts"
    folder.mkdir()
    kinds = (*workloads.SPEC_BENCH, "math")
    turns = [{"category": c, "turns": [f"{'word ' * i} {c}"]} for c in kinds for i in range(8)]
    (folder / "spec_bench.jsonl").write_text("".join(json.dumps(turn) + "\n" for turn in turns))
    tasks = ("--data", str(tmp_path), "--task", "qa", "--task", "rag", "--prompts", "4", "--part", "test")
    shapes = {}
    for name, seed in (("b", "1"), ("c", "1"), ("d", "2")):
        done = run(*tasks, "--out", name, "--seed", seed, *short)
        assert done.code == 0, done.err
        assert "wager:" not in done.err
        meta, texts = recordings.read(tmp_path / name)
        assert meta["part"] == "test"
        shapes[name] = [(text.label, text.prompt) for text in texts]
        assert sorted(label for label, _ in shapes[name]) == ["qa"] * 4 + ["rag"] * 4
    assert shapes["b"] == shapes["c"] != shapes["d"]
    assert shapes["b"] != sorted(shapes["b"], key=lambda shape: shape[0])  # tasks are mixed


def test_a_recording_that_is_interrupted_keeps_its_texts(
    tmp_path: Path, run: Wager, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.txt").write_text("one\ntwo\nthree\n")
    record = Recorder.record
    left = [2]

    def stops(self: Recorder, *given: Any, **how: Any) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return record(self, *given, **how)

    monkeypatch.setattr(Recorder, "record", stops)
    assert run("mine.txt", "--out", "r.jsonl.gz", "--max-tokens", "4").code != 0
    assert len(recordings.read(tmp_path / "r.jsonl.gz")[1]) == 2


def test_without_a_chat_template_the_prompt_is_text_and_long_ones_are_cut(
    tmp_path: Path, run: Wager, loaded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = loaded[1]
    monkeypatch.setattr(tokenizer, "chat_template", None)
    (tmp_path / "mine.jsonl").write_text(json.dumps({"prompt": "one two three"}) + "\n")
    (tmp_path / "long.jsonl").write_text(json.dumps({"prompt": "one two three " * 50}) + "\n")
    for name, length in (("mine", len(tokenizer("one two three").input_ids)), ("long", 20)):
        assert run(f"{name}.jsonl", "--out", name, "--max-tokens", "4", "--longest-prompt", "20").code == 0
        assert recordings.read(tmp_path / name)[1][0].prompt == length


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("mine.txt --out mine.txt", "a recording is never overwritten"),
        ("mine.txt --out nowhere/r.jsonl", "no folder"),
        ("missing.txt", "missing.txt"),
        ("empty.txt", "holds no prompt"),
        ("binary", "is not text"),
        ("bad.jsonl", "bad.jsonl, line 2: not a JSON object"),
        ("numbers.jsonl", "numbers.jsonl, line 1: not a JSON object"),
        ("mine.txt --task qa", "leave them out with a file"),
        ("mine.txt --part test", "leave them out with a file"),
        ("", "pass --data DIR or set WAGER_DATA"),
        ("--task chess", "unknown task 'chess'"),
        ("--task mtbench", "did you mean 'mt_bench'"),
        ("--part third", "unknown part 'third'"),
        ("mine.txt --drafters oracle", "unknown drafter 'oracle'"),
        ("mine.txt --drafters off", "at least one drafter"),
        ("mine.txt --drafters suffix,suffix", "names one twice"),
        ("mine.txt --drafters retrieval=missing.store", "missing.store"),
        ("mine.txt --max-tokens 500", "holds 512 tokens"),
        ("mine.txt --trees 4x16", "--trees takes DEPTH@BREADTHxNODES"),
        ("silent.txt", "nothing to record"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_no_file(
    tmp_path: Path, run: Wager, words: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.txt").write_text("one\n")
    (tmp_path / "silent.txt").write_text("one\n")
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "bad.jsonl").write_text('{"prompt": "one"}\nnot JSON\n')
    (tmp_path / "numbers.jsonl").write_text('{"prompt": 5}\n')
    if words == "silent.txt":
        monkeypatch.setattr(Recorder, "record", lambda *_, **__: None)
    before = sorted(tmp_path.iterdir())
    *_, told = (done := run(*words.split(), *(() if "--out" in words else ("--out", "r.jsonl")))).err.splitlines()
    assert done.code == 2
    assert told.startswith("wager: ")
    assert says in told
    assert "Traceback" not in done.err
    assert sorted(tmp_path.iterdir()) == before
