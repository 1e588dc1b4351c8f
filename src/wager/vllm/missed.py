"""Requests that are not in the batch: preempted, or over. They are found again by their text for some steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

Key = tuple[int, int]  # length and digest of a text


@dataclass(slots=True, eq=False)
class Stream:
    """One request as long as it lives, in whatever row it is."""

    slot: int  # a small number of its own while it is known, another's afterwards: for arrays by request
    fresh: bool = True  # first seen in this step
    resumed: bool = False  # known, but not seen in the step before: its last proposal was not verified
    payload: Any = None  # the caller's own
    seen: int = 0  # the step it was last seen in, set when it is missed


class MissedStreams:
    """Streams that were not in the last step, by their texts; iterates over them, missed longest first."""

    def __init__(self) -> None:
        self._keys: dict[Stream, tuple[Key, int]] = {}  # text, fingerprint
        self._by_text: dict[Key, list[Stream]] = {}
        self._fingerprints: Counter[int] = Counter()  # how many of them have it

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._keys)

    def any_with(self, fingerprints: Iterable[int]) -> bool:
        """Whether one of them could be taken for a text with one of these fingerprints."""
        return bool(self._fingerprints) and not self._fingerprints.keys().isdisjoint(fingerprints)

    def add(self, stream: Stream, key: Key, fingerprint: int) -> None:
        """Miss this stream from now on."""
        self._keys[stream] = key, fingerprint
        self._fingerprints[fingerprint] += 1
        self._by_text.setdefault(key, []).append(stream)

    def take(self, key: Key) -> Stream | None:
        """Take out one of the streams of this text: the one seen last."""
        stream = take(self._by_text, key)
        if stream is not None:
            self._forget(stream)
        return stream

    def drop_first(self) -> Stream:
        """Take out the one missed longest."""
        stream = next(iter(self._keys))
        key = self._forget(stream)
        self._by_text[key].remove(stream)
        if not self._by_text[key]:
            del self._by_text[key]
        return stream

    def _forget(self, stream: Stream) -> Key:
        key, fingerprint = self._keys.pop(stream)
        self._fingerprints[fingerprint] -= 1
        if not self._fingerprints[fingerprint]:
            del self._fingerprints[fingerprint]
        return key


def take(streams: dict[Key, list[Stream]], key: Key) -> Stream | None:
    """Take out one of the streams of this text: the one seen last."""
    found = streams.get(key)
    if not found:
        return None
    stream = found.pop()
    if not found:
        del streams[key]
    return stream
