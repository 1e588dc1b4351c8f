"""Shared by the tests of the decoder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoders import Pair, tiny
from sampled import VOCABULARY

from wager.drafters import corpus


@pytest.fixture(scope="module")
def speaker(smollm2: Pair) -> Any:
    """A tiny model with SmolLM2's vocabulary."""
    return tiny(vocab_size=smollm2[0].config.vocab_size)


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, never the user's."""
    monkeypatch.setenv("WAGER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of short texts are prepared too."""
    monkeypatch.setattr("wager.decoding.decoder.REPAID", 0)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A datastore of random text."""
    rng = np.random.default_rng(0)
    texts = [" ".join(map(str, rng.integers(0, VOCABULARY, 300))) for _ in range(3)]
    path = tmp_path_factory.mktemp("stores") / "random.datastore"
    corpus.build(texts, lambda text: [int(t) for t in text.split()], path, vocabulary=VOCABULARY)
    return path
