"""What commands draw: a bar while they work, tables when they are done."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from time import monotonic
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

EVERY = 15.0  # seconds between two lines of a bar where there is no terminal


def stderr() -> Console:
    """Standard error; what is printed there without a terminal is never wrapped."""
    console = Console(stderr=True, highlight=False)
    return console if console.is_terminal else Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def stage(what: str, console: Console | None = None) -> Iterator[Callable[[str], object]]:
    """Say on standard error what is being done: a spinner on a terminal, a line elsewhere; call it for the next."""
    told = console or stderr()
    if told.is_terminal:
        with told.status(Text(what), spinner="dots") as status:
            yield lambda next_one: status.update(Text(next_one))
        return

    def line(what: str) -> None:
        told.print(what, markup=False, soft_wrap=True)

    line(what)
    yield line


@contextmanager
def bar(what: str, total: int | None = None, *, done: int = 0) -> Iterator[Callable[..., None]]:
    """A bar on standard error with the time left; call what it gives as ``Progress.update``, or with a ``note``.

    Without a terminal it is a line at the first update and one every few seconds.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    note, console = TextColumn("left {task.fields[note]}"), stderr()
    with Progress(*columns, note, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total, completed=done, note="")
        due = 0.0

        def update(**changed: Any) -> None:
            nonlocal due
            progress.update(task, **changed)
            if progress.disable and monotonic() >= due:
                due = monotonic() + EVERY
                console.print(_line(progress.tasks[0]), markup=False, soft_wrap=True)

        yield update


def _line(task: Task) -> str:
    """How far a bar is, in words."""
    of = "" if task.total is None else f" of {task.total:g}"
    left = "" if task.time_remaining is None or task.finished else f", about {task.time_remaining:.0f} s left"
    return f"{task.description}: {task.completed:g}{of}{left}"


def tracked(what: str, items: Iterable[Any], total: int) -> Iterator[Any]:
    """The items, with a bar that says how many of them there were."""
    with bar(what, total) as update:
        for item in items:
            yield item
            update(advance=1)


def wide(width: int) -> Console:
    """Standard output; a pipe, which has no width of its own, gets this one unless COLUMNS says another."""
    console = Console()
    columns = os.environ.get("COLUMNS", "")
    if not console.is_terminal and not (columns.isdecimal() and int(columns)):
        console.width = width
    return console


class Columns(Table):
    """A table whose columns go on below where they do not fit side by side; the first ``left`` are repeated there."""

    left = 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        kept, rest = self.columns[: self.left], self.columns[self.left :]
        parts: list[list[Column]] = [[]]
        for column in rest:
            if parts[-1] and not self._fits([*kept, *parts[-1], column], console, options):
                parts.append([])
            parts[-1].append(column)
        for i, part in enumerate(parts):
            shown = self._of([*kept, *part])
            shown.title, shown.caption = None if i else self.title, None if part is not parts[-1] else self.caption
            yield from Table.__rich_console__(shown, console, options)

    def _of(self, columns: list[Column]) -> Table:
        """The same table with these of its columns."""
        shown = copy(self)
        shown.columns = columns
        return shown

    def _fits(self, columns: list[Column], console: Console, options: ConsoleOptions) -> bool:
        unlimited = options.update(max_width=10_000)
        least = console.measure(self._of(columns), options=unlimited).minimum  # with a line break in every space
        for column in columns:
            own = console.measure(self._of([column]), options=unlimited)
            least += column.no_wrap * (own.maximum - own.minimum)
        return least <= options.max_width


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[RenderableType]] = (), *, left: int = 1, **how: Any
) -> Table:
    """A table with its title above it; the first ``left`` columns are words, the others numbers."""
    made = Columns(title=Text(title) if title else None, title_justify="left", **how)
    made.left = left
    for i, column in enumerate(columns):
        made.add_column(column, justify="left" if i < left else "right", no_wrap=not i)
    for row in rows:
        made.add_row(*row)
    return made


def titled(title: str, note: str, columns: Sequence[str], fold: Sequence[str] = ()) -> Table:
    """A table with a title above it and a note below; the first column is words, and those of ``fold`` may wrap."""
    made = Columns(title=Text(title), title_justify="left", caption=note, caption_justify="left", box=box.SIMPLE_HEAD)
    for i, column in enumerate(columns):
        made.add_column(column, justify="right" if i else "left", style=None if i else "bold", no_wrap=True)
    for column in fold:
        made.add_column(column, justify="right", overflow="fold")
    return made
