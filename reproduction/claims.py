"""The parts that claims are made of, checked against a comparison."""

from __future__ import annotations

from collections.abc import Sequence

from reproduction.comparison import Comparison
from reproduction.experiment import Check

HOME = {  # domain -> tasks it is at home in
    "code": ("humaneval", "debug_bench", "code"),
    "translation": ("translation",),
    "summarization": ("summarization", "xsum"),
    "chat": ("qa",),
    "math": ("math_reasoning", "math"),
}


def specialists(table: Comparison, kind: str) -> dict[str, str]:
    """Domain -> arm of the drafters of a kind (eagle, draft), that for everything aside."""
    found: dict[str, str] = {}
    for arm in table.named(f"{kind}:"):
        found.setdefault(arm.split(":")[1], arm)
    found.pop("ofa", None)
    return found


def one_for_all(table: Comparison, kind: str) -> str:
    """The arm of the drafter for everything."""
    names = table.named(f"{kind}:ofa:")
    if not names:
        raise ValueError(f"the result has no {kind}:ofa arm, the drafter for everything that a claim compares with")
    return names[0]


def home(table: Comparison, domain: str) -> str | None:
    """The task a domain is at home in, of those that were run."""
    return next((task for task in HOME.get(domain, ()) if task in table.tasks), None)


def at_home(table: Comparison, kind: str, *, by: str = "speed") -> list[Check]:
    """Each specialist is the best drafter of its kind on its own task."""
    own = specialists(table, kind)
    every = [*own.values(), *table.named(f"{kind}:ofa:")[:1]]
    checks = []
    for domain, arm in own.items():
        task = home(table, domain)
        if task is None:
            continue
        best = table.best(every, task, by=by)
        value = getattr(table, by)
        unit = "times plain decoding" if by == "speed" else "tokens a round"
        checks.append(
            Check(
                f"{arm} is the best of its kind on {task}: {value(arm, task):.2f}, the best, {best}, "
                f"{value(best, task):.2f} {unit}",
                value(arm, task) >= 0.995 * value(best, task),
                "The heads and small models here share most of their training and differ far less from each other than "
                "the paper's do.",
            )
        )
    return checks


def beats(
    table: Comparison, winner: str, loser: str, tasks: Sequence[str], *, because: str = "", by: str = "speed"
) -> Check:
    """A method is at least as good as another on most of the tasks."""
    value = getattr(table, by)
    won = [task for task in tasks if value(winner, task) >= value(loser, task)]
    mean = value(winner, list(tasks)), value(loser, list(tasks))
    unit = "times plain decoding" if by == "speed" else "tokens a round"
    return Check(
        f"{winner} beats {loser} on most tasks: on {len(won)} of {len(tasks)}, {mean[0]:.2f} against "
        f"{mean[1]:.2f} {unit}",
        2 * len(won) > len(tasks),
        because,
    )


def highest(values: dict[str, float], name: str, where: str, *, unit: str = "", slack: float = 0.0) -> Check:
    """A method has the highest figure of all, or is that close to it."""
    best = max(values, key=lambda other: values[other])
    others = "" if best == name else f", {best} {values[best]:,.4g}"
    near = f" (within {slack:.0%})" if slack else ""
    return Check(
        f"{name} is highest{near} {where}: {values[name]:,.4g}{others}{unit}",
        values[name] >= (1 - slack) * values[best],
    )
