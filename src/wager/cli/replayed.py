"""What `wager lab replay` shows of a comparison: every policy beside off, the best fixed arm and the clairvoyant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from rich.table import Table
from rich.text import Text as Words

from wager.cli.screen import titled
from wager.simulation import Comparison, Run
from wager.simulation.experiment import Estimate, Result, adaptation

NEAR = 0.97  # of the task's best fixed arm: as good as it


class Report:
    """A comparison on recorded texts, as tables and as JSON."""

    def __init__(self, comparison: Comparison, labels: Sequence[str]) -> None:
        self.comparison, self.labels = comparison, labels
        self.off = next(result for result in comparison.fixed if result.policy == "off")

    @property
    def rows(self) -> tuple[Result, ...]:
        """What one cannot have first, then what one has without a policy."""
        return (self.comparison.clairvoyant, self.comparison.best_fixed, self.off, *self.comparison.results)

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
        ours, low, high = (
            [_goodput(run) for run in result.runs]
            for result in (row, self.comparison.best_fixed, self.comparison.clairvoyant)
        )
        if any(upper <= lower * (1 + 1e-9) for lower, upper in zip(low, high, strict=True)):
            return None
        return Estimate.of([(x - lower) / (upper - lower) for x, lower, upper in zip(ours, low, high, strict=True)])

    def task(self, label: str) -> dict[str, Any]:
        """Of the texts of one label: off's tokens a second, and how many times those of off the others make."""

        def seconds(result: Result) -> float:
            return sum(run.facts[f"seconds {label}"] for run in result.runs)

        best = min(self.comparison.fixed, key=seconds)
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
        shows: dict[str, tuple[str, Callable[[Estimate], str]]] = {
            "tokens/\nsecond": ("goodput", lambda x: f"{x.mean:,.1f}"),
            "times\noff": ("to_off", _times),
            "of best\nfixed": ("to_best_fixed", lambda x: f"{x.mean:.3f}"),
            "of clair-\nvoyant": ("to_clairvoyant", lambda x: f"{x.mean:.3f}"),
            "gap\nclosed": ("gap_closed", lambda x: f"{x.mean:.0%}"),
            "\nMAT": ("tokens_per_round", lambda x: f"{x.mean:.2f}"),
            "regret,\nrounds": ("regret_rounds", str),
            "regret,\nseconds": ("regret_seconds", str),
        }
        note = (
            "± 95 % interval over runs; regret is against the best fixed arm on the same seeds; gap closed: of that "
            "between the best fixed arm and the clairvoyant, who knows every text to its end"
        )
        table = titled(title, note)
        table.add_column("\npolicy", style="bold", min_width=18, overflow="fold")
        for name in shows:
            table.add_column(name, justify="right", no_wrap=True)
        for row in self.rows:
            figures = self.figures(row)
            cells = [show(x) if (x := figures[key]) is not None else "-" for key, show in shows.values()]
            reference = any(row is r for r in (self.comparison.clairvoyant, self.comparison.best_fixed, self.off))
            table.add_row(row.policy, *cells, style="dim" if reference else None, end_section=row is self.off)
        return table

    def tasks(self) -> Table:
        """A line for every label."""
        note = f"in times off's tokens a second; bold: at least {NEAR:.0%} of the task's best fixed arm in hindsight"
        table = titled("by task", note)
        table.add_column("task", style="bold", no_wrap=True)
        table.add_column("off,\ntokens/s", justify="right", no_wrap=True)
        for column in ("best fixed", "clairvoyant", *(result.policy for result in self.comparison.results)):
            table.add_column(column, justify="right", overflow="fold")
        for label in self.labels:
            about = self.task(label)
            best = about["best_fixed"].mean
            table.add_row(
                Words(label),
                f"{about['off_goodput'].mean:,.1f}",
                f"{about['best_fixed_arm']} {best:.2f}",
                f"{about['clairvoyant'].mean:.2f}",
                *(
                    Words(f"{x.mean:.2f}", style="bold" if x.mean >= NEAR * best else "")
                    for x in about["policies"].values()
                ),
            )
        return table

    def json(self) -> dict[str, Any]:
        """What the tables say, with every interval."""
        fixed = {result.policy: _ratio(result, self.off).json() for result in self.comparison.fixed}
        rows = [{"policy": row.policy, **_plain(self.figures(row)), "pulls": row.json()["pulls"]} for row in self.rows]
        return {
            "best_fixed_arm": str(self.comparison.best),
            "rows": rows,
            "fixed_to_off": fixed,
            "tasks": [_plain(self.task(label)) for label in self.labels],
        }


def adapted(comparison: Comparison, starts: Sequence[int]) -> list[dict[str, Any]]:
    """For every change of phase: the arm that is best from there on, and how soon each policy is as good."""
    changes = []
    for start, end in pairwise(starts[1:]):
        best, rows = adaptation(comparison, start, end)
        own = {row.policy: row for row in rows}
        told = {
            result.policy: {
                "rounds": own[result.policy].rounds.json(),
                "reached": own[result.policy].reached,
                "to_best_fixed": own[result.policy].speed.json(),
            }
            for result in comparison.results
        }
        changes.append({"at": start, "best_fixed_arm": best, "policies": told})
    return changes


def changes_table(changes: Sequence[dict[str, Any]]) -> Table:
    """Rounds after every change until a policy is within 5 % of the arm that is best from there on."""
    note = (
        "rounds until within 5 % of the new best fixed arm, counted from the change, and for good; in brackets the "
        "speed over the whole phase beside that arm; >: not reached in every run"
    )
    table = titled("after every change", note)
    table.add_column("policy", style="bold", no_wrap=True)
    for change in changes:
        table.add_column(f"at {change['at']:,} tokens:\n{change['best_fixed_arm']}", justify="right", no_wrap=True)
    for policy in changes[0]["policies"]:
        cells = []
        for change in changes:
            told = change["policies"][policy]
            sign = "> " if told["reached"] < 1 else ""
            cells.append(f"{sign}{told['rounds']['mean']:,.0f} ({told['to_best_fixed']['mean']:.2f})")
        table.add_row(policy, *cells)
    return table


def _goodput(run: Run, label: str | None = None) -> float:
    if label is None:
        return run.tokens / run.seconds
    return run.facts[f"tokens {label}"] / run.facts[f"seconds {label}"]


def _ratio(result: Result, base: Result, label: str | None = None) -> Estimate:
    """How many times the other's tokens a second, run by run on the same seeds."""
    pairs = zip(result.runs, base.runs, strict=True)
    return Estimate.of([_goodput(run, label) / _goodput(other, label) for run, other in pairs])


def _times(x: Estimate) -> str:
    return f"{x.mean:.3f}" + ("" if x.half is None else f" ± {x.half:.3f}")


def _plain(value: Any) -> Any:
    """With every estimate as JSON."""
    if isinstance(value, Estimate):
        return value.json()
    return {key: _plain(x) for key, x in value.items()} if isinstance(value, dict) else value
