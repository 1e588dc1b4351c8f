"""What `wager lab simulate` and `wager lab replay` share: policies, runs, seeds and processes, and their tables."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rich.console import Console
from rich.table import Table

from wager.cli.parameters import opt
from wager.cli.screen import bar, titled
from wager.simulation import Comparison, Scenario, compare
from wager.simulation.experiment import Estimate, adaptation

_RUN = "Experiment"


@dataclass(frozen=True, slots=True)
class Experiment:
    """Policies to compare, and how often."""

    policy: list[str] | None = opt(None, "See wager policies; repeat it.", "--policy", "-p", shown="several")
    runs: int = opt(5, "Runs per policy, each with a seed of its own.")
    seed: int = opt(0, "Seed of the first run.", min=0, panel=_RUN)
    jobs: int | None = opt(None, "Processes.", min=1, panel=_RUN, shown="one per core")

    def compare(self, what: str, scenario: Scenario, policies: list[str], **given: Any) -> Comparison:
        """Compare policies in as many processes as told, or one a core, with a bar."""
        with bar(f"{what}: runs") as update:
            given["progress"] = lambda done, of: update(completed=done, total=of)
            jobs = self.jobs or os.cpu_count() or 1
            return compare(scenario, policies, jobs=jobs, runs=self.runs, seed=self.seed, **given)


def policy_table(
    title: str, note: str, columns: Mapping[str, tuple[str, str]], rows: Sequence[Mapping[str, Any]], *, references: int
) -> Table:
    """A line for every policy, the first ``references`` of them above a rule.

    ``columns``: name -> its figure and format; "" and a format that ends in ± write an estimate with its interval.
    """
    how = f"± 95 % interval over runs; regret is against the best fixed arm on the same seeds; {note}"
    shown = titled(title, how, ["\npolicy", *columns])
    shown.columns[0].min_width, shown.columns[0].no_wrap, shown.columns[0].overflow = 18, False, "fold"
    for i, row in enumerate(rows, 1):
        cells = [_cell(row[key], form) for key, form in columns.values()]
        shown.add_row(row["policy"], *cells, style="dim" if i <= references else None, end_section=i == references)
    return shown


def _cell(value: Any, form: str) -> str:
    mean, half = value.values() if isinstance(value, dict) else (value, None)
    if mean is None or not form:
        return "-" if mean is None else str(Estimate(mean, half))
    plain = form.removesuffix("±")
    return f"{mean:{plain}}" + (f" ± {half:{plain}}" if plain != form and half is not None else "")


def print_changes(console: Console, comparison: Comparison, starts: Sequence[int]) -> list[dict[str, Any]]:
    """Rounds after every change of phase until a policy is within 5 % of the arm that is best from there on."""
    changes = [adaptation(comparison, start, end) for start, end in pairwise(starts[1:])]
    if not changes:
        return []
    note = (
        "rounds until within 5 % of the new best fixed arm, counted from the change, and for good; in brackets the "
        "speed over the whole phase relative to that arm; >: not reached in every run"
    )
    heads = [f"at {change['at']:,} tokens:\n{change['best_fixed_arm']}" for change in changes]
    shown = titled("after every change", note, ["policy", *heads])
    for policy in changes[0]["policies"]:
        cells = []
        for told in (change["policies"][policy] for change in changes):
            sign = "> " if told["reached"] < 1 else ""
            cells.append(f"{sign}{told['rounds']['mean']:,.0f} ({told['to_best_fixed']['mean']:.2f})")
        shown.add_row(policy, *cells)
    console.print(shown)
    return changes
