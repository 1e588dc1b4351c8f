"""What an experiment is: a paper's claim, the runs that try it here, and a verdict computed from their figures."""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reproduction.workspace import Result, Run

TEXTS = tomllib.loads(Path(__file__).with_name("experiments.toml").read_text(encoding="utf-8"))
YES, PART, NO, UNTRIED = "yes", "in part", "no", "cannot be tried here"


@dataclass(frozen=True, slots=True)
class Figures:
    """A small table."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str | float | None]]

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"every row has {len(self.columns)} cells, one a column")

    def json(self) -> dict[str, Any]:
        rows = [[round(x, 4) if isinstance(x, float) else x for x in row] for row in self.rows]
        return {"columns": list(self.columns), "rows": rows}


def shown(cell: str | float | None) -> str:
    """A cell in words: numbers with as many digits as mean something."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.1f}" if abs(cell) >= 100 else f"{cell:.2f}"


@dataclass(frozen=True, slots=True)
class Check:
    """One part of a claim, with the figures it rests on."""

    says: str
    holds: bool
    because: str = ""  # why not, shown where it does not hold


class Checks(list[Check]):
    """The parts of a claim as they are checked one after the other."""

    def add(self, says: str, holds: bool, because: str = "") -> None:
        self.append(Check(says, holds, because))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came out: the figures in one sentence and as a table, and the claim's parts checked against them."""

    headline: str
    figures: Figures
    checks: Sequence[Check] = ()

    @property
    def holds(self) -> str:
        """Whether the claim holds: all of its parts, some, or none."""
        kept = sum(check.holds for check in self.checks)
        return UNTRIED if not self.checks else YES if kept == len(self.checks) else PART if kept else NO

    @property
    def why(self) -> str:
        """What does not hold, and why."""
        failed = [check for check in self.checks if not check.holds]
        reasons = list(dict.fromkeys(check.because for check in failed if check.because))
        return " ".join([*(f"Not: {check.says}." for check in failed), *reasons])

    def json(self) -> dict[str, Any]:
        told = {"headline": self.headline, "holds": self.holds, "why": self.why, "figures": self.figures.json()}
        return {**told, "checks": [asdict(check) for check in self.checks]}


def joined(parts: Sequence[Outcome]) -> Outcome:
    """Outcomes of the same kind as one."""
    rows = [row for part in parts for row in part.figures.rows]
    checks = [check for part in parts for check in part.checks]
    return Outcome("; ".join(part.headline for part in parts), Figures(parts[0].figures.columns, rows), checks)


@dataclass(frozen=True, slots=True)
class Longer:
    """Longer results of the same kind, kept in results/: used in place of the quick one where all are there."""

    files: tuple[str, ...]
    evaluate: Callable[[Sequence[Result]], Outcome] | None = None  # None: as the quick one


@dataclass(frozen=True, slots=True)
class Experiment:
    """One table or figure."""

    name: str
    what: str  # the table or figure is
    claim: str
    differs: str  # how it is re-run here, and what differs from the paper
    runs: Callable[[bool], Sequence[Run]]  # the runs of the quick form, or of the full one
    evaluate: Callable[[Sequence[Result]], Outcome]
    longer: tuple[Longer, ...] = ()

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
    name: str,
    runs: Callable[[bool], Sequence[Run]],
    evaluate: Callable[[Sequence[Result]], Outcome],
    *longer: Longer | str,
) -> Experiment:
    """An experiment with its texts from experiments.toml; a longer result that is one file goes by its name."""
    found = tuple(Longer((one,)) if isinstance(one, str) else one for one in longer)
    return Experiment(name, **TEXTS[name], runs=runs, evaluate=evaluate, longer=found)
