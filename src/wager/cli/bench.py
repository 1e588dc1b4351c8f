"""`wager bench`: measurements."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from wager.bench.decisions import arms_for, decision_seconds, hinted_seconds, rows_seconds
from wager.cli import engines, load, suite
from wager.cli.files import check_writable, write_json
from wager.policies import POLICIES

app = typer.Typer(help="Measure what wager costs and what it brings.")

LIMITS = {8: 10e-6, 64: 30e-6}  # arms -> seconds a decision may take
STEP_LIMITS = {16: 50e-6, 256: 300e-6}  # requests -> seconds deciding and bookkeeping may add to a step


app.callback(invoke_without_command=True)(suite.suite)
app.command("generate")(engines.generation)
app.command("serve")(load.serve)


def decisions(
    policy: Annotated[
        list[str] | None, typer.Option("--policy", "-p", help="Policy to time; repeat it.", show_default="all")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Interleaved repetitions; their median is reported.")] = 7,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the results to this file.")] = None,
) -> None:
    """Time choose plus observe of every policy, at 8 and at 64 arms, without a model."""
    if json_file is not None:
        check_writable(json_file)
    specs = policy or ["fixed:drafter=d0,length=1" if name == "fixed" else name for name in POLICIES]
    taken: dict[tuple[str, int], list[float]] = {(spec, k): [] for spec in specs for k in LIMITS}
    for _ in track(range(repeats), description="timing", console=Console(stderr=True), transient=True):
        for spec, k in taken:
            taken[spec, k].append(decision_seconds(spec, arms_for(k), rounds=1500, warmup=500))
    table = Table(title="choose + observe, median (slowest repetition), microseconds", title_justify="left")
    table.add_column("policy", style="bold")
    for k, limit in LIMITS.items():
        table.add_column(f"{k} arms (≤ {limit * 1e6:.0f})", justify="right")
    rows = []
    for spec in specs:
        cells, row = [], {}
        for k, limit in LIMITS.items():
            median, worst = statistics.median(taken[spec, k]), max(taken[spec, k])
            row[str(k)] = {"median_us": median * 1e6, "worst_us": worst * 1e6, "within_limit": median <= limit}
            cells.append(f"{'' if median <= limit else '[red]'}{median * 1e6:.1f} ({worst * 1e6:.1f})")
        rows.append({"policy": spec, "arms": row})
        table.add_row(spec, *cells)
    Console().print(table)
    auto = _time_auto(repeats)
    for line in auto:
        print(f"auto, {line['of']}: choose {line['choose_us']:.1f} µs (at most {line['limit_us']:.0f}), "
              f"observe {line['observe_us']:.1f} µs")  # fmt: skip
    if json_file is not None:
        limits = {str(k): v * 1e6 for k, v in LIMITS.items()}
        write_json(json_file, {"limits_us": limits, "policies": rows, "auto": auto})


def _time_auto(repeats: int) -> list[dict[str, Any]]:
    """The default policy where drafters say what they propose, which the table's rounds do not tell."""
    cases: dict[str, tuple[Callable[[], tuple[float, float]], float]] = {
        "4 drafters x 8 lengths, one text": (lambda: hinted_seconds("auto"), 20e-6),
        "3 drafters x 5 lengths, 256 requests": (lambda: rows_seconds("auto", 256), 180e-6),
    }
    told = []
    for name, (measure, limit) in cases.items():
        choose, observe = (
            statistics.median(both) * 1e6 for both in zip(*(measure() for _ in range(repeats)), strict=True)
        )
        told.append({"of": name, "choose_us": choose, "observe_us": observe, "limit_us": limit * 1e6})
    return told


def steps(
    count: Annotated[int, typer.Option("--steps", min=50, help="Steps to time of each kind.")] = 2000,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here.")] = None,
) -> None:
    """Time what deciding and bookkeeping add to a server's step, and watch memory: both hooks, no model."""
    from wager.bench.steps import proposer_hook, proposer_memory, scheduler_hook

    if json_file is not None:
        check_writable(json_file)
    logging.getLogger("vllm").setLevel(logging.ERROR)
    cases = [(scheduler_hook, p) for p in ("nightjar", "dsd", "ucbspec")]
    cases += [(proposer_hook, p) for p in ("nightjar", "auto")]
    early, late = proposer_memory()  # first: the most a process ever held does not fall again
    costs = [hook(policy, batch, count) for batch in STEP_LIMITS for hook, policy in track(cases, f"batch {batch}")]
    table = Table(title="microseconds a step", title_justify="left")
    for column in ("hook", "policy", "batch", "median", "p90", "limit"):
        table.add_column(column, justify="left" if column in ("hook", "policy") else "right")
    for cost in costs:
        limit = STEP_LIMITS[cost.batch]
        figures = (f"{1e6 * x:.0f}" for x in (cost.median, cost.p90, limit))
        table.add_row(cost.hook, cost.policy, str(cost.batch), *figures, style="red" if cost.median > limit else None)
    Console().print(table)
    print(f"proposer hook: {early / 1e6:.1f} MB at most after 1,000 requests, {late / 1e6:.1f} MB after 3,000")
    if json_file is not None:
        limits = {str(batch): seconds for batch, seconds in STEP_LIMITS.items()}
        held = {"after_1000_requests": early, "after_3000_requests": late}
        found = {"costs": [cost.json() for cost in costs], "proposer_bytes": held}
        write_json(json_file, {"steps": count, "limits_seconds": limits, **found})
