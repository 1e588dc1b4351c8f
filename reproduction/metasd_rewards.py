"""MetaSD's claims about rewards, draft lengths, windows and batches, tested on results prompt by prompt."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from reproduction.claims import doubted, not_specialists, one_for_all, unless
from reproduction.experiment import Figures, Outcome, Part, decided, decided_within
from reproduction.inference import Sample, interval
from reproduction.metasd_claims import LATE
from reproduction.runs import BE, EXP3, HALVING, UCB
from reproduction.units import Table
from reproduction.workspace import Result

SELDOM = "Where hardly a token is accepted, efficiency is nearly always zero and so hardly varies."
STILL = 0.05  # of divergence, which lies between 0 and 1: how far the mean may move and count as the same
SIZES = (1, 2, 3, 5, 8)


def _column(cells: Sequence[Result], reward: str, what: str) -> np.ndarray:
    return np.array([cell[reward][what] for cell in cells], dtype=float)


def rewards(results: Sequence[Result], at_home: Sequence[str]) -> Outcome:
    """Table 2: on each task the home drafter's rewards beside the others'."""
    rows: list[tuple[str | float, ...]] = []
    parts: list[Part] = []
    table = Table.of(results[-1])
    why, doubt = not_specialists(table, "draft"), doubted(table, "draft")
    for best, result in zip(at_home, results[:-1], strict=True):
        own = result["drafters"]
        sample = Sample(prompts=len(own[best]))
        for name, cells in own.items():
            be, bd = (_column(cells, kind, "mean") for kind in ("be", "bd"))
            spread = _column(cells, "be", "variance"), _column(cells, "bd", "variance")
            says = f"{name} on {best}'s task: divergence varies less than efficiency"
            parts.append(decided(says, interval(spread[0] - spread[1]), sample, scale="difference"))
            zeros = _column(cells, "be", "zeros")
            rows.append((f"{name} on {best}'s task", *(float(x.mean()) for x in (be, bd, *spread, zeros))))
            if name == best:
                continue
            gaps = {k: _column(own[best], k, "mean") - _column(cells, k, "mean") for k in ("be", "bd")}
            says = f"{best} before {name}: the gap is wider in divergence than in efficiency"
            gap = decided(says, interval(gaps["bd"] - gaps["be"]), sample, scale="difference")
            parts += unless(doubt, [gap])
            says = f"{name} on {best}'s task: efficiency is zero in at least half of the rounds"
            parts.append(decided(says, interval(zeros), sample, least=0.5, scale="difference"))
    told = "; ".join(f"{row[0]}: efficiency {row[1]:.2f}, divergence {row[2]:.2f}" for row in rows)
    columns = ("drafter", "BE mean", "BD mean", "BE variance", "BD variance", "BE zeros")
    return Outcome(told, Figures(columns, rows), parts, because=SELDOM, premise=why)


def spreads(results: Sequence[Result], at_home: Sequence[str]) -> Outcome:
    """Figure 5: divergence spreads less than efficiency between its 5th and 95th percentile."""
    rows, parts = [], []
    for best, result in zip(at_home, results, strict=True):
        for name, cells in result["drafters"].items():
            be, bd = (_column(cells, kind, "spread") for kind in ("be", "bd"))
            says = f"{name} on {best}'s task: divergence spreads less than efficiency"
            parts.append(decided(says, interval(be - bd), Sample(prompts=len(cells)), scale="difference"))
            rows.append((f"{name} on {best}'s task", float(be.mean()), float(bd.mean())))
    told = "; ".join(f"{name}: {be:.2f} and {bd:.2f}" for name, be, bd in rows)
    found = Figures(("drafter", "BE, 5th to 95th percentile", "BD, 5th to 95th percentile"), rows)
    return Outcome(f"width of efficiency and of divergence: {told}", found, parts, because=SELDOM)


def stationary(results: Sequence[Result]) -> Outcome:
    """Figures 6 and 7: the mean of divergence is the same in the first and in the second five rounds of a text."""
    rows, parts = [], []
    for name, cells in results[0]["drafters"].items():
        rounds = np.array([cell["rounds"] for cell in cells if len(cell["rounds"]) == 10])
        if not len(rounds):
            raise ValueError("no text has ten rounds")
        moved = rounds[:, 5:].mean(axis=1) - rounds[:, :5].mean(axis=1)
        says = f"{name}: divergence of rounds 6 to 10 is that of rounds 1 to 5, within {STILL}"
        parts.append(decided_within(says, interval(moved), Sample(prompts=len(rounds)), STILL, scale="difference"))
        rows.append((name, *rounds.mean(axis=0).tolist()))
    told = ", ".join(f"{x:.2f}" for x in rows[0][1:])
    figures = Figures(("mean divergence by round", *map(str, range(1, 11))), rows)
    why = "The first rounds of an answer are easier, or harder, to guess than later ones."
    return Outcome(f"{rows[0][0]}, mean divergence by round: {told}", figures, parts, because=why)


def windows(results: Sequence[Result]) -> Outcome:
    """Table 13: a window over the head's cache changes little, task by task."""
    table, name = Table.of(results[0]), f"{UCB} window"
    parts = [table.alike(name, UCB, (task,), 0.06, where=task) for task in table.tasks]
    groups = {task: (task,) for task in table.tasks}
    told = f"{table.speed(UCB):.2f} with the whole cache, {table.speed(name):.2f} with a window of 64 entries"
    return Outcome(f"times plain decoding: {told}", table.figures(groups), parts)


def batches(results: Sequence[Result], kind: str, sizes: Sequence[int], tasks: Sequence[str]) -> Outcome:
    """Table 17: alone UCB beats the drafter for everything; batches of one task keep that, mixed ones lose it."""
    table = Table.of(results[0])
    ofa = one_for_all(table, kind)
    parts = [table.beats(UCB, ofa, (task,), where=task) for task in tasks if task in table.tasks]
    rows: list[tuple[str | float, ...]] = []
    mixed: list[np.ndarray] = []
    for size, result in zip(sizes, results[1:], strict=True):
        own = Table.of(result)
        logs = own.logs("one task", "one for all"), own.logs("mixed tasks", "one for all, mixed")
        mixed.append(logs[1])
        rows.append((f"batch {size}", *(float(np.exp(x.mean())) for x in logs)))
        if size > 1:
            says = f"batches of {size} of one task: UCB is faster than one drafter for all"
            parts.append(decided(says, interval(logs[0]), own.sample()))
    last = sizes[-1]
    says = f"mixed batches of {last}: UCB is slower than one drafter for all"
    parts.append(decided(says, interval(-mixed[-1]), Sample(prompts=len(mixed[-1]))))
    told = ", ".join(f"{row[0]} {row[1]:.2f} and {row[2]:.2f}" for row in rows)
    figures = Figures(("UCB over one drafter for all", "batches of one task", "mixed batches"), rows)
    why, told = not_specialists(table, kind), f"UCB over one drafter for all, of one task and mixed: {told}"
    return Outcome(told, figures, unless(doubted(table, kind), parts), because=LATE, premise=why)


def by_length(results: Sequence[Result]) -> Outcome:
    """Figure 2: longer drafts bring more tokens a round, less and less more, and beyond a point they cost speed."""
    tables = dict(zip(SIZES, map(Table.of, results), strict=True))
    best = {n: max((m for m in t.methods if ":code:" in m), key=t.mat) for n, t in tables.items()}
    rounds = {n: np.log(tables[n].methods["off"]["rounds"] / tables[n].methods[best[n]]["rounds"]) for n in SIZES}
    sample = tables[1].sample()
    parts: list[Part] = []
    for a, b in pairwise(SIZES):
        parts.append(decided(f"{b} tokens bring more a round than {a}", interval(rounds[b] - rounds[a]), sample))
    gain = (rounds[2] - rounds[1]) - (rounds[8] - rounds[5]) / 3
    parts.append(decided("the gain from 5 to 8, a token, is below that from 1 to 2", interval(gain), sample))
    speeds = {n: tables[n].speed(UCB) for n in SIZES}
    top = max(speeds, key=lambda n: speeds[n])
    seconds = np.log(tables[8].methods[UCB]["seconds"] / tables[top].methods[UCB]["seconds"])
    parts.append(decided(f"UCB is fastest before the longest draft: at {top}", interval(seconds), sample))
    rows = [(str(n), tables[n].mat(best[n]), tables[n].speed(best[n]), tables[n].mat(UCB), speeds[n]) for n in SIZES]
    headline = "UCB, times plain decoding by length: " + ", ".join(f"{n}: {speeds[n]:.2f}" for n in SIZES)
    figures = Figures(("draft length", "best drafter, tokens", "its speed", "UCB, tokens", "its speed "), rows)
    return Outcome(headline, figures, parts)


def best_share(results: Sequence[Result], kinds: Sequence[str]) -> Outcome:
    """Figure 3: how often the drafter that is best for a task is played, text by text."""
    rows: list[tuple[str, float]] = []
    parts: list[Part] = []
    doubts = []
    for kind, result in zip(kinds, results, strict=True):
        table = Table.of(result)
        doubts.append(not_specialists(table, kind))
        shares = {name: np.array(own) for name, own in result["best"].items()}
        sample = Sample(prompts=len(result["labels"]), seeds=int(result["seeds"]))
        for rival in (EXP3, HALVING, BE):
            says = f"{kind}: {UCB} plays the best drafter more often than {rival}"
            more = decided(says, interval(shares[UCB] - shares[rival]), sample, scale="difference")
            parts += unless(doubted(table, kind), [more])
        rows += [(f"{kind}, {name}", float(own.mean())) for name, own in shares.items()]
    told = ", ".join(f"{name} {x:.0%}" for name, x in rows)
    found, premise = Figures(("bandit", "share"), rows), "; ".join(filter(None, doubts))
    return Outcome(f"share of rounds with the task's best drafter: {told}", found, parts, premise=premise)
