"""Shared by the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Two workers on two cores: with a thread each they do not wait for each other. Before anything imports torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("ci", max_examples=25, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=500, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """torch on one thread, and transformers silent.

    With another worker on the same cores, threads that wait for each other take many times as long.
    """
    import torch
    from transformers.utils import logging

    logging.set_verbosity_error()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured counts as measured on a quiet machine: the tests' own may be as busy as it likes."""
    monkeypatch.setattr("wager.bench.verdict.TOO_NOISY", float("inf"))


@pytest.fixture(scope="session")
def smollm2() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The embedded model on the CPU in float32; made once per machine, in the user's own cache."""
    from wager.models import load

    return load("smollm2-135m", device="cpu")


@pytest.fixture(scope="session")
def smollm2_folder() -> str:
    """The folder that holds it."""
    from wager.models import resolve

    return str(resolve("smollm2-135m"))
