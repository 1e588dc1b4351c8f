"""The recording format: for every position of finished texts, what each drafter would have had accepted there.

A trace tells what was played; a recording tells what would have come of anything, so that any policy can be replayed
on it without a model. JSON lines: a header, then one line a text.
"""

import json
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from wager.core.arm import Arm
from wager.core.context import Hint
from wager.core.jsonl import LinesWriter, read_lines

FORMAT = "wager-recording"
VERSION = 2
NO_HINT = Hint()
_set = object.__setattr__


class RecordingError(ValueError):
    """The file is not a recording, or not one this version reads."""


@dataclass(frozen=True, slots=True)
class Track:
    """One drafter along one text; entry i belongs to the round that would begin when i + 1 tokens are there."""

    size: list[int]  # tokens proposed
    agreed: list[int]  # leading ones of them that are the text's own
    match: list[int]  # as in a Hint
    confidence: list[tuple[float, ...]]  # as in a Hint; empty where the drafter has none
    overlap: list[float] = field(default_factory=list)  # 1 - TV at the first token it proposes; empty: not measured
    cheap: bool = True  # asked in every round for nothing; otherwise its hint comes with its draft, too late
    # shape, as in an arm (4@4x16) -> tokens of a tree of this shape that a round would accept, where it drafts trees
    trees: dict[str, list[int]] = field(default_factory=dict)
    head: bool = False  # reads the target's features: what it drafted itself it has not read

    def hint(self, at: int, room: int) -> Hint:
        """What the drafter would have said there, asked for at most ``room`` tokens."""
        size = self.size[at]
        if not size:
            return NO_HINT
        # The track's columns were checked when it was made; checking every hint again would take a replay's time.
        hint = object.__new__(Hint)
        _set(hint, "match", self.match[at])
        _set(hint, "confidence", self.confidence[at][:room])
        _set(hint, "size", size if size < room else room)
        return hint

    def check(self, positions: int) -> None:
        """Refuse columns that do not fit each other."""
        columns = (self.size, self.agreed, self.match, self.confidence)
        if any(len(column) != positions for column in columns) or (self.overlap and len(self.overlap) != positions):
            raise ValueError(f"a track has {positions} entries in each column")
        if set(map(type, chain(self.size, self.agreed, self.match))) != {int} or min(self.match) < 0:
            raise ValueError("sizes, agreed tokens and matches are whole numbers from 0")
        if not all(0 <= p <= 1 for row in (*self.confidence, self.overlap) for p in row):
            raise ValueError("confidences and overlaps lie in [0, 1]")
        for shape, accepted in self.trees.items():
            depth = Arm.parse(f"tree:{shape}").length
            if len(accepted) != positions or any(type(n) is not int or not 0 <= n <= depth for n in accepted):
                raise ValueError(f"trees of shape {shape} have {positions} numbers of accepted tokens, 0 to {depth}")
        for at, (size, agreed, sure) in enumerate(zip(self.size, self.agreed, self.confidence, strict=True)):
            if not 0 <= agreed <= min(size, positions - at):
                raise ValueError(f"{agreed} of {size} tokens cannot agree with {positions - at} that follow")
            if len(sure) > size:
                raise ValueError(f"{len(sure)} confidences do not fit {size} tokens proposed")


@dataclass(frozen=True, slots=True)
class Text:
    """One finished text; its first token comes out of the prompt's own forward, so rounds begin after it."""

    label: str  # e.g. the task the prompt belongs to
    prompt: int  # tokens of the prompt
    tokens: int  # tokens generated
    tracks: dict[str, Track]  # by drafter
    limit: int = 0  # most tokens it might have had, which drafts reckon with; 0: as many as it has
    # drafter -> other drafter, each pair once -> leading tokens that both propose; entries as in a track
    agreement: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    repeats: list[int] = field(default_factory=list)  # 1: the token had occurred before; as a track; empty: not counted

    def __post_init__(self) -> None:
        if self.tokens < 2 or self.prompt < 1:
            raise ValueError(f"a text has a prompt and at least 2 tokens, not {self.prompt} and {self.tokens}")
        if not self.limit:
            object.__setattr__(self, "limit", self.tokens)
        if self.limit < self.tokens:
            raise ValueError(f"a text of {self.tokens} tokens cannot have been limited to {self.limit}")
        for track in self.tracks.values():
            track.check(self.tokens - 1)
        if self.repeats and (len(self.repeats) != self.tokens - 1 or not set(self.repeats) <= {0, 1}):
            raise ValueError(f"repeats are 0 or 1 for each of the {self.tokens - 1} tokens after the first")
        for one, others in self.agreement.items():
            for other, common in others.items():
                if not {one, other} <= self.tracks.keys() or len(common) != self.tokens - 1:
                    raise ValueError(f"the agreement of {one!r} and {other!r} needs their tracks and as many entries")
                if any(type(n) is not int or n < 0 for n in common):
                    raise ValueError(f"the agreement of {one!r} and {other!r} is in whole numbers from 0")

    def repeated(self, at: int, emitted: int) -> int | None:
        """How many of the tokens that a round emits there had occurred before; None where that was not counted."""
        return sum(self.repeats[at : at + emitted]) if self.repeats else None


class RecordingWriter(LinesWriter):
    """Append texts to a new recording; use it as a context manager."""

    format, version = FORMAT, VERSION

    def write(self, text: Text) -> None:
        """Append one text."""
        tracks = {}
        for name, track in text.tracks.items():
            columns: dict[str, Any] = {"size": track.size, "agreed": track.agreed, "match": track.match}
            if any(track.confidence):
                columns["confidence"] = [[round(p, 3) for p in row] for row in track.confidence]
            if track.overlap:
                columns["overlap"] = [round(p, 3) for p in track.overlap]
            if not track.cheap:
                columns["cheap"] = False
            if track.trees:
                columns["trees"] = track.trees
            if track.head:
                columns["head"] = True
            tracks[name] = columns
        counts = {"prompt": text.prompt, "tokens": text.tokens, "limit": text.limit}
        told = {"label": text.label, **counts, "tracks": tracks, "agreement": text.agreement}
        self.append(told | ({"repeats": text.repeats} if text.repeats else {}))


def read(path: Path) -> tuple[dict[str, Any], list[Text]]:
    """What a recording's header says of it, and its texts; a truncated last line is left out."""
    meta, *texts = read_lines(path, FORMAT, VERSION, RecordingError, _text)
    if not texts:
        raise RecordingError(f"{path} holds no text")
    return meta, texts


def _text(line: str) -> Text:
    try:
        body = json.loads(line)
        tracks = {}
        for name, columns in body.pop("tracks").items():
            confidence = [tuple(row) for row in columns.pop("confidence", None) or ((),) * len(columns["size"])]
            tracks[name] = Track(confidence=confidence, **columns)
        return Text(label=str(body.pop("label")), tracks=tracks, **body)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RecordingError(f"not a recorded text ({error})") from error
