"""`wager bench`, and what deciding costs: `wager lab decisions` and `wager lab steps`."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console

from wager.bench.decisions import arms_for, decision_seconds, hinted_seconds, rows_seconds
from wager.cli import compare_methods, load, suite
from wager.cli.files import Output
from wager.cli.parameters import option, options
from wager.cli.screen import table, tracked
from wager.policies import POLICIES

LIMITS = {8: 10e-6, 64: 30e-6}  # arms -> seconds a decision may take
STEP_LIMITS = {16: 50e-6, 256: 300e-6}  # requests -> seconds deciding and bookkeeping may add to a step

app = typer.Typer(help="Measure what wager costs and what it brings.")
app.callback(invoke_without_command=True)(suite.suite)
app.command("generate")(compare_methods.generation)
app.command("serve")(load.serve)


@options
def decisions(
    *,
    policy: Annotated[list[str] | None, option("Policy to time; repeat it.", "--policy", "-p", shown="all")] = None,
    repeats: Annotated[int, option("Interleaved repetitions; their median is reported.", min=1)] = 7,
    output: Output,
) -> None:
    """Time choose plus observe of every policy, at 8 and at 64 arms, without a model."""
    specs = policy or ["fixed:drafter=d0,length=1" if name == "fixed" else name for name in POLICIES]
    taken: dict[tuple[str, int], list[float]] = {(spec, k): [] for spec in specs for k in LIMITS}
    for _ in tracked("timing", range(repeats), repeats):
        for spec, k in taken:
            taken[spec, k].append(decision_seconds(spec, arms_for(k), rounds=1500, warmup=500))
    shown, rows = [], []
    for spec in specs:
        cells, row = [], {}
        for k, limit in LIMITS.items():
            median, worst = statistics.median(taken[spec, k]), max(taken[spec, k])
            row[str(k)] = {"median_us": median * 1e6, "worst_us": worst * 1e6, "within_limit": median <= limit}
            cells.append(f"{'' if median <= limit else '[red]'}{median * 1e6:.1f} ({worst * 1e6:.1f})")
        rows.append({"policy": spec, "arms": row})
        shown.append([spec, *cells])
    columns = [f"{k} arms (≤ {limit * 1e6:.0f})" for k, limit in LIMITS.items()]
    title = "choose + observe, median (slowest repetition), microseconds"
    Console().print(table(title, ["policy", *columns], shown))
    auto = _time_auto(repeats)
    for line in auto:
        print(f"auto, {line['of']}: choose {line['choose_us']:.1f} µs (at most {line['limit_us']:.0f}), "
              f"observe {line['observe_us']:.1f} µs")  # fmt: skip
    output.write({"limits_us": {str(k): v * 1e6 for k, v in LIMITS.items()}, "policies": rows, "auto": auto})


def _time_auto(repeats: int) -> list[dict[str, Any]]:
    """The default policy with hints from the drafters, which the table's rounds do not have."""
    cases: dict[str, tuple[Callable[[], tuple[float, float]], float]] = {
        "4 drafters x 8 lengths, one text": (lambda: hinted_seconds("auto"), 20e-6),
        "3 drafters x 5 lengths, 256 requests": (lambda: rows_seconds("auto", 256), 180e-6),
    }
    told = []
    for name, (measure, limit) in cases.items():
        both = zip(*(measure() for _ in range(repeats)), strict=True)
        choose, observe = (statistics.median(seconds) * 1e6 for seconds in both)
        told.append({"of": name, "choose_us": choose, "observe_us": observe, "limit_us": limit * 1e6})
    return told


@options
def steps(
    *, count: Annotated[int, option("Steps to time of each kind.", "--steps", min=50)] = 2000, output: Output
) -> None:
    """Time what deciding and bookkeeping add to a server's step, and watch memory: both hooks, no model."""
    from wager.bench.steps import proposer_hook, proposer_memory, scheduler_hook

    logging.getLogger("vllm").setLevel(logging.ERROR)
    cases = [(scheduler_hook, p) for p in ("nightjar", "dsd", "ucbspec")]
    cases += [(proposer_hook, p) for p in ("nightjar", "auto")]
    early, late = proposer_memory()  # first: the most a process ever held does not fall again
    every = [(hook, policy, batch) for batch in STEP_LIMITS for hook, policy in cases]
    costs = [hook(policy, batch, count) for hook, policy, batch in tracked("timing", every, len(every))]
    shown = table("microseconds a step", ("hook", "policy", "batch", "median", "p90", "limit"), left=2)
    for cost in costs:
        limit = STEP_LIMITS[cost.batch]
        figures = (f"{1e6 * x:.0f}" for x in (cost.median_seconds, cost.p90_seconds, limit))
        style = "red" if cost.median_seconds > limit else None
        shown.add_row(cost.hook, cost.policy, str(cost.batch), *figures, style=style)
    Console().print(shown)
    print(f"proposer hook: {early / 1e6:.1f} MB at most after 1,000 requests, {late / 1e6:.1f} MB after 3,000")
    held = {"after_1000_requests": early, "after_3000_requests": late}
    found = {"costs": [asdict(cost) for cost in costs], "proposer_bytes": held}
    output.write({"steps": count, "limits_seconds": {str(k): v for k, v in STEP_LIMITS.items()}, **found})
