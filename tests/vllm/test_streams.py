"""Requests recognised by their text, in a simulated batch that moves them about as vLLM does."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from waiting import allowed

from wager.vllm.missed import Stream
from wager.vllm.streams import SPREAD, WINDOW, Streams

HEAD, TAIL = list(range(100, 160)), list(range(200, 260))  # what prompts of one template have in common
LONGEST = 400


@dataclass(eq=False)
class Request:
    """A request as the engine knows it."""

    text: list[int]
    chunks: int = 0  # steps in which its prompt is only read
    known: list[int] = field(default_factory=list)  # its text when its stream was last seen
    stream: Stream | None = None
    seen: int = -1  # the step it was last seen in


class Batch:
    """The rows of vLLM's input batch: who is in which, and the two arrays its proposer is shown."""

    def __init__(self, rows: int) -> None:
        self.requests: list[Request | None] = []
        self.tokens = np.full((rows, LONGEST), -7, dtype=np.int32)
        self.lengths = np.zeros(rows, dtype=np.int32)

    def change(self, leave: list[Request], enter: list[Request]) -> None:
        """Take requests out and in: the lowest holes are filled first, then the last rows move into those left."""
        self.requests = [None if request in leave else request for request in self.requests]
        for request in enter:
            if None in self.requests:
                row = self.requests.index(None)
                self.requests[row] = request
            else:
                row = len(self.requests)
                self.requests.append(request)
            self.write(row)
        while None in self.requests:
            last = self.requests.pop()
            if last is not None:
                hole = self.requests.index(None)
                self.requests[hole] = last
                n = self.lengths[hole] = self.lengths[len(self.requests)]
                self.tokens[hole, :n] = self.tokens[len(self.requests), :n]

    def write(self, row: int) -> None:
        request = self.requests[row]
        assert request is not None
        self.tokens[row, : len(request.text)] = request.text
        self.lengths[row] = len(request.text)

    def swap(self, one: int, two: int) -> None:
        self.requests[one], self.requests[two] = self.requests[two], self.requests[one]
        n = int(max(self.lengths[[one, two]]))
        self.tokens[[one, two], :n] = self.tokens[[two, one], :n]
        self.lengths[[one, two]] = self.lengths[[two, one]]

    def sample(self, rng: random.Random, token: Callable[[Request], int], most: int) -> list[list[int]]:
        """Let every request go on, and leave rejected drafts behind its end, as vLLM does."""
        sampled: list[list[int]] = []
        for row, request in enumerate(self.requests):
            assert request is not None
            if request.chunks:
                request.chunks -= 1
                sampled.append([])
                continue
            new = []
            for _ in range(rng.choice([1, 1, 1, 2, 3][: most + 2])):
                new.append(token(request))
                request.text.append(new[-1])
            sampled.append(new)
            self.write(row)
            n = len(request.text)
            self.tokens[row, n : n + 4] = [rng.randrange(5) for _ in self.tokens[row, n : n + 4]]
        return sampled


def template(rng: random.Random, places: int) -> list[int]:
    """A prompt that differs from others of its kind in few tokens, far from its start and its end."""
    middle = [rng.randrange(400, 403) for _ in range(places)]
    return [*HEAD[:31], *middle[:1], *HEAD[31:], *middle[1:], *TAIL]


def prompt(rng: random.Random, past: list[Request]) -> list[int]:
    """A new prompt: any, one of a template, one that was there already, or a text that goes on."""
    kind = rng.random()
    if kind < 0.3 or not past:
        return [rng.randrange(3) for _ in range(rng.choice([1, 5, 20, 60]))]
    if kind < 0.8:  # some are as long as an older text with its output
        return template(rng, rng.choice([2, 2, 2, 3, 4, 5]))
    if kind < 0.9:
        return list(rng.choice(past).text[: rng.choice([30, 150])])
    return [*rng.choice(past).text[:200], *TAIL[:3]]


def simulate(
    seed: int, steps: int = 250, rows: int = 8, keep: int = 12, idle_steps: int = 60, preempted: float = 0.4
) -> str | None:
    """Run an engine for some steps; the first mistake in words, or None."""
    rng = random.Random(seed)
    live: set[Stream] = set()
    dropped: list[Stream] = []
    streams = Streams(rows, keep=keep, idle_steps=idle_steps, on_drop=dropped.append)
    batch, past, away = Batch(rows), [Request([1, 2, 3])], list[Request]()
    everyone: dict[Stream, Request] = {}
    alike = rng.random() < 0.5  # whether all prompts are of one template and length, and outputs begin alike
    said: dict[Request, int] = {}

    def token(request: Request) -> int:
        said[request] = said.get(request, 0) + 1
        return 300 + said[request] if alike and said[request] < 12 else rng.randrange(3)

    for step in range(steps):
        present = [request for request in batch.requests if request is not None]
        leave = [r for r in present if rng.random() < 0.08 or len(r.text) > LONGEST - 8]
        for request in leave:  # finished and aborted ones never come back, preempted ones do
            if rng.random() < preempted and len(request.text) < LONGEST - 8:
                away.append(request)
        enter = [r for r in away if r not in leave and rng.random() < 0.3]
        away = [r for r in away if r not in enter]
        for request in enter:
            request.chunks = rng.choice([0, 0, 1, 2])
        while len(present) - len(leave) + len(enter) < rows and rng.random() < 0.6:
            text = template(rng, 2) if alike else prompt(rng, past)
            enter.append(Request(text, rng.choice([0, 0, 0, 1, 3])))
            past = [*past[-20:], enter[-1]]
        enter = enter[: rows - len(present) + len(leave)]
        batch.change(leave, enter)
        n = len(batch.requests)
        if n > 1 and rng.random() < 0.5:
            batch.swap(*rng.sample(range(n), 2))
        sampled = batch.sample(rng, token, most=1 if alike else 3)
        found = streams.follow(sampled, batch.lengths, batch.tokens)

        for stream in dropped:
            live.discard(stream)
            everyone.pop(stream).stream = None
        dropped.clear()
        if len(found) != n:
            return f"step {step}: {len(found)} streams for {n} rows"
        columns = list(zip(streams.before.tolist(), streams.counts.tolist(), streams.ends.tolist(), strict=True))
        each = list(zip(batch.requests, found, sampled, columns, strict=True))
        for request, stream, new, sizes in sorted(each, key=lambda row: row[1] is not None and row[1].fresh):
            assert request is not None
            if not new:
                if stream is not None:
                    return f"step {step}: a stream for a row that read its prompt"
                continue
            if stream is None:
                return f"step {step}: no stream for a row that wrote"
            before = request.text[: -len(new)]
            owner = everyone.get(stream)
            if owner is not None and owner is not request:
                if owner.known != before:
                    return f"step {step}: a text of {len(before)} tokens taken for another"
                # of two requests with the same text either may have either's stream
                if request.stream is not None:
                    everyone[request.stream] = owner
                owner.stream, owner.seen, request.stream, request.seen = (
                    request.stream,
                    request.seen,
                    owner.stream,
                    owner.seen,
                )
            elif owner is None and request.stream is not None:
                return f"step {step}: a known text taken for a new one"
            if stream.fresh != (request.stream is None):
                return f"step {step}: fresh is {stream.fresh}"
            if stream.resumed != (request.stream is not None and request.seen < step - 1):
                return f"step {step}: resumed is {stream.resumed}"
            if sizes != (0 if stream.fresh else len(before), len(new), len(request.text)):
                return f"step {step}: {sizes} where {len(new)} tokens end a text of {len(request.text)}"
        for request, stream in zip(batch.requests, found, strict=True):
            if request is not None and stream is not None:
                request.stream, request.seen, request.known = stream, step, list(request.text)
                everyone[stream] = request
                live.add(stream)
        slots = {stream.slot for stream in live}
        if len(slots) != len(live) or max(slots, default=0) >= streams.slots:
            return f"step {step}: {len(live)} streams in {len(slots)} slots"
        if len(live) != len(streams) or len(live) > rows + keep:
            return f"step {step}: {len(live)} streams known"
    return None


@pytest.mark.parametrize("seed", range(24))
def test_a_stream_is_always_the_same_request(seed: int) -> None:
    assert simulate(seed, rows=[1, 2, 8, 16][seed % 4]) is None


def test_without_preemption_nothing_missed_need_be_kept() -> None:
    for seed in range(8):
        assert simulate(seed, keep=0, preempted=0) is None
        assert simulate(seed, idle_steps=0, preempted=0) is None


def _by_length_alone(self: Streams, flat: np.ndarray, before: np.ndarray) -> np.ndarray:
    return self._lengths[: len(before)] == before


def _never(self: Streams, fingerprints: list[int], at: object) -> None:
    pass


def _by_few_tokens(self: Streams, text: np.ndarray, length: int) -> int:
    return int(text[max(0, length - WINDOW) : length].sum())


@pytest.mark.parametrize(
    ("part", "bug"), [("_alike", _by_length_alone), ("_note_ambiguous", _never), ("_digest", _by_few_tokens)]
)
def test_a_careless_comparison_would_be_noticed(
    part: str, bug: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Streams, part, bug)
    assert any(simulate(seed) is not None for seed in range(24))


def _flags(stream: Stream) -> tuple[int, bool, bool]:
    return stream.slot, stream.fresh, stream.resumed


def _nowhere(self: Streams, flat: np.ndarray, before: np.ndarray) -> np.ndarray:
    return np.zeros(len(before), dtype=np.bool_)


@pytest.mark.parametrize("seed", range(12))
def test_rows_recognised_at_a_glance_are_those_a_full_search_finds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, rows = random.Random(seed), [1, 3, 8, 16][seed % 4]
    glance, search = Streams(rows, keep=12, idle_steps=20), Streams(rows, keep=12, idle_steps=20)
    monkeypatch.setattr(search, "_alike", _nowhere.__get__(search))  # as if no row held what it held
    batch, away = Batch(rows), list[Request]()
    pairs: dict[Stream | None, Stream | None] = {}
    glances = 0
    for step in range(200):
        present = [request for request in batch.requests if request is not None]
        leave = [r for r in present if rng.random() < 0.03 or len(r.text) > LONGEST - 8]
        enter = [r for r in away if rng.random() < 0.2]
        away = [r for r in away if r not in enter] + [r for r in leave if len(r.text) < LONGEST - 8]
        while len(present) - len(leave) + len(enter) < rows and rng.random() < 0.5:  # no two prompts are the same
            middle = [400 + step, 400 + len(enter)]
            enter.append(Request([*HEAD, *middle, *TAIL], rng.choice([0, 0, 1, 3])))
        batch.change(leave, enter[: rows - len(present) + len(leave)])
        if len(batch.requests) > 1 and rng.random() < 0.2:
            batch.swap(*rng.sample(range(len(batch.requests)), 2))
        sampled = batch.sample(rng, lambda request: 7, most=3)
        held = glance._by_row
        found, expected = (s.follow(sampled, batch.lengths, batch.tokens) for s in (glance, search))
        for one, other in zip(found, expected, strict=True):
            assert pairs.setdefault(one, other) is other
            assert one is None or other is None or _flags(one) == _flags(other)
        for name in ("counts", "ends", "before"):
            assert getattr(glance, name).tolist() == getattr(search, name).tolist()
        assert len(glance) == len(search)
        glances += bool(found) and found is held  # the same list while nobody comes, goes or moves
    assert 20 < glances < 200


def show(streams: Streams, *texts: list[int], new: int = 1) -> list[Stream | None]:
    """One step with these texts in the first rows, their last tokens just sampled."""
    tokens = np.zeros((streams.max_rows, LONGEST), dtype=np.int32)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
    return streams.follow([text[len(text) - new :] for text in texts], np.array([*map(len, texts)]), tokens)


def test_one_request_after_the_other_is_never_mistaken_whatever_token_differs() -> None:
    text = [i % 3 for i in range(150)]
    for place in range(150):
        streams = Streams(4)
        (first,) = show(streams, text)
        other = text.copy()
        other[place] = 9
        (second,) = show(streams, [*other, 5])
        assert second is not first
        assert second is not None
        assert second.fresh


def test_two_requests_of_one_template_that_swap_rows_keep_their_streams() -> None:
    one, two = ([*HEAD, middle, *TAIL, 7] for middle in (1, 2))
    place = len(HEAD)
    assert place not in [i * len(one) // SPREAD for i in range(SPREAD)]  # looking at spread tokens does not tell
    streams = Streams(4)
    first, second = show(streams, one, two)
    assert show(streams, [*two, 8], [*one, 8]) == [second, first]
    assert show(streams, [*one, 8, 8], [*two, 8, 8]) == [first, second]


def test_requests_with_the_same_text_get_a_stream_each() -> None:
    streams = Streams(4)
    first = show(streams, *[[1, 2, 3]] * 4)
    assert len({stream.slot for stream in first if stream is not None}) == 4
    second = show(streams, [1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3, 4], [1, 2, 3, 6])
    assert second == first
    third = show(streams, [1, 2, 3, 6, 1], [1, 2, 3, 4, 1], [1, 2, 3, 4, 2])
    assert third[0] is first[3]
    assert {third[1], third[2]} == {first[0], first[2]}


def test_the_next_turn_of_a_conversation_is_a_new_request() -> None:
    for unseen in (0, 64):
        streams = Streams(4, unseen=unseen)
        text = list(range(50))
        (first,) = show(streams, text)
        (second,) = show(streams, [*text, 90, 91, 92])
        assert second is not None
        assert second.fresh
        assert second is not first


def test_texts_that_all_grew_unseen_are_known_again() -> None:
    texts = [[*HEAD, row, *TAIL] for row in range(4)]
    for unseen, known in ((0, False), (3, False), (8, True)):
        streams = Streams(4, unseen=unseen)
        before = show(streams, *texts)
        grown = [[*text, *range(5 + row)] for row, text in enumerate(texts)]
        after = show(streams, *reversed(grown))
        assert (after == before[::-1]) is known
        for stream in after:
            assert stream is not None
            assert stream.resumed is known
            assert stream.fresh is not known
        assert streams.ends.tolist() == [*map(len, reversed(grown))]
        assert streams.before.tolist() == [len(HEAD) + len(TAIL) + 1 if known else 0] * 4


def test_missed_streams_are_dropped_the_oldest_first() -> None:
    dropped: list[Stream] = []
    streams = Streams(1, keep=2, idle_steps=5, on_drop=dropped.append)
    seen = [show(streams, [number] * 20)[0] for number in range(4)]
    assert dropped == seen[:1]
    for _ in range(10):
        show(streams)
    assert dropped == seen
    assert len(streams) == 0
    (last,) = show(streams, [1, 2, 3])
    streams.reset()
    assert dropped[-1] is last
    assert len(streams) == 0


def test_a_batch_larger_than_announced_is_refused() -> None:
    with pytest.raises(ValueError, match="3 rows is more than the 2"):
        Streams(2).follow([[1]] * 3, np.ones(3), np.ones((3, 9)))
    with pytest.raises(ValueError, match="at least 1 row, not 0"):
        Streams(0)
    with pytest.raises(ValueError, match="0 or more, not -1"):
        Streams(1, idle_steps=-1)


@pytest.mark.parametrize(("rows", "microseconds"), [(16, 20), (256, 120)])
def test_following_a_batch_takes_microseconds(rows: int, microseconds: int) -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 50_000, (rows, 4096)).astype(np.int32)
    lengths = rng.integers(1900, 2100, rows).astype(np.int32)
    streams = Streams(rows)
    best = 1.0
    for step in range(500):
        new = rng.integers(1, 4, rows, dtype=np.int32)
        sampled = [tokens[row, n : n + k].tolist() for row, (n, k) in enumerate(zip(lengths, new, strict=True))]
        lengths += new
        began = time.perf_counter()
        streams.follow(sampled, lengths, tokens)
        if step:
            best = min(best, time.perf_counter() - began)
    assert best <= allowed(microseconds * 1e-6), f"{best * 1e6:.0f} microseconds"
