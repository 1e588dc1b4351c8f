"""What matching drafts: the reference by its definition, the kernels by the reference, both with planted bugs."""

import inspect
import os
import random
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from wager.vllm import draft_choice, matching
from wager.vllm.matching import SEPARATOR, Matcher, match_reference

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="runs in the interpreter, which a test here starts")
SLOTS = 5
Find = Callable[..., tuple[list[int], int]]


def texts(slots: int = SLOTS, longest: int = 64, device: str = "cpu") -> Any:
    """As much of a model runner's request states as matching reads."""
    return SimpleNamespace(
        max_num_reqs=slots,
        max_model_len=longest,
        all_token_ids=SimpleNamespace(gpu=torch.zeros(slots, longest, dtype=torch.int32, device=device)),
        total_len=SimpleNamespace(gpu=torch.zeros(slots, dtype=torch.int32, device=device)),
        prompt_len=SimpleNamespace(np=np.zeros(slots, dtype=np.int32)),
        prefill_len=SimpleNamespace(np=np.zeros(slots, dtype=np.int32)),
        num_computed_tokens_np=np.zeros(slots, dtype=np.int32),
    )


def write(states: Any, slot: int, text: list[int], prompt: int = 0) -> None:
    states.all_token_ids.gpu[slot, : len(text)] = torch.tensor(text, dtype=torch.int32)
    states.total_len.gpu[slot] = len(text)
    states.prompt_len.np[slot] = states.prefill_len.np[slot] = prompt
    states.num_computed_tokens_np[slot] = len(text)


def check(find: Find, seed: int) -> bool:
    """A draft follows the longest and latest match, and nothing but tokens is drafted."""
    rng = random.Random(seed)
    vocabulary, most = rng.choice([2, 4, 9]), rng.randrange(1, 7)
    text = [rng.randrange(vocabulary) for _ in range(rng.randrange(1, 30))]
    finished: list[int] = []
    for _ in range(rng.randrange(3)):
        finished += [*(rng.randrange(vocabulary) for _ in range(rng.randrange(1, 12))), SEPARATOR]
    shortest, longest = rng.choice([(1, 3), (2, 16)])
    drafted, match = find(text, finished, most, shortest, longest)
    places = [(source, after) for source in (finished, text) for after in range(1, len(source))]
    runs = [
        max(
            run
            for run in range(min(after, len(text), longest) + 1)
            if source[after - run : after] == text[len(text) - run :]
        )
        for source, after in places
    ]
    best = max((run for run in runs if run >= shortest), default=0)
    assert match == best
    if not best:
        assert not drafted
        return True
    source, after = [place for place, run in zip(places, runs, strict=True) if run == best][-1]
    follows = list(source[after:])
    if source is text:
        follows *= most
    elif SEPARATOR in follows:
        follows = follows[: follows.index(SEPARATOR)]
    assert drafted == follows[:most]
    return True


@pytest.mark.parametrize("seed", range(60))
def test_the_reference_follows_the_longest_then_the_latest_match(seed: int) -> None:
    assert check(match_reference, seed)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("run >= max(shortest, match)", "run > max(shortest - 1, match)"),  # the first of equals
        ("(finished, text)", "(text, finished)"),  # what is finished before the own text
        ("candidate[after - 1 - run]", "candidate[after - run]"),  # one token late
        ("min(longest, after, len(text))", "min(after, len(text))"),  # matches of any length
        ("text[place + step % period]", "text[min(place + step, len(text) - 1)]"),  # no period
        ("copied[: copied.index(SEPARATOR)] if SEPARATOR in copied else copied", "copied"),  # on into the next text
        ("max(shortest, match)", "max(1, match)"),  # a single token is a match
    ],
)
def test_a_bug_in_the_reference_is_caught(right: str, wrong: str) -> None:
    source = inspect.getsource(match_reference)
    assert right in source
    scope = {**vars(matching)}
    exec(source.replace(right, wrong), scope)
    with pytest.raises((AssertionError, IndexError)):
        all(check(scope["match_reference"], seed) for seed in range(60))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.mark.usefixtures("slow")
def test_rows_without_a_match_repeat_the_last_token_and_prompts_being_read_draft_nothing() -> None:
    states = texts()
    write(states, 2, [1, 2, 3, 9, 1, 2])
    write(states, 0, [1, 2, 3, 4, 5])
    write(states, 4, [7, 8, 7, 8])
    drafts = torch.full((3, 4), -7)
    last = torch.arange(10, 10 + SLOTS)
    matcher = Matcher(states, 4)
    matcher.draft(torch.tensor([2, 0, 4]), torch.tensor([1, 1, 0]), last, drafts, 64)
    assert drafts.tolist() == [[3, 9, 1, 2], [10] * 4, [14] * 4]
    assert matcher.matched.tolist()[:3] == [2, 0, 0]
    assert matcher.counts.tolist()[:3] == [4, 0, 0]
    table = torch.full((SLOTS, 4), -7)
    matcher.draft(torch.tensor([2, 0, 4]), torch.tensor([1, 1, 0]), last, table, 64, by_slot=True)
    assert table.tolist() == [[10] * 4, [-7] * 4, [3, 9, 1, 2], [-7] * 4, [14] * 4]


@pytest.mark.usefixtures("slow")
def test_a_match_replaces_a_models_draft_where_such_matches_had_more_tokens_right() -> None:
    states = texts(longest=900)
    matcher = Matcher(states, 3)
    last, model = torch.zeros(SLOTS, dtype=torch.int64), [50, 51, 52]

    def draft(slot: int, text: list[int], new: int, drafted: int = 3) -> list[int]:
        write(states, slot, text)
        drafts = torch.tensor([model])
        matcher.draft(torch.tensor([slot]), torch.tensor([new]), last, drafts, 900, drafted)
        return drafts[0].tolist()  # type: ignore[no-any-return]

    short, long = [1, 2, 3, 9, 1, 2], [1, 2, 3, 4, 9, 1, 2, 3, 4]
    assert draft(0, short, 1) == model  # before anything was compared
    assert draft(1, long, 1) == [9, 1, 2]
    for _ in range(3):  # short matches turn out right, and the model wrong
        assert draft(0, short, 1) == model
        draft(0, [*short, 3, 9, 1], 3)
    assert draft(0, short, 1) == [3, 9, 1]
    for _ in range(3):  # long ones wrong, and the model right
        draft(1, long, 1)
        draft(1, [*long, 50, 51, 52], 3)
    assert draft(1, long, 1) == model
    gains = matcher.choice.gains.tolist()
    draft(1, [*long, 50, 51, 52, 53], 3)  # another text by its length: nothing is compared
    assert matcher.choice.gains.tolist() == gains
    assert draft(0, short, 1, drafted=1) == [3, 9, 1]
    draft(0, [*short, 3, 9], 2)  # of one drafted token at most one was right
    assert matcher.choice.gains[2] == gains[2] + 1


@pytest.mark.usefixtures("slow")
def test_outputs_of_finished_requests_are_drafted_for_others_until_newer_ones_take_their_room() -> None:
    states = texts(longest=700)
    matcher = Matcher(states, 3, ring=1024)
    write(states, 0, [99] * 40 + [5, 6, 7, 8], prompt=40)
    matcher.end(0)
    matcher.flush()
    write(states, 0, [0])  # the slot is used again
    assert matcher.finished()[-21:] == [99] * matching.LONGEST + [5, 6, 7, 8, SEPARATOR]
    write(states, 1, [1, 5, 6])
    drafts = torch.zeros(1, 3, dtype=torch.int64)
    last = torch.full((SLOTS,), 6)
    ask = (torch.tensor([1]), torch.tensor([1]), last, drafts, 64)
    matcher.draft(*ask)
    assert drafts.tolist() == [[7, 8, 6]]
    assert int(matcher.counts[0]) == 2
    for slot in (2, 3, 4, 2, 3):
        write(states, slot, [50] * 600)
        matcher.end(slot)
        matcher.flush()
    matcher.draft(*ask)
    assert int(matcher.matched[0]) == 0
    assert not set(matcher.finished()) - {50, SEPARATOR}


def test_a_ring_must_be_a_power_of_two() -> None:
    for size in (1, 1023, 1536):
        with pytest.raises(ValueError, match="power of two"):
            Matcher(texts(), 3, ring=size)


@pytest.mark.skipif(INTERPRETED, reason="starts itself over in the interpreter")
def test_kernels_agree_with_the_reference_in_the_interpreter(rerun_in_interpreter: Callable[[str], None]) -> None:
    rerun_in_interpreter(__file__)


def compare(kernels: Any, seed: int, device: str = "cpu") -> bool:
    """Requests come, go and draft; both must draft, remember and learn the same."""
    rng = random.Random(seed)
    longest, vocabulary, length = rng.choice([40, 1300]), rng.choice([2, 3, 7]), rng.choice([1, 3, 8])
    states, ring = texts(longest=longest, device=device), rng.choice([0, 1024, 1024])
    fast, slow = (Matcher(states, length, ring=ring) for _ in range(2))
    fast.kernels, slow.kernels = kernels, None
    beside = rng.random() < 0.7  # a model drafts as well
    for matcher in (fast, slow):
        matcher.warm_up(torch.zeros(1, length, dtype=torch.int64, device=device), length if beside else None)
        matcher.choice.judged.fill_(draft_choice.MEMORY - 2)
    written: list[list[int]] = [[] for _ in range(SLOTS)]
    for step in range(6):
        ended = rng.sample(range(SLOTS), rng.randrange(3)) if step else []
        for slot in ended:
            fast.end(slot)
            slow.end(slot)
        fast.flush()
        slow.flush()
        assert fast.finished() == slow.finished()
        for slot in ended if step else range(SLOTS):
            written[slot] = [rng.randrange(vocabulary) for _ in range(rng.randrange(1, longest - 8))]
            write(states, slot, written[slot], rng.randrange(len(written[slot])))
        rows = rng.sample(range(SLOTS), 3)
        sampled = [rng.choice([0, 1, 3]) for _ in rows]
        for slot, new in zip(rows, sampled, strict=True):
            if len(written[slot]) + new <= longest:
                drafted = slow.choice.kept[slot, 3:].clamp(min=0).tolist()
                written[slot] += [
                    rng.choice([drafted[n % len(drafted)], rng.randrange(vocabulary)]) for n in range(new)
                ]
                write(states, slot, written[slot], int(states.prompt_len.np[slot]))
        by_slot = not beside and rng.random() < 0.5
        places = range(SLOTS) if by_slot else rows
        drafts = torch.tensor([[rng.randrange(vocabulary) for _ in range(length)] for _ in places], device=device)
        wanted, last = drafts.clone(), torch.arange(100, 100 + SLOTS, device=device)
        most = rng.randint(1, length) if beside else None
        given = torch.tensor(rows, device=device), torch.tensor(sampled, dtype=torch.int32, device=device)
        fast.draft(*given, last, drafts, longest, most, by_slot=by_slot)
        slow.draft(*given, last, wanted, longest, most, by_slot=by_slot)
        assert drafts.tolist() == wanted.tolist()
        for one, other in ((fast, slow), (fast.choice, slow.choice)):
            for name in ("matched", "counts") if one is fast else ("kept", "gains", "judged"):
                assert getattr(one, name).tolist() == getattr(other, name).tolist()
    return True


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("seed", range(8))
def test_kernels_do_on_a_gpu_what_the_reference_does(seed: int) -> None:
    pytest.importorskip("triton")
    from wager.vllm import match_kernels

    assert compare(match_kernels, seed, "cuda")


@interpreted
@pytest.mark.parametrize("seed", range(8))
def test_kernels_do_what_the_reference_does(seed: int) -> None:
    from wager.vllm import match_kernels

    assert compare(match_kernels, seed)


@interpreted
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("at < length - 1, SHORTEST", "at < length, SHORTEST"),  # a text matches itself
        ("(at + RING + 1)", "(RING + 1 - at)"),  # the first of equals
        ("(at + RING + 1)", "(at + 1)"),  # the ring and the text are mixed up
        ("if new > 0:", "if new >= 0:"),  # drafts for prompts being read
        ("tl.store(best + request, tl.zeros((), tl.int64))", "pass"),  # the last step's match wins again
        ("step % period", "tl.minimum(step, period - 1)"),  # no period
        ("(token < 0) | (step >= K)", "step >= K"),  # on into the next text
        ("tl.load(gains + run) > 0", "tl.load(gains + run) >= 8"),
        ("tl.load(own) == length - new", "tl.load(own) <= length - new"),  # another text is judged by
        ("(step < tl.load(own + 2)) & (step < new)", "step < new"),  # tokens that were not drafted
        ("own + 3 + K, inside", "own + 3, inside"),  # the match beside itself
        ("count // 2, mask=many", "count, mask=many"),  # nothing is forgotten
        ("+ 1) >> 1", ") >> 1"),
        ("tl.maximum(length - start, 0), most", "length, most"),  # whole prompts are remembered
        ("tl.where(each < which, room, 0)", "tl.where(each < which, size, 0)"),  # texts run together
        ("first + tl.sum(room, axis=0)", "first + tl.sum(size, axis=0)"),
        ("tl.where(each == 0, only_start, 0)", "tl.where(each == 0, only_slot, 0)"),
        ("tl.where(each == 0, only_slot, 0)", "tl.where(each == 0, 0, 0)"),
        ("row if BY_SLOT else", "request.to(tl.int64) if BY_SLOT else"),  # one request's draft for another
        ("(at >= back)", "(at >= 0)"),  # reads what stands before a text
    ],
)
def test_a_bug_in_a_kernel_is_caught(right: str, wrong: str, planted: Callable[..., types.ModuleType]) -> None:
    from wager.vllm import match_kernels

    kernels = planted(match_kernels, right, wrong)
    with pytest.raises(AssertionError):
        all(compare(kernels, seed) for seed in range(40))
