"""What a round takes on two machines, as stated tables: a busy machine's own timings would say nothing.

Verification by width is that of `wager bench engine` (results/engine-cpu.json, results/engine-h200.json). A step of an
EAGLE head is what its rounds took beyond that in results/eagle-cpu.json and results/spec-h200.json; a step of a small
draft model and a token to catch up on were timed by `wager record` on the CPU and are assumed on the H200.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from reproduction.workspace import NotHereError
from wager.simulation import RoundCost, VerifyCost
from wager.simulation.costs import parse_cost

_HEADS = ("ofa", "mixed", "chat", "code", "math", "summarization", "translation")
_MODELS = ("ofa", "code", "math")


def _by_drafter(head: float, model: float) -> dict[str, float]:
    return {**{f"eagle:{n}": head for n in _HEADS}, **{f"draft:{n}": model for n in _MODELS}}


_CHEAP = {"suffix": 1.4e-5, "prompt-lookup": 4e-6, "retrieval": 1e-4}
_CPU = ((1, 0.0306), (2, 0.0306), (3, 0.0331), (4, 0.0407), (5, 0.0412), (6, 0.0431), (9, 0.0500), (16, 0.0610))
_H200 = ((1, 1.365e-3), (2, 1.370e-3), (5, 1.375e-3), (6, 1.387e-3), (9, 1.401e-3), (16, 1.404e-3), (32, 1.419e-3))
TABLES = {
    "cpu": RoundCost(VerifyCost((*_CPU, (32, 0.0852))), _CHEAP, _by_drafter(2.8e-3, 1.5e-3), _by_drafter(5e-5, 1e-4)),
    "h200": RoundCost(VerifyCost(_H200), _CHEAP, _by_drafter(1.2e-4, 1.2e-4), _by_drafter(1e-6, 1e-6)),
}
# A target so many times as large beside the same drafters: bound by memory, its forward takes so many times as long.
LARGER = 10


NAMES = {
    "cpu": "two CPU cores",
    "h200": "an H200",
    "larger": f"an H200 with a target {LARGER} times as large",
}


def table(name: str) -> RoundCost:
    """A table by name; larger: the H200's with a target ten times as large."""
    if name == "larger":
        return _larger(TABLES["h200"])
    if name not in TABLES:
        raise ValueError(f"unknown costs {name!r}; choose from {', '.join((*TABLES, 'larger'))}")
    return TABLES[name]


def of(name: str, meta: Mapping[str, Any], drafters: Sequence[str]) -> RoundCost:
    """A table by name; the H200's as the recording itself measured it, where it was made on one."""
    found = table(name)
    if name != "cpu" and "H200" in str(meta.get("device")) and "verify" in (meta.get("costs") or {}):
        found = parse_cost("measured", meta)
        found = _larger(found) if name == "larger" else found
    known = {*found.propose, *found.step}
    for drafter in drafters:
        if drafter not in known:
            raise NotHereError(f"needs the cost of a draft of {drafter}; without it drafts would be free")
    return found


def _larger(cost: RoundCost) -> RoundCost:
    return replace(cost, verify=VerifyCost(tuple((w, LARGER * s) for w, s in cost.verify.points)))
