"""The trace format: rounds as JSON lines.

The first line is a header; every other line is one request's start or one round.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

from wager.core.arm import Arm
from wager.core.context import PromptFeatures
from wager.core.jsonl import LinesWriter, read_lines
from wager.core.require import require
from wager.core.round import Round

FORMAT = "wager-trace"
VERSION = 2
COUNTS = ("drafted", "accepted", "emitted", "batch", "rejected", "lag", "unmerged")


class TraceError(ValueError):
    """The file is not a trace, or not one this version reads."""


@dataclass(frozen=True, slots=True)
class Request:
    """Marks where a request begins."""

    label: str = ""  # e.g. the task the prompt belongs to
    prompt: PromptFeatures | None = None


Record = Request | Round


def _compact(value: Any) -> dict[str, Any]:
    """A dataclass as JSON, fields that hold their default left out."""
    out: dict[str, Any] = {}
    for f in fields(value):
        held = getattr(value, f.name)
        if held == f.default or (isinstance(held, Mapping) and not held):
            continue
        if isinstance(held, Arm):
            held = str(held)
        elif isinstance(held, PromptFeatures):
            held = _compact(held)
        elif isinstance(held, Mapping):
            held = dict(held)
        out[f.name] = held
    return out


def encode(record: Record) -> dict[str, Any]:
    """What a line of a trace holds, as JSON."""
    return {"round" if isinstance(record, Round) else "request": _compact(record)}


def decode(line: str) -> Record:
    """Read one line of a trace back."""
    try:
        (kind, body), *rest = json.loads(line).items()
        one = not rest and kind in ("round", "request")
        require(one, f"a line holds one 'round' or one 'request', not {kind!r}")
        if kind == "request":
            if (features := body.pop("prompt", None)) is not None:
                features = PromptFeatures(**{**features, "tfidf": tuple(features.get("tfidf", ()))})
            return Request(prompt=features, **body)
        require(all(isinstance(body.get(count, 0), int) for count in COUNTS), "a count is a whole number")
        others = {name: x if isinstance(x, int) else tuple(x) for name, x in body.pop("others", {}).items()}
        overlap = tuple(body.pop("overlap", ()))
        return Round(arm=Arm.parse(body.pop("arm")), overlap=overlap, others=others, **body)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise TraceError(f"not a trace record ({error})") from error


class TraceWriter(LinesWriter):
    """Append records to a new trace file; use it as a context manager."""

    format, version = FORMAT, VERSION

    def write(self, record: Record) -> None:
        """Append one record."""
        self.append(encode(record))


def read_meta(path: str | Path) -> dict[str, Any]:
    """What the header says of the trace: model, machine, command."""
    meta: dict[str, Any] = next(read_lines(path, FORMAT, VERSION, TraceError, decode))
    return meta


def read(path: str | Path) -> Iterator[Record]:
    """The records of a trace in order; a truncated last line is left out."""
    return islice(read_lines(path, FORMAT, VERSION, TraceError, decode), 1, None)
