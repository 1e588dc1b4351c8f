"""What a round takes on two machines, as stated tables: a busy machine's own timings would say nothing.

Verification by width is that of `wager bench engine` (results/engine-cpu.json, results/engine-h200.json). A step of an
EAGLE head is what its rounds took beyond that in results/eagle-cpu.json and results/spec-h200.json; a step of a small
draft model and a token to catch up on were timed by `wager record` on the CPU and are assumed on the H200.
"""

from dataclasses import replace

from wager.simulation import RoundCost, VerifyCost

_HEADS = ("ofa", "chat", "code", "math", "summarization", "translation")
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


def table(name: str) -> RoundCost:
    """A table by name; larger: the H200's with a target ten times as large."""
    if name == "larger":
        h200 = TABLES["h200"]
        return replace(h200, verify=VerifyCost(tuple((w, LARGER * s) for w, s in h200.verify.points)))
    if name not in TABLES:
        raise ValueError(f"unknown costs {name!r}; choose from {', '.join((*TABLES, 'larger'))}")
    return TABLES[name]
