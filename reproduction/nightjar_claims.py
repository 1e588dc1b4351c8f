"""Nightjar's claims, checked against results."""

from collections.abc import Sequence
from itertools import pairwise

from reproduction import runs
from reproduction.claims import highest
from reproduction.experiment import Check, Checks, Figures, Outcome
from reproduction.runs import LOADS, NAMES, PAIRS, SETS
from reproduction.workspace import Result

EXPLORES = (
    "Its exploring costs most where a wrong length is dear: the loss falls with the fourth root of the rounds only, "
    "and these runs are thousands of rounds long."
)
OVERHEAD = (
    "Two CPU cores under vLLM are bound by overheads a step, which speculation shares among more tokens at any load; "
    "n-gram drafts cost nothing to make."
)
ONE_STATE = (
    "Under a load that stays, the batch size tells nothing, so one state for all loads learns as much as one a batch "
    "size; and where off is best, LinUCB, which hardly ever leaves it here, cannot be beaten."
)
SHORT = "A point of this run is a few dozen requests, of which exploring takes a large part."
COMPARED = ("nightjar", "ucbspec:reward=goodput", "dsd", "tetris", "draft:3", "off")
FIXED = ("off", "draft:1", "draft:2", "draft:3", "draft:4", "draft:5")
PHASES = 4


def goodputs(result: Result, names: Sequence[str] = COMPARED) -> dict[str, float]:
    """Tokens a busy second by the paper's names."""
    return {NAMES.get(name, name): result["methods"][name]["goodput"] for name in names if name in result["methods"]}


def table(results: Sequence[Result], names: Sequence[str], loads: Sequence[int] = LOADS) -> Figures:
    rows = [(NAMES.get(name, name), *(result["methods"][name]["goodput"] for result in results)) for name in names]
    return Figures(("tokens a second", *(f"{load} requests" for load in loads)), rows)


def check_lengths(results: Sequence[Result]) -> Outcome:
    """Speculation wins at low load, loses at high, and the best length falls with the load."""
    speeds = [{name: result["methods"][name]["goodput"] for name in FIXED} for result in results]
    gain = max(speeds[0][name] for name in FIXED[1:]) / speeds[0]["off"] - 1
    lost = speeds[-1]["draft:3"] / speeds[-1]["off"] - 1
    lengths = [FIXED.index(max(own, key=lambda name: own[name])) for own in speeds]
    checks = (
        Check(f"with {LOADS[0]} request speculation is faster than none ({gain:+.0%})", gain > 0),
        Check(f"with {LOADS[-1]} it is slower: 3 tokens always {lost:+.0%}", lost < 0),
        Check(f"the best length falls as load grows: {lengths}", all(b <= a for a, b in pairwise(lengths))),
    )
    return Outcome(
        f"the best length is {', '.join(f'{n} with {load}' for n, load in zip(lengths, LOADS, strict=True))} requests; "
        f"it gains {gain:+.0%} at the lowest load, and 3 tokens always cost {lost:+.0%} at the highest",
        table(results, FIXED),
        checks,
    )


def _served(content: Result) -> tuple[dict[tuple[str, str], float], list[str]]:
    """Throughput over no speculation by load and method, and the loads, of servers that were compared."""
    cells = {(row["point"], row["method"]): row["throughput_ratio"] for row in content["compared"]}
    return cells, list(dict.fromkeys(point for point, _ in cells))


def check_served_lengths(results: Sequence[Result]) -> Outcome:
    """The same on a real vLLM server on a CPU."""
    cells, points = _served(results[0])
    points = [point for point in points if point != "trace"]
    names = [f"fixed {n}" for n in (1, 2, 3, 4, 5)]
    best = {p: max(names, key=lambda name: cells[p, name]) for p in points}
    top = {p: cells[p, best[p]] for p in points}
    low, high = points[0], points[-1]
    checks = Checks()
    checks.add(f"with {low} request speculation is faster than none ({best[low]}: {top[low]:.2f}x)", top[low] > 1)
    says = f"with {high} requests every length is slower than none ({best[high]}: {top[high]:.2f}x)"
    checks.add(says, top[high] < 1, OVERHEAD)
    told = ", ".join(f"{top[p]:.2f} with {p}" for p in points)
    figures = Figures(
        ("throughput over none", *(f"{p} requests" for p in points)),
        [(name, *(cells[p, name] for p in points)) for name in names],
    )
    return Outcome(f"vLLM on a CPU with n-gram drafts, the best length over none: {told}", figures, checks)


def check_low(results: Sequence[Result]) -> Outcome:
    """At low load Nightjar is ahead of no speculation and of every other way."""
    checks = Checks()
    for load, result in list(zip(LOADS, results, strict=True))[:2]:
        own = goodputs(result)
        gain = own["Nightjar"] / own["w/o SD"] - 1
        checks.add(f"with {load} requests Nightjar beats no speculation ({gain:+.1%})", own["Nightjar"] > own["w/o SD"])
        checks.append(highest(own, "Nightjar", f"with {load} requests", EXPLORES, unit=" tokens/s"))
    told = ", ".join(f"{name} {value:.1f}" for name, value in goodputs(results[0]).items())
    return Outcome(f"tokens/s with 1 request: {told}", table(results[:2], COMPARED, LOADS[:2]), checks)


def check_high(results: Sequence[Result]) -> Outcome:
    """At high load Nightjar turns speculation off, is as fast as none and ahead of every other way."""
    result, load = results[-1], LOADS[-1]
    own = goodputs(result)
    off = result["methods"]["nightjar"]["pulls"]["off"]
    gain, close = own["Nightjar"] / own["w/o SD"] - 1, own["Nightjar"] >= 0.98 * own["w/o SD"]
    drafting = {name: value for name, value in own.items() if name != "w/o SD"}
    checks = (
        Check(f"with {load} requests Nightjar plays off in most rounds ({off:.0%})", off > 0.5),
        Check(f"and is within 2 % of no speculation ({gain:+.1%})", close, EXPLORES),
        highest(drafting, "Nightjar", f"of the ways that speculate, {load} requests", EXPLORES),
    )
    told = ", ".join(f"{name} {value:.0f}" for name, value in own.items())
    return Outcome(f"tokens/s with {load} requests: {told}", table(results, COMPARED), checks)


def check_static(results: Sequence[Result]) -> Outcome:
    """At every kept-up load Nightjar matches the best fixed length and is ahead of the other methods."""
    checks, told = Checks(), []
    for load, result in zip(LOADS, results, strict=True):
        fixed = {name: result["methods"][name]["goodput"] for name in FIXED}
        top = max(fixed, key=lambda name: fixed[name])
        own = goodputs(result)
        ratio = own["Nightjar"] / fixed[top]
        told.append(f"{ratio:.2f} with {load}")
        says = f"with {load} requests Nightjar is within 3 % of the best length, {top} ({ratio:.3f})"
        checks.add(says, ratio >= 0.97, EXPLORES)
        learned = {name: value for name, value in own.items() if name not in ("SD", "w/o SD")}
        checks.append(highest(learned, "Nightjar", f"of the methods that learn, with {load} requests", EXPLORES))
    figures = table(results, (*FIXED, *COMPARED[:4]))
    return Outcome(f"Nightjar beside the best fixed length: {', '.join(told)}", figures, checks)


def check_arrivals(results: Sequence[Result]) -> Outcome:
    """Requests come at a rate that changes manifold within minutes."""
    if not results[0].get("traced", True):
        missing = "no trace at hand: --data or WAGER_DATA names a folder with traces/"
        return Outcome(missing, Figures(("requests a second",), ()))
    rates = sorted(results[0]["rates"])
    low, high = (rates[round(share * (len(rates) - 1))] for share in (0.05, 0.95))
    middle = rates[len(rates) // 2]
    says = (
        f"of the rates of ten seconds the 95th percentile is at least three times the 5th ({low:.1f} to {high:.1f} "
        "requests/s)"
    )
    return Outcome(
        f"{results[0]['requests']:,} requests, {low:.1f} (5th percentile of ten seconds), {middle:.1f} (median) and "
        f"{high:.1f} (95th) a second",
        Figures(
            ("requests a second", "value"),
            (("5th percentile of ten seconds", low), ("median", middle), ("95th percentile", high)),
        ),
        [Check(says, high >= 3 * max(low, 0.1))],
    )


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
    checks = Checks()
    for k in range(PHASES):
        stretch = {name: values[k] for name, values in own.items()}
        checks.append(highest(stretch, "Nightjar", f"in {'busy' if k % 2 else 'quiet'} stretch {k // 2 + 1}", EXPLORES))
    figures = Figures(
        ("tokens a second", *(f"{n} requests" for n in result["load"])),
        [(name, *values) for name, values in own.items()],
    )
    return Outcome("Nightjar's tokens/s by stretch: " + ", ".join(f"{x:.0f}" for x in own["Nightjar"]), figures, checks)


def check_contexts(results: Sequence[Result]) -> Outcome:
    """Nightjar is ahead of LinUCB, linear Thompson sampling and plain ADA-BINGREEDY at every load."""
    names = ("nightjar", "ada-bingreedy", "linucb", "lints")
    speeds = {load: goodputs(result, names) for load, result in zip(LOADS, results, strict=True)}
    checks = [highest(own, "Nightjar", f"with {load} requests", ONE_STATE) for load, own in speeds.items()]
    told = "; ".join(
        f"{own['Nightjar']:.0f} and {own['ADA-BINGREEDY']:.0f} with {load}" for load, own in speeds.items()
    )
    return Outcome(f"tokens/s, Nightjar beside ADA-BINGREEDY: {told}", table(results, names), checks)


def check_waking(results: Sequence[Result]) -> Outcome:
    """Waking an idle drafter takes longer the more tokens it missed and the more requests there are."""
    taken = results[0]["seconds"]
    batches, missed = list(taken), list(next(iter(taken.values())))
    grows = all(own[missed[-1]] > own[missed[0]] for own in taken.values())
    wider = all(taken[batches[-1]][m] > taken[batches[0]][m] for m in missed)
    every = [1000 * x for own in taken.values() for x in own.values()]
    low, high = min(every), max(every)
    checks = (
        Check(f"{missed[-1]} missed tokens take longer than {missed[0]} at every batch size", grows),
        Check(f"{batches[-1]} requests take longer than {batches[0]} at every length", wider),
        Check(f"the dearest takes at least five times the cheapest ({low:.1f} to {high:.1f} ms)", high >= 5 * low),
    )
    return Outcome(
        f"{low:.1f} ms for {missed[0]} tokens of {batches[0]} request to {high:.1f} ms for {missed[-1]} tokens of "
        f"{batches[-1]}",
        Figures(
            ("milliseconds", *(f"{m} tokens" for m in missed)),
            [(f"{batch} requests", *(1000 * own[m] for m in missed)) for batch, own in taken.items()],
        ),
        checks,
    )


def _traced(results: Sequence[Result], what: str, column: str) -> tuple[dict[str, dict[str, float]], Figures]:
    """Pair and data set -> method by the paper's name -> figure; and the same as a table."""
    settings = [f"{pair} {data}" for pair in PAIRS for data in SETS]
    cells = {
        setting: {NAMES[name]: result["methods"][name][what] for name in runs.TRACED}
        for setting, result in zip(settings, results, strict=True)
    }
    rows = [(NAMES[name], *(own[NAMES[name]] for own in cells.values())) for name in runs.TRACED]
    return cells, Figures((column, *cells), rows)


def check_throughput(results: Sequence[Result]) -> Outcome:
    """Nightjar has the highest throughput for both pairs on all data sets."""
    cells, figures = _traced(results, "goodput", "tokens a busy second")
    checks = [highest(own, "Nightjar", f"for {name}", EXPLORES, unit=" tokens/s") for name, own in cells.items()]
    small, large = (
        [f"{cells[name]['Nightjar'] / cells[name][base] - 1:+.1%}" for base in ("w/o SD", "SD")]
        for name in ("7B Alpaca", "13B Alpaca")
    )
    told = f"7B Alpaca {small[0]}, 13B Alpaca {large[0]}; over 3 tokens always: {small[1]}, {large[1]}"
    return Outcome(f"over no speculation: {told}", figures, checks)


def check_latency(results: Sequence[Result]) -> Outcome:
    """Nightjar's mean latency is below that of fixed speculation, BanditSpec, DSD and TETRIS in most settings."""
    cells, figures = _traced(results, "latency", "mean latency, seconds")
    checks = Checks()
    for rival in ("SD", "BanditSpec", "DSD", "TETRIS"):
        won = sum(own["Nightjar"] <= own[rival] for own in cells.values())
        says = f"Nightjar's latency is below {rival}'s in most settings: in {won} of {len(cells)}"
        checks.add(says, 2 * won > len(cells), EXPLORES)
    told = ", ".join(f"{name} {value:.2f}" for name, value in cells["7B Alpaca"].items())
    return Outcome(f"7B Alpaca, seconds: {told}", figures, checks)


def check_served(results: Sequence[Result]) -> Outcome:
    """On a real vLLM server on a CPU: Nightjar beside no speculation and the others, point by point."""
    cells, points = _served(results[0])
    names = ("nightjar", "ucbspec", "dsd", "fixed 3", "no speculation")
    checks = Checks()
    for point in points:
        own = {name: cells[point, name] for name in names if (point, name) in cells}
        checks.append(highest(own, "nightjar", f"at {point}", SHORT, slack=0.02))
    rows = [(name, *(cells.get((p, name)) for p in points)) for name in names]
    told = ", ".join(f"{cells[p, 'nightjar']:.2f} with {p}" for p in points)
    headline = f"vLLM on a CPU, Nightjar's throughput over no speculation: {told}"
    return Outcome(headline, Figures(("throughput over none", *points), rows), checks)
