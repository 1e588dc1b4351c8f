"""Methods compared unit by unit: the same prompts, or the same seeds, under each of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from reproduction.experiment import Figures, Part, decided, decided_within
from reproduction.inference import FAILS, HOLDS, UNDECIDED, Interval, Sample, Values, interval
from wager.core import OFF

COLUMNS = ("tokens", "rounds", "seconds", "drafted", "accepted", "depth")  # depth: of the drafts, trees or chains
OTHERWISE = "otherwise"  # a further column: seconds under the other reading of a cost that was timed once
OF = {"seconds": "faster than", "rounds": "more tokens a round than"}


@dataclass(frozen=True, slots=True)
class Table:
    """For every method the same columns of numbers, one entry a unit; a unit is a prompt, or a seed of a simulation."""

    labels: tuple[str, ...]  # the task of each unit
    methods: Mapping[str, Mapping[str, np.ndarray]]  # method -> column -> number a unit, the mean over seeds
    seeds: int | None  # shuffles; None where nothing is drawn, so that all would be the same
    unit: str = "prompts"
    shares: Mapping[str, Mapping[str, float]] | None = None  # method -> arm -> share of its rounds

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """From a run's result."""
        methods = {
            name: {column: np.asarray(values, dtype=float) for column, values in own.items()}
            for name, own in content["units"].items()
        }
        labels = tuple(content["labels"])
        return cls(labels, methods, content["seeds"], content.get("unit", "prompts"), content.get("shares"))

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(self.labels))

    def where(self, tasks: Sequence[str] | None) -> np.ndarray:
        """Which units are of these tasks; all where none are named."""
        found = np.array([tasks is None or label in tasks for label in self.labels])
        if not found.any():
            raise ValueError(f"the run has no text of {', '.join(tasks or ('any task',))}")
        return found

    def sample(self, tasks: Sequence[str] | None = None) -> Sample:
        """Of the units of these tasks; of all where none are named."""
        count = int(self.where(tasks).sum())
        return Sample(seeds=count) if self.unit == "seeds" else Sample(prompts=count, seeds=self.seeds)

    def total(self, method: str, column: str, tasks: Sequence[str] | None = None) -> float:
        return float(self.methods[method][column][self.where(tasks)].sum())

    def speed(self, method: str, tasks: Sequence[str] | None = None) -> float:
        """Times plain decoding, over all units of these tasks."""
        return self.total(str(OFF), "seconds", tasks) / self.total(method, "seconds", tasks)

    def mat(self, method: str, tasks: Sequence[str] | None = None) -> float:
        """Tokens a round."""
        return self.total(method, "tokens", tasks) / self.total(method, "rounds", tasks)

    def logs(self, ours: str, other: str, tasks: Sequence[str] | None = None, column: str = "seconds") -> np.ndarray:
        """Unit by unit, the logarithm of how many times as much the other method takes; texts are the same for both."""
        at = self.where(tasks)
        ratio: np.ndarray = np.log(self.methods[other][column][at] / self.methods[ours][column][at])
        return ratio

    def beats(
        self, ours: str, other: str, tasks: Sequence[str] | None = None, *, where: str = "", column: str = "seconds",
        margin: float = 0.0,
    ) -> Part:  # fmt: skip
        """Ours takes fewer seconds, or rounds, than the other on the mean of the units, or ``margin`` more at most."""
        says = f"{ours} is {OF[column]} {other}" if column == "seconds" else f"{ours} brings {OF[column]} {other}"
        if margin:
            says = f"{ours} is no more than {margin:.0%} slower than {other}"
        found = interval(self.logs(ours, other, tasks, column))
        return decided(_at_place(says, where), found, self.sample(tasks), least=float(np.log1p(-margin)))

    def beats_all(
        self, ours: str, others: Iterable[str], tasks: Sequence[str] | None = None, *, where: str = "",
        column: str = "seconds", whom: str = "every other",
    ) -> Part:  # fmt: skip
        """Ours is better than each of the others: holds against all, or fails against one."""
        parts = {other: self.beats(ours, other, tasks, column=column) for other in others if other != ours}
        hardest = min(parts, key=lambda other: parts[other].interval.mean)
        verdicts = [part.verdict for part in parts.values()]
        verdict = FAILS if FAILS in verdicts else UNDECIDED if UNDECIDED in verdicts else HOLDS
        says = f"{ours} is {OF[column]} {whom}" if column == "seconds" else f"{ours} brings {OF[column]} {whom}"
        says = _at_place(f"{says} (the best of them {hardest})", where)
        return Part(says, parts[hardest].interval, self.sample(tasks), verdict)

    def alike(
        self,
        one: str,
        other: str,
        tasks: Sequence[str] | None,
        most: float,
        *,
        where: str = "",
        column: str = "seconds",
    ) -> Part:
        """Both differ by no more than ``most`` of their seconds or rounds."""
        unit = "speed" if column == "seconds" else "tokens a round"
        says = _at_place(f"{one} and {other} are within {most:.0%} of each other in {unit}", where)
        found = interval(self.logs(one, other, tasks, column))
        return decided_within(says, found, self.sample(tasks), float(np.log1p(most)))

    def figures(self, groups: Mapping[str, Sequence[str]], names: Iterable[str] | None = None) -> Figures:
        """Every method's speed and tokens a round on every group of tasks."""
        rows = [
            (name, *(f"{self.speed(name, own):.2f}x, {self.mat(name, own):.2f}" for own in groups.values()))
            for name in (self.methods if names is None else names)
        ]
        sizes = [f"{group} ({int(self.where(own).sum())})" for group, own in groups.items()]
        return Figures(("speed, tokens a round", *sizes), rows)


def best_of(parts: Sequence[Part], says: str) -> Part:
    """One of several parts holds: fails only where all of them do."""
    verdicts = [part.verdict for part in parts]
    verdict = HOLDS if HOLDS in verdicts else UNDECIDED if UNDECIDED in verdicts else FAILS
    best = max(parts, key=lambda part: part.interval.mean)
    return Part(says.format(best.says), best.interval, best.sample, verdict, best.scale)


def share(says: str, values: Values, sample: Sample, least: float = 0.5) -> Part:
    """A part about a share of units, or a mean, that has to be above ``least``."""
    found = interval(values)
    return decided(says, Interval(found.mean, found.low, found.high), sample, least=least, scale="difference")


def _at_place(says: str, where: str) -> str:
    return f"{where}: {says}" if where else says
