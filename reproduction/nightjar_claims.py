"""Nightjar's claims, tested on results seed by seed."""

from collections.abc import Sequence

import numpy as np

from reproduction.experiment import Figures, Outcome, Part, decided, not_recorded
from reproduction.inference import Sample, interval
from reproduction.runs import LOADS, NAMES
from reproduction.units import Table, share
from reproduction.workspace import Result

EXPLORES_HERE = (
    "Its exploring costs most where a wrong length is dear: the loss falls with the fourth root of the rounds only, "
    "and at each load it had 150 to 400 rounds before anything counted. TETRIS gives each request a length of its own, "
    "which this engine does not."
)
ONE_STATE = (
    "Under a load that stays, the batch size tells nothing, so one state for all loads learns as much as one a batch "
    "size."
)
OURS = "nightjar"
COMPARED = ("ucbspec:reward=goodput", "dsd", "draft:4", "off")
FIXED = ("off", "draft:1", "draft:2", "draft:4")
LENGTHS = (0, 1, 2, 4)  # of those


def goodputs(table: Table, names: Sequence[str]) -> dict[str, float]:
    """Tokens a busy second by the paper's names, the mean over seeds."""
    return {NAMES.get(n, n): float(np.mean(1 / table.methods[n]["seconds"])) for n in names}


def by_load(results: Sequence[Result], names: Sequence[str], loads: Sequence[int] = LOADS) -> Figures:
    columns = [goodputs(Table.of(result), names) for result in results]
    rows = [(name, *(own[name] for own in columns)) for name in columns[0]]
    return Figures(("tokens a second", *(f"{load} requests" for load in loads)), rows)


def without_tetris(where: str) -> list[Part]:
    """TETRIS was not run on the engine."""
    return not_recorded(f"{where}, TETRIS", 1)


def told(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:,.1f}" for name, value in values.items())


def against(table: Table, rivals: Sequence[str], where: str) -> list[Part]:
    """Nightjar is faster than each rival."""
    return [named(table.beats(OURS, rival, where=where), rival) for rival in rivals]


def named(part: Part, rival: str) -> Part:
    """With the names of the paper."""
    says = part.says.replace(rival, NAMES.get(rival, rival)).replace(OURS, "Nightjar")
    return Part(says, part.interval, part.sample, part.verdict, part.scale)


def check_lengths(results: Sequence[Result]) -> Outcome:
    """Figure 2: speculation wins at low load, loses at high, and the best length falls with the load."""
    tables = [Table.of(result) for result in results]
    low, high = tables[0], tables[-1]
    lengths = np.array([_best_lengths(table) for table in tables])  # (loads, seeds)
    falls = (np.diff(lengths, axis=0) <= 0).all(axis=0).astype(float)
    speeds = goodputs(low, FIXED[1:])
    best = max(speeds, key=lambda name: speeds[name])
    best = next(name for name in FIXED if NAMES.get(name, name) == best)
    parts = [
        low.beats(best, "off", where=f"with {LOADS[0]} request"),
        high.beats("off", "draft:4", where=f"with {LOADS[-1]} requests"),
        share(f"the best length falls as the load grows, in most runs: {lengths[:, 0].tolist()} in the first", falls,
              Sample(seeds=len(falls))),
    ]  # fmt: skip
    middle = np.median(lengths, axis=1).astype(int).tolist()
    headline = (
        f"the best length is {', '.join(f'{n} with {load}' for n, load in zip(middle, LOADS, strict=True))} requests"
    )
    return Outcome(headline, by_load(results, FIXED), parts)


def _best_lengths(table: Table) -> list[int]:
    each = np.array([table.methods[name]["seconds"] for name in FIXED])
    return [LENGTHS[int(n)] for n in each.argmin(axis=0)]


def check_low(results: Sequence[Result]) -> Outcome:
    """Figure 5: at low load Nightjar is ahead of no speculation and of every other method."""
    parts = [
        part
        for load, result in list(zip(LOADS, results, strict=True))[:2]
        for part in [
            *against(Table.of(result), COMPARED, f"with {load} requests"),
            *without_tetris(f"with {load} requests"),
        ]
    ]
    headline = f"tokens/s with 1 request: {told(goodputs(Table.of(results[0]), (OURS, *COMPARED)))}"
    return Outcome(headline, by_load(results[:2], (OURS, *COMPARED), LOADS[:2]), parts, because=EXPLORES_HERE)


def check_high(results: Sequence[Result]) -> Outcome:
    """Figure 6: at high load Nightjar turns speculation off, loses nothing against none and leads the others."""
    table, load = Table.of(results[-1]), LOADS[-1]
    where = f"with {load} requests"
    parts = [named(table.beats(OURS, "off", where=where, margin=0.02), "off"), *against(table, COMPARED[:-1], where)]
    parts += without_tetris(where)
    off = (table.shares or {})[OURS].get("off", 0.0)
    headline = (
        f"{where} Nightjar plays off in {off:.0%} of the rounds; tokens/s: {told(goodputs(table, (OURS, *COMPARED)))}"
    )
    return Outcome(headline, by_load(results, (OURS, *COMPARED)), parts, because=EXPLORES_HERE)


def check_static(results: Sequence[Result]) -> Outcome:
    """Figure 8: at every load Nightjar matches the best fixed length and is ahead of the other methods."""
    parts, ratios = [], []
    for load, result in zip(LOADS, results, strict=True):
        table = Table.of(result)
        best = min(FIXED, key=lambda name: float(table.methods[name]["seconds"].mean()))
        parts.append(named(table.beats(OURS, best, where=f"with {load} requests", margin=0.03), best))
        parts += against(table, COMPARED[:2], f"with {load} requests") + without_tetris(f"with {load} requests")
        ratios.append(f"{float(np.exp(table.logs(OURS, best).mean())):.2f} with {load}")
    figures = by_load(results, (*FIXED, OURS, *COMPARED[:2]))
    return Outcome(f"Nightjar beside the best fixed length: {', '.join(ratios)}", figures, parts, because=EXPLORES_HERE)


def check_contexts(results: Sequence[Result]) -> Outcome:
    """Figure 11: Nightjar is ahead of LinUCB, linear Thompson sampling and plain ADA-BINGREEDY at every load."""
    names = ("ada-bingreedy", "linucb", "lints")
    parts = [
        part
        for load, result in zip(LOADS, results, strict=True)
        for part in against(Table.of(result), names, f"with {load} requests")
    ]
    first, last = (told(goodputs(Table.of(results[i]), (OURS, *names))) for i in (0, -1))
    headline = f"tokens/s with 1 request: {first}; with {LOADS[-1]}: {last}"
    return Outcome(headline, by_load(results, (OURS, *names)), parts, because=ONE_STATE)


def check_arrivals(results: Sequence[Result]) -> Outcome:
    """Figure 9 shows the input of other experiments."""
    rates = np.array(results[0]["rates"])
    low, middle, high = np.quantile(rates, (0.05, 0.5, 0.95))
    rows = (("5th percentile", float(low)), ("median", float(middle)), ("95th percentile", float(high)))
    headline = f"{results[0]['requests']:,} requests; windows of ten seconds have {low:.1f} to {high:.1f} requests/s"
    why = "The figure shows the segment of the trace that the paper chose; it is an input and claims nothing."
    return Outcome(headline, Figures(("requests a second, windows of ten seconds", "value"), rows), untested=why)


def check_waking(results: Sequence[Result]) -> Outcome:
    """Table 1: waking an idle drafter takes longer the more tokens it missed and the more requests there are."""
    taken = results[0]["seconds"]
    batches, missed = list(taken), list(next(iter(taken.values())))
    parts = []
    for batch in batches:
        found = interval(np.log(np.array(taken[batch][missed[-1]]) / np.array(taken[batch][missed[0]])))
        says = f"batch {batch}: {missed[-1]} missed tokens take longer than {missed[0]}"
        parts.append(decided(says, found, Sample(seeds=len(taken[batch][missed[0]]))))
    for m in missed:
        found = interval(np.log(np.array(taken[batches[-1]][m]) / np.array(taken[batches[0]][m])))
        says = f"{m} missed tokens: a batch of {batches[-1]} takes longer than one of {batches[0]}"
        parts.append(decided(says, found, Sample(seeds=len(taken[batches[0]][m]))))
    ms = {b: {m: 1000 * float(np.median(x)) for m, x in own.items()} for b, own in taken.items()}
    low, high = ms[batches[0]][missed[0]], ms[batches[-1]][missed[-1]]
    rows = [(f"{batch} requests", *own.values()) for batch, own in ms.items()]
    headline = f"{low:.1f} ms ({missed[0]} tokens, batch {batches[0]}) to {high:.1f} ms ({missed[-1]}, {batches[-1]})"
    return Outcome(headline, Figures(("milliseconds", *(f"{m} tokens" for m in missed)), rows), parts)


def check_inputs(results: Sequence[Result]) -> Outcome:
    """Figure 7 shows the lengths of prompts and answers."""
    rows = [(task, *own) for task, own in results[0]["lengths"].items()]
    columns = ("task", "prompt, median", "prompt, 95th percentile", "answer, median", "answer, 95th percentile")
    why = "The figure shows the data sets that the paper served; it is an input and claims nothing."
    return Outcome(
        f"tokens of {results[0]['texts']} recorded prompts and answers", Figures(columns, rows), untested=why
    )
