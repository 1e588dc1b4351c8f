"""MetaSD's claims about choosing among drafters, tested on results prompt by prompt."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from reproduction.claims import (
    at_home,
    away_from_home,
    doubted,
    homes,
    not_specialists,
    one_for_all,
    specialists,
    unless,
)
from reproduction.experiment import Figures, Outcome, Part, decided
from reproduction.inference import difference, interval
from reproduction.runs import BE, EXP3, FOREIGN, HALVING, RANDOM, UCB
from reproduction.units import Table
from reproduction.workspace import Result

EXPLORES = (
    "Begun anew for every prompt, a bandit plays every drafter at least once in a few dozen rounds; what that costs "
    "depends on how far apart the drafters are."
)
CLASSIFIED = "A classifier that knows the tasks pays nothing for exploring."
LATE = "A drafter that was not played has to catch up, and a batch pays a pass for every drafter that is played in it."
RIVALS = (EXP3, HALVING, RANDOM)
ROUTER = "router"


def headline(table: Table, kind: str, tasks: Sequence[str]) -> str:
    ofa, best = (
        one_for_all(table, kind),
        max(specialists(table, kind).values(), key=lambda arm: table.speed(arm, tasks)),
    )
    told = ", ".join(
        f"{name} {table.speed(name, tasks):.2f}" for name in (UCB, ofa, *RIVALS, best) if name in table.methods
    )
    return f"times plain decoding over {len(tasks)} tasks: {told}; tokens a round: UCB {table.mat(UCB, tasks):.2f}"


def figures(table: Table, tasks: Sequence[str]) -> Figures:
    return table.figures({"all": tuple(tasks), **{task: (task,) for task in tasks}})


def selection(results: Sequence[Result], kind: str) -> Outcome:
    """Tables 3 and 4: specialists at home, UCB over the drafter for everything and over the other bandits, by task."""
    table = Table.of(results[0])
    own, ofa = homes(table, kind), one_for_all(table, kind)
    parts = at_home(table, kind)
    for task in own:
        over = [table.beats(UCB, other, (task,), where=task) for other in (ofa, *RIVALS)]
        parts += unless(doubted(table, kind, task), over)
    why, told = not_specialists(table, kind), headline(table, kind, list(own))
    return Outcome(told, figures(table, list(own)), parts, because=EXPLORES, premise=why)


def average(results: Sequence[Result], kinds: Sequence[str]) -> Outcome:
    """Figure 4: on the mean of the tasks UCB is the fastest of all methods, small models and heads."""
    parts: list[Part] = []
    rows, told, doubts = [], [], []
    for kind, result, lookup in zip(kinds, results[0::2], results[1::2], strict=True):
        content = {**result, "units": {**result["units"], **_aligned(result, lookup)}}
        table = Table.of(content)
        own = list(homes(table, kind))
        others = [
            one_for_all(table, kind),
            *RIVALS,
            *(name for name in table.methods if name.startswith("prompt-lookup")),
        ]
        doubts.append(not_specialists(table, kind))
        parts += unless(doubted(table, kind), [table.beats(UCB, other, own, where=kind) for other in others])
        rows += [(f"{kind}: {name}", table.speed(name, own)) for name in table.methods]
        told.append(f"{kind}: {headline(table, kind, own)}")
    found = Figures(("method", "times plain decoding"), rows)
    return Outcome("; ".join(told), found, parts, because=EXPLORES, premise=_said(doubts))


def _said(doubts: Sequence[str]) -> str:
    return "; ".join(filter(None, doubts))


def _aligned(result: Result, other: Result) -> dict[str, dict[str, list[float]]]:
    """Methods of a run on other texts, where both have the same: none otherwise."""
    if list(result["labels"]) != list(other["labels"]):
        return {}
    return {name: own for name, own in other["units"].items() if name not in result["units"]}


def draft_all(results: Sequence[Result], kind: str) -> Outcome:
    """Table 5: UCB over EXP3 and over drafters away from home; all drafting at once is slower than plain decoding."""
    content = {**results[0], "units": {**results[0]["units"], **_aligned(results[0], results[1])}}
    table, everyone = Table.of(content), "all drafters"
    own = list(homes(table, kind))
    why = not_specialists(table, kind)
    parts = _over(table, kind, EXP3) + away_from_home(table, UCB, kind)
    parts += [table.beats("off", everyone, own), table.beats(UCB, everyone, own)]
    told = f"{headline(table, kind, own)}; all drafting at once {table.speed(everyone, own):.2f}"
    return Outcome(told, figures(table, own), parts, because=EXPLORES, premise=why)


def routing(results: Sequence[Result], kinds: Sequence[str]) -> Outcome:
    """Table 6: UCB is faster than the router at home, on rephrased prompts and out of domain, for both kinds, and
    rephrasing costs it less."""
    *pools, asked = results
    parts: list[Part] = []
    rows, doubts = [], []
    for kind, plain, rephrased in zip(kinds, pools[0::2], pools[1::2], strict=True):
        table, other = (routed(r, asked["domains"][of], kind) for r, of in ((plain, "tasks"), (rephrased, "rephrased")))
        own = list(homes(table, kind))
        cases = [("at home", table, own), ("rephrased", other, own), *((t, table, [t]) for t in FOREIGN)]
        over = [each.beats(UCB, ROUTER, tasks, where=f"{kind}, {where}") for where, each, tasks in cases]
        keeps = difference(other.logs(UCB, ROUTER, own), table.logs(UCB, ROUTER, own))
        over.insert(2, decided(f"{kind}: rephrasing costs {UCB} less than the router", keeps, other.sample(own)))
        parts += unless(doubted(table, kind), over)
        doubts.append(not_specialists(table, kind))
        rows += [
            (f"{kind}, {where}", each.speed(ROUTER, tasks), each.speed(UCB, tasks)) for where, each, tasks in cases
        ]
    told = "; ".join(f"{where} {router:.2f}, {ours:.2f}" for where, router, ours in rows)
    found = Figures(("prompts", "router", "UCB"), rows)
    headline = f"router and UCB, times plain decoding: {told}"
    return Outcome(headline, found, parts, because=CLASSIFIED, premise=_said(doubts))


def routed(result: Result, domains: Mapping[str, Sequence[str]], kind: str) -> Table:
    """The drafters alone, and a router that plays through each text the one of the domain it takes the prompt for.

    Where no drafter is of that domain it plays the one for everything.
    """
    units, seen, picked = result["units"], Counter[str](), []
    table = Table.of(result)
    own, rest = specialists(table, kind), one_for_all(table, kind)
    for task in result["labels"]:
        known = domains.get(task, ())
        if seen[task] >= len(known):
            raise ValueError(f"not known what a router takes every prompt of {task} for")
        picked.append(own.get(known[seen[task]], rest))
        seen[task] += 1
    columns = units[picked[0]]
    router = {column: [units[arm][column][i] for i, arm in enumerate(picked)] for column in columns}
    return Table.of({**result, "units": {**units, ROUTER: router}})


def matrix(results: Sequence[Result], kinds: Sequence[str]) -> Outcome:
    """Table 9: every specialist is faster on its own task than each other one."""
    parts: list[Part] = []
    rows: list[tuple[str | float | None, ...]] = []
    told, doubts = [], []
    for kind, result in zip(kinds, results, strict=True):
        table = Table.of(result)
        own, everyone = homes(table, kind), specialists(table, kind).values()
        doubts.append(not_specialists(table, kind))
        for task, arm in own.items():
            over = [table.beats(arm, other, (task,), where=task) for other in everyone if other != arm]
            parts += unless(doubted(table, kind, task), over)
        tasks = list(homes(table, kind))
        rows += [(arm, *(table.mat(arm, (task,)) if task in tasks else None for task in _columns(results, kinds)))
                 for arm in everyone]  # fmt: skip
        told += [f"{arm} {table.mat(arm, (task,)):.2f} on {task}" for task, arm in own.items()]
    found = Figures(("tokens a round", *_columns(results, kinds)), rows)
    return Outcome(f"tokens a round at home: {', '.join(told)}", found, parts, premise=_said(doubts))


def _columns(results: Sequence[Result], kinds: Sequence[str]) -> list[str]:
    tables = [homes(Table.of(result), kind) for kind, result in zip(kinds, results, strict=True)]
    return list(dict.fromkeys(task for own in tables for task in own))


def reworded(results: Sequence[Result], kind: str) -> Outcome:
    """Tables 8 and 12: UCB over the drafter for everything on rephrased prompts, by task."""
    table = Table.of(results[0])
    own, ofa = list(homes(table, kind)), one_for_all(table, kind)
    why = not_specialists(table, kind)
    parts = _over(table, kind, ofa)
    return Outcome(headline(table, kind, own), figures(table, own), parts, because=EXPLORES, premise=why)


def _over(table: Table, kind: str, other: str) -> list[Part]:
    """UCB is faster than another on every specialist's task."""
    return [
        part
        for task in homes(table, kind)
        for part in unless(doubted(table, kind, task), [table.beats(UCB, other, (task,), where=task)])
    ]


def long_texts(results: Sequence[Result], kind: str) -> Outcome:
    """Table 10: on long texts UCB comes within a few per cent of the best drafter."""
    table = Table.of(results[0])
    best = max(specialists(table, kind).values(), key=table.speed)
    why = not_specialists(table, kind)
    parts = unless(doubted(table, kind), [table.beats(UCB, best, where="long texts", margin=0.05)])
    told = headline(table, kind, table.tasks)
    return Outcome(told, figures(table, table.tasks), parts, because=EXPLORES, premise=why)


def abroad(results: Sequence[Result], kinds: Sequence[str], tasks: Sequence[str] = FOREIGN) -> Outcome:
    """Table 11: out of domain UCB is faster than the drafter for everything and than the specialists on their mean."""
    parts: list[Part] = []
    rows, doubts = [], []
    for kind, result in zip(kinds, results, strict=True):
        table = Table.of(result)
        ofa, own = one_for_all(table, kind), list(specialists(table, kind).values())
        doubts.append(not_specialists(table, kind))
        for task in (task for task in tasks if task in table.tasks):
            both = [table.beats(UCB, ofa, (task,), where=f"{kind}, {task}")]
            logs = np.mean([table.logs(UCB, arm, (task,)) for arm in own], axis=0)
            says = f"{kind}, {task}: {UCB} is faster than the specialists on their mean"
            parts += unless(doubted(table, kind), [*both, decided(says, interval(logs), table.sample((task,)))])
            best = max(table.speed(arm, (task,)) for arm in own)
            rows.append((kind, task, table.speed(UCB, (task,)), table.speed(ofa, (task,)), best))
    told = "; ".join(f"{kind} {task} {ours:.2f} against {ofa:.2f}" for kind, task, ours, ofa, _ in rows)
    found = Figures(("kind", "task", "UCB", "for everything", "best specialist"), rows)
    told = f"UCB and the drafter for everything, times plain decoding: {told}"
    return Outcome(told, found, parts, because=EXPLORES, premise=_said(doubts))


def sampled(results: Sequence[Result], kind: str) -> Outcome:
    """Tables 14 to 16: sampled texts; specialists at home, UCB over the drafter for everything and over strangers."""
    table = Table.of(results[0])
    own, ofa = list(homes(table, kind)), one_for_all(table, kind)
    parts = at_home(table, kind) + _over(table, kind, ofa) + away_from_home(table, UCB, kind)
    why = not_specialists(table, kind)
    return Outcome(headline(table, kind, own), figures(table, own), parts, because=EXPLORES, premise=why)


def mixed(results: Sequence[Result], ucb: str) -> Outcome:
    """Table 19: where the best drafter changes half-way UCB beats every single one, in speed and in tokens a round."""
    table, alone = Table.of(results[0]), Table.of(results[1])
    why = not_specialists(alone, "eagle")
    arms = [name for name in table.methods if name not in ("off", ucb)]
    parts: list[Part] = []
    for label in table.tasks:
        shared = {"where": label, "whom": "every single drafter"}
        both = [table.beats_all(ucb, arms, (label,), column=c, **shared) for c in ("seconds", "rounds")]
        parts += unless(doubted(alone, "eagle", *label.split(" then ")), both)
    best = max(arms, key=table.speed)
    told = f"UCB {table.speed(ucb):.2f}, the best drafter alone, {best}, {table.speed(best):.2f} times plain decoding"
    found = table.figures({label: (label,) for label in table.tasks})
    return Outcome(told, found, parts, because=EXPLORES, premise=why)


def two_rewards(results: Sequence[Result], kinds: Sequence[str]) -> Outcome:
    """Table 7: with divergence UCB is faster than with efficiency, task by task, small models and heads."""
    parts: list[Part] = []
    rows, doubts = [], []
    for kind, result in zip(kinds, results, strict=True):
        table = Table.of(result)
        doubts.append(not_specialists(table, kind))
        for task in homes(table, kind):
            over = [table.beats(UCB, BE, (task,), where=f"{kind}, {task}")]
            parts += unless(doubted(table, kind, task), over)
            rows.append((f"{kind}, {task}", table.speed(BE, (task,)), table.speed(UCB, (task,))))
    told = "; ".join(f"{where} {be:.2f}, {bd:.2f}" for where, be, bd in rows)
    found = Figures(("drafters and task", "efficiency", "divergence"), rows)
    told = f"times plain decoding with efficiency and with divergence: {told}"
    return Outcome(told, found, parts, because=EXPLORES, premise=_said(doubts))
