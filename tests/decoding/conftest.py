"""Shared by the tests of the decoder."""

from __future__ import annotations

from typing import Any

import pytest
from decoders import Pair, tiny


@pytest.fixture(scope="module")
def speaker(smollm2: Pair) -> Any:
    """A tiny model with SmolLM2's vocabulary."""
    return tiny(vocab_size=smollm2[0].config.vocab_size)
