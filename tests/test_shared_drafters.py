"""Drafters that follow several texts at once: apart as if alone, together in what they remember."""

from __future__ import annotations

import gc
import random
import tracemalloc
import weakref
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import drafters as slow

from wager.drafters import Draft, Drafter, corpus
from wager.drafters.draft_model import DraftModel
from wager.drafters.prompt_lookup import PromptLookup
from wager.drafters.retrieval import Retrieval
from wager.drafters.suffix import Suffix
from wager.drafters.trie import Document, Trie

ARCTIC = find_spec("arctic_inference") is not None
ENGINES = [
    pytest.param("arctic", marks=pytest.mark.skipif(not ARCTIC, reason="arctic-inference is not installed")),
    "own",
]
HOW = {"depth": 12, "factor": 1.5, "least": 0.1}


def told(draft: Draft) -> slow.Proposal:
    return draft.tokens, draft.hint.match, [round(sure, 5) for sure in draft.hint.confidence]


def close(left: slow.Proposal, right: slow.Proposal) -> bool:
    return left[:2] == right[:2] and left[2] == pytest.approx(right[2], abs=1e-5)


def text(rng: random.Random, low: int, high: int, length: int) -> list[int]:
    """Tokens of a range, with phrases that come back."""
    phrases = [[rng.randrange(low, high) for _ in range(rng.randrange(1, 6))] for _ in range(4)]
    tokens: list[int] = []
    while len(tokens) < length:
        tokens += rng.choice(phrases) if rng.random() < 0.8 else [rng.randrange(low, high)]
    return tokens[:length]


def finish(drafter: Drafter, output: list[int]) -> None:
    drafter.begin([1, 2])
    drafter.extend(output)
    drafter.end()


@pytest.mark.parametrize("engine", ["prompt-lookup", "retrieval", *ENGINES])
@pytest.mark.parametrize("seed", range(6))
def test_interleaved_texts_get_what_each_would_get_alone(engine: str, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)

    def make() -> Drafter:
        if engine == "prompt-lookup":
            return PromptLookup(longest=3)
        if engine == "retrieval":
            corpus.build(["a", "b"], lambda name: past[name == "b"], tmp_path / "store", vocabulary=100)
            return Retrieval(tmp_path / "store")
        return Suffix(engine=engine, **HOW)  # type: ignore[arg-type]

    # of different tokens: what one writes is no precedent for the other
    ranges = [(10, 16), (20, 26)]
    past = [text(rng, *each, 80) for each in ranges]
    shared, alone = make(), [make(), make()]
    for output in past:
        for drafter in (shared, *alone):
            finish(drafter, output)
    sharers = [shared.share(), shared.share()]
    whole = [text(rng, *each, 120) for each in ranges]
    for both in (sharers, alone):
        for drafter, tokens in zip(both, whole, strict=True):
            drafter.begin(tokens[:20])
    drafted = 0
    for at in range(20, 120):
        for one, other, tokens in zip(sharers, alone, whole, strict=True):
            expected = other.propose(6)
            assert told(one.propose(6)) == told(expected)
            drafted += len(expected.tokens)
            one.extend(tokens[at : at + 1])
            other.extend(tokens[at : at + 1])
    assert drafted > 100


class Crowd:
    """Some sharers of a drafter in disorder, and what they should know."""

    def __init__(self, rng: random.Random, drafter: Suffix, top: int) -> None:
        self.rng, self.drafter, self.top = rng, drafter, top
        self.sharers: list[Suffix] = []
        self.texts: list[tuple[list[int], list[int]]] = []  # prompt and output of each
        self.past: list[list[int]] = []

    def step(self) -> int:
        """Let something happen; which sharer's text went on."""
        rng = self.rng
        if not self.sharers or (len(self.sharers) < 4 and rng.random() < 0.15):
            sharer = (self.sharers or [self.drafter])[-1].share()
            prompt = text(rng, 0, self.top, rng.randrange(1, 15))
            sharer.begin(prompt)
            self.sharers.append(sharer)
            self.texts.append((prompt, []))
        at = rng.randrange(len(self.sharers))
        if rng.random() < 0.1:
            self.over(self.texts.pop(at)[1])
            sharer = self.sharers.pop(at)
            if rng.random() < 0.5:
                sharer.end()
            del sharer  # it is over as well if nobody says so
            self.drafter.share().begin([1])
            return self.step()
        draft = self.sharers[at].propose(5)
        new = [*draft.tokens[: rng.randrange(5)], rng.randrange(self.top)]
        self.sharers[at].extend(new)
        self.texts[at][1].extend(new)
        return at

    def over(self, output: list[int]) -> None:
        self.past.append(output)
        while sum(map(len, self.past)) > self.drafter.remember:
            self.past.pop(0)

    @property
    def outputs(self) -> list[list[int]]:
        return [*self.past, *(output for _, output in self.texts)]


@pytest.mark.parametrize("engine", ENGINES)
@given(st.integers(0, 2**32), st.sampled_from([4, 40, 200, 10_000]))
def test_everything_written_so_far_is_counted_finished_or_not(engine: str, seed: int, remember: int) -> None:
    rng = random.Random(seed)
    crowd = Crowd(rng, Suffix(engine=engine, remember=remember, **HOW), rng.choice([3, 6, 30]))  # type: ignore[arg-type]
    for _ in range(40):
        at = crowd.step()
        prompt, output = crowd.texts[at]
        assert crowd.drafter.remembered == sum(map(len, crowd.past))
        try:
            expected = slow.suffix(prompt + output, crowd.outputs, 5, 12, 1.5, 0.1)
        except slow.TieError:
            continue
        assert close(told(crowd.sharers[at].propose(5)), expected)


def disagreement(seed: int, remember: int) -> tuple[Draft, Draft] | None:
    """Let the same happen to sharers of both engines; where they differ."""
    crowds = []
    for engine in ("arctic", "own"):
        rng = random.Random(seed)
        drafter = Suffix(engine=engine, remember=remember, **HOW)  # type: ignore[arg-type]
        crowds.append(Crowd(rng, drafter, rng.choice([2, 3, 6, 20])))
    for _ in range(60):
        arctic, own = (crowd.sharers[crowd.step()].propose(5) for crowd in crowds)
        if not close(told(arctic), told(own)):
            return arctic, own
    return None


@given(st.integers(0, 2**32), st.sampled_from([4, 40, 200, 10_000]))
def test_both_engines_draft_the_same_for_sharers_ties_included(seed: int, remember: int) -> None:
    pytest.importorskip("arctic_inference", reason="arctic-inference is not installed")
    assert disagreement(seed, remember) is None


def test_a_text_that_did_not_notice_the_others_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(self: Trie, document: Document) -> None:
        document.version = self._version

    pytest.importorskip("arctic_inference", reason="arctic-inference is not installed")
    monkeypatch.setattr(Trie, "_catch_up", careless)

    def noticed(seed: int) -> bool:
        try:
            return disagreement(seed, 10_000) is not None
        except AssertionError:
            return True

    assert any(noticed(seed) for seed in range(20))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_finished_output_serves_the_others(engine: str) -> None:
    one = Suffix(engine=engine)
    other = one.share()
    one.begin([1, 2])
    other.begin([3, 4])
    one.extend([11, 12, 13, 14])
    one.end()
    assert one.propose(4) == Draft()
    other.extend([12, 13])
    assert other.propose(4).tokens == [14]
    assert other.remembered == one.remembered == 4
    third = other.share()
    third.begin([9, 11])
    third.extend([12])
    assert third.propose(1).tokens == [13]


@pytest.mark.parametrize("engine", ENGINES)
def test_to_end_twice_is_harmless_and_an_ended_text_does_not_go_on(engine: str) -> None:
    for drafter in (Suffix(engine=engine), PromptLookup()):
        drafter.end()
        drafter.begin([1, 2, 1, 2])
        drafter.extend([1, 2, 3])
        for _ in range(2):
            drafter.end()
            assert drafter.propose(3) == Draft()
        drafter.begin([5, 6])
        drafter.end()
    suffix = Suffix(engine=engine)
    finish(suffix, [1, 2, 3])
    suffix.end()
    assert suffix.remembered == 3
    with pytest.raises(ValueError, match="'suffix' has no text to extend; begin one first"):
        suffix.extend([1])


@pytest.mark.parametrize("engine", ENGINES)
def test_memory_is_bounded_over_all_sharers(engine: str) -> None:
    rng = random.Random(0)
    drafter = Suffix(engine=engine, depth=8, remember=200)

    def serve(number: int) -> None:
        running: list[Suffix] = []
        for _ in range(number):
            running.append(drafter.share())
            running[-1].begin([rng.randrange(50) for _ in range(30)])
            for sharer in running:
                sharer.extend([rng.randrange(50) for _ in range(rng.randrange(6))])
            if len(running) > 5:
                running.pop(rng.randrange(5)).end()
            assert drafter.remembered <= 200
        for sharer in running:
            sharer.end()

    tracemalloc.start()
    serve(100)
    before = tracemalloc.get_traced_memory()[0]
    serve(500)
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after < before + 50_000, f"{after - before} bytes more after 500 texts"
    counts = drafter._engine
    if engine == "arctic":  # its trees are not Python's memory
        cache = counts._cache  # type: ignore[attr-defined]
        assert len(cache.active_requests) == 0
        assert len(cache.cached_requests) <= 200
        assert cache._global_tree.num_seqs() <= len(cache.cached_requests)
        assert cache._global_tree.estimate_memory() < 2_000_000
    else:
        assert sum(map(len, counts._outputs._texts.values())) == drafter.remembered  # type: ignore[attr-defined]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_sharer_let_go_is_gone_and_its_output_remembered(engine: str) -> None:
    drafter = Suffix(engine=engine)
    sharer = drafter.share()
    sharer.begin([1, 2])
    sharer.extend([11, 12, 13])
    gone = weakref.ref(sharer)
    del sharer
    gc.collect()
    assert gone() is None
    drafter.begin([7])
    assert drafter.remembered == 3
    drafter.end()
    if engine == "arctic":
        assert not drafter._engine._cache.active_requests  # type: ignore[attr-defined]


@pytest.mark.parametrize("engine", ENGINES)
def test_to_forget_leaves_running_texts_alone(engine: str) -> None:
    drafter = Suffix(engine=engine)
    finish(drafter, [11, 12, 13, 14])
    sharer = drafter.share()
    sharer.begin([5, 6, 7, 5])
    sharer.extend([6])
    drafter.begin([1])
    drafter.extend([2, 3])
    drafter.forget()
    assert drafter.remembered == 0
    assert sharer.propose(1).tokens == [7]
    sharer.extend([11, 12])
    assert sharer.propose(1) == Draft()
    sharer.end()
    assert drafter.remembered == 3


def test_what_cannot_be_shared_says_so() -> None:
    model = DraftModel.__new__(DraftModel)
    model.name = "draft-model"
    with pytest.raises(ValueError, match="draft-model follows one text at a time; vLLM runs draft models itself"):
        model.share()


def test_sharers_are_of_the_same_kind(tmp_path: Path) -> None:
    corpus.build(["a"], lambda _: [1, 2, 3], tmp_path / "store", vocabulary=10)
    lookup = PromptLookup(longest=5, shortest=3, match_cap=7, name="mine").share()
    assert (lookup.sizes, lookup.match_cap, lookup.name) == ((5, 4, 3), 7, "mine")
    drafter = Retrieval(tmp_path / "store", shortest=1, look=3, name="mine")
    retrieval = drafter.share()
    assert retrieval.datastore is drafter.datastore
    assert (retrieval.shortest, retrieval.look, retrieval.name) == (1, 3, "mine")
    suffix = Suffix(depth=5, remember=7, engine="own", name="mine").share()
    assert (suffix.depth, suffix.remember, suffix.engine, suffix.name) == (5, 7, "own", "mine")
