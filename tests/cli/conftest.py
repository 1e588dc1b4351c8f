"""The command line in this process, with a tiny model in place of the embedded one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from commands import COPY, Wager
from recorders import tiny


@pytest.fixture(scope="session")
def loaded() -> Any:
    """A random Llama with SmolLM2's tokenizer that writes the words of COPY: fast, and its texts soon repeat."""
    from wager.models import load_tokenizer

    tokenizer = load_tokenizer("smollm2-135m")
    model = tiny(vocab_size=49152, max_position_embeddings=8192, eos_token_id=2, pad_token_id=2)
    others = sorted({*range(49152)} - {*tokenizer(COPY).input_ids})
    with torch.no_grad():
        model.lm_head.weight[others] = 0.0
    return model, tokenizer


@pytest.fixture(scope="session")
def target(loaded: Any) -> Any:
    from wager.models.select import runner

    return runner(loaded[0])


@pytest.fixture
def states(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where policy states are kept: a folder of the test's own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr("wager.decoding.state.cache", lambda: folder)
    return folder / "state"


@pytest.fixture
def wager(cli: Wager, loaded: Any, target: Any, states: Path, monkeypatch: pytest.MonkeyPatch) -> Wager:
    """The command line with that model, for which no drafter was trained, whatever name it is called by."""
    monkeypatch.setattr("wager.models.load", lambda name, **how: loaded)
    monkeypatch.setattr("wager.decoding.decoder.runner", lambda model: target)
    monkeypatch.setattr("wager.drafters.shipped.available", lambda *_: {})
    return cli
