"""The parts that claims about specialists are made of."""

from collections.abc import Sequence
from dataclasses import replace

from reproduction.experiment import Part
from reproduction.inference import UNDECIDED
from reproduction.runs import FOR_ALL
from reproduction.units import Table

HOME = {  # domain -> tasks it is at home in
    "code": ("humaneval", "debug_bench"),
    "translation": ("translation",),
    "summarization": ("summarization", "xsum"),
    "chat": ("qa",),
    "math": ("math_reasoning",),
}

CLEAR = 0.15  # a specialist brings so many more tokens a round at home than any other; else it is none


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
        part
        for task, arm in own.items()
        if len(everyone) > 1
        for part in unless(
            doubted(table, kind, task),
            [table.beats_all(arm, everyone, (task,), where=task, whom="every other specialist")],
        )
    ]


def away_from_home(table: Table, ours: str, kind: str) -> list[Part]:
    """On every specialist's task a method is faster than each of the other specialists."""
    everyone = specialists(table, kind).values()
    return [
        part
        for task, arm in homes(table, kind).items()
        for other in everyone
        if other != arm
        for part in unless(doubted(table, kind, task), [table.beats(ours, other, (task,), where=task)])
    ]


def lead_at_home(table: Table, kind: str) -> dict[str, float]:
    """Specialist -> by what share it brings more tokens a round on its own task than the best other one."""
    everyone = list(specialists(table, kind).values())
    return {
        arm: table.mat(arm, (task,)) / max(table.mat(other, (task,)) for other in everyone if other != arm) - 1
        for task, arm in homes(table, kind).items()
        if len(everyone) > 1
    }


def doubted(table: Table, kind: str, *tasks: str) -> bool:
    """Whether a claim cannot be tested with these specialists: one at home in these tasks is none, or at least half of
    all where it is not about single tasks."""
    arms, leads = homes(table, kind), lead_at_home(table, kind)
    short = [arm for arm, lead in leads.items() if lead < CLEAR]
    return any(arms.get(task) in short for task in tasks) if tasks else bool(short) and 2 * len(short) >= len(leads)


def not_specialists(table: Table, kind: str) -> str:
    """Which drafters are no specialists, so that what rests on them is undecided; empty where all are."""
    leads = lead_at_home(table, kind)
    short = {arm: lead for arm, lead in leads.items() if lead < CLEAR}
    if not short:
        return ""
    own = ", ".join(f"{arm} {lead:+.0%}" for arm, lead in short.items())
    return (
        f"{len(short)} of {len(leads)} {kind} specialists are none: over the best other specialist they bring at home "
        f"{own} tokens a round, and {CLEAR:.0%} is the least that counts. What is said of their tasks is about these "
        "drafters, not about the paper"
    )


def unless(doubt: bool | str, parts: Sequence[Part]) -> list[Part]:
    """The parts, undecided where there is a reason why they cannot be tested; their figures stay."""
    return [replace(part, verdict=UNDECIDED) for part in parts] if doubt else list(parts)
