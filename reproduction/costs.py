"""What a round takes: on two machines as stated tables, since a busy machine's own timings would say nothing, or as it
was measured on an H200, by a recording or for targets of larger shapes.

On the CPU verification by width is that of `wager bench engine` (results/engine-cpu.json), a step of an EAGLE head what
its rounds took beyond that in results/eagle-cpu.json, and a step of a small draft model and a token to catch up on were
timed by `wager lab record`. On the H200 all of it was: results/recordings/greedy-a.jsonl.gz, of heads the mean.

How long a head takes to catch up was timed for 64 entries only, so how much of that is fixed is not known. On a GPU a
few launches take nearly all of it, so it counts as fixed; on a CPU, where it is arithmetic, by the entry. ``otherwise``
reads the same timings the other way: between the two lies what two timings would say. A draft model's was timed as the
difference of two forwards, and has no fixed part.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
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
_H200 = ((1, 1.316e-3), (2, 1.311e-3), (5, 1.314e-3), (6, 1.333e-3), (9, 1.335e-3), (33, 1.378e-3))
_TREES = {f"eagle:{n}:{depth}@8x32": s for n in _HEADS for depth, s in ((2, 3.63e-4), (4, 5.82e-4), (6, 8.02e-4))}
_H200_CHEAP = {"suffix": 1.9e-5, "prompt-lookup": 5e-6, "retrieval": 4.9e-5}
TABLES = {
    "cpu": RoundCost(VerifyCost((*_CPU, (32, 0.0852))), _CHEAP, _by_drafter(2.8e-3, 1.5e-3), _by_drafter(5e-5, 1e-4)),
    "h200": RoundCost(
        VerifyCost(_H200), _H200_CHEAP, _by_drafter(8.0e-5, 1.76e-4), _by_drafter(1.83e-5, 4.6e-7), _TREES
    ),
}
TIMED = 64  # entries that heads caught up on when that was timed
# Targets of these shapes with a head of their own, timed on an H200; small models draft as beside SmolLM2.
SHAPES = {shape: Path("results") / f"costs-{shape}-h200.json" for shape in ("1b", "8b")}  # wager lab costs SHAPE
OTHERWISE = {  # what the other reading of one timing says
    "cpu": f"a head caught up on any number of entries in the time of {TIMED}",
    **dict.fromkeys(("h200", *SHAPES), f"a head caught up on each entry in 1/{TIMED} of the time of {TIMED}"),
}
NAMES = {
    "cpu": "two CPU cores",
    "h200": "an H200",
    "1b": "an H200 with a target of 1.1B parameters",
    "8b": "an H200 with a target of 8B parameters",
}


def table(name: str) -> RoundCost:
    """A stated table by name."""
    if name not in TABLES:
        raise ValueError(f"unknown costs {name!r}; choose from {', '.join((*TABLES, *SHAPES))}")
    return TABLES[name]


def _heads(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: taken for name, taken in seconds.items() if name.partition(":")[0] == "eagle"}


def _all_fixed(cost: RoundCost) -> RoundCost:
    """What heads that were timed once take to catch up, as fixed seconds."""
    once = {name: TIMED * each for name, each in _heads(cost.lag).items() if name not in cost.lag_fixed}
    return replace(cost, lag={**cost.lag, **dict.fromkeys(once, 0.0)}, lag_fixed={**cost.lag_fixed, **once})


def otherwise(name: str, cost: RoundCost) -> RoundCost:
    """The same costs with the other reading of what heads that were timed once take to catch up."""
    if name == "cpu":
        return _all_fixed(cost)
    once = {n: taken for n, taken in _heads(cost.lag_fixed).items() if not cost.lag[n]}
    each = {n: taken / TIMED for n, taken in once.items()}
    return replace(cost, lag={**cost.lag, **each}, lag_fixed={**cost.lag_fixed, **dict.fromkeys(once, 0.0)})


def of(name: str, meta: Mapping[str, Any], drafters: Sequence[str]) -> RoundCost:
    """A table by name: the H200's as the recording itself measured it, where it was made on one; a shape's by name."""
    found = table("h200" if name in SHAPES else name)
    if name != "cpu" and "H200" in str(meta.get("device")) and "verify" in (meta.get("costs") or {}):
        found = parse_cost("measured", meta)
    if name in SHAPES:
        if not SHAPES[name].is_file():
            raise NotHereError(f"needs {SHAPES[name]}: wager lab costs {name} on a GPU")
        own = parse_cost(str(SHAPES[name]), {"drafters": drafters})
        found = replace(own, propose=found.propose, step={**found.step, **own.step}, lag={**found.lag, **own.lag})
    known = {*found.propose, *found.step}
    for drafter in drafters:
        if drafter not in known:
            raise NotHereError(f"needs the cost of a draft of {drafter}; without it drafts would be free")
    return found if name == "cpu" else _all_fixed(found)
