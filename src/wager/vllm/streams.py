"""Which row of vLLM's batch is which request: told by the text alone, since no request's name is passed on."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from wager.vllm.missed import Key, MissedStreams, Stream, take

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Tokens = npt.NDArray[np.int32]

WINDOW = 16  # last tokens compared: the end of an output, which a new prompt in the same row does not end with
SPREAD = 16  # tokens compared evenly over the whole text


class Streams:
    """Gives every row of a batch its Stream, step after step, while requests come, go, move and return.

    In most steps every row holds the request it held before. Whether it does is looked up in all rows at once: the
    text must be as much longer as tokens were sampled, its last tokens and some spread over it must be the same.
    Every text's digest is kept as well, so that a text can be compared in full without being kept. It is for rows
    that differ, which are searched for among all known streams; for ambiguous rows, which might have swapped
    places; and for one more row each step in turn, so that no mistake could last, nor even begin with one row.

    Of the last step, by row: ``counts`` tokens were sampled, ``ends`` tokens are in the text, and ``before`` of them
    were known already, 0 where the stream is fresh. They are never written to again.
    """

    def __init__(
        self,
        max_rows: int,
        *,
        idle_steps: int = 2000,
        keep: int = 1024,
        unseen: int = 0,
        on_drop: Callable[[Stream], None] | None = None,
    ) -> None:
        if max_rows < 1:
            raise ValueError(f"a batch has at least 1 row, not {max_rows}")
        if idle_steps < 0 or keep < 0 or unseen < 0:
            raise ValueError(f"idle_steps, keep and unseen are 0 or more, not {idle_steps}, {keep} and {unseen}")
        self.max_rows = max_rows
        self.idle_steps = idle_steps  # a stream missed for more steps is dropped
        self.keep = keep  # streams kept that are missed; of more, those missed longest are dropped
        self.unseen = unseen  # most tokens the texts may have grown by in steps that were not followed; 0: never any
        self.slots = max_rows + keep  # every stream's slot is below this
        self._on_drop = on_drop
        self._step = 0
        self._most = 0  # tokens a row can hold
        self._weights: Integers = np.zeros(0, dtype=np.int64)  # by position in a text
        self.counts = self.ends = self.before = np.zeros(0, dtype=np.int64)
        # By row. Places are positions in the flat array of all rows' tokens.
        self._starts: Integers = np.zeros(max_rows, dtype=np.int64)
        self._lengths: Integers = np.full(max_rows, -1, dtype=np.int64)  # -1: no stream
        self._digests: Integers = np.zeros(max_rows, dtype=np.int64)
        self._digested: Integers = np.zeros(max_rows, dtype=np.int64)  # tokens in the digest, all but WINDOW or fewer
        self._renew: Integers = np.zeros(max_rows, dtype=np.int64)  # length from which on to spread anew
        self._places: Integers = np.zeros((max_rows, SPREAD), dtype=np.int64)  # over the whole text
        self._tokens: Tokens = np.zeros((max_rows, SPREAD), dtype=np.int32)
        self._last_places: Integers = np.zeros((max_rows, WINDOW), dtype=np.int64)  # at its end
        self._last_tokens: Tokens = np.zeros((max_rows, WINDOW), dtype=np.int32)
        self._clear()

    def _clear(self) -> None:
        self._free = list(range(self.slots))  # a heap: the lowest is given out first
        self._by_row: list[Stream | None] = []  # in the last step
        self._decoding = 0  # how many of them are not None
        self._flagged: list[Stream] = []  # fresh or resumed in the last step
        self._behind = 0  # most tokens of a text not in its digest
        self._ambiguous: list[int] = []  # rows whose fingerprint another text has too
        self._missed = MissedStreams()
        self._lengths[:] = -1

    def __len__(self) -> int:
        """How many streams are known, those missed included."""
        return self._decoding + len(self._missed)

    @property
    def settled(self) -> bool:
        """Whether every stream of the last step had been in the step before."""
        return not self._flagged

    def reset(self) -> None:
        """Drop all streams."""
        streams = [*self._missed, *filter(None, self._by_row)]
        self._clear()
        if self._on_drop is not None:
            for stream in streams:
                self._on_drop(stream)

    def follow(
        self, sampled: list[list[int]], lengths: npt.NDArray[Any], token_ids: npt.NDArray[Any]
    ) -> list[Stream | None]:
        """Each row's stream in this step; None where nothing was sampled, as in a prompt still being read.

        It is the same list, not to be written to, while every row holds the stream it held. ``lengths`` (rows or
        more,) count the sampled tokens, and ``token_ids`` (rows or more, longest) hold them.
        """
        rows = len(sampled)
        if rows > self.max_rows:
            raise ValueError(f"a batch of {rows} rows is more than the {self.max_rows} this was made for")
        if self._most != token_ids.shape[1]:
            self._fit(token_ids.shape[1])
        self._step += 1
        for stream in self._flagged:
            stream.fresh = stream.resumed = False
        self._flagged.clear()

        flat = token_ids.reshape(-1)
        self.counts = counts = np.fromiter(map(len, sampled), np.int64, rows)
        self.ends = ends = lengths[:rows].astype(np.int64)
        self.before = before = ends - counts
        same = self._alike(flat, before)
        active = np.count_nonzero(counts)
        at: Any = slice(rows)
        if active < rows:
            same &= counts > 0
            at = np.flatnonzero(counts)
        ambiguous = self._ambiguous
        if rows and len(sampled[turn := self._step % rows]) == 1:  # a request new to its row has sampled one token
            ambiguous = [turn, *ambiguous]
        if ambiguous:
            self._confirm(token_ids, same, ambiguous)
        if not np.count_nonzero(same) == self._decoding == active or rows != len(self._by_row):
            self._find_streams(token_ids, before, counts > 0, same)
            self._behind = WINDOW  # rows that changed have no tokens spread over them yet
        if active:
            self._behind += int(np.maximum.reduce(counts))
            self._advance(flat, ends[at], counts[at], at)
        if self._missed:
            self._trim()
        return self._by_row

    def _fit(self, most: int) -> None:
        """Prepare for rows of so many tokens."""
        if self._most:
            self.reset()  # places are positions in another array
        self._most = most
        self._starts = np.arange(self.max_rows, dtype=np.int64) * most
        # odd, so that no token is lost in the multiplication
        self._weights = np.random.default_rng(0).integers(-(2**63), 2**63, max(most, WINDOW), dtype=np.int64) | 1

    def _alike(self, flat: npt.NDArray[Any], before: Integers) -> Mask:
        """Rows that seem to hold the text they held."""
        rows = len(before)
        same: Mask = self._lengths[:rows] == before
        # A text shorter than the window has tokens of the row before it in there: should those change, it is searched.
        for places, tokens in ((self._last_places, self._last_tokens), (self._places, self._tokens)):
            there, known = flat.take(places[:rows], mode="wrap"), tokens[:rows]
            if there.tobytes() != known.tobytes():  # almost never; quicker to find out than by numpy
                same &= (there == known).all(axis=1)
        return same

    def _confirm(self, token_ids: npt.NDArray[Any], same: Mask, rows: list[int]) -> None:
        """Compare these rows in full."""
        for row in rows:
            # what is not in the digest is in the window
            if (
                row < len(same)
                and same[row]
                and self._digest(token_ids[row], self._digested[row]) != self._digests[row]
            ):
                same[row] = False

    def _digest(self, text: npt.NDArray[Any], length: int) -> int:
        """A number that another text of this length has only by a chance of less than one in billions."""
        # Multilinear hashing, modulo 2**64: a sum that grows with the text.
        return int(np.dot(text[:length], self._weights[:length]))

    def _find_streams(self, token_ids: npt.NDArray[Any], before: Integers, active: Mask, same: Mask) -> None:
        """Find the streams of all rows that do not hold the request they held."""
        rows = len(same)
        held = len(self._by_row)
        lengths, window = self._lengths[:held], self._last_tokens[:held]
        self._settle(slice(held), lengths, window)
        fingerprints = dict(zip(self._by_row, self._fingerprint(lengths, window), strict=True))
        by_row: list[Stream | None] = [None] * rows
        left: dict[Key, list[Stream]] = {}  # seen in the last step, not yet in this one
        for row, stream in enumerate(self._by_row):
            if stream is not None and row < rows and same[row]:
                by_row[row] = stream
            elif stream is not None:
                left.setdefault((int(lengths[row]), int(self._digests[row])), []).append(stream)
        skipped = not same.any()
        changed = np.flatnonzero(active & ~same).tolist()
        lost: dict[int, Key] = {}  # rows whose text nobody had
        for row in changed:
            key = int(before[row]), self._digest(token_ids[row], before[row])
            self._digested[row], self._digests[row] = key
            self._renew[row] = 0
            if (stream := take(left, key)) is not None:
                skipped = False
            elif (stream := self._missed.take(key)) is not None:
                self._resume(stream)
            else:
                lost[row] = key
            by_row[row] = stream
        known = self._catch_up(token_ids, by_row, left, lost) if skipped and self.unseen else {}
        for key, streams in left.items():
            for stream in streams:
                stream.seen = self._step - 1
                self._missed.add(stream, key, fingerprints[stream])
        self._trim()  # before slots are given out
        for row in lost:
            by_row[row] = stream = Stream(heapq.heappop(self._free))
            self._flagged.append(stream)
        self._last_places[changed] = (self._starts[changed] + before[changed])[:, None] + np.arange(-WINDOW, 0)
        known.update(dict.fromkeys(lost, 0))
        self.before[list(known)] = list(known.values())
        self._lengths[:rows][~active] = -1
        self._lengths[rows:] = -1
        self._by_row, self._decoding = by_row, int(np.count_nonzero(active))

    def _catch_up(
        self,
        token_ids: npt.NDArray[Any],
        by_row: list[Stream | None],
        left: dict[Key, list[Stream]],
        lost: dict[int, Key],
    ) -> dict[int, int]:
        """Find the streams that grew by more than was sampled now; by row, how many of their tokens were known.

        vLLM leaves the proposer out of steps in which some request is about to fill the model's context: all others
        then grow unseen. One text alone that goes on from a known one is rather the next turn of a conversation.
        """
        found: dict[int, tuple[Key, Stream]] = {}
        for row, (length, digest) in lost.items():
            reach = min(self.unseen, length)
            span = slice(length - reach, length)
            terms = token_ids[row, span] * self._weights[span]
            earlier = np.int64(digest) - np.cumsum(terms[::-1])
            for key in zip(range(length - 1, length - reach - 1, -1), earlier.tolist(), strict=True):
                if (stream := take(left, key)) is not None:
                    found[row] = key, stream
                    break
        if len(found) == 1:
            for key, stream in found.values():
                left.setdefault(key, []).append(stream)
            return {}
        for row, (_, stream) in found.items():
            del lost[row]
            by_row[row] = stream
            self._resume(stream)
        return {row: known for row, ((known, _), _) in found.items()}

    def _resume(self, stream: Stream) -> None:
        stream.resumed = True
        self._flagged.append(stream)

    def _advance(self, flat: npt.NDArray[Any], ends: Integers, counts: Integers, at: Any) -> None:
        """Take the sampled tokens of these rows into what is known of their texts."""
        self._last_places[at] += counts[:, None]
        self._last_tokens[at] = window = flat.take(self._last_places[at], mode="wrap")
        self._lengths[at] = ends
        if self._behind > WINDOW:
            places = (self._starts[at] + ends)[:, None] + np.arange(-self._behind, 0)
            self._settle(at, ends, flat.take(places, mode="wrap"))
            self._spread(flat, ends, np.arange(self.max_rows)[at])
            self._behind = 0
        fingerprints = self._fingerprint(ends, window)
        self._ambiguous.clear()
        if len(set(fingerprints)) < len(fingerprints) or self._missed.any_with(fingerprints):
            self._note_ambiguous(fingerprints, at)

    def _settle(self, at: Any, length: Integers, tokens: Tokens) -> None:
        """Take tokens that are not yet in the digests there: those that end the texts are given (rows, tokens)."""
        places = length[:, None] + np.arange(-tokens.shape[1], 0)
        terms = self._weights.take(places, mode="wrap")
        terms *= tokens
        terms *= places >= self._digested[at, None]
        self._digests[at] += terms.sum(axis=1)
        self._digested[at] = length

    def _spread(self, flat: npt.NDArray[Any], length: Integers, rows: Integers) -> None:
        """Choose tokens evenly over each text; again when it has doubled, lest all stand in the prompt."""
        due = np.flatnonzero(length >= self._renew[rows])
        rows, length = rows[due], length[due]
        places = self._starts[rows, None] + np.arange(SPREAD) * length[:, None] // SPREAD
        self._places[rows] = places
        self._tokens[rows] = flat.take(places)
        self._renew[rows] = 2 * length

    def _fingerprint(self, length: Integers, window: Tokens) -> list[int]:
        """Numbers that are the same for texts of the same length and last tokens."""
        fingerprints = window.view(np.int64) @ self._weights[: WINDOW // 2]  # two tokens a number
        fingerprints += length
        return fingerprints.tolist()  # type: ignore[no-any-return]

    def _note_ambiguous(self, fingerprints: list[int], at: Any) -> None:
        """Note the rows that could be taken for another text's, known too, when that one stands there.

        Requests of one template stand at the same length with the same first words written, and vLLM swaps rows.
        """
        texts: dict[int, set[Key]] = {}
        keys = list(zip(self._digested[at].tolist(), self._digests[at].tolist(), strict=True))
        for fingerprint, key in zip(fingerprints, keys, strict=True):
            texts.setdefault(fingerprint, set()).add(key)
        rows = np.arange(self.max_rows)[at].tolist()
        for row, fingerprint in zip(rows, fingerprints, strict=True):
            if len(texts[fingerprint]) > 1 or self._missed.any_with((fingerprint,)):
                self._ambiguous.append(row)

    def _trim(self) -> None:
        """Drop the streams missed for too long, and the oldest of too many."""
        while self._missed:
            stream = next(iter(self._missed))
            if len(self._missed) <= self.keep and self._step - stream.seen <= self.idle_steps:
                return
            self._missed.drop_first()
            heapq.heappush(self._free, stream.slot)
            if self._on_drop is not None:
                self._on_drop(stream)
