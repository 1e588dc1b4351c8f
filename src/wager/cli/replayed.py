"""What `wager lab replay` shows of a comparison: every policy beside off, the best fixed arm and the clairvoyant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text as Words

from wager.cli.experiment import policy_table
from wager.cli.screen import titled
from wager.simulation import Comparison, Run
from wager.simulation.experiment import Estimate, Result

NEAR = 0.97  # of the task's best fixed arm: as good as it


class Report:
    """A comparison on recorded texts, as tables and as JSON."""

    def __init__(self, comparison: Comparison, labels: Sequence[str]) -> None:
        self.comparison, self.labels = comparison, labels
        self.off = next(result for result in comparison.fixed if result.policy == "off")
        self.references = (comparison.clairvoyant, comparison.best_fixed, self.off)  # first what one cannot have

    def figures(self, row: Result) -> dict[str, Estimate | None]:
        """A row's figures, each with its interval over runs."""
        return {
            "goodput": row.goodput,
            "to_off": _ratio(row, self.off),
            "to_best_fixed": row.speed,
            "to_clairvoyant": _ratio(row, self.comparison.clairvoyant),
            "gap_closed": self._closed(row),
            "tokens_per_round": row.tokens_per_round,
            "regret_rounds": row.regret_rounds,
            "regret_seconds": row.regret_seconds,
        }

    def _closed(self, row: Result) -> Estimate | None:
        """Share of the way from the best fixed arm to the clairvoyant, in tokens a second; None where there is none."""
        results = (row, self.comparison.best_fixed, self.comparison.clairvoyant)
        triples = list(zip(*([_goodput(run) for run in result.runs] for result in results), strict=True))
        if any(upper <= lower * (1 + 1e-9) for _, lower, upper in triples):
            return None
        return Estimate.of([(x - lower) / (upper - lower) for x, lower, upper in triples])

    def task(self, label: str) -> dict[str, Any]:
        """Of the texts of one label: off's tokens a second, and how many times those of off the others make."""
        best = min(self.comparison.fixed, key=lambda result: sum(run.facts[f"seconds {label}"] for run in result.runs))
        return {
            "label": label,
            "off_goodput": Estimate.of([_goodput(run, label) for run in self.off.runs]),
            "best_fixed_arm": best.policy,
            "best_fixed": _ratio(best, self.off, label),
            "clairvoyant": _ratio(self.comparison.clairvoyant, self.off, label),
            "policies": {result.policy: _ratio(result, self.off, label) for result in self.comparison.results},
        }

    # -- shown

    def policies(self, title: str) -> Table:
        """A line for every policy."""

        def figure(key: str, show: Callable[[Estimate], str] = str) -> Callable[[Result], str]:
            return lambda row: "-" if (x := self.figures(row)[key]) is None else show(x)

        columns = {
            "tokens/\nsecond": figure("goodput", lambda x: f"{x.mean:,.1f}"),
            "times\noff": figure(
                "to_off", lambda x: f"{x.mean:.3f}" + (f" ± {x.half:.3f}" if x.half is not None else "")
            ),
            "of best\nfixed": figure("to_best_fixed", lambda x: f"{x.mean:.3f}"),
            "of clair-\nvoyant": figure("to_clairvoyant", lambda x: f"{x.mean:.3f}"),
            "gap\nclosed": figure("gap_closed", lambda x: f"{x.mean:.0%}"),
            "\nMAT": figure("tokens_per_round", lambda x: f"{x.mean:.2f}"),
            "regret,\nrounds": figure("regret_rounds"),
            "regret,\nseconds": figure("regret_seconds"),
        }
        note = "gap closed: of that between the best fixed arm and the clairvoyant, who knows every text to its end"
        return policy_table(title, note, columns, self.references, self.comparison.results)

    def tasks(self) -> Table:
        """A line for every label."""
        note = f"in times off's tokens a second; bold: at least {NEAR:.0%} of the task's best fixed arm in hindsight"
        shown = titled("by task", note)
        shown.add_column("task", style="bold", no_wrap=True)
        shown.add_column("off,\ntokens/s", justify="right", no_wrap=True)
        for column in ("best fixed", "clairvoyant", *(result.policy for result in self.comparison.results)):
            shown.add_column(column, justify="right", overflow="fold")
        for about in map(self.task, self.labels):
            best, own = about["best_fixed"].mean, [x.mean for x in about["policies"].values()]
            first = (f"{about['off_goodput'].mean:,.1f}", f"{about['best_fixed_arm']} {best:.2f}")
            cells = (Words(f"{x:.2f}", style="bold" if x >= NEAR * best else "") for x in own)
            shown.add_row(Words(about["label"]), *first, f"{about['clairvoyant'].mean:.2f}", *cells)
        return shown

    def json(self) -> dict[str, Any]:
        """What the tables say, with every interval."""
        every = (*self.references, *self.comparison.results)
        rows = [{"policy": row.policy, **_plain(self.figures(row)), "pulls": row.json()["pulls"]} for row in every]
        fixed = {result.policy: _ratio(result, self.off).json() for result in self.comparison.fixed}
        tasks = [_plain(self.task(label)) for label in self.labels]
        return {"best_fixed_arm": str(self.comparison.best), "rows": rows, "fixed_to_off": fixed, "tasks": tasks}


def _goodput(run: Run, label: str | None = None) -> float:
    if label is None:
        return run.tokens / run.seconds
    return run.facts[f"tokens {label}"] / run.facts[f"seconds {label}"]


def _ratio(result: Result, base: Result, label: str | None = None) -> Estimate:
    """How many times the other's tokens a second, run by run on the same seeds."""
    pairs = zip(result.runs, base.runs, strict=True)
    return Estimate.of([_goodput(run, label) / _goodput(other, label) for run, other in pairs])


def _plain(value: Any) -> Any:
    """With every estimate as JSON."""
    if isinstance(value, Estimate):
        return value.json()
    return {key: _plain(x) for key, x in value.items()} if isinstance(value, dict) else value
