"""What a report shows, whatever file it came from, and what a figure is: one small type for each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from markupsafe import Markup

SIMULATION = "a simulation"  # a source's kind that figures name
MAT = "MAT, the target's own token included"
# A round of a text: its arm, its tokens each with its source (a drafter, 'bonus' or 'plain'), the drafts not taken.
TextRound = tuple[str, Sequence[tuple[str, str]], Sequence[str]]


class Source(NamedTuple):
    """Where numbers come from: the file and the command that wrote it."""

    file: str  # its name, no folder
    kind: str  # what it is, in words
    command: str = ""
    date: str = ""
    machine: str = ""
    complete: bool = True


class Measure(NamedTuple):
    """A number with the range it lies in, where that is known."""

    value: float
    low: float | None = None
    high: float | None = None

    def range(self, show: Callable[[float], str]) -> str:
        """The range in words; empty where it is not known."""
        return "" if self.low is None or self.high is None else f"{show(self.low)} to {show(self.high)}"


class Method(NamedTuple):
    """One way to decode, and how many times as fast as the base it is."""

    name: str
    kind: str  # 'plain', 'peer', 'off', 'arm', 'policy' or 'bound'
    overall: Measure
    tasks: Mapping[str, Measure]


class Curve(NamedTuple):
    """One line: y over x, with half widths of its band where known."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    half: Sequence[float] = ()
    reference: bool = False  # a bound or a baseline, drawn apart


class Load(NamedTuple):
    """Servers under loads."""

    points: Sequence[str]  # in order; numbers are requests in flight
    methods: Sequence[str]
    latency: Mapping[tuple[str, str], Measure]  # seconds over repetitions, by method and point
    ratios: Mapping[tuple[str, str], Measure]  # throughput relative to no speculation, likewise
    table: Sequence[Sequence[int]]  # vLLM's own: from, to, length
    differ: int
    texts: int

    def ratio(self, method: str, point: str) -> float:
        """Throughput relative to no speculation; 0 where it is not known."""
        found = self.ratios.get((method, point))
        return found.value if found is not None else 0.0


class Served(NamedTuple):
    """One method on a server, and its throughput relative to no speculation by requests at once."""

    name: str
    kind: str  # 'plain', 'peer' (vLLM's own), 'off', 'arm' (a fixed length) or 'policy'
    engine: str
    ratios: Mapping[int, Measure]

    @property
    def pairs(self) -> list[tuple[int, Measure]]:
        return list(self.ratios.items())


class Serving(NamedTuple):
    """Servers that took turns under constant loads, with one kind of prompts."""

    prompts: str  # in words
    title: str  # the same; with the plan where a file has several
    profile: str  # of set acceptance probabilities; empty where tokens are compared
    loads: Sequence[int]  # requests at once, in order
    methods: Sequence[Served]
    rounds: int  # of turns, at most


class NothingShownError(ValueError):
    """A file of a known kind holds nothing that a report shows."""


class Big(NamedTuple):
    """One of the big figures at the top."""

    value: str
    label: str
    note: str = ""


@dataclass(slots=True)
class Material:
    """Everything one file holds that a report can show."""

    source: Source
    verdict: Sequence[str] = ()
    figures: Sequence[Big] = ()
    cards: list["Figure"] = field(default_factory=list)


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

    kind: str  # one of those in the page's SECTIONS
    title: str
    says: str  # what there is to see
    source: Source
    table: Table
    panels: Sequence[tuple[str, Callable[[int], Markup]]] = ()  # (heading, chart at a width)
    html: Markup | str = ""  # what is shown besides, or instead of, a chart
    legend: Sequence[Key] = ()
    note: str = ""  # how the numbers were made
    wide: bool = True  # takes the whole width of the page
    equal: bool = False  # all panels have one size; else the first takes the card's width


def measured(
    measure: Measure | None, show: Callable[[float], str], ends: Callable[[float], str] | None = None
) -> Value | None:
    """A measure in a table, with the range it lies in where that is known; ``ends`` shows the ends of the range."""
    if measure is None:
        return None
    spread = measure.range(ends or show)
    return Value(measure.value, show(measure.value) + (f" ({spread})" if spread else ""))
