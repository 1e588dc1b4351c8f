"""Waits on conditions instead of fixed sleeps, child processes that can be interrupted, and bounds on time."""

import signal
import time
import timeit
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


def allowed(seconds: float) -> float:
    """A bound on what something takes: its aim, twice over, and longer where this machine is slower or busier now.

    The aims are those of an idle core on which the loop below takes two milliseconds.
    """

    def loop() -> int:
        known: dict[int, int] = {}
        for i in range(10_000):
            known[i % 97] = known.get(i % 89, 0) + i
        return len(known)

    return 2.0 * seconds * max(1.0, min(timeit.repeat(loop, number=1, repeat=20)) / 2e-3)
