"""Drafters that follow several texts at once: apart as if alone, together in what they remember."""

import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import drafters as slow
from test_drafters import close, told

from wager.drafters import Draft, Drafter, corpus
from wager.drafters.draft_model import DraftModel
from wager.drafters.prompt_lookup import PromptLookup
from wager.drafters.retrieval import Retrieval
from wager.drafters.suffix import Suffix
from wager.drafters.suffix_tree import Document, SuffixTree

HOW: dict[str, Any] = {"max_tree_depth": 12, "max_spec_factor": 1.5, "min_token_prob": 0.1}


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


@pytest.mark.parametrize("name", ["prompt-lookup", "retrieval", "suffix"])
@pytest.mark.parametrize("seed", range(2))
def test_interleaved_texts_get_what_each_would_get_alone(name: str, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)

    def make() -> Drafter:
        if name == "prompt-lookup":
            return PromptLookup(longest=3)
        if name == "retrieval":
            corpus.build(["a", "b"], lambda each: past[each == "b"], tmp_path / "store", vocabulary=100)
            return Retrieval(tmp_path / "store")
        return Suffix(**HOW)

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
            assert close(told(one.propose(6)), told(expected))
            drafted += len(expected.tokens)
            one.extend(tokens[at : at + 1])
            other.extend(tokens[at : at + 1])
    assert drafted > 100


class Sharers:
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
        while sum(map(len, self.past)) > self.drafter.max_cached_tokens:
            self.past.pop(0)

    @property
    def outputs(self) -> list[list[int]]:
        return [*self.past, *(output for _, output in self.texts)]


def check_against_the_reference(seed: int, cached: int) -> None:
    rng = random.Random(seed)
    sharing = Sharers(rng, Suffix(max_cached_tokens=cached, **HOW), rng.choice([3, 6, 30]))
    for _ in range(40):
        at = sharing.step()
        prompt, output = sharing.texts[at]
        assert sharing.drafter.cached_tokens == sum(map(len, sharing.past))
        try:
            expected = slow.suffix(prompt + output, sharing.outputs, 5, 12, 1.5, 0.1)
        except slow.TieError:
            continue
        assert close(told(sharing.sharers[at].propose(5)), expected)


@given(st.integers(0, 2**32), st.sampled_from([4, 40, 200, 10_000]))
def test_everything_written_so_far_is_counted_finished_or_not(seed: int, cached: int) -> None:
    check_against_the_reference(seed, cached)


def test_a_text_that_did_not_notice_the_others_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(self: SuffixTree, document: Document) -> None:
        document.version = self._version

    monkeypatch.setattr(SuffixTree, "_catch_up", careless)
    with pytest.raises(AssertionError):  # noqa: PT012 - by one of them
        for seed in range(20):
            check_against_the_reference(seed, 10_000)


def test_to_end_twice_is_harmless_and_an_ended_text_does_not_go_on() -> None:
    for drafter in (Suffix(), PromptLookup()):
        drafter.end()
        drafter.begin([1, 2, 1, 2])
        drafter.extend([1, 2, 3])
        for _ in range(2):
            drafter.end()
            assert drafter.propose(3) == Draft()
        drafter.begin([5, 6])
        drafter.end()
    suffix = Suffix()
    finish(suffix, [1, 2, 3])
    suffix.end()
    assert suffix.cached_tokens == 3
    with pytest.raises(ValueError, match="'suffix' has no text to extend; begin one first"):
        suffix.extend([1])


def test_memory_is_bounded_over_all_sharers() -> None:
    rng = random.Random(0)
    drafter = Suffix(max_tree_depth=8, max_cached_tokens=200)

    def serve(number: int) -> None:
        running: list[Suffix] = []
        for _ in range(number):
            running.append(drafter.share())
            running[-1].begin([rng.randrange(50) for _ in range(30)])
            for sharer in running:
                sharer.extend([rng.randrange(50) for _ in range(rng.randrange(6))])
            if len(running) > 5:
                running.pop(rng.randrange(5)).end()
            assert drafter.cached_tokens <= 200
        for sharer in running:
            sharer.end()

    tracemalloc.start()
    serve(100)
    before = tracemalloc.get_traced_memory()[0]
    serve(500)
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after < before + 50_000, f"{after - before} bytes more after 500 texts"
    assert sum(map(len, drafter._outputs.tree.texts.values())) == drafter.cached_tokens


def test_to_forget_leaves_running_texts_alone() -> None:
    drafter = Suffix()
    finish(drafter, [11, 12, 13, 14])
    sharer = drafter.share()
    sharer.begin([5, 6, 7, 5])
    sharer.extend([6])
    drafter.begin([1])
    drafter.extend([2, 3])
    drafter.forget()
    assert drafter.cached_tokens == 0
    assert sharer.propose(1).tokens == [7]
    sharer.extend([11, 12])
    assert sharer.propose(1) == Draft()
    sharer.end()
    assert drafter.cached_tokens == 3


def test_sharers_are_of_the_same_kind_and_what_cannot_be_shared_says_so(tmp_path: Path) -> None:
    corpus.build(["a"], lambda _: [1, 2, 3], tmp_path / "store", vocabulary=10)
    lookup = PromptLookup(longest=5, shortest=3, match_cap=7, name="mine").share()
    assert (lookup.sizes, lookup.match_cap, lookup.name) == ((5, 4, 3), 7, "mine")
    drafter = Retrieval(tmp_path / "store", shortest=1, look=3, name="mine")
    retrieval = drafter.share()
    assert retrieval.datastore is drafter.datastore
    assert (retrieval.shortest, retrieval.look, retrieval.name) == (1, 3, "mine")
    suffix = Suffix(max_tree_depth=5, max_cached_tokens=7, name="mine").share()
    assert (suffix.max_tree_depth, suffix.max_cached_tokens, suffix.name) == (5, 7, "mine")
    model = DraftModel.__new__(DraftModel)
    model.name = "draft-model"
    with pytest.raises(ValueError, match="draft-model follows one text at a time; vLLM runs draft models"):
        model.share()
