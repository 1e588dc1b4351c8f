"""Retrieval on the GPU: the kernel by its reference, with planted bugs, and what matching makes of it."""

import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from test_speculator_matching import INTERPRETED, SLOTS, interpreted, texts, write

from wager.drafters import corpus
from wager.drafters.datastore import Datastore
from wager.vllm.matching import Matcher
from wager.vllm.stored import Stored


def store(path: Path, documents: list[list[int]], vocabulary: int = 256) -> Datastore:
    """A datastore of these documents; their tokens are told by number."""
    numbered = {str(at): document for at, document in enumerate(documents)}
    corpus.build(list(numbered), numbered.__getitem__, path / "store", vocabulary=vocabulary)
    return Datastore.open(path / "store")


def test_what_follows_a_longer_match_in_the_datastore_is_drafted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    states = texts()
    write(states, 0, [9, 1, 2, 3, 4])
    write(states, 1, [2, 3, 4, 8, 8, 2, 3, 4])  # a match of three in the text itself, as long as in the datastore
    write(states, 2, [9, 1, 2, 3, 4])
    write(states, 3, [5, 6, 6])
    kept = store(tmp_path, [[2, 3, 4, 5, 6, 7], [2, 3, 4, 5, 7, 7], [2, 3, 4, 1]])
    matcher = Matcher(states, 4, store=kept)
    drafts = torch.zeros(4, 4, dtype=torch.int64)
    matcher.draft(torch.arange(4), torch.tensor([1, 1, 0, 1]), torch.full((SLOTS,), 40), drafts, 64)
    assert drafts.tolist() == [[5, 6, 7, 40], [8, 8, 2, 3], [40] * 4, [40] * 4]
    assert matcher.matched.tolist()[:4] == [3, 3, 0, 0]
    assert matcher.counts.tolist()[:4] == [3, 4, 0, 0]


@pytest.mark.skipif(INTERPRETED, reason="starts itself over in the interpreter")
def test_the_kernel_agrees_with_the_reference_in_the_interpreter(rerun_in_interpreter: Callable[[str], None]) -> None:
    rerun_in_interpreter(__file__)


def compare(kernels: Any, seed: int, folder: Path, device: str = "cpu") -> bool:
    """Both must find the same for random texts in a random datastore."""
    rng = random.Random(seed)
    vocabulary, length = rng.choice([2, 4, 9]), rng.choice([1, 4])
    documents = [[rng.randrange(vocabulary) for _ in range(rng.randrange(2, 40))] for _ in range(rng.randrange(1, 6))]
    kept = store(folder, documents, rng.choice([256, 70_000]))
    states = texts(device=device)
    for slot in range(SLOTS):
        write(states, slot, [rng.randrange(vocabulary) for _ in range(rng.randrange(1, 30))])
    fast = Stored(kept, states, length, rng.choice([1, 2]))
    fast.kernels = kernels
    rows = torch.tensor(rng.sample(range(SLOTS), 4), device=device)
    sampled = torch.tensor([1, 1, 0, 3], dtype=torch.int32, device=device)
    fast.search(rows, sampled)
    for request, (row, new) in enumerate(zip(rows.tolist(), sampled.tolist(), strict=True)):
        text = states.all_token_ids.gpu[row, : int(states.total_len.gpu[row])].tolist()
        match, follows = fast.look_up(text) if new else (0, [])
        assert int(fast.matched[request]) == match
        if match:
            assert fast.found[request].tolist() == [*follows, *[-1] * (length - len(follows))]
    return True


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_kernel_does_on_a_gpu_what_the_reference_does(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    from wager.vllm import retrieve_kernels

    assert all(compare(retrieve_kernels, seed, tmp_path, "cuda") for seed in range(30))


@interpreted
def test_the_kernel_does_what_the_reference_does(tmp_path: Path) -> None:
    from wager.vllm import retrieve_kernels

    assert all(compare(retrieve_kernels, seed, tmp_path) for seed in range(30))


def unused(path: Path, count: int) -> torch.Tensor:
    """So many zeros in a file that takes no space but where it is written to."""
    return torch.from_file(str(path), shared=True, size=count, dtype=torch.int32)


@interpreted
def test_a_corpus_of_more_tokens_than_a_signed_number_counts_is_searched(tmp_path: Path) -> None:
    from wager.vllm import retrieve_kernels

    many, far = 1_600_000_000, (1 << 31) + 31  # suffixes, and where in the corpus the last of them begins
    corpus, suffixes = unused(tmp_path / "corpus", far + 64), unused(tmp_path / "suffixes", many)
    corpus[:16] = 1
    corpus[far - 2 : far + 3] = torch.tensor([retrieve_kernels.END, 9, 7, 7, retrieve_kernels.END], dtype=torch.int32)
    suffixes[many - 1] = far - (1 << 32)
    one, matched = torch.ones(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    text, found = torch.tensor([[7, 7]], dtype=torch.int32), torch.zeros(1, 2, dtype=torch.int32)
    retrieve_kernels.retrieve[(1,)](
        text, 2, torch.zeros(1, dtype=torch.int64), 2 * one, one, corpus, len(corpus), suffixes, many, matched, found,
        SHORTEST=2, DEPTH=16, K=2, LOOK=32,
    )  # fmt: skip
    assert (matched.tolist(), found.tolist()) == ([2], [[9, -1]])


@interpreted
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("token < key, -1, 1", "token < key, 1, -1"),
        ("sign < AFTER", "sign < 1"),
        ("run = tl.maximum(run, common)", "run = common"),
        ("before - 1 - step", "before - step"),
        ("run >= SHORTEST", "run >= 1"),
        ("going & (token == chosen)", "going"),
        ("tl.where(most > 0, run, 0)", "run"),
        ("tl.load(sampled + request) > 0", "request >= 0"),
    ],
)
def test_a_bug_in_the_kernel_is_caught(
    right: str, wrong: str, planted: Callable[..., ModuleType], tmp_path: Path
) -> None:
    from wager.vllm import retrieve_kernels

    kernels = planted(retrieve_kernels, right, wrong)
    with pytest.raises(AssertionError):
        all(compare(kernels, seed, tmp_path) for seed in range(60))
