"""Methods against tasks: MAT and speed, read from what `wager bench generate --json` writes and from runs alike."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from reproduction.experiment import Figures
from reproduction.workspace import Result
from wager.core import OFF, Arm

ALL = "all"


@dataclass(frozen=True, slots=True)
class Cell:
    """Of one method on one task."""

    mat: float  # tokens a round
    speed: float  # times plain decoding


class Comparison:
    """What every method reached on every task and on all."""

    def __init__(self, content: Result) -> None:
        self.cells: dict[str, dict[str, Cell]] = {}
        for row in content["methods"]:
            name = str(row["method"])
            own = {task: _cell(cell) for task, cell in row["tasks"].items()}
            self.cells[name] = {**own, ALL: _cell(row)}
        if str(OFF) not in self.cells:
            raise ValueError("a result to compare needs plain decoding through wager (off) among its methods")

    @property
    def tasks(self) -> list[str]:
        """Those of every method."""
        return [task for task in next(iter(self.cells.values())) if task != ALL]

    @property
    def arms(self) -> list[str]:
        """The methods that are one arm all the time, plain decoding aside."""
        return [name for name in self.cells if name != str(OFF) and _is_arm(name)]

    def has(self, *names: str) -> bool:
        """Whether all these methods were run."""
        return all(name in self.cells for name in names)

    def named(self, *beginnings: str) -> list[str]:
        """Arms of the drafters whose names begin so."""
        return [arm for arm in self.arms if arm.startswith(beginnings)]

    def speed(self, method: str, tasks: str | Sequence[str] = ALL) -> float:
        """Times plain decoding; of several tasks the mean, and of all of them that of the whole run."""
        return statistics.fmean(self.cells[method][t].speed for t in self._over(tasks))

    def mat(self, method: str, tasks: str | Sequence[str] = ALL) -> float:
        """Tokens a round; of several tasks the mean, and of all of them that of the whole run."""
        return statistics.fmean(self.cells[method][t].mat for t in self._over(tasks))

    def times(self, method: str, tasks: str | Sequence[str] = ALL) -> str:
        """The speed as it is written."""
        return f"{self.speed(method, tasks):.2f}"

    def _over(self, tasks: str | Sequence[str]) -> Sequence[str]:
        if isinstance(tasks, str):
            return [tasks]
        return [ALL] if set(tasks) == set(self.tasks) else tasks

    def best(self, names: Iterable[str], tasks: str | Sequence[str] = ALL, *, by: str = "speed") -> str:
        """The best of some methods."""
        return max(names, key=lambda name: getattr(self, by)(name, tasks))

    def figures(self, columns: Sequence[str] | None = None, names: Iterable[str] | None = None) -> Figures:
        """Every method's speed and MAT on every task."""
        columns = [ALL, *(self.tasks if columns is None else columns)]

        def cell(name: str, task: str) -> str | None:
            own = self.cells[name].get(task)
            return f"{own.speed:.2f}x, {own.mat:.2f}" if own else None

        rows = [(name, *(cell(name, task) for task in columns)) for name in (self.cells if names is None else names)]
        return Figures(("speed, tokens a round", *columns), rows)


def _cell(row: Any) -> Cell:
    return Cell(float(row["mat"]), float(row.get("steady") or row["speedup"]))


def _is_arm(name: str) -> bool:
    try:
        return Arm.parse(name) != OFF
    except ValueError:
        return False
