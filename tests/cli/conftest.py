"""The command line in this process, with the embedded model loaded once for all tests."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import Done, Wager

from wager.cli import main


@pytest.fixture(scope="session")
def target(smollm2: Any) -> Any:
    from wager.models.select import runner

    return runner(smollm2[0])


@pytest.fixture
def states(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where policy states are kept: a folder of the test's own. The model stays where it is."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr("wager.decoding.state.cache", lambda: folder)
    return folder / "state"


@pytest.fixture
def wager(
    smollm2: Any,
    target: Any,
    states: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Wager:
    """The command line in this process, with the model loaded once for all tests."""
    import wager.models
    from wager.decoding import decoder

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(wager.models, "load", lambda name, **how: smollm2)
    monkeypatch.setattr(decoder, "runner", lambda model: target)
    for name in ("FORCE_COLOR", "NO_COLOR", "WAGER_DEBUG"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: str, stdin: str = "") -> Done:
        monkeypatch.setattr(sys, "argv", ["wager", *words])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        return Done(int(code or 0), *capsys.readouterr())

    return run
