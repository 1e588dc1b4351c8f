"""Servers under load: latency, and which length pays with how many requests in flight."""

from functools import partial
from typing import Any

from wager.report.charts import DASHES, Axes, Line
from wager.report.colours import line_colour
from wager.report.figures.lines import GREY, line_figure
from wager.report.scales import number
from wager.report.templating import macro
from wager.report.views import Figure, Load, Source, Table, Value, measured

PLAIN, TABLE = "no speculation", "vLLM's table"  # as `wager lab versus` calls them
MOST = 4  # lines in colour


def latency(view: Load, source: Source) -> Figure | None:
    """Mean latency by load, a line for each method; a recorded load is in the table only."""
    loads = [point for point in view.points if point.isdecimal()] or list(view.points)
    lines, told = [], _told(view)
    for method in [*told, *(m for m in view.methods if m not in told)]:
        places = {float(i): view.latency.get((method, point)) for i, point in enumerate(loads)}
        points = [(i, measure.value) for i, measure in places.items() if measure is not None]
        if points and method in told:
            i = told.index(method)
            colour = "var(--ink)" if method == PLAIN else line_colour(max(0, i - 1))
            lines.append(Line(method, points, colour, dash=DASHES[i % len(DASHES)], dots=True))
        elif points:
            lines.append(Line(method, points, GREY, faint=True))
    if not lines:
        return None
    ticks = [(float(i), point) for i, point in enumerate(loads)]
    axes = Axes("requests in flight", "seconds a request", x_ticks=ticks, y_name=lambda v: f"{number(v)} s")
    seconds = partial(measured, show=lambda v: f"{number(v)} s", ends=number)
    rows = [[m, *(seconds(view.latency.get((m, point))) for point in view.points)] for m in view.methods]
    says = "Mean seconds from request to last token; lower is better."
    note = "Median of the repetitions; the table gives the least and the most of them."
    table = Table(["method", *view.points], rows)
    figure = Figure("load", "Latency against load", says, source, table, note=note, wide=False)
    return line_figure(figure, lines, axes, (320, 420))


def lengths(view: Load, source: Source) -> Figure | None:
    """Throughput of every length at every load, the best marked, and what each table or policy made of it."""
    if not view.ratios:
        return None
    fixed = _fixed(view)
    order = [*fixed, *(m for m in view.methods if m not in fixed and m != PLAIN)]
    best = {p: max((view.ratio(m, p), m) for m in fixed)[1] if fixed else "" for p in view.points}
    sums = [("best length", [str(fixed[best[p]]) for p in view.points])] if fixed else []
    if view.table:
        flights = [int(p) if p.isdecimal() else 0 for p in view.points]
        told = [[str(length) for low, high, length in view.table if low <= n <= high] for n in flights]
        sums.append(("vLLM's table says", [found[0] if found else "" for found in told]))
    marked = [(m, [_known(view, m, p, best=m == best[p]) for p in view.points]) for m in order]
    ratios = {m: [view.ratio(m, p) for p in view.points] for m in order}
    rows = [[m, *(Value(ratio, f"{ratio:.3f}") if ratio else None for ratio in own)] for m, own in ratios.items()]
    says = "Above 1 (blue) a method serves faster than no speculation, below (orange) slower."
    if fixed:
        says += (
            " The best fixed length of a load is outlined; it changes with the load, and that is what policies learn."
        )
    note = f"{view.differ:,} of {view.texts:,} texts differ from those without speculation."
    html, table = macro("load.html", "view", view.points, marked, sums), Table(["method", *view.points], rows)
    return Figure("load", "Choice of length by load", says, source, table, html=html, note=note, wide=False)


def _told(view: Load) -> list[str]:
    """Methods that get a colour: auto, no speculation, vLLM's table, then the fastest under the heaviest load."""
    *_, heavy = [p for p in view.points if p.isdecimal()] or view.points
    first = [m for m in ("auto", PLAIN, TABLE, "together") if m in view.methods]
    rest = [m for m in view.methods if m not in first and m not in _fixed(view)]
    return [*first, *sorted(rest, key=lambda m: view.ratio(m, heavy), reverse=True)][:MOST]


def _fixed(view: Load) -> dict[str, int]:
    """Methods that always draft the same length, and that length, 0 first."""
    found = {m: int(m[6:]) for m in view.methods if m.startswith("fixed ") and m[6:].isdecimal()}
    found |= {"off": 0} if "off" in view.methods else {}
    return dict(sorted(found.items(), key=lambda item: item[1])) if len(found) > 1 else {}


def _known(view: Load, method: str, point: str, *, best: bool) -> dict[str, Any] | None:
    value = view.ratio(method, point)
    return cell(method, point, value, best=best) if value else None


def cell(method: str, point: str, value: float, *, best: bool) -> dict[str, Any]:
    """A ratio in the table of methods and loads: blue above 1, orange below."""
    told = f"{method}, {point}\n{value:.3f} times the throughput of no speculation"
    hue, share = "var(--c1)" if value >= 1 else "var(--c2)", min(55, round(abs(value - 1) * 150))
    return {"said": f"{value:.2f}", "best": best, "hue": hue, "share": share, "told": told}
