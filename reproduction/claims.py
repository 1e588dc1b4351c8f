"""The parts that claims are made of, checked against a comparison."""

from collections.abc import Sequence

from reproduction.comparison import Comparison
from reproduction.experiment import Check, Checks

HOME = {  # domain -> tasks it is at home in
    "code": ("humaneval", "debug_bench", "code"),
    "translation": ("translation",),
    "summarization": ("summarization", "xsum"),
    "chat": ("qa",),
    "math": ("math_reasoning", "math"),
}
UNIT = {"speed": "times plain decoding", "mat": "tokens a round"}
ALIKE = (
    "The heads and small models here share most of their training and differ far less from each other than the paper's "
    "do."
)


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


def home(tasks: Sequence[str], domain: str) -> str | None:
    """The task a domain is at home in, of those that were run."""
    return next((task for task in HOME.get(domain, ()) if task in tasks), None)


def at_home(table: Comparison, kind: str, *, by: str = "speed") -> Checks:
    """Each specialist is the best drafter of its kind on its own task."""
    own, value, checks = specialists(table, kind), getattr(table, by), Checks()
    for domain, arm in own.items():
        if (task := home(table.tasks, domain)) is not None:
            best = table.best([*own.values(), *table.named(f"{kind}:ofa:")[:1]], task, by=by)
            ours, theirs = value(arm, task), value(best, task)
            says = f"{arm} is the best of its kind on {task}: {ours:.2f}, the best, {best}, {theirs:.2f} {UNIT[by]}"
            checks.add(says, ours >= 0.995 * theirs, ALIKE)
    return checks


def beats(table: Comparison, winner: str, loser: str, tasks: Sequence[str], because: str = "") -> Check:
    """A method is at least as fast as another on most of the tasks."""
    won = sum(table.speed(winner, task) >= table.speed(loser, task) for task in tasks)
    speeds = f"{table.times(winner, tasks)} against {table.times(loser, tasks)} {UNIT['speed']}"
    says = f"{winner} beats {loser} on most tasks: on {won} of {len(tasks)}, {speeds}"
    return Check(says, 2 * won > len(tasks), because)


def away_from_home(table: Comparison, ucb: str, kind: str, whom: str, tasks: Sequence[str], because: str) -> Check:
    """UCB is mostly at least as fast as specialists on tasks that are not theirs."""
    own = specialists(table, kind).items()
    away = [(arm, task) for domain, arm in own for task in tasks if task not in HOME.get(domain, ())]
    won = sum(table.speed(ucb, task) >= table.speed(arm, task) for arm, task in away)
    return Check(f"UCB beats {whom} away from home: {won} of {len(away)} times", 2 * won > len(away), because)


def highest(
    values: dict[str, float], name: str, where: str, because: str = "", *, unit: str = "", slack: float = 0.0
) -> Check:
    """A method has the highest figure of all, or is that close to it."""
    best = max(values, key=lambda other: values[other])
    others = "" if best == name else f", {best} {values[best]:,.4g}"
    near = f" (within {slack:.0%})" if slack else ""
    says = f"{name} is highest{near} {where}: {values[name]:,.4g}{others}{unit}"
    return Check(says, values[name] >= (1 - slack) * values[best], because)
