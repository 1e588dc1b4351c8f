"""When Python collects garbage: not in the middle of something that must not be interrupted."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """No automatic collection inside; afterwards it is as it was."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def collect_due() -> None:
    """Collect what would soon be due, were collections automatic; all objects there are may take longer than whoever
    calls this has time: that is left to Python."""
    (young, middle, old), (few, some, many) = gc.get_count(), gc.get_threshold()
    if 2 * young > few > 0 and old <= many:
        gc.collect(1 if middle > some else 0)
