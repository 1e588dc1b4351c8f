"""Shared by the tests."""

from __future__ import annotations

import os
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
