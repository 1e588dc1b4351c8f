"""Making a datastore: documents from files, their tokens, and the order of everything that stands before them."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from wager.core.files import replacing
from wager.core.require import require
from wager.drafters.datastore import DEPTH, HEADER_BYTES, Header

Report = Callable[[float], None]  # told the share of the work done, from 0 to 1
KINDS = (".txt", ".md", ".jsonl")
PIECE = 1 << 16  # characters; a longer text is cut at the next blank line, so that its tokens need not be made at once


def check(files: Sequence[Path]) -> None:
    """Refuse, before long work, files that no documents can be read from."""
    for path in files:
        require(path.is_file(), f"no file {path} to read")
        require(path.suffix in KINDS, f"cannot read {path}: a corpus is made of {', '.join(KINDS)} files")


def documents(files: Sequence[Path], field: str | None = None, report: Report | None = None) -> Iterator[str]:
    """The documents in these files: a text is one, every record of a JSON-lines file is one."""
    check(files)
    total, done = sum(path.stat().st_size for path in files), 0
    for path in files:
        with path.open("rb") as file:
            for document in _records(file, path, field) if path.suffix == ".jsonl" else _pieces(file, path):
                yield document
                if report is not None and total:
                    report((done + file.tell()) / total)
        done += path.stat().st_size


def _pieces(file: BinaryIO, path: Path) -> Iterator[str]:
    piece = ""
    for line in _lines(file, path):
        piece += line
        if len(piece) >= PIECE and not line.strip():
            yield piece
            piece = ""
    if piece:
        yield piece


def _records(file: BinaryIO, path: Path, field: str | None) -> Iterator[str]:
    for number, line in enumerate(_lines(file, path), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            raise ValueError(f"line {number} of {path} is not JSON") from None
        has = record if isinstance(record, dict) else {}
        if field is not None and field not in has:
            there = ", ".join(has) or "no fields at all"
            raise ValueError(f"line {number} of {path} has no field {field!r}; it has {there}")
        yield "\n".join(_strings(record if field is None else record[field]))


def _lines(file: BinaryIO, path: Path) -> Iterator[str]:
    try:
        for line in iter(file.readline, b""):
            yield line.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text in UTF-8") from None


def _strings(value: Any) -> Iterator[str]:
    """All strings in a JSON value, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def build(
    texts: Iterable[str], tokenize: Callable[[str], Sequence[int]], path: Path | str, *, vocabulary: int,
    model: str = "", fingerprint: str = "", report: Report | None = None,
) -> Header:  # fmt: skip
    """Write a datastore of these texts, whole or not at all; ``report`` is told how far the sorting is."""
    pieces = []
    for text in texts:
        tokens = np.asarray(tokenize(text), dtype=np.int64)
        wrong = tokens[(tokens < 0) | (tokens >= vocabulary)]
        if wrong.size:
            raise ValueError(f"the tokenizer gave token {wrong[0]}, which is not below the vocabulary of {vocabulary}")
        if tokens.size:
            pieces.append(tokens.astype(np.uint32))
    require(bool(pieces), "there is nothing in these files to make a datastore of")
    width = 2 if vocabulary < 0xFFFF else 4
    cells = backwards(pieces, 0xFFFF if width == 2 else 0xFFFFFFFF)
    if len(cells) >= 2**32:
        raise ValueError(f"a datastore holds fewer than 2**32 tokens and separators, not {len(cells):,}; use less text")
    header = Header(sum(map(len, pieces)), len(pieces), vocabulary, width, len(cells), model, fingerprint)
    del pieces
    suffixes = suffix_order(cells, width, report)
    with replacing(Path(path)) as file:
        file.write(header.encode())
        cells.astype(f">u{width}").tofile(file)
        file.write(b"\0" * (HEADER_BYTES + header.corpus_bytes - file.tell()))
        suffixes.astype("=u4").tofile(file)
    return header


def backwards(pieces: Sequence[npt.NDArray[np.uint32]], separator: int) -> npt.NDArray[np.uint32]:
    """All documents read backwards, the last one first, with a separator before, between and DEPTH of them after."""
    cells = np.full(sum(map(len, pieces)) + len(pieces) + DEPTH, separator, dtype=np.uint32)
    at = 1
    for piece in reversed(pieces):
        cells[at : at + len(piece)] = piece[::-1]
        at += len(piece) + 1
    return cells


def suffix_order(cells: npt.NDArray[np.uint32], width: int, report: Report | None = None) -> npt.NDArray[np.int64]:
    """Positions of all tokens, sorted by the DEPTH cells from there on."""
    # Prefix doubling (Manber and Myers 1993): the order by twice as many cells is the order of pairs of ranks.
    known = 8 // width  # as many cells as fit in 64 bits make the first key
    padded = np.concatenate([cells, np.full(DEPTH, cells[-1], dtype=np.uint32)]).astype(np.uint64)
    keys = np.zeros(len(cells), dtype=np.uint64)
    for i in range(known):
        keys = (keys << np.uint64(8 * width)) | padded[i : i + len(cells)]
    del padded
    sorts = (DEPTH // known).bit_length()
    for done in range(1, sorts + 1):
        order = np.argsort(keys)
        if report is not None:
            report(done / sorts)
        if done == sorts:
            break
        arranged = keys[order]
        rank = np.empty(len(cells), dtype=np.uint64)
        rank[order] = np.concatenate([[0], np.cumsum(arranged[1:] != arranged[:-1])])
        # past the end there are only separators, whose rank is the highest
        keys = rank * np.uint64(len(cells))
        keys[:-known] += rank[known:]
        keys[-known:] += rank.max()
        known *= 2
    tokens: npt.NDArray[np.int64] = order[cells[order] != cells[-1]]
    return tokens
