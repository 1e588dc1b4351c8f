"""The parts that claims about specialists are made of."""

from collections.abc import Sequence

from reproduction.experiment import Part
from reproduction.runs import FOR_ALL
from reproduction.units import Table

HOME = {  # domain -> tasks it is at home in
    "code": ("humaneval", "debug_bench"),
    "translation": ("translation",),
    "summarization": ("summarization", "xsum"),
    "chat": ("qa",),
    "math": ("math_reasoning",),
}


def specialists(table: Table, kind: str) -> dict[str, str]:
    """Domain -> arm of the drafters of a kind (eagle, draft), that for everything aside."""
    own = [name for name in table.methods if name.startswith(f"{kind}:")]
    return {domain: name for name in own if (domain := name.split(":")[1]) in HOME}


def one_for_all(table: Table, kind: str) -> str:
    """The arm of the drafter for everything."""
    names = [name for name in table.methods if name.startswith(f"{FOR_ALL[kind]}:")]
    if not names:
        raise ValueError(f"the result has no arm of {FOR_ALL[kind]}, the drafter for everything that a claim needs")
    return names[0]


def home(tasks: Sequence[str], domain: str) -> str | None:
    """The task a domain is at home in, of those that were run."""
    return next((task for task in HOME.get(domain, ()) if task in tasks), None)


def homes(table: Table, kind: str) -> dict[str, str]:
    """Task -> the specialist at home in it, where there is one."""
    own = specialists(table, kind)
    return {task: arm for domain, arm in own.items() if (task := home(table.tasks, domain)) is not None}


def at_home(table: Table, kind: str) -> list[Part]:
    """Each specialist is faster on its own task than every other specialist."""
    own = homes(table, kind)
    everyone = list(specialists(table, kind).values())
    return [
        table.beats_all(arm, everyone, (task,), where=task, whom="every other specialist")
        for task, arm in own.items()
        if len(everyone) > 1
    ]


def away_from_home(table: Table, ours: str, kind: str) -> list[Part]:
    """On every specialist's task a method is faster than each of the other specialists."""
    everyone = specialists(table, kind).values()
    return [
        table.beats(ours, other, (task,), where=task)
        for task, arm in homes(table, kind).items()
        for other in everyone
        if other != arm
    ]
