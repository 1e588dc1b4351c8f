"""A row of the reproduction: its runs made, its claim decided, and all of that as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

from reproduction import flags, protocol
from reproduction.experiment import Experiment, Outcome
from reproduction.workspace import Result, Workspace


def row(experiment: Experiment, workspace: Workspace) -> dict[str, Any]:
    """The row's outcome, what it rests on, and what is to be said of it."""
    runs = experiment.runs()
    results = [workspace.result(run) for run in runs]
    needed = list(dict.fromkeys(result["missing"] for result in results if "missing" in result))
    made = [result for result in results if "missing" not in result]
    warned = list(dict.fromkeys(says for result in made for says in flags.of_run(result)))
    outcome = Outcome("")
    if not needed:
        try:
            outcome = experiment.evaluate(results)
        except ValueError as error:  # the runs are there and cannot be what the claim is about
            warned.append(str(error))
            needed = [str(error)]
    return {
        "experiment": experiment.name,
        "commands": list(dict.fromkeys(run.command for run in runs)),
        "took": round(sum(result.get("took", 0.0) for result in made), 1),
        "missing": needed,
        "protocol": protocol.of_runs(made) if not needed else {},
        "runs": len(runs),
        "sample": sample(made) if not needed else {},
        "flags": warned,
        **outcome.json(),
    }


def sample(results: Sequence[Result]) -> dict[str, int]:
    """How many prompts or seeds the runs of a row have, the fewest of them."""
    found: dict[str, int] = {}
    for result in results:
        seeds, labels = int(result.get("seeds", 0)), result.get("labels")
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
