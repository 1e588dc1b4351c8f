"""Shared by the tests."""

import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import Done, Wager, called
from hypothesis import settings

# Two workers on two cores: with a thread each they do not wait for each other. Before anything imports torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("ci", max_examples=25, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=500, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each of two workers begins with a server of its own: work stealing deals out halves and steals their ends."""
    servers: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.path.name == "test_vllm_server.py":
            servers.setdefault(str(getattr(item, "cls", None)), []).append(item)
    *first, last = servers.values() or [[]]
    rest = [item for item in items if item.path.name != "test_vllm_server.py"]
    begin = [item for own in first for item in own]
    half = max(0, len(items) // 2 - len(begin))
    items[:] = [*begin, *rest[:half], *last, *rest[half:]]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    """torch on one thread, and transformers silent, for modules of tests that import them.

    With another worker on the same cores, threads that wait for each other take many times as long.
    """
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    if "transformers" in sys.modules:
        from transformers.utils import logging

        logging.set_verbosity_error()


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured counts as measured on a quiet machine: the tests' own may be as busy as it likes."""
    monkeypatch.setattr("wager.bench.verdict.TOO_NOISY", float("inf"))


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Wager:
    """The command line in this process, in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    for name in ("FORCE_COLOR", "NO_COLOR", "WAGER_DEBUG", "WAGER_DATA"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: object, stdin: str = "") -> Done:
        monkeypatch.setattr(sys, "argv", ["wager", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        return called(capsys)

    return run


@pytest.fixture(scope="session")
def smollm2() -> tuple[Any, Any]:
    """The embedded model on the CPU in float32; made once per machine, in the user's own cache."""
    from wager.models import load

    return load("smollm2-135m", device="cpu")


@pytest.fixture(scope="session")
def smollm2_folder() -> str:
    """The folder that holds it."""
    from wager.models import resolve

    return str(resolve("smollm2-135m"))
