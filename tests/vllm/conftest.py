"""Shared by the tests of serving."""

from contextlib import suppress
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
