"""What an experiment is: a paper's claim, the runs that test it here, and a verdict computed from their figures."""

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from reproduction.inference import FAILS, HOLDS, UNDECIDED, Interval, Sample, row_verdict
from reproduction.workspace import Result, Run

TEXTS = tomllib.loads(Path(__file__).with_name("experiments.toml").read_text(encoding="utf-8"))
PART, UNTESTED = "in part", "not tested"
UNRECORDED = "not all that it takes is recorded"
VERDICTS = (HOLDS, PART, FAILS, UNDECIDED, UNTESTED)


@dataclass(frozen=True, slots=True)
class Figures:
    """A small table."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]  # words, numbers or None

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"every row has {len(self.columns)} cells, one a column")

    def json(self) -> dict[str, Any]:
        rows = [[round(x, 4) if isinstance(x, float) else x for x in row] for row in self.rows]
        return {"columns": list(self.columns), "rows": rows}


NO_FIGURES = Figures((), ())


def shown(cell: str | float | None) -> str:
    """A cell in words: numbers with as many digits as mean something."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.1f}" if abs(cell) >= 100 else f"{cell:.2f}"


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a claim: what it says, the interval that it rests on, and what that decides."""

    says: str
    interval: Interval
    sample: Sample
    verdict: str
    scale: str = "ratio"  # the interval is of logarithms of ratios, or of plain differences
    band: tuple[float, float] | None = None  # least and largest mean with costs varied around the fitted ones

    def json(self) -> dict[str, Any]:
        ends = (self.interval.mean, self.interval.low, self.interval.high)
        values = [round(x, 5) if math.isfinite(x) else None for x in ends]
        told: dict[str, Any] = {"prompts": self.sample.prompts, "seeds": self.sample.seeds}
        shown = effect(ends, self.scale)
        if self.band is not None:
            low, high = self.band
            shown += f"; with costs varied {math.expm1(low):+.1%} to {math.expm1(high):+.1%}"
            told["band"] = [round(low, 5), round(high, 5)]
        return {"says": self.says, "verdict": self.verdict, "effect": shown, "interval": values} | told


def effect(ends: Sequence[float], scale: str) -> str:
    """Mean and interval in words: per cent of a ratio, or a difference."""
    mean, low, high = ends
    if not all(map(math.isfinite, ends)):
        return ""
    if scale == "ratio":
        return f"{math.expm1(mean):+.1%} ({math.expm1(low):+.1%} to {math.expm1(high):+.1%})"
    return f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"


def decided(says: str, found: Interval, sample: Sample, *, least: float = 0.0, scale: str = "ratio") -> Part:
    """A part that holds where the mean is above ``least``; with too few units nothing is decided."""
    return Part(says, found, sample, found.decide(least) if sample.enough else UNDECIDED, scale)


def decided_within(says: str, found: Interval, sample: Sample, most: float, *, scale: str = "ratio") -> Part:
    """A part that holds where the mean is no further from 0 than ``most``."""
    return Part(says, found, sample, found.decide_within(most) if sample.enough else UNDECIDED, scale)


def withstands(part: Part, means: Sequence[float]) -> Part:
    """The part with the band of its mean under other costs: undecided where its sign is not the same in all of it."""
    band = (min(means), max(means))
    turns = min(*band, part.interval.mean) <= 0 < max(*band, part.interval.mean)
    return replace(part, band=band, verdict=UNDECIDED if turns else part.verdict)


def not_recorded(where: str, count: int) -> list[Part]:
    """So many parts that nothing was run for: of what they are about, not all is recorded."""
    nothing = Interval(math.nan, -math.inf, math.inf)
    return [Part(f"{where}: {UNRECORDED}", nothing, Sample(prompts=0), UNDECIDED)] * count


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came out: the figures in one sentence and as a table, and the claim's parts tested on them."""

    headline: str
    figures: Figures = NO_FIGURES
    parts: Sequence[Part] = ()
    untested: str = ""  # why nothing is claimed or can be tested
    because: str = ""  # what explains the parts that do not hold
    premise: str = ""  # what the claim takes for granted and is not so here; parts that rest on it are undecided

    @property
    def verdict(self) -> str:
        return UNTESTED if self.untested else row_verdict([part.verdict for part in self.parts])

    def json(self) -> dict[str, Any]:
        told = {"verdict": self.verdict, "headline": self.headline, "untested": self.untested, "because": self.because}
        told["premise"] = self.premise
        return {**told, "parts": [part.json() for part in self.parts], "figures": self.figures.json()}


@dataclass(frozen=True, slots=True)
class Experiment:
    """One table or figure."""

    name: str
    what: str  # the table or figure is
    claim: str
    decides: str  # what would decide it, where its runs cannot be made here
    runs: Callable[[], Sequence[Run]]
    evaluate: Callable[[Sequence[Result]], Outcome]
    older: tuple[str, ...] = ()  # results of earlier runs without figures a prompt: shown, and no verdict rests on them
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def paper(self) -> str:
        """The paper's key: what the name begins with."""
        return self.name.partition("-")[0]

    @property
    def place(self) -> str:
        """Where in the paper: table 1, figure 3."""
        where = self.name.partition("-")[2]
        kind = where.rstrip("0123456789")
        return f"{kind} {where.removeprefix(kind)}"


def experiment(
    name: str, runs: Callable[[], Sequence[Run]], evaluate: Callable[[Sequence[Result]], Outcome], *older: str
) -> Experiment:
    """An experiment with its texts from experiments.toml."""
    texts = dict(TEXTS[name])
    return Experiment(name, texts["what"], texts["claim"], texts.get("decides", ""), runs, evaluate, older, texts)
