"""No garbage is collected while the device waits; the caller's own settings stay as they are."""

import gc
from collections.abc import Iterator

import pytest
from decoders import PROMPT, alike, tiny

import wager
from wager.core import OFF, Arm, garbage
from wager.decoding import loop
from wager.drafters.draft_model import DraftModel


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.enable()
    yield
    gc.enable()
    gc.set_threshold(*thresholds)


def decoder() -> wager.Decoder:
    model = tiny()
    return wager.Decoder(model, drafters=[DraftModel(alike(model), "draft")], arms=(OFF, Arm("draft", 2)))


def collections_in(monkeypatch: pytest.MonkeyPatch) -> tuple[list[bool], list[bool]]:
    """Whether a round is waiting for the device in each collection during a text, and collections by the caller."""
    seen: list[bool] = []
    called: list[bool] = []
    working = [False]
    meanwhile, collect = loop.Loop.meanwhile, gc.collect

    def noting(self: loop.Loop) -> Arm | None:
        working[0] = True
        try:
            return meanwhile(self)
        finally:
            working[0] = False

    def collecting(generation: int = 2) -> int:
        called.append(working[0])
        return collect(generation)

    def callback(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and not gc.isenabled():
            seen.append(working[0])

    monkeypatch.setattr(loop.Loop, "meanwhile", noting)
    monkeypatch.setattr(garbage.gc, "collect", collecting)
    gc.callbacks.append(callback)
    try:
        decoder().generate(PROMPT, max_new_tokens=60, do_sample=False)
    finally:
        gc.callbacks.remove(callback)
    return seen, called


def test_rounds_are_not_interrupted_and_what_they_leave_is_collected_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "WORK_ALONE", {"cpu"})
    gc.set_threshold(40, 10, 10)
    gc.collect()  # no full collection is due
    seen, called = collections_in(monkeypatch)
    assert len(called) > 5
    assert all(called), "only while the device works"
    assert len(seen) == len(called), "and no other collection in a round"
    assert gc.isenabled()


def test_on_a_cpu_and_where_the_caller_turned_it_off_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.set_threshold(40, 10, 10)
    assert collections_in(monkeypatch) == ([], [])
    monkeypatch.setattr(loop, "WORK_ALONE", {"cpu"})
    gc.disable()
    assert collections_in(monkeypatch) == ([], [])
    assert not gc.isenabled()


def test_between_rounds_the_callers_code_runs_with_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "WORK_ALONE", {"cpu"})
    one = decoder()
    steps = one.run(one.prepare(PROMPT, {"max_new_tokens": 20, "do_sample": False}), one.target)
    states = [gc.isenabled() for _ in steps]
    assert len(states) > 3
    assert all(states)


def test_a_round_that_fails_leaves_collections_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "WORK_ALONE", {"cpu"})

    def failing(*given: object) -> None:
        assert not gc.isenabled()
        raise RuntimeError("a round that fails")

    monkeypatch.setattr(loop.Loop, "_play", failing)
    with pytest.raises(RuntimeError, match="a round that fails"):
        decoder().generate(PROMPT, max_new_tokens=20, do_sample=False)
    assert gc.isenabled()


def test_thresholds_of_0_mean_never() -> None:
    gc.set_threshold(0)
    before = gc.get_stats()[0]["collections"]
    garbage.collect_due()
    assert gc.get_stats()[0]["collections"] == before


@pytest.mark.parametrize(
    ("counts", "collected"),
    [((25, 0, 0), []), ((26, 10, 10), [0]), ((26, 11, 10), [1]), ((900, 11, 11), [])],
    ids=["not due", "young", "older too", "all: that is Python's to decide, between rounds"],
)
def test_what_is_due_is_collected(
    counts: tuple[int, int, int], collected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.set_threshold(50, 10, 10)
    done: list[int] = []
    monkeypatch.setattr(garbage.gc, "get_count", lambda: counts)
    monkeypatch.setattr(garbage.gc, "collect", done.append)
    garbage.collect_due()
    assert done == collected
