"""Waits on conditions instead of fixed sleeps, and child processes that can be interrupted."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], what: str, *, seconds: float = 60.0) -> None:
    """Return as soon as the condition holds; fail and say what was missing when it still does not after so long."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"after {seconds:g} s: {what}"
        time.sleep(0.02)


def default_sigint() -> None:
    """A ``preexec_fn``: the child reacts to SIGINT also where the tests run in the background, which ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
