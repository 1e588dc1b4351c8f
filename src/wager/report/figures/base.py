"""What a figure is: a chart at any width, a legend, the table behind it, and its source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from wager.report.views import Source

# The sections of the page and the kinds of figures in each, in order.
SECTIONS = (
    ("speed", "Speed-up", ("speed",)),
    ("regret", "Regret", ("regret",)),
    ("choice", "Arm choice", ("choice",)),
    ("drafts", "What drafts bring and cost", ("survival", "cost")),
    ("load", "Under load", ("load",)),
    ("tokens", "Token by token", ("tokens",)),
)


@dataclass(frozen=True, slots=True)
class Value:
    """A number in a table: as it was computed, and as it is written."""

    number: float
    said: str


Cell = str | Value | None


@dataclass(frozen=True, slots=True)
class Table:
    """The numbers behind a chart."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of a legend."""

    name: str
    colour: str
    dash: str = ""
    line: bool = False
    hollow: bool = False  # what is not coloured at all


@dataclass(frozen=True, slots=True)
class Figure:
    """One card of the page."""

    kind: str  # one of those in SECTIONS
    title: str
    says: str  # what there is to see
    source: Source
    table: Table | None = None
    panels: Sequence[tuple[str, Callable[[int], Markup]]] = ()  # (heading, chart at a width)
    html: Markup | str = ""  # what is shown besides, or instead of, a chart
    legend: Sequence[Key] = ()
    note: str = ""  # how the numbers were made
    wide: bool = True  # takes the whole width of the page


def plural(count: int, one: str) -> str:
    """A count and its noun."""
    return f"{count:,} {one}{'s' * (count != 1)}"


def listed(names: Sequence[str], most: int = 4) -> str:
    """Names in a sentence."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else ""
