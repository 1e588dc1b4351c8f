"""The summary at the top of the page: for each paper what holds, what does not, why, and on what evidence."""

import re
from collections.abc import Mapping
from typing import Any

from reproduction import causes
from reproduction.experiment import VERDICTS, Experiment
from reproduction.inference import UNDECIDED
from reproduction.rows import counted

RECORDED = re.compile(r"texts recorded on (?:NVIDIA )?([^,]+(?:, \d+ threads)?), rounds cost as on")
Rows = Mapping[str, Mapping[str, Any] | None]
WAITS = {
    "needs a run of the model": "needs a run of the model",
    "another target": "needs a recording of a second target",
    "temperature": "needs a recording of sampled texts",
    "prompts": "needs a recording of rephrased or long prompts",
    "recording": "needs a recording with heads and draft models",
    "not run": "not run",
}
ABOUT = {
    "banditspec": "Two bandits, UCBSpec and EXP3Spec, choose a drafter for every round by the tokens it has accepted.",
    "onthefly": "The draft length follows an estimate of acceptance, with nothing prepared in advance.",
    "nightjar": "A bandit over draft lengths for servers under changing load, where switching on has a price.",
    "metasd": "A bandit over specialised drafters, fed by how well their distributions agree with the target's.",
}


def summary(rows: Rows, experiments: Mapping[str, Experiment], papers: Mapping[str, str], pictures: str) -> str:
    """A few lines and a picture for each paper."""
    parts = ["## In three minutes\n\n", _glance(rows, experiments, papers)]
    for paper, title in papers.items():
        own = {name: row for name, row in rows.items() if experiments[name].paper == paper}
        parts.append(_paper(title, paper, own, experiments, pictures))
    return "".join(parts)


def _glance(rows: Rows, experiments: Mapping[str, Experiment], papers: Mapping[str, str]) -> str:
    """How many tables and figures of each paper have which verdict."""
    lines = [
        "How many tables and figures of each paper hold, hold in part (most of what they claim, not all), do not hold,",
        "are undecided on the runs that there are, or claim nothing to test:",
        "",
        "| paper | its idea | hold | in part | do not | undecided | nothing to test |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for paper, title in papers.items():
        own = [row["verdict"] if row is not None else UNDECIDED for name, row in rows.items()
               if experiments[name].paper == paper]  # fmt: skip
        lines.append(f"| {title} | {ABOUT[paper]} | {' | '.join(str(own.count(verdict)) for verdict in VERDICTS)} |")
    return "\n".join(lines) + "\n\n"


def _paper(title: str, paper: str, rows: Rows, experiments: Mapping[str, Experiment], pictures: str) -> str:
    by: dict[str, list[str]] = {}
    for name, row in rows.items():
        by.setdefault(row["verdict"] if row is not None else "undecided", []).append(name)
    lines = [f"### {title} in short", ""]

    seen: set[str] = set()  # a reason is given once

    def told(name: str, *, reasons: bool) -> str:
        row, experiment = rows[name], experiments[name]
        says = experiment.texts["short"]
        if row is None or not reasons:  # all parts hold
            return f"[{experiment.place}](#{name}): {says}."
        counts = counted(row)
        why = [each for each in re.split(r"(?<=\.) ", str(row["because"])) if each and each not in seen]
        seen.update(why)
        share = f" ({counts['holds']} of {sum(counts.values())} parts)"
        return " ".join([f"[{experiment.place}](#{name}){share}: {says}.", *why])

    for verdict, says in (("holds", "Holds"), ("in part", "Holds in part"), ("does not hold", "Does not hold")):
        lines += [f"- *{says}*: {told(name, reasons=verdict != 'holds')}" for name in by.get(verdict, ())]
    if left := by.get("undecided"):
        lines.append(f"- *Undecided*: {_undecided(left, rows, experiments)}")
    lines.append(f"- *Evidence*: {_evidence(rows)}")
    lines += [
        "",
        f"![{title}: parts of claims that hold, do not, are undecided]({pictures}/reproduction-{paper}.svg)",
    ]
    return "\n".join(lines) + "\n\n"


def _undecided(names: list[str], rows: Rows, experiments: Mapping[str, Experiment]) -> str:
    """Rows by what they wait for, in short."""
    waits: dict[str, list[str]] = {}
    for name in names:
        waits.setdefault(_waits_for(rows[name]), []).append(f"[{experiments[name].place}](#{name})")
    return "; ".join(f"{', '.join(places)} ({says})" for says, places in waits.items()) + "."


def _waits_for(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return WAITS["not run"]
    if row["parts"]:
        return causes.in_short(row)
    why = "; ".join(row["missing"])
    return next((says for word, says in WAITS.items() if word in why), why)


def _evidence(rows: Rows) -> str:
    """What the decided rows rest on."""
    found: dict[str, int] = {}
    for row in rows.values():
        if row is None or row["missing"] or not row["parts"]:
            continue
        hardware = str(row["protocol"].get("hardware", "")).partition(" (")[0] or "not stated"
        hardware = RECORDED.sub(r"texts of \1, costs of", hardware)
        found[hardware] = found.get(hardware, 0) + 1
    if not found:
        return "none that decides a row yet; earlier runs are shown below, and no verdict rests on them."
    return "; ".join(f"{count} row{'s' * (count > 1)}: {hardware}" for hardware, count in found.items()) + "."
