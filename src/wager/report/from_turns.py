"""The JSON of `python -m reproduction.turns`: engines that took turns on one GPU, each with so many requests."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wager.report.colours import Palette
from wager.report.figures.serving import leads, sentence, serving, short
from wager.report.scales import TIMES, listed, plural
from wager.report.views import Big, Material, Measure, NothingShownError, Served, Serving, Source

Json = Mapping[str, Any]
NAMES = {  # of the policies that are no policies of wager's, with their classes
    "none": ("no speculation", "plain"),
    "off": ("off", "off"),
    "adaptive": ("vLLM's adaptive", "peer"),
    "table": ("vLLM's table", "peer"),
    "ngram": ("vLLM's n-gram", "peer"),
}
ORDER = ("plain", "off", "arm", "peer", "policy")
DRAFT = ("off", "arm", "policy")  # classes that run on wager's engines
LOAD = ("plan", "profile", "kind")


def by_turns(held: Json, source: Source, palette: Palette) -> Material:
    """Throughput by load, a card for every plan, profile and kind of prompts; open loads and tests are not shown."""
    rows = held["summary"]
    closed = [row for row in rows if "batch" in row and "ratio" in row]
    plans = list(dict.fromkeys(str(row["plan"]) for row in closed))
    left = [plan for plan in dict.fromkeys(str(row["plan"]) for row in rows) if plan not in plans]
    if not closed:
        raise NothingShownError(f"its plans, {listed(left)}, have no constant load" if left else "it has no rows yet")
    groups: dict[tuple[str, ...], list[Json]] = {}
    for row in closed:
        groups.setdefault(tuple(str(row[key]) for key in LOAD), []).append(row)
    views = [_view(key, own, several=len(plans) > 1) for key, own in groups.items()]
    (first, lead), *rest = [(view, lead) for view in views for lead in leads(view)]
    made = Material(source, [f"{sentence(first, lead)}.", *(f"{short(view, one, lead)}." for view, one in rest)])
    made.cards += [serving(view, source) for view in views]
    if left:
        note = f"{made.cards[0].note} Also in this file, not shown: {listed(left)}."
        made.cards[0] = made.cards[0]._replace(note=note)
    about = f"{lead.name}, {first.prompts}"
    made.figures = [Big(f"{m.value:.2f}{TIMES}", plural(n, "request"), about) for n, m in lead.pairs]
    return made


def _view(key: tuple[str, ...], rows: Sequence[Json], *, several: bool) -> Serving:
    plan, profile, kind = key
    found: dict[tuple[str, str], dict[int, Measure]] = {}
    for row in rows:
        own, load = found.setdefault((str(row["engine"]), str(row["policy"])), {}), row["batch"]
        if not isinstance(load, int) or load < 1:
            raise ValueError(f"a load is at least 1 request, not {load!r}")
        if load in own:
            raise ValueError(f"{row['policy']} on {row['engine']} with {plural(load, 'request')} is there twice")
        own[load] = _measure(row)
    methods = _named(found)
    if all(method.kind == "plain" for method in methods):
        raise ValueError(f"the plan {plan} needs at least one method beside no speculation")
    prompts = f"{kind} prompts" + (f", profile {profile}" if profile else "")
    rounds = max(int(row["turns"]) for row in rows if row["policy"] != "none")
    loads = sorted({load for own in found.values() for load in own})
    return Serving(prompts, f"{prompts} (plan {plan})" if several else prompts, profile, loads, methods, rounds)


def _measure(row: Json) -> Measure:
    value, low, high = (float(row[key]) for key in ("ratio", "least", "most"))
    if not 0 < low <= value <= high < math.inf:
        raise ValueError(f"a ratio lies between its least and its most above 0, not {value} in {low} to {high}")
    return Measure(value, low, high)


def _named(found: Mapping[tuple[str, str], Mapping[int, Measure]]) -> list[Served]:
    """The methods in the order of their classes; with their engine where several engines draft."""
    made = []
    for (engine, policy), ratios in found.items():
        name, kind = NAMES.get(policy) or ((f"fixed {policy}", "arm") if policy.isdecimal() else (policy, "policy"))
        made.append(Served(name, kind, engine, dict(sorted(ratios.items()))))
    several = len({m.engine for m in made if m.kind in DRAFT}) > 1
    twice = _twice(m.name for m in made)
    made = [m._replace(name=f"{m.name} ({m.engine})") if _shared(m, several, twice) else m for m in made]
    return sorted(made, key=lambda m: (ORDER.index(m.kind), _length(m.name), not m.name.startswith("auto")))


def _shared(method: Served, several: bool, twice: set[str]) -> bool:
    return method.name in twice or (several and method.kind in DRAFT)


def _twice(names: Iterable[str]) -> set[str]:
    every = list(names)
    return {name for name in every if every.count(name) > 1}


def _length(name: str) -> int:
    word = name.removeprefix("fixed ").split(" ")[0]
    return int(word) if word.isdecimal() else 0
