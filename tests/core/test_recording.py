"""The format of recordings."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from wager.core import recording as recordings
from wager.core.context import Hint
from wager.core.recording import RecordingError, RecordingWriter, Text, Track

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
    repeats=[0, 1, 1],
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
    for size in range(whole, longer, 21):
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
        ([{**HEADER, "version": 1}, line()], "of version 1; this wager reads version 2"),
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
        ([HEADER, line(repeats=[1])], "each of the 2 tokens"),
        ([HEADER, line(repeats=[1, 2])], "0 or 1"),
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
