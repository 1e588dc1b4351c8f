"""A row of the reproduction: its runs made, its claim decided, and all of that as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

from reproduction import flags, protocol
from reproduction.experiment import Experiment, Outcome
from reproduction.units import OTHERWISE
from reproduction.workspace import Result, Workspace


def row(experiment: Experiment, workspace: Workspace) -> dict[str, Any]:
    """The row's outcome, what it rests on, and what is to be said of it."""
    runs = experiment.runs()
    results = [workspace.result(run) for run in runs]
    needed = list(dict.fromkeys(result["missing"] for result in results if "missing" in result))
    made = [result for result in results if "missing" not in result]
    outcome, warned = Outcome(""), []
    if not needed:
        try:
            outcome = experiment.evaluate(results)
        except ValueError as error:  # the runs are there and cannot be what the claim is about
            needed = [str(error)]
    shown = str(outcome.json()).lower()  # of policies that the row is about
    found = [(policy, says) for result in made for policy, says in flags.of_run(result).items()]
    warned = list(dict.fromkeys(says for policy, says in found if policy.partition(":")[0] in shown))
    return {
        "experiment": experiment.name,
        "commands": list(dict.fromkeys(run.command for run in runs)),
        "took": took(made),
        "missing": needed,
        "protocol": protocol.of_runs(made) if not needed else {},
        "runs": len(runs),
        "sample": sample(made) if not needed else {},
        "flags": warned,
        "otherwise": otherwise(experiment, results, outcome) if not needed else {},
        **outcome.json(),
    }


def otherwise(experiment: Experiment, results: Sequence[Result], outcome: Outcome) -> dict[str, Any]:
    """What the row would say with the other reading of a cost that was timed once; nothing where none was."""
    swapped, says = [], []
    for result in results:
        units = result.get("units", {})
        if not any(own.get(OTHERWISE, own.get("seconds")) != own.get("seconds") for own in units.values()):
            swapped.append(result)
            continue
        other = {name: {**own, "seconds": own[OTHERWISE]} if OTHERWISE in own else own for name, own in units.items()}
        swapped.append({**result, "units": other})
        says.append(str(result["otherwise"]))
    if not says or not outcome.parts:
        return {}
    told = experiment.evaluate(swapped)
    pairs = list(zip(outcome.parts, told.parts, strict=False))
    changed = [f"{a.says}: {b.verdict} instead of {a.verdict}" for a, b in pairs if a.verdict != b.verdict]
    return {"if": "; ".join(dict.fromkeys(says)), "verdict": told.verdict, "parts": len(pairs), "changed": changed}


def took(results: Sequence[Result]) -> float | None:
    """Seconds of a core that the runs took; None where one does not say."""
    seconds = [result.get("took") for result in results]
    return round(sum(s for s in seconds if s is not None), 1) if None not in seconds else None


def sample(results: Sequence[Result]) -> dict[str, int]:
    """How many prompts or seeds the runs of a row have, the fewest of them; runs beside those that decide left out."""
    found: dict[str, int] = {}
    for result in results:
        if result.get("beside"):
            continue
        seeds, labels = int(result.get("seeds") or 0), result.get("labels")
        prompts = len(labels) if labels and result.get("unit") != "seeds" else 0
        if "drafters" in result:
            prompts = len(next(iter(result["drafters"].values())))
        for kind, count in (("prompts", prompts), ("seeds", seeds)):
            if count:
                found[kind] = min(count, found.get(kind, count))
    return found


def counted(told: Mapping[str, Any]) -> dict[str, int]:
    """How many parts of a claim hold, do not hold, and are undecided."""
    verdicts = [part["verdict"] for part in told["parts"]]
    return {kind: verdicts.count(kind) for kind in ("holds", "does not hold", "undecided")}
