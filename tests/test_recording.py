"""Recordings: the format, what the recorder puts into it, and `wager record`."""

from __future__ import annotations

import copy
import gzip
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import wager
from wager.bench import workloads
from wager.cli import main
from wager.core import recording as recordings
from wager.core.context import Hint
from wager.core.recording import RecordingError, RecordingWriter, Text, Track
from wager.decoding.recorder import Recorder
from wager.drafters import Drafter
from wager.drafters.draft_model import DraftModel
from wager.drafters.prompt_lookup import PromptLookup
from wager.drafters.suffix import Suffix

PROMPT = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2]
LONGEST = 6


pytestmark = pytest.mark.usefixtures("one_thread")


def tiny(seed: int = 3, **shape: Any) -> Any:
    torch.manual_seed(seed)
    usual: dict[str, Any] = {
        "vocab_size": 12, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.3, "bos_token_id": None,
        "eos_token_id": None, "pad_token_id": 0,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**{**usual, **shape})).eval()


def alike(model: Any) -> Any:
    """Another model that often agrees with this one: a draft model."""
    torch.manual_seed(9)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight += 0.1 * weight.std().nan_to_num() * torch.randn_like(weight)
    return other


def recorder(model: Any, *drafters: Drafter, longest: int = LONGEST) -> Recorder:
    return Recorder(wager.Decoder(model, drafters="off", policy="off"), {d.name: d for d in drafters}, longest)


def written(model: Any, count: int) -> list[int]:
    return wager.Decoder(model, drafters="off", policy="off").generate(PROMPT, max_new_tokens=count).tokens


def agreed(draft: Sequence[int], coming: Sequence[int]) -> int:
    """Leading tokens that are the same, counted one by one."""
    count = 0
    while count < min(len(draft), len(coming)) and draft[count] == coming[count]:
        count += 1
    return count


# -- the format

TEXT = Text(
    "qa",
    prompt=12,
    tokens=4,
    tracks={
        "suffix": Track([2, 0, 1], [1, 0, 1], [3, 0, 1], [(0.5, 0.25), (), (1.0,)]),
        "prompt-lookup": Track([6, 6, 6], [3, 0, 0], [4, 2, 2], [(), (), ()]),
        "draft-model": Track([2, 2, 2], [2, 1, 0], [0] * 3, [(0.5, 0.5)] * 3, overlap=[0.9, 0.8, 0.1], cheap=False),
    },
    limit=9,
    agreement={"suffix": {"prompt-lookup": [2, 0, 0]}},
)
HEADER = {"format": "wager-recording", "version": 2, "meta": {"model": "m"}}


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def line(**changes: Any) -> dict[str, Any]:
    tracks = {"s": {"size": [1, 1], "agreed": [1, 0], "match": [1, 1]}}
    return {"label": "a", "prompt": 5, "tokens": 3, "tracks": tracks, **changes}


def column(name: str, values: Any) -> dict[str, Any]:
    body = line()
    body["tracks"]["s"][name] = values
    return body


@pytest.mark.parametrize("name", ["r.jsonl", "r.jsonl.gz"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    with RecordingWriter(tmp_path / name, {"model": "m"}) as writer:
        writer.write(TEXT)
        writer.write(TEXT)
    assert recordings.read(tmp_path / name) == ({"model": "m"}, [TEXT, TEXT])
    assert (tmp_path / name).read_bytes().startswith(b"\x1f\x8b") == name.endswith(".gz")


def test_a_text_that_does_not_say_was_limited_to_its_own_tokens(tmp_path: Path) -> None:
    assert recordings.read(write(tmp_path / "r.jsonl", HEADER, line()))[1][0].limit == 3


@pytest.mark.parametrize("name", ["r.jsonl", "r.jsonl.gz"])
def test_a_recording_cut_off_anywhere_in_its_last_line_keeps_the_others(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with RecordingWriter(path, {}) as writer:
        writer.write(TEXT)
        whole = path.stat().st_size
        writer.write(replace(TEXT, label="".join(map(chr, range(48, 122)))))
        longer = path.stat().st_size - 8  # of a compressed line, the last bytes hold nothing
    data = path.read_bytes()
    assert whole + 40 < longer
    for size in range(whole, longer, 7):
        path.write_bytes(data[:size])
        assert recordings.read(path)[1] == [TEXT]


def test_a_recording_is_readable_while_it_is_written(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path / "r.jsonl.gz", {}) as writer:
        writer.write(TEXT)
        assert recordings.read(tmp_path / "r.jsonl.gz")[1] == [TEXT]


def test_a_recording_is_never_overwritten(tmp_path: Path) -> None:
    for name in ("r.jsonl", "r.jsonl.gz"):
        (tmp_path / name).write_text("mine")
        with pytest.raises(FileExistsError):
            RecordingWriter(tmp_path / name, {})
        assert (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "not a wager recording"),
        (["no JSON"], "not a wager recording"),
        ([[1]], "not a wager recording"),
        ([{**HEADER, "format": "wager-trace"}], "not a wager recording"),
        ([{**HEADER, "meta": 5}], "not a wager recording"),
        ([{**HEADER, "version": 2}, line()], "of version 2; this wager reads version 1"),
        ([HEADER], "holds no text"),
        ([HEADER, line(), "{broken", line()], "line 3"),
        ([HEADER, [1]], "line 2"),
        ([HEADER, line(tokens=1)], "at least 2 tokens"),
        ([HEADER, line(tokens=4)], "3 entries in each column"),
        ([HEADER, line(limit=2)], "limited to 2"),
        ([HEADER, line(more=1)], "line 2"),
        ([HEADER, line(agreement={"s": {"t": [0, 0]}})], "needs their tracks"),
        ([HEADER, line(agreement={"s": {"s": [0]}})], "as many entries"),
        ([HEADER, line(agreement={"s": {"s": [0, -1]}})], "whole numbers from 0"),
        ([HEADER, column("agreed", [1, 2])], "2 of 1 tokens cannot agree"),
        ([HEADER, column("agreed", [1, -1])], "-1 of 1"),
        ([HEADER, column("size", [1, 1.5])], "whole numbers"),
        ([HEADER, column("size", 3)], "line 2"),
        ([HEADER, column("match", [0, -1])], "whole numbers from 0"),
        ([HEADER, column("confidence", [[0.5], [2]])], r"lie in \[0, 1\]"),
        ([HEADER, column("confidence", [[0.5, 0.5], []])], "2 confidences do not fit 1"),
        ([HEADER, column("overlap", [0.5])], "2 entries in each column"),
        ([HEADER, column("overlap", [0.5, float("nan")])], r"lie in \[0, 1\]"),
        ([HEADER, column("colour", [1, 1])], "colour"),
    ],
)
def test_what_is_no_recording_is_refused_with_a_reason(tmp_path: Path, lines: list[Any], says: str) -> None:
    with pytest.raises(RecordingError, match=says):
        recordings.read(write(tmp_path / "r.jsonl", *lines))


def test_binary_files_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_bytes(bytes(range(256)))
    (tmp_path / "plain.gz").write_text("text")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(json.dumps(HEADER).encode())[:9])
    for name in ("r.jsonl", "plain.gz", "cut.gz"):
        with pytest.raises(RecordingError):
            recordings.read(tmp_path / name)


def test_a_hint_is_the_drafters_own_cut_to_the_room_there_is() -> None:
    track = Track([0, 3, 3], [0, 1, 0], [0, 5, 5], [(), (0.5, 0.25, 0.75), ()])
    assert track.hint(0, 6) == Hint()
    assert track.hint(1, 6) == Hint(5, (0.5, 0.25, 0.75))
    assert track.hint(1, 2) == Hint(5, (0.5, 0.25))
    assert track.hint(2, 2) == Hint(5, size=2)


# -- the recorder


@pytest.mark.parametrize("make", [PromptLookup, Suffix])
def test_a_cheap_drafters_track_is_what_it_proposes_at_each_position(make: Any) -> None:
    model = tiny()
    text = recorder(model, make()).record(PROMPT, "a", 40)
    tokens = written(model, 40)
    assert text is not None
    assert (text.prompt, text.tokens, text.limit) == (len(PROMPT), 40, 40)
    (track,) = text.tracks.values()
    for at in range(39):
        drafter = make()
        drafter.begin(PROMPT)
        for token in tokens[: at + 1]:
            drafter.extend([token])
        draft = drafter.propose(min(LONGEST, 40 - at - 2))
        assert track.size[at] == len(draft.tokens)
        assert track.agreed[at] == agreed(draft.tokens, tokens[at + 1 :])
        assert track.hint(at, LONGEST) == draft.hint
    assert 0 < sum(track.agreed) < sum(track.size)


def test_a_draft_models_track_is_what_it_drafts_token_by_token() -> None:
    model = tiny()
    draft_model = alike(model)
    text = recorder(model, DraftModel(draft_model)).record(PROMPT, "a", 40)
    tokens = written(model, 40)
    assert text is not None
    track = text.tracks["draft-model"]
    assert not track.cheap
    drafter = DraftModel(draft_model)
    for at in range(39):
        drafter.begin(PROMPT)
        drafter.extend(tokens[: at + 1])
        draft = drafter.propose(LONGEST)
        assert track.size[at] == len(draft.tokens) == LONGEST
        assert track.agreed[at] == agreed(draft.tokens, tokens[at + 1 :])
        whole = torch.tensor([[*PROMPT, *tokens[: at + 1]]])
        p, q = (torch.softmax(m(whole).logits[0, -1].detach(), -1) for m in (model, draft_model))
        assert track.overlap[at] == pytest.approx(float(torch.minimum(p, q).sum()), abs=1e-4)
        assert track.confidence[at][0] == pytest.approx(float(q.max()), abs=1e-4)
    assert 0 < sum(track.agreed) < sum(track.size)


def test_a_draft_model_with_less_room_or_fewer_tokens_drafts_as_far_as_it_can() -> None:
    model = tiny()
    tokens = written(model, 40)
    short = tiny(max_position_embeddings=len(PROMPT) + 20)
    text = recorder(model, DraftModel(short)).record(PROMPT, "a", 40)
    assert text is not None
    assert text.tracks["draft-model"].size == [max(0, min(LONGEST, 19 - at)) for at in range(39)]
    foreign = max(tokens)
    first = tokens.index(foreign)  # nothing can be drafted from where this token stands
    assert first > 0
    narrow = DraftModel(tiny(1))
    narrow.runner.vocabulary = foreign
    text = recorder(model, narrow).record(PROMPT, "a", 40)
    assert text is not None
    assert text.tracks["draft-model"].size == [LONGEST] * first + [0] * (39 - first)
    for at in (0, first - 1, first, 38):
        narrow.begin(PROMPT)
        narrow.extend(tokens[: at + 1])
        assert len(narrow.propose(LONGEST).tokens) == text.tracks["draft-model"].size[at]


def test_a_drafter_that_remembers_knows_the_texts_before_and_not_the_one_it_is_asked_about() -> None:
    model = tiny()
    walker = recorder(model, Suffix())
    first, again = (walker.record(PROMPT, "a", 40) for _ in range(2))
    assert first is not None
    assert again is not None
    assert sum(again.tracks["suffix"].agreed) > sum(first.tracks["suffix"].agreed)  # now it has seen the text
    helped = Recorder(
        wager.Decoder(model, drafters=[Suffix()], policy="fixed:drafter=suffix,length=4"), {"suffix": Suffix()}, LONGEST
    )
    assert helped.record(PROMPT, "a", 40) == first  # whoever helps to write does not tell
    with pytest.raises(ValueError, match="drafters of its own"):
        Recorder(helped.decoder, helped.decoder.drafters, LONGEST)


def test_a_text_that_ends_early_says_how_long_it_might_have_been_and_one_that_ends_at_once_is_none() -> None:
    plain = written(tiny(), 40)
    end = max(map(plain.index, plain))
    text = recorder(tiny(eos_token_id=plain[end]), PromptLookup()).record(PROMPT, "a", 40)
    assert text is not None
    assert (text.tokens, text.limit) == (end + 1, 40)
    assert recorder(tiny(eos_token_id=plain[0]), PromptLookup()).record(PROMPT, "a", 40) is None


def test_the_models_own_limit_ends_a_text_and_its_drafts() -> None:
    text = recorder(tiny(max_position_embeddings=30), PromptLookup()).record(PROMPT, "a", 40)
    assert text is not None
    assert (text.tokens, text.limit) == (20, 20)
    assert text.tracks["prompt-lookup"].size[-1] == 0


# -- the command


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A tiny Llama of SmolLM2's vocabulary in place of every model that is loaded."""
    from wager.models import load_tokenizer

    model = tiny(vocab_size=49152, max_position_embeddings=512, eos_token_id=2, pad_token_id=2)
    monkeypatch.setattr("wager.models.load", lambda *_, **__: (model, load_tokenizer("smollm2-135m")))
    monkeypatch.setattr("wager.decoding.arms.load", lambda *_, **__: (alike(model), load_tokenizer("smollm2-135m")))
    return model


def run(*words: str) -> int:
    sys.argv = ["wager", "record", *words]
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
    assert meta["command"].startswith("wager record")
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
