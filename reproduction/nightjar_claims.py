"""Nightjar's claims, checked against results."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from reproduction import runs
from reproduction.claims import highest
from reproduction.experiment import Check, Figures, Outcome
from reproduction.runs import LOADS, NAMES, PAIRS, SETS
from reproduction.workspace import Result

EXPLORES = (
    "Its exploring costs most where a wrong length is dear: the loss falls with the fourth root of the rounds only, "
    "and these runs are thousands of rounds long."
)
COMPARED = ("nightjar", "ucbspec:reward=goodput", "dsd", "tetris", "draft:3", "off")


def goodputs(result: Result, names: Sequence[str] = COMPARED) -> dict[str, float]:
    """Tokens a busy second by the paper's names."""
    return {NAMES.get(name, name): result["methods"][name]["goodput"] for name in names if name in result["methods"]}


def table(results: Sequence[Result], names: Sequence[str], loads: Sequence[int] = LOADS) -> Figures:
    rows = tuple((NAMES.get(name, name), *(result["methods"][name]["goodput"] for result in results)) for name in names)
    return Figures(("tokens a second", *(f"{load} requests" for load in loads)), rows)


FIXED = ("off", "draft:1", "draft:2", "draft:3", "draft:4", "draft:5")


def check_lengths(results: Sequence[Result]) -> Outcome:
    """Speculation wins at low load, loses at high, and the best length falls with the load."""
    gains = [max(goodputs(r, FIXED[1:]).values()) / r["methods"]["off"]["goodput"] - 1 for r in results]
    best = [max(FIXED, key=lambda name: r["methods"][name]["goodput"]) for r in results]
    lost = results[-1]["methods"]["draft:3"]["goodput"] / results[-1]["methods"]["off"]["goodput"] - 1
    lengths = [0 if name == "off" else int(name.partition(":")[2]) for name in best]
    checks = (
        Check(f"with {LOADS[0]} request speculation is faster than none ({gains[0]:+.0%})", gains[0] > 0),
        Check(f"with {LOADS[-1]} it is slower: 3 tokens always {lost:+.0%}", lost < 0),
        Check(f"the best length falls as load grows: {lengths}", all(b <= a for a, b in pairwise(lengths))),
    )
    return Outcome(
        f"the best length is {', '.join(f'{n} with {load}' for n, load in zip(lengths, LOADS, strict=True))} requests; "
        f"it gains {gains[0]:+.0%} at the lowest load, and 3 tokens always cost {lost:+.0%} at the highest",
        table(results, FIXED),
        checks,
    )


def check_served_lengths(content: Result) -> Outcome:
    """The same on a real vLLM server on a CPU."""
    cells = {(row["point"], row["method"]): row["throughput_ratio"] for row in content["compared"]}
    points = [p for p in dict.fromkeys(point for point, _ in cells) if p != "trace"]
    names = [f"fixed {n}" for n in (1, 2, 3, 4, 5)]
    best = {p: max(names, key=lambda name: cells[p, name]) for p in points}
    low, high = points[0], points[-1]
    checks = (
        Check(
            f"with {low} request speculation is faster than none ({best[low]}: {cells[low, best[low]]:.2f}x)",
            cells[low, best[low]] > 1,
        ),
        Check(
            f"with {high} requests every length is slower than none ({best[high]}: {cells[high, best[high]]:.2f}x)",
            cells[high, best[high]] < 1,
            "Two CPU cores under vLLM are bound by overheads a step, which speculation shares among more tokens at any "
            "load; n-gram drafts cost nothing to make.",
        ),
    )
    rows = tuple((name, *(cells[p, name] for p in points)) for name in names)
    return Outcome(
        "vLLM on a CPU with n-gram drafts, the best length over none: "
        + ", ".join(f"{cells[p, best[p]]:.2f} with {p}" for p in points),
        Figures(("throughput over none", *(f"{p} requests" for p in points)), rows),
        checks,
    )


def check_low(results: Sequence[Result]) -> Outcome:
    """At low load Nightjar is ahead of no speculation and of every other way."""
    checks = []
    for load, result in list(zip(LOADS, results, strict=True))[:2]:
        own = goodputs(result)
        checks.append(
            Check(
                f"with {load} requests Nightjar beats no speculation ({own['Nightjar'] / own['w/o SD'] - 1:+.1%})",
                own["Nightjar"] > own["w/o SD"],
            )
        )
        best = highest(own, "Nightjar", f"with {load} requests", unit=" tokens/s")
        checks.append(Check(best.says, best.holds, EXPLORES))
    own = goodputs(results[0])
    return Outcome(
        "tokens/s with 1 request: " + ", ".join(f"{name} {value:.1f}" for name, value in own.items()),
        table(results[:2], COMPARED, LOADS[:2]),
        tuple(checks),
    )


def check_high(results: Sequence[Result]) -> Outcome:
    """At high load Nightjar turns speculation off, is as fast as none and ahead of every other way."""
    result, load = results[-1], LOADS[-1]
    own = goodputs(result)
    off = result["methods"]["nightjar"]["pulls"]["off"]
    best = highest(
        {k: v for k, v in own.items() if k != "w/o SD"}, "Nightjar", f"of the ways that speculate, {load} requests"
    )
    checks = (
        Check(f"with {load} requests Nightjar plays off in most rounds ({off:.0%})", off > 0.5),
        Check(
            f"and is within 2 % of no speculation ({own['Nightjar'] / own['w/o SD'] - 1:+.1%})",
            own["Nightjar"] >= 0.98 * own["w/o SD"],
            EXPLORES,
        ),
        Check(best.says, best.holds, EXPLORES),
    )
    return Outcome(
        f"tokens/s with {load} requests: " + ", ".join(f"{name} {value:.0f}" for name, value in own.items()),
        table(results, COMPARED),
        checks,
    )


def check_static(results: Sequence[Result]) -> Outcome:
    """At every kept-up load Nightjar matches the best fixed length and is ahead of the other methods."""
    checks, told = [], []
    for load, result in zip(LOADS, results, strict=True):
        fixed = {name: result["methods"][name]["goodput"] for name in FIXED}
        top = max(fixed, key=lambda name: fixed[name])
        own = goodputs(result)
        ratio = own["Nightjar"] / fixed[top]
        told.append(f"{ratio:.2f} with {load}")
        checks.append(
            Check(
                f"with {load} requests Nightjar is within 3 % of the best length, {top} ({ratio:.3f})",
                ratio >= 0.97,
                EXPLORES,
            )
        )
        learned = {name: value for name, value in own.items() if name not in ("SD", "w/o SD")}
        best = highest(learned, "Nightjar", f"of the methods that learn, with {load} requests")
        checks.append(Check(best.says, best.holds, EXPLORES))
    return Outcome(
        "Nightjar beside the best fixed length: " + ", ".join(told),
        table(results, (*FIXED, *COMPARED[:4])),
        tuple(checks),
    )


def check_arrivals(results: Sequence[Result]) -> Outcome:
    """Requests come at a rate that changes manifold within minutes."""
    if not results[0].get("traced", True):
        return Outcome(
            "no trace at hand: --data or WAGER_DATA names a folder with traces/", Figures(("requests a second",), ())
        )
    rates = sorted(results[0]["rates"])
    low, high = (rates[round(share * (len(rates) - 1))] for share in (0.05, 0.95))
    checks = (
        Check(
            f"of the rates of ten seconds the 95th percentile is at least three times the 5th ({low:.1f} to {high:.1f} "
            "requests/s)",
            high >= 3 * max(low, 0.1),
        ),
    )
    middle = rates[len(rates) // 2]
    return Outcome(
        f"{results[0]['requests']:,} requests, {low:.1f} (5th percentile of ten seconds), {middle:.1f} (median) and "
        f"{high:.1f} (95th) a second",
        Figures(
            ("requests a second", "value"),
            (("5th percentile of ten seconds", low), ("median", middle), ("95th percentile", high)),
        ),
        checks,
    )


PHASES = 4


def check_changing(results: Sequence[Result]) -> Outcome:
    """Under a changing load Nightjar leads in the quiet stretches and in the busy ones."""
    result = results[0]
    marks, methods = result["marks"], result["methods"]
    edges = [0, *(marks[len(marks) * k // PHASES - 1] for k in range(1, PHASES + 1))]
    at = {0: 0, **{mark: i + 1 for i, mark in enumerate(marks)}}

    def speeds(name: str) -> list[float]:
        curve = [0.0, *methods[name]["curve"]]
        return [(b - a) / (curve[at[b]] - curve[at[a]]) for a, b in pairwise(edges)]

    own = {NAMES.get(name, name): speeds(name) for name in methods}
    checks = []
    for k in range(PHASES):
        stretch = "quiet" if k % 2 == 0 else "busy"
        best = highest(
            {name: values[k] for name, values in own.items()}, "Nightjar", f"in {stretch} stretch {k // 2 + 1}"
        )
        checks.append(Check(best.says, best.holds, EXPLORES))
    rows = tuple((name, *values) for name, values in own.items())
    return Outcome(
        "Nightjar's tokens/s by stretch: " + ", ".join(f"{x:.0f}" for x in own["Nightjar"]),
        Figures(("tokens a second", *(f"{n} requests" for n in result["load"])), rows),
        tuple(checks),
    )


def check_contexts(results: Sequence[Result]) -> Outcome:
    """Nightjar is ahead of LinUCB, linear Thompson sampling and plain ADA-BINGREEDY at every load."""
    names = ("nightjar", "ada-bingreedy", "linucb", "lints")
    checks = []
    for load, result in zip(LOADS, results, strict=True):
        best = highest(goodputs(result, names), "Nightjar", f"with {load} requests")
        checks.append(
            Check(
                best.says,
                best.holds,
                "Under a load that stays, the batch size tells nothing, so one state for all loads learns as much as "
                "one a batch size; and where off is best, LinUCB, which hardly ever leaves it here, cannot be beaten.",
            )
        )
    return Outcome(
        "tokens/s, Nightjar beside ADA-BINGREEDY: "
        + "; ".join(
            f"{r['methods']['nightjar']['goodput']:.0f} and {r['methods']['ada-bingreedy']['goodput']:.0f} with {load}"
            for load, r in zip(LOADS, results, strict=True)
        ),
        table(results, names),
        tuple(checks),
    )


def check_waking(results: Sequence[Result]) -> Outcome:
    """Waking an idle drafter takes longer the more tokens it missed and the more requests there are."""
    taken = results[0]["seconds"]
    missed = list(next(iter(taken.values())))
    rows = tuple((f"{batch} requests", *(1000 * own[m] for m in missed)) for batch, own in taken.items())
    grows = all(own[missed[-1]] > own[missed[0]] for own in taken.values())
    batches = list(taken)
    wider = all(taken[batches[-1]][m] > taken[batches[0]][m] for m in missed)
    every = [x for own in taken.values() for x in own.values()]
    checks = (
        Check(f"{missed[-1]} missed tokens take longer than {missed[0]} at every batch size", grows),
        Check(f"{batches[-1]} requests take longer than {batches[0]} at every length", wider),
        Check(
            f"the dearest takes at least five times the cheapest ({1000 * min(every):.1f} to "
            f"{1000 * max(every):.1f} ms)",
            max(every) >= 5 * min(every),
        ),
    )
    return Outcome(
        f"{1000 * min(every):.1f} ms for {missed[0]} tokens of {batches[0]} request to {1000 * max(every):.1f} ms for "
        f"{missed[-1]} tokens of {batches[-1]}",
        Figures(("milliseconds", *(f"{m} tokens" for m in missed)), rows),
        checks,
    )


def _cells(results: Sequence[Result], what: str) -> dict[str, dict[str, float]]:
    """Pair and data set -> method by the paper's name -> figure."""
    settings = [f"{pair} {data}" for pair in PAIRS for data in SETS]
    return {
        setting: {NAMES[name]: result["methods"][name][what] for name in runs.TRACED}
        for setting, result in zip(settings, results, strict=True)
    }


def _rows(cells: dict[str, dict[str, float]]) -> tuple[tuple[str | float | None, ...], ...]:
    """A row for every method."""
    return tuple((NAMES[name], *(own[NAMES[name]] for own in cells.values())) for name in runs.TRACED)


def check_throughput(results: Sequence[Result]) -> Outcome:
    """Nightjar has the highest throughput for both pairs on all data sets."""
    cells = _cells(results, "goodput")
    checks = []
    for setting, own in cells.items():
        best = highest(own, "Nightjar", f"for {setting}", unit=" tokens/s")
        checks.append(Check(best.says, best.holds, EXPLORES))
    rows = _rows(cells)
    first, last = cells["7B Alpaca"], cells["13B Alpaca"]
    return Outcome(
        f"over no speculation: 7B Alpaca {first['Nightjar'] / first['w/o SD'] - 1:+.1%}, 13B Alpaca "
        f"{last['Nightjar'] / last['w/o SD'] - 1:+.1%}; over 3 tokens always: "
        f"{first['Nightjar'] / first['SD'] - 1:+.1%}, {last['Nightjar'] / last['SD'] - 1:+.1%}",
        Figures(("tokens a busy second", *cells), rows),
        tuple(checks),
    )


def check_latency(results: Sequence[Result]) -> Outcome:
    """Nightjar's mean latency is below that of fixed speculation, BanditSpec, DSD and TETRIS in most settings."""
    cells = _cells(results, "latency")
    checks = []
    for rival in ("SD", "BanditSpec", "DSD", "TETRIS"):
        won = [setting for setting, own in cells.items() if own["Nightjar"] <= own[rival]]
        checks.append(
            Check(
                f"Nightjar's latency is below {rival}'s in most settings: in {len(won)} of {len(cells)}",
                2 * len(won) > len(cells),
                EXPLORES,
            )
        )
    rows = _rows(cells)
    own = cells["7B Alpaca"]
    return Outcome(
        "7B Alpaca, seconds: " + ", ".join(f"{name} {value:.2f}" for name, value in own.items()),
        Figures(("mean latency, seconds", *cells), rows),
        tuple(checks),
    )


def check_served(content: Result) -> Outcome:
    """On a real vLLM server on a CPU: Nightjar beside no speculation and the others, point by point."""
    cells = {(row["point"], row["method"]): row["throughput_ratio"] for row in content["compared"]}
    points = list(dict.fromkeys(point for point, _ in cells))
    names = ("nightjar", "ucbspec", "dsd", "fixed 3", "no speculation")
    checks = []
    for point in points:
        own = {name: cells[point, name] for name in names if (point, name) in cells}
        best = highest(own, "nightjar", f"at {point}", slack=0.02)
        checks.append(
            Check(
                best.says,
                best.holds,
                "A point of this run is a few dozen requests, of which exploring takes a large part.",
            )
        )
    rows = tuple((name, *(cells.get((p, name)) for p in points)) for name in names)
    return Outcome(
        "vLLM on a CPU, Nightjar's throughput over no speculation: "
        + ", ".join(f"{cells[p, 'nightjar']:.2f} with {p}" for p in points),
        Figures(("throughput over none", *points), rows),
        tuple(checks),
    )
