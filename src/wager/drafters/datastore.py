"""A datastore: a corpus of tokens on disk in which the longest match of a context's end is found in microseconds."""

from __future__ import annotations

import hashlib
import json
import mmap
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from wager.core.require import require

FORMAT, VERSION = "wager-datastore", 1
DEPTH = 16  # tokens; the suffixes are in order up to here, so no match is longer
HEADER_BYTES = 4096  # one line of JSON, filled up with spaces
SIGNPOSTS = 4096  # suffixes kept in memory, evenly spread: half of a binary search needs no look at the file
SUFFIX_BYTES = 4  # a position in the corpus; tokens are numbered below 2**32

# The corpus is kept backwards, as big-endian numbers with a separator around every document, and so its suffixes are
# what stands before each position, nearest token first: plain comparison of bytes sorts them, and one binary search
# for the context read backwards finds the longest match of its end. The separator is the highest number of the width,
# which no token has: no match reaches across it.


@dataclass(frozen=True, slots=True)
class Header:
    """What a datastore says of itself."""

    tokens: int  # of all documents, without separators
    documents: int
    vocabulary: int  # every token is below
    width: int  # bytes of a token: 2 or 4
    cells: int  # tokens and separators
    model: str = ""  # whose tokenizer it was made with
    fingerprint: str = ""  # of that tokenizer's vocabulary
    byteorder: str = sys.byteorder  # of the suffixes

    @property
    def corpus_bytes(self) -> int:
        """Bytes of the corpus, filled up so that the suffixes after it are aligned."""
        return -(-self.cells * self.width // 8) * 8

    @property
    def file_bytes(self) -> int:
        """Size of the whole file."""
        return HEADER_BYTES + self.corpus_bytes + self.tokens * SUFFIX_BYTES

    def encode(self) -> bytes:
        """The header as it stands in the file."""
        line = json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}).encode()
        require(len(line) < HEADER_BYTES, f"the model name of a datastore is too long: {len(self.model)} characters")
        return line.ljust(HEADER_BYTES - 1) + b"\n"

    @classmethod
    def decode(cls, raw: bytes, path: Path) -> Header:
        """The header of the file at this path, checked."""
        try:
            record = json.loads(raw)
        except ValueError:
            record = None
        if not isinstance(record, dict) or record.pop("format", None) != FORMAT:
            raise ValueError(f"{path} is not a wager datastore; `wager datastore build` makes one")
        version = record.pop("version", None)
        if version != VERSION:
            raise ValueError(f"{path} is a datastore of version {version}, this wager reads {VERSION}; build it again")
        types = {name: type(value).__name__ for name, value in record.items()}
        whole = types == {field.name: field.type for field in fields(cls)}
        require(whole, f"{path} has a damaged datastore header; build it again")
        header = cls(**record)
        fits = header.width in (2, 4) and 0 < header.tokens < header.cells and header.byteorder == sys.byteorder
        require(fits, f"{path} has a datastore header that does not fit this machine; build it again")
        return header


class Datastore:
    """An opened datastore, read straight from the file as it is needed."""

    def __init__(self, path: Path, header: Header, content: mmap.mmap) -> None:
        self.path, self.header = path, header
        self._content = content
        # places in the corpus, in the order of what follows there
        self.suffixes = memoryview(content)[HEADER_BYTES + header.corpus_bytes : header.file_bytes].cast("I")
        self._stride = -(-header.tokens // SIGNPOSTS)
        depth_bytes = DEPTH * header.width
        self._signposts = [self._before(place, depth_bytes) for place in range(0, header.tokens, self._stride)]

    @classmethod
    def open(cls, path: Path | str) -> Datastore:
        """The datastore in this file; ValueError where it is none, or not whole."""
        path = Path(path)
        require(path.is_file(), f"no datastore {path}; `wager datastore build` makes one")
        with path.open("rb") as file:
            header = Header.decode(file.read(HEADER_BYTES), path)
            size, whole = path.stat().st_size, header.file_bytes
            require(size == whole, f"datastore {path} has {size:,} bytes, not {whole:,}; build it again")
            return cls(path, header, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def close(self) -> None:
        """Let go of the file."""
        self.suffixes.release()
        self._content.close()

    def check(self, fingerprint: str) -> None:
        """Refuse a tokenizer other than the one the datastore was made with."""
        if self.header.fingerprint and fingerprint != self.header.fingerprint:
            made = f" of {self.header.model}" if self.header.model else ""
            other = f"another tokenizer{made} ({self.header.fingerprint}, not {fingerprint})"
            raise ValueError(f"datastore {self.path} was made with {other}; build one for this model")

    def corpus(self) -> memoryview:
        """The tokens and separators as they stand in the file: backwards, big-endian, ``header.width`` bytes each."""
        return memoryview(self._content)[HEADER_BYTES : HEADER_BYTES + self.header.cells * self.header.width]

    def key(self, tail: Sequence[int]) -> bytes:
        """The last tokens of a context as they are searched for."""
        width = self.header.width
        return b"".join([token.to_bytes(width, "big") for token in tail[: -DEPTH - 1 : -1]])

    def find(self, key: bytes) -> tuple[int, int]:
        """Where the key would stand among the suffixes, and how many of its tokens match there: the most anywhere."""
        post = bisect_left(self._signposts, key)
        low, high = max(0, post - 1) * self._stride, min(post * self._stride, len(self.suffixes))
        at = self._bisect(key, low, high)
        beside = (near for near in (at - 1, at) if 0 <= near < len(self.suffixes))
        return at, max(self._common(key, self._before(near, len(key))) for near in beside)

    def span(self, prefix: bytes, at: int) -> tuple[int, int]:
        """All suffixes that begin with this, given a place inside or beside them."""
        total, size = len(self.suffixes), len(prefix)
        # from the place outwards in doubling steps, as most spans are short
        step, low = 1, at
        while low > 0 and self._before(low - 1, size) == prefix:
            low, step = max(0, low - step), step * 2
        low = self._bisect(prefix, low, at)
        step, high = 1, at
        while high < total and self._before(high, size) == prefix:
            high, step = min(total, high + step), step * 2
        return low, self._bisect(prefix, at, high, bisect_right)

    def after(self, places: Sequence[int], length: int) -> list[bytes]:
        """The tokens that follow at each of these places, the nearest last; separators where the corpus ends."""
        content, suffixes, width = self._content, self.suffixes, self.header.width
        ends = [HEADER_BYTES + suffixes[place] * width for place in places]
        size = length * width
        if min(ends) - size < HEADER_BYTES:
            return [content[max(HEADER_BYTES, end - size) : end].rjust(size, b"\xff") for end in ends]
        return [content[end - size : end] for end in ends]

    def _before(self, place: int, size: int) -> bytes:
        """The tokens up to there, the nearest first: so many bytes of that suffix."""
        start = HEADER_BYTES + self.suffixes[place] * self.header.width
        return self._content[start : start + size]

    def _bisect(self, key: bytes, low: int, high: int, bisect: Callable[..., int] = bisect_left) -> int:
        content, width, size = self._content, self.header.width, len(key)

        def suffix(position: int) -> bytes:
            start = HEADER_BYTES + position * width
            return content[start : start + size]

        return bisect(self.suffixes, key, low, high, key=suffix)

    def _common(self, left: bytes, right: bytes) -> int:
        """Tokens two keys have in common at their beginning."""
        width = self.header.width
        differs = (i for i in range(0, len(left), width) if left[i : i + width] != right[i : i + width])
        return (len(left) if left == right else next(differs, len(left))) // width


def fingerprint(tokenizer: Any) -> str:
    """A short name for a tokenizer's vocabulary: two with the same name number their tokens alike."""
    vocabulary = sorted(tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()[:16]
