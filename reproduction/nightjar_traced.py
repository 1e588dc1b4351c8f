"""Nightjar's claims under loads that change: decided with fitted costs, which every part has to withstand a band of."""

from collections.abc import Callable, Sequence

import numpy as np

from reproduction.experiment import Figures, Outcome, Part, decided, withstands
from reproduction.fitted import BAND
from reproduction.inference import LEAST, Sample, interval, row_verdict
from reproduction.nightjar_claims import OURS, against, goodputs, named, told
from reproduction.runs import NAMES, PAIRS, SETS, TRACED
from reproduction.units import Table
from reproduction.workspace import Result

EXPLORES = (
    "With the costs of the H200 drafting pays at nearly all of these loads, and one length is near the best at most of "
    "them. Nightjar explores all of them, off included; its loss falls with the fourth root of the rounds only."
)
SHAPE = "8B"  # the target that steps were measured of
# Cells of the paper's table 3 in which Nightjar's own latency is not the lower one; of the pair nearest in size.
NOT_LOWER = {("7B ShareGPT", "DSD"), ("13B Alpaca", "DSD"), ("13B Alpaca", "TETRIS"), ("13B ShareGPT", "TETRIS"),
             ("13B SpecBench", "SD")}  # fmt: skip
NEAREST = {SHAPE: "7B"}
ENGINE = "the trace on the engine"
Claims = Callable[[Table, str], list[Part]]  # of a table, and where it is from


class Traced:
    """The results of runs.traced, told apart."""

    def __init__(self, results: Sequence[Result]) -> None:
        *simulated, engine = results
        tables = [Table.of(result) for result in simulated]
        fit, *rest = [tables[i : i + len(SETS)] for i in range(0, len(tables), len(SETS))]
        self.fit = dict(zip([f"{SHAPE} {data}" for data in SETS], fit, strict=True))
        self.band = list(zip(*rest[: len(BAND)], strict=True))  # of every set
        stated = [table for own in rest[len(BAND) :] for table in own]
        self.stated = dict(zip([f"{pair} {data}" for pair in PAIRS for data in SETS], stated, strict=True))
        self.engine, self.rounds = Table.of(engine), len(engine["labels"])

    def parts(self, claims: Claims) -> list[Part]:
        """With fitted costs, each with its band; then those that the engine itself can decide."""
        found = []
        for (where, table), band in zip(self.fit.items(), self.band, strict=True):
            others = [[part.interval.mean for part in claims(each, where)] for each in band]
            found += [withstands(p, means) for p, *means in zip(claims(table, where), *others, strict=True)]
        return found + (claims(self.engine, ENGINE) if self.rounds >= LEAST["seeds"] else [])

    def beside(self, claims: Claims) -> str:
        """What stated costs would make of the row, and what was measured on the engine where that decides nothing."""
        verdicts = [part.verdict for where, table in self.stated.items() for part in claims(table, where)]
        held, failed = verdicts.count("holds"), verdicts.count("does not hold")
        stated = f"with stated costs: {row_verdict(verdicts)} ({held} of {len(verdicts)} parts hold, {failed} do not)"
        if self.rounds >= LEAST["seeds"]:
            return stated
        parts = claims(self.engine, ENGINE) if self.rounds else []
        means = [f"{part.says.removeprefix(f'{ENGINE}: ')}: {np.expm1(part.interval.mean):+.1%}" for part in parts]
        engine = f"{ENGINE} decides nothing, with {self.rounds} rounds of at least {LEAST['seeds']}"
        return f"{stated}; {engine}" + (f" ({'; '.join(means)})" if means else "")

    def figures(self, what: str, value: Callable[[Table], dict[str, float]]) -> Figures:
        """One number a method and data set, with fitted and with stated costs."""
        cells = {f"{where}, fitted": value(table) for where, table in self.fit.items()}
        cells |= {f"{where}, stated": value(table) for where, table in self.stated.items()}
        names = list(next(iter(cells.values())))
        return Figures((what, *cells), [(name, *(own[name] for own in cells.values())) for name in names])


def _rivals(table: Table, names: Sequence[str] = TRACED[1:]) -> list[str]:
    """Those of them that were run; on the engine length 4 is standard speculation."""
    return [name for name in (*names, "draft:4") if name in table.methods]


def faster(table: Table, where: str) -> list[Part]:
    """Nightjar has more tokens a second than every other method."""
    return against(table, _rivals(table), where)


def sooner(table: Table, where: str) -> list[Part]:
    """Nightjar's latency is below the others', where it is in the paper."""
    pair, _, data = where.partition(" ")
    cell = f"{NEAREST.get(pair, pair)} {data}"
    found = []
    for rival in _rivals(table, TRACED[1:5]):
        if (cell, NAMES[rival]) in NOT_LOWER:
            continue
        part = decided("", interval(table.logs(OURS, rival, column="latency")), table.sample())
        says = f"{where}: {OURS}'s latency is below {rival}'s"
        found.append(named(Part(says, part.interval, part.sample, part.verdict), rival))
    return found


def check_throughput(results: Sequence[Result]) -> Outcome:
    """Table 2: Nightjar has the highest throughput for both pairs on all data sets."""
    traced = Traced(results)
    figures = traced.figures("tokens a busy second", lambda table: goodputs(table, TRACED))
    gains = [f"{w} {float(np.expm1(t.logs(OURS, 'off').mean())):+.1%}" for w, t in traced.fit.items()]
    headline = f"Nightjar over no speculation: {'; '.join(gains)}; {traced.beside(faster)}"
    return Outcome(headline, figures, traced.parts(faster), because=EXPLORES)


def check_latency(results: Sequence[Result]) -> Outcome:
    """Table 3: Nightjar's mean latency is below the others' wherever it is in the paper."""
    traced = Traced(results)

    def latency(table: Table) -> dict[str, float]:
        return {NAMES[name]: float(table.methods[name]["latency"].mean()) for name in TRACED}

    first = next(iter(traced.fit))
    told_first = ", ".join(f"{name} {x:.2f}" for name, x in latency(traced.fit[first]).items())
    headline = f"{first}, seconds: {told_first}; {traced.beside(sooner)}"
    return Outcome(headline, traced.figures("mean latency, seconds", latency), traced.parts(sooner), because=EXPLORES)


def check_changing(results: Sequence[Result]) -> Outcome:
    """Figure 10: under a changing load Nightjar leads in the quiet stretches and in the busy ones."""
    result, *band = results
    stretches, *others = [
        {name: np.array(own["stretches"]) for name, own in each["units"].items()} for each in (result, *band)
    ]
    parts = []
    for k, load in enumerate(result["load"]):
        where = f"{'busy' if k % 2 else 'quiet'} stretch {k // 2 + 1}, {load} requests"
        for rival in (name for name in TRACED if name != OURS):
            found = interval(np.log(stretches[rival][:, k] / stretches[OURS][:, k]))
            part = decided(
                f"{where}: Nightjar is faster than {NAMES[rival]}", found, Sample(seeds=int(result["seeds"]))
            )
            means = [float(np.log(own[rival][:, k] / own[OURS][:, k]).mean()) for own in others]
            parts.append(withstands(part, means))
    rows = [(NAMES[name], *(1 / own.mean(axis=0)).tolist()) for name, own in stretches.items()]
    figures = Figures(("tokens a second", *(f"{n} requests" for n in result["load"])), rows)
    whole = goodputs(Table.of(result), TRACED)
    return Outcome(f"tokens/s over all stretches: {told(whole)}", figures, parts, because=EXPLORES)
