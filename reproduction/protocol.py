"""The paper's protocol beside ours, field by field."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PAPERS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("protocol.toml").read_text(encoding="utf-8"))
FIELDS = {
    "target": "target",
    "second": "second target",
    "drafters": "drafters",
    "reset": "the policy begins anew",
    "beta": "beta of UCB",
    "lengths": "draft lengths",
    "tree": "drafts are",
    "load": "load",
    "prompts": "prompts",
    "tokens": "tokens a text",
    "seeds": "seeds, or runs",
    "temperature": "temperature",
    "hardware": "hardware",
}


def of_paper(name: str) -> dict[str, str]:
    """The protocol of a row as its paper has it."""
    paper, _, place = name.partition("-")
    every = PAPERS[paper]
    fields = {**every, **every.get(place, {})}
    return {field: value for field, value in fields.items() if isinstance(value, str)}


def of_runs(results: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What the runs of a row did; where they differ, all of it."""
    found: dict[str, list[str]] = {}
    for result in results:
        for field, value in result.get("protocol", {}).items():
            if value not in found.setdefault(field, []):
                found[field].append(value)
    return {
        field: "; ".join(found[field][:4]) + ("; …" if len(found[field]) > 4 else "")
        for field in FIELDS
        if field in found
    }


def compared(name: str, ours: Mapping[str, str]) -> list[tuple[str, str, str, bool]]:
    """Every field that either side has: what it is, the paper's value, ours, and whether they are the same."""
    paper = of_paper(name)
    rows = []
    for field, says in FIELDS.items():
        theirs, own = paper.get(field, ""), ours.get(field, "")
        if (theirs or own) and ours:
            rows.append((says, theirs or "does not apply", own or "does not apply", theirs == own))
    return rows
