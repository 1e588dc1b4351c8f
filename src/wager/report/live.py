"""A page that follows a trace while it is written."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from wager.core import files
from wager.core.trace import FORMAT
from wager.report.colours import Palette
from wager.report.from_run import traced
from wager.report.page import render
from wager.report.views import Material, Source

BEGINS = f'{{"format":"{FORMAT}"'  # the first line of every trace


def follow(trace: Path, page: Path, *, every: float, idle: float, told: Callable[[str], object]) -> None:
    """Write the page anew every so many seconds, until nothing was added for ``idle`` seconds or Ctrl-C."""
    # The last page does not load itself anew. A trace has no end mark: one that a program still writes only grows.
    read = _read(trace)
    size, grew = trace.stat().st_size, time.monotonic()
    try:
        while True:
            files.write_text(page, render([read], refresh=every, now=f"{datetime.now(UTC):%H:%M:%S} UTC"))
            told(read.verdict[0])
            time.sleep(every)
            try:
                now = trace.stat().st_size
            except FileNotFoundError:  # what failed takes its trace with it
                told(f"{trace.name} is gone; the page keeps what it held")
                break
            if now != size:
                size, grew = now, time.monotonic()
                read = _read(trace)
            elif time.monotonic() - grew >= idle:
                break
    except KeyboardInterrupt:
        pass
    files.write_text(page, render([read]))


def _read(trace: Path) -> Material:
    """What the trace holds; one whose first line is not there yet holds nothing."""
    with trace.open(encoding="utf-8", errors="replace") as file:
        first = file.readline()
    if first.endswith("\n") or not first.startswith(BEGINS[: len(first)]):
        return traced(trace, Palette())
    return Material(Source(trace.name, "a trace"), verdict=[f"{trace.name} holds no round yet."])
