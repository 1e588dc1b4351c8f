"""Servers under constant loads: throughput of every method relative to no speculation, a panel of bars a load."""

from collections.abc import Callable
from functools import partial

from markupsafe import Markup

from wager.report.charts import Bar, bar_chart
from wager.report.figures.load import cell
from wager.report.figures.speed import KINDS
from wager.report.scales import TIMES, listed, plural
from wager.report.templating import macro
from wager.report.views import Figure, Key, Measure, Served, Serving, Source, Table, measured

WORDS = {
    "policy": "wager's policies",
    "peer": "vLLM's own speculation",
    "arm": "a fixed length",
    "off": "wager without speculation",
    "plain": "the engine without speculation",
}


def leads(view: Serving) -> list[Served]:
    """The methods a headline is about: auto of every engine; without one, the method with the highest ratio."""
    found = [m for m in view.methods if m.kind == "policy" and m.name.split(" ")[0] == "auto"]
    others = [m for m in view.methods if m.kind != "plain"]
    return found or [max(others, key=lambda m: max(ratio.value for ratio in m.ratios.values()))]


def best_fixed(view: Serving, engine: str) -> dict[int, Served]:
    """Of each load the best of off and the fixed lengths of an engine; none where it has no fixed lengths."""
    fixed = [m for m in view.methods if m.engine == engine and m.kind in ("off", "arm")]
    if not any(m.kind == "arm" for m in fixed):
        return {}
    by_load = {load: [m for m in fixed if load in m.ratios] for load in view.loads}
    return {load: max(own, key=lambda m: m.ratios[load].value) for load, own in by_load.items() if own}


def sentence(view: Serving, lead: Served) -> str:
    """A method over no speculation at each load, where it loses, and what the best fixed length reaches."""
    said = f"{_who(lead)} serves {view.prompts}: {_values(lead)} times as fast as no speculation {_where(lead)}"
    if reached := _reached(view, lead):
        return f"{said}{_losses(lead)}; the best fixed length, known only afterwards, reaches {reached}"
    return said + _losses(lead)


def short(view: Serving, lead: Served, before: Served) -> str:
    """The same after such a sentence on another method; the loads are named only where they differ."""
    said = f"{view.prompts[:1].upper()}{view.prompts[1:]}: {_who(lead)} {_values(lead)}"
    if list(lead.ratios) != list(before.ratios):
        said += f" {_where(lead)}"
    reached = _reached(view, lead)
    return said + _losses(lead) + (f"; best fixed length {reached}" if reached else "")


def _who(lead: Served) -> str:
    return lead.name if lead.name.endswith(")") else f"{lead.name} ({lead.engine})"


def _values(lead: Served) -> str:
    return listed(f"{m.value:.2f}" for m in lead.ratios.values())


def _where(lead: Served) -> str:
    loads = listed(map(str, lead.ratios))
    return f"with {loads} request{'s' * (loads != '1')}"


def _losses(lead: Served) -> str:
    losses = [str(load) for load, m in lead.pairs if round(m.value, 2) < 1]
    every = len(losses) == len(lead.ratios)
    return (", a loss" if every else f", a loss with {listed(losses)}") if losses else ""


def _reached(view: Serving, lead: Served) -> str:
    best = best_fixed(view, lead.engine) if lead.kind == "policy" else {}
    return listed(f"{best[n].ratios[n].value:.2f} ({best[n].name})" for n in lead.ratios if n in best) if best else ""


def serving(view: Serving, source: Source) -> Figure:
    """The ratios of one kind of prompts: bars with whiskers by load, and a table whose losses are orange."""
    panels = [(plural(load, "request"), _panel(view, load)) for load in view.loads]
    engines = {m.engine for m in view.methods}
    best = {(m.name, load) for engine in engines for load, m in best_fixed(view, engine).items()}
    points, marked = [str(load) for load in view.loads], []
    for m in (m for m in view.methods if m.kind != "plain"):
        cells = [
            cell(m.name, str(load), m.ratios[load].value, best=(m.name, load) in best) if load in m.ratios else None
            for load in view.loads
        ]
        marked.append((m.name, cells))
    first, *others = leads(view)
    told = [sentence(view, first), *(short(view, lead, first) for lead in others), f"The line marks 1{TIMES}"]
    says = " ".join(f"{one}." for one in told)
    note = (
        "Tokens per second relative to the engine without speculation in the same round of turns; medians of at most "
        f"{plural(view.rounds, 'round')}. Whiskers: the least and the most of the rounds. "
        "In the table, above 1 is blue, below 1, a loss, orange"
    )
    note += "; the best fixed length of a load is outlined." if best else "."
    if view.profile:
        note += f" Profile {view.profile}: drafts are accepted with set probabilities, not by comparing tokens."
    ratio = partial(measured, show=lambda v: f"{v:.3f}", ends=lambda v: f"{v:.2f}")
    table = Table(["method", *points], [[m.name, *(ratio(m.ratios.get(n)) for n in view.loads)] for m in view.methods])
    kinds = {m.kind for m in view.methods}
    legend = [Key(words, KINDS[kind][1]) for kind, words in WORDS.items() if kind in kinds]
    html = macro("load.html", "view", points, marked, [])
    title, equal = f"Serving, by load: {view.title}", len(panels) > 1
    return Figure("load", title, says, source, table, panels, html=html, legend=legend, note=note, equal=equal)


def _panel(view: Serving, load: int) -> Callable[[int], Markup]:
    own: list[tuple[Served, Measure]] = [(m, m.ratios[load]) for m in view.methods if load in m.ratios]
    bars = []
    for m, v in own:
        spread = v.range(lambda x: f"{x:.3f}")
        told = [f"{m.name}, {plural(load, 'request')}", f"{v.value:.3f} times the throughput of no speculation"]
        told += [f"engine: {m.engine}", f"least and most over rounds: {spread}"]
        said, strong = f"{v.value:.2f}{TIMES}", m.kind == "policy"
        bars.append(Bar(m.name, v.value, v.low, v.high, KINDS[m.kind][1], strong, said, "\n".join(told)))
    most = 1.02 * max(v.high or v.value for _, v in own)
    return lambda width: bar_chart(bars, most, width, f"{view.prompts}, {plural(load, 'request')}", TIMES)
