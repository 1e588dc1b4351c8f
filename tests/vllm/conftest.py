"""Shared by the tests of serving."""

import inspect
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

with suppress(ImportError):
    import setuptools  # noqa: F401 - vLLM needs it, and it cannot be imported once anything has looked for pip


@pytest.fixture
def launch() -> Any:
    """What makes vLLM's arguments; a test that asks for it is skipped where there is no vLLM."""
    pytest.importorskip("vllm.config", reason="vLLM is not installed; see the README on serving")
    from wager.vllm import launch

    return launch


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., types.ModuleType]]:
    """Makes a module of kernels anew with a piece of its source replaced; Triton reads sources from files."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(module: types.ModuleType, right: str, wrong: str) -> types.ModuleType:
        source = Path(inspect.getfile(module)).read_text()
        assert right in source
        (tmp_path / "planted_kernels.py").write_text(source.replace(right, wrong))
        import planted_kernels  # type: ignore[import-not-found]

        return planted_kernels  # type: ignore[no-any-return]

    yield make
    sys.modules.pop("planted_kernels", None)


@pytest.fixture
def rerun_in_interpreter() -> Callable[[str], None]:
    """Runs a file of tests once more, with Triton's interpreter in the place of its compiler."""

    def rerun(file: str) -> None:
        pytest.importorskip("triton")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", file]
        ran = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout

    return rerun
