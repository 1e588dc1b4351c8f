"""What a figure is: a chart at any width, a legend, the table behind it, and its source."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from markupsafe import Markup

from wager.report.views import Measure, Source

# The sections of the page and the kinds of figures in each, in order.
SECTIONS = (
    ("speed", "Speed-up", ("speed",)),
    ("regret", "Regret", ("regret",)),
    ("choice", "Arm choice", ("choice",)),
    ("drafts", "What drafts bring and cost", ("survival", "cost")),
    ("load", "Under load", ("load",)),
    ("tokens", "Token by token", ("tokens",)),
)


class Value(NamedTuple):
    """A number in a table: as it was computed, and as it is written."""

    number: float
    said: str


Cell = str | Value | None


class Table(NamedTuple):
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]


class Key(NamedTuple):
    name: str
    colour: str
    dash: str = ""
    line: bool = False
    hollow: bool = False  # what is not coloured at all


class Figure(NamedTuple):
    """One card of the page."""

    kind: str  # one of those in SECTIONS
    title: str
    says: str  # what there is to see
    source: Source
    table: Table
    panels: Sequence[tuple[str, Callable[[int], Markup]]] = ()  # (heading, chart at a width)
    html: Markup | str = ""  # what is shown besides, or instead of, a chart
    legend: Sequence[Key] = ()
    note: str = ""  # how the numbers were made
    wide: bool = True  # takes the whole width of the page


def measured(
    measure: Measure | None, show: Callable[[float], str], ends: Callable[[float], str] | None = None
) -> Value | None:
    """A measure in a table, with the range it lies in where that is known; ``ends`` shows the ends of the range."""
    if measure is None:
        return None
    spread = measure.range(ends or show)
    return Value(measure.value, show(measure.value) + (f" ({spread})" if spread else ""))
