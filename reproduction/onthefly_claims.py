"""On-the-fly adaptation's claims, tested on results prompt by prompt."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from reproduction.claims import unless
from reproduction.experiment import Figures, Outcome, Part, decided, decided_within, not_recorded
from reproduction.inference import difference, interval
from reproduction.runs import ANALYTICAL as OURS
from reproduction.units import Table
from reproduction.workspace import Result

FIXED = 5  # tokens of speculative decoding as it was: a window that never changes
SETS = {"finance-alpaca": "alpaca", "HumanEval": "humaneval", "GSM8K": "math_reasoning", "XSum": "xsum"}
THREE = ("alpaca", "humaneval", "math_reasoning")
HISTORIES, LIMITS = (5, 6, 7), (5, 6, 7, 8)
SIZES = (4, 8, 10, 12, 16)
CACHED = "cached-fsm"
NO_CACHE = (
    "these recordings do not hold which tokens repeat earlier ones, so the state machine with cache has none here, and "
    "what concerns it is undecided"
)
WAYS = {OURS: "analytical model", "fsm": "state machine", CACHED: "state machine with cache", "qlearning": "RL"}
TRIED = "Every window is tried once before any is chosen; windows begin at 1, so where no window pays it still drafts."
SURE = (
    "A rule that asks the drafter how sure it is knows more about the next token than an average over past rounds, "
    "and its preparation is not counted."
)
TRYING = "Trying every window first weighs more than what is learned, and lengths here differ little around the best."
LONGER_VECTOR = (
    "A vector of r numbers takes r prompts to warm up on; here every vector tells the kinds of prompts apart."
)
ALIKE = (
    "Draft models of one size differ by their domain alone, and the first prompts are answered with all of them in "
    "turn."
)
SLACK = 0.01  # "no slower": at most so much


def check_windows(results: Sequence[Result], drafters: Sequence[str], sets: Sequence[str]) -> Outcome:
    """Tables 1, 7, 8, 9: over the fixed window and over plain decoding, data set by data set."""
    rows, parts = [], []
    for result, drafter in zip(results, drafters, strict=True):
        table = Table.of(result)
        fixed = f"{drafter}:{FIXED}"
        for name in sets:
            tasks = (SETS.get(name, name),)
            if tasks[0] not in table.tasks:
                parts += not_recorded(f"{drafter}, {name}", 2)
                continue
            parts.append(table.beats(OURS, fixed, tasks, where=f"{drafter}, {name}"))
            parts.append(table.beats(OURS, "off", tasks, where=f"{drafter}, {name}", margin=SLACK))
            over = table.speed(OURS, tasks)
            rows.append((f"{drafter}, {name}", f"{over / table.speed(fixed, tasks) - 1:+.1%}", f"{over:.2f}x"))
    headline = f"over a window of {FIXED}, over plain decoding: " + "; ".join(f"{w} {a}, {b}" for w, a, b in rows)
    figures = Figures(("pair and data", "over a fixed window", "over plain decoding"), rows)
    return Outcome(headline, figures, parts, because=TRIED)


def check_selection(results: Sequence[Result]) -> Outcome:
    """Table 2: choosing the drafter by the prompt is no slower than one drafter, and faster than a fixed window."""
    one, chosen = results
    table = Table.of({**one, "units": {**chosen["units"], **one["units"]}})
    base, parts = f"draft:ofa:{FIXED}", []
    for task in THREE:
        parts.append(table.beats("prompt-router", OURS, (task,), where=task, margin=SLACK))
        parts.append(table.beats("prompt-router", base, (task,), where=task))
    groups = {task: (task,) for task in THREE}
    told = ", ".join(f"{t} {table.speed('prompt-router', (t,)) / table.speed(base, (t,)) - 1:+.1%}" for t in THREE)
    headline = f"a choice of the drafter over a window of {FIXED}: {told}"
    return Outcome(headline, table.figures(groups), parts, because=ALIKE)


def check_stopping(results: Sequence[Result], drafters: Sequence[str]) -> Outcome:
    """Table 3: the window chosen online is faster than a rule that was fitted to texts beforehand."""
    rows, parts = [], []
    for drafter, played, stopped in zip(drafters, results[0::2], results[1::2], strict=True):
        content = {**played, "units": {**played["units"], **stopped["units"]}}
        table = Table.of(content)
        if stopped["drafted"] < 0.05:
            raise ValueError(f"the rule drafts nothing with {drafter}: its confidences are missing")
        for task in THREE:
            parts.append(table.beats(OURS, "fitted to stop", (task,), where=f"{drafter}, {task}"))
            online, fitted = (f"{table.speed(name, (task,)):.2f}x" for name in (OURS, "fitted to stop"))
            rows.append((f"{drafter}, {task}", fitted, online, f"{stopped['thresholds']}"))
    told = "; ".join(f"{row[0]} {row[1]} fitted, {row[2]} online" for row in rows)
    figures = Figures(("drafter and data", "fitted", "online", "thresholds of both halves"), rows)
    return Outcome(f"times plain decoding: {told}", figures, parts, because=SURE)


def check_trees(results: Sequence[Result]) -> Outcome:
    """Table 10: a tree whose depth adapts is faster than the deepest, which is EAGLE-2's, and than plain decoding."""
    table = Table.of(results[0])
    deepest = max((name for name in table.methods if "@" in name), key=_depth)
    groups = {task: (task,) for task in table.tasks}
    parts = [table.beats(OURS, deepest, tasks, where=task) for task, tasks in groups.items()]
    parts += [table.beats(OURS, "off", tasks, where=task, margin=SLACK) for task, tasks in groups.items()]
    parts += [part for task in ("mt_bench", *THREE) if task not in groups for part in not_recorded(task, 2)]
    gain = float(np.expm1(table.logs(OURS, deepest).mean()))
    return Outcome(
        f"{gain:+.1%} over {deepest}, {table.speed(OURS):.2f} times plain decoding", table.figures(groups), parts
    )


def check_tree_rates(results: Sequence[Result]) -> Outcome:
    """Table 11: with a depth that adapts a larger share of the drafted tokens is accepted, and throughput is higher."""
    table = Table.of(results[0])
    deepest = max((name for name in table.methods if "@" in name), key=_depth)
    tasks = ("mt_bench",)
    rates = {name: _rate(table, name, tasks) for name in (OURS, deepest)}
    says = f"a larger share of the drafted tokens is accepted than with {deepest}"
    parts = [
        decided(says, interval(rates[OURS] - rates[deepest]), table.sample(tasks), scale="difference"),
        table.beats(OURS, deepest, tasks),
    ]
    rows = [(name, f"{table.speed(name, tasks):.2f}x", float(rate.mean())) for name, rate in rates.items()]
    headline = "share accepted on MT-Bench: " + ", ".join(f"{name} {rate.mean():.2f}" for name, rate in rates.items())
    return Outcome(headline, Figures(("method", "speed", "share accepted"), rows), parts)


def _depth(arm: str) -> int:
    return int(arm.partition("@")[0].rpartition(":")[2])


def _rate(table: Table, name: str, tasks: Sequence[str] | None = None) -> np.ndarray:
    """Share of the drafted tokens that were accepted, text by text."""
    at, own = table.where(tasks), table.methods[name]
    drafted = own["depth" if "@" in "".join(table.methods) else "drafted"]  # of a tree only one path can be accepted
    rate: np.ndarray = own["accepted"][at] / np.maximum(1, drafted[at])
    return rate


def check_histories(results: Sequence[Result]) -> Outcome:
    """Table 12: speeds by history and by longest window differ little, and no history is the best throughout."""
    tables = dict(zip(LIMITS, map(Table.of, results), strict=True))
    names = {h: f"{OURS}:history={h}" for h in HISTORIES}
    rows: list[tuple[str, list[float]]] = []
    parts = []
    for task in THREE:
        speeds = {(h, n): tables[n].speed(names[h], (task,)) for h in HISTORIES for n in LIMITS}
        best, worst = max(speeds, key=lambda s: speeds[s]), min(speeds, key=lambda s: speeds[s])
        at = tables[LIMITS[0]].where((task,))
        seconds = [tables[n].methods[names[h]]["seconds"][at] for h, n in (worst, best)]
        found = interval(np.log(seconds[0] / seconds[1]))
        says = f"{task}: the slowest setting (history, window {worst}) is within the paper's 6 % of the fastest {best}"
        parts.append(decided_within(says, found, tables[5].sample((task,)), float(np.log(1.06))))
        rows += [(f"{task}, history {h}", [speeds[h, n] for n in LIMITS]) for h in HISTORIES]
    for one, other in combinations(HISTORIES, 2):
        parts.append(tables[8].alike(names[one], names[other], None, 0.02, where="windows of at most 8, all data"))
    spread = max(max(own) / min(own) for _, own in rows) - 1
    figures = Figures(("data", *(f"window {n}" for n in LIMITS)), [(name, *own) for name, own in rows])
    headline = f"speeds differ by at most {spread:.1%} between windows of 5 to 8"
    return Outcome(headline, figures, parts, because=TRIED)


def check_sizes(results: Sequence[Result]) -> Outcome:
    """Table 13: throughput hardly depends on the length of the prompt's vector; the longest is best."""
    table = Table.of(results[0])
    longest = str(SIZES[-1])
    parts = [table.alike(longest, str(n), None, 0.05, where="numbers a prompt") for n in SIZES[:-1]]
    parts.append(table.beats_all(longest, [str(n) for n in SIZES[:-1]], where="numbers a prompt", whom="fewer"))
    rows = [(str(n), float(np.mean(1 / table.methods[str(n)]["seconds"]))) for n in SIZES]
    headline = "tokens a second: " + ", ".join(f"{n} numbers {speed:.1f}" for n, speed in rows)
    return Outcome(headline, Figures(("numbers a prompt", "tokens a second"), rows), parts, because=LONGER_VECTOR)


def check_ways(results: Sequence[Result]) -> Outcome:
    """Figures 3, 5, 6: the analytical model is fastest, RL has more accepted, state machines like long prompts."""
    table = Table.of({**results[0], "units": {**results[1]["units"], **results[0]["units"]}})
    others = [way for way in WAYS if way != OURS]
    doubt = "" if all(result["repeats"] for result in results) else NO_CACHE
    parts: list[Part] = []
    for way in others:
        parts += unless(doubt if way == CACHED else "", [table.beats(OURS, way, THREE)])
    rates = {way: _rate(table, way, THREE) for way in WAYS}
    for way in (OURS, "fsm", CACHED):
        found = interval(rates["qlearning"] - rates[way])
        says = f"RL has a larger share of its drafts accepted than the {WAYS[way]}"
        more = decided(says, found, table.sample(THREE), scale="difference")
        parts += unless(doubt if way == CACHED else "", [more])
    for way in ("fsm", CACHED):
        long, short = (table.logs(way, OURS, (task,)) for task in ("humaneval", "alpaca"))
        says = f"the {WAYS[way]} comes closer to the analytical model on HumanEval's long prompts than on Alpaca's"
        closer = decided(says, difference(long, short), table.sample(("humaneval",)))
        parts += unless(doubt if way == CACHED else "", [closer])
    rows = [(WAYS[w], f"{table.speed(w, THREE):.2f}x", float(rates[w].mean()), table.mat(w, THREE)) for w in WAYS]
    headline = "times plain decoding: " + ", ".join(f"{WAYS[w]} {table.speed(w, THREE):.2f}" for w in WAYS)
    figures = Figures(("way", "speed", "share accepted", "tokens a round"), rows)
    return Outcome(headline, figures, parts, because=TRYING, premise=doubt)
