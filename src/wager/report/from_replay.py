"""The JSON of `wager lab replay`: policies on recorded texts, beside every fixed arm and the clairvoyant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wager.report.scales import TIMES
from wager.report.views import Big, Material, Measure, Method, Shares, Source, Speedups

CLAIRVOYANT, FIXED = "clairvoyant", "best fixed"


def replayed(held: Mapping[str, Any], source: Source) -> Material:
    """Speed-ups over plain decoding by task, and who played what."""
    made = Material(source)
    rows, tasks = held["rows"], held["tasks"]
    methods = [
        Method(row["policy"], _kind(row["policy"]), _measure(row["to_off"]), _by_task(row, tasks)) for row in rows
    ]
    kinds = ("off", "arm", "policy", "bound")
    methods.sort(key=lambda m: (kinds.index(m.kind), m.name != "auto", -m.overall.value))
    runs = held["runs"]
    interval = f"95 % intervals over {runs} runs" if runs > 1 else ""
    how = (
        f"Replayed on {held['texts']:,} recorded texts with the costs of {held['cost']}; no model ran. "
        "The best fixed arm of a single task is that task's own."
    )
    labels = [str(task["label"]) for task in tasks]
    made.speedups.append(Speedups(source, "off", labels, methods, interval, interval, how))
    policies = sorted(
        (row for row in rows if _kind(row["policy"]) == "policy"),
        key=lambda row: (row["policy"] != "auto", -row["to_off"]["mean"]),
    )
    pulls = {row["policy"]: _shares(row["pulls"]) for row in policies if row.get("pulls")}
    if pulls:
        made.shares.append(Shares(source, pulls, "policy"))
    lead = policies[0]
    said = f"{lead['policy']} is {lead['to_off']['mean']:.2f} times as fast as plain decoding on recorded texts"
    made.verdict = [
        f"{said}; the best fixed arm, {held['best_fixed_arm']}, reaches {_best(rows)['to_off']['mean']:.2f}."
    ]
    made.figures = [
        Big(
            f"{lead['to_off']['mean']:.2f}{TIMES}", f"{lead['policy']} over plain decoding", f"{held['texts']:,} texts"
        ),
        Big(f"{lead['to_best_fixed']['mean']:.1%}", "of the best fixed arm", f"{held['best_fixed_arm']}"),
        Big(f"{lead['to_clairvoyant']['mean']:.1%}", "of the clairvoyant choice", "which nobody can have"),
        Big(f"{lead['tokens_per_round']['mean']:.2f}", "tokens a round", "MAT, bonus included"),
    ]
    return made


def _kind(name: str) -> str:
    if name in ("off", CLAIRVOYANT):
        return "off" if name == "off" else "bound"
    return "arm" if name.startswith(FIXED) else "policy"


def _best(rows: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    return next(row for row in rows if row["policy"].startswith(FIXED))


def _measure(estimate: Mapping[str, Any]) -> Measure:
    mean, half = float(estimate["mean"]), estimate.get("half_width_95")
    return Measure(mean, mean - half, mean + half) if half else Measure(mean)


def _by_task(row: Mapping[str, Any], tasks: list[Mapping[str, Any]]) -> dict[str, Measure]:
    name = row["policy"]
    out = {}
    for task in tasks:
        if name == "off":
            out[str(task["label"])] = Measure(1.0)
        else:
            key = {"bound": "clairvoyant", "arm": "best_fixed"}.get(_kind(name))
            out[str(task["label"])] = _measure(task[key] if key else task["policies"][name])
    return out


def _shares(pulls: Mapping[str, float]) -> dict[str, float]:
    total = sum(pulls.values())
    return {arm: count / total for arm, count in pulls.items() if count > 0}
