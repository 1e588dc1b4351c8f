"""What commands draw: a bar while they work, tables when they are done."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text


@contextmanager
def bar(what: str, total: int | None = None, *, done: int = 0) -> Iterator[Callable[..., None]]:
    """A bar on standard error with the time left; call what it gives as ``Progress.update``, or with a ``note``."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    note = TextColumn("left {task.fields[note]}")
    with Progress(*columns, note, console=Console(stderr=True), transient=True) as progress:
        yield functools.partial(progress.update, progress.add_task(what, total=total, completed=done, note=""))


def wide(width: int) -> Console:
    """Standard output; a pipe, which has no width of its own, gets this one."""
    console = Console()
    if not console.is_terminal:
        console.width = width
    return console


def titled(title: str, note: str) -> Table:
    """A table with a title above it and a note below."""
    return Table(title=Text(title), title_justify="left", caption=note, caption_justify="left", box=box.SIMPLE_HEAD)
