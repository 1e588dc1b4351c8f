"""Servers under load: latency, and which length pays with how many requests in flight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from wager.report.charts import DASHES, Axes, Line, line_chart
from wager.report.colours import line_colour
from wager.report.figures.base import Cell, Figure, Key, Table, Value
from wager.report.scales import number
from wager.report.templating import macro
from wager.report.views import Load, Measure

PLAIN, TABLE = "no speculation", "vLLM's table"  # as `wager lab versus` calls them
MOST = 4  # lines in colour


def latency(view: Load) -> Figure | None:
    """Mean latency by load, a line for each method; a recorded load is in the table only."""
    loads = [point for point in view.points if point.isdecimal()] or list(view.points)
    rows = [(r.method, r.point, r.latency) for r in view.rows if r.latency is not None and r.point in loads]
    if not rows:
        return None
    told = _told(view)
    ticks = [(float(i), point) for i, point in enumerate(loads)]
    lines = []
    for method in view.methods:
        points = [
            (float(i), found.value)
            for i, point in enumerate(loads)
            if (found := next((v for m, p, v in rows if (m, p) == (method, point)), None)) is not None
        ]
        if not points:
            continue
        if method in told:
            i = told.index(method)
            lines.append(Line(method, points, _colour(method, i), dash=DASHES[i % len(DASHES)], dots=True))
        else:
            lines.append(Line(method, points, "var(--c0)", faint=True))
    lines.sort(key=lambda line: told.index(line.name) if line.name in told else len(told))
    axes = Axes("requests in flight", "seconds a request", x_ticks=ticks, y_name=lambda v: f"{number(v)} s")

    def draw(width: int) -> Markup:
        return line_chart(lines, axes, width, 420 if width < 640 else 320, "Latency by load")

    cells: list[list[Cell]] = []
    for method in view.methods:
        found_rows = [view.at(method, point) for point in view.points]
        cells.append([method, *(_seconds(r.latency) if r is not None else None for r in found_rows)])
    hidden = len(lines) - len([line for line in lines if not line.faint])
    legend = [Key(line.name, line.colour, line.dash, line=True) for line in lines if not line.faint]
    if hidden:
        legend.append(Key("the others", "var(--c0)", line=True))
    return Figure(
        "load", "Latency against load", "Mean seconds from request to last token; lower is better.", view.source,
        Table(["method", *view.points], cells), [("", draw)], legend=legend,
        note="Median of the repetitions; the table gives the least and the most of them.", wide=False,
    )  # fmt: skip


def lengths(view: Load) -> Figure | None:
    """Throughput of every length at every load, the best marked, and what each table or policy made of it."""
    if not any(row.ratio is not None for row in view.rows):
        return None
    fixed = _fixed(view)
    order = [*fixed, *(m for m in view.methods if m not in fixed and m != PLAIN)]
    best = {point: _best(view, fixed, point) for point in view.points}
    sums = [("best length", [_length(best[p]) if best[p] else "" for p in view.points])] if fixed else []
    if view.table:
        sums.append(("vLLM's table says", [_tabled(view.table, p) for p in view.points]))
    marked = [(m, [_cell(view, m, p, best=m == best[p]) for p in view.points]) for m in order]
    html = macro("load.html", "view", view.points, marked, sums)
    rows: list[list[Cell]] = [
        [m, *(_ratio(r.ratio) if (r := view.at(m, p)) is not None else None for p in view.points)] for m in order
    ]
    says = "Above 1 (blue) a method serves faster than no speculation, below (orange) slower."
    if fixed:
        says += (
            " The best fixed length of each load is outlined: it changes with the load, which is what a policy learns."
        )
    note = f"{view.differ:,} of {view.texts:,} texts differ from those without speculation."
    return Figure(
        "load", "Choice of length by load", says, view.source, Table(["method", *view.points], rows),
        html=html, note=note, wide=False,
    )  # fmt: skip


def _told(view: Load) -> list[str]:
    """Methods that get a colour: no speculation, auto, vLLM's table, then the fastest under the heaviest load."""
    heavy = [p for p in view.points if p.isdecimal()][-1:] or list(view.points[-1:])

    def speed(method: str) -> float:
        row = view.at(method, heavy[0])
        return row.ratio.value if row is not None and row.ratio is not None else 0.0

    first = [m for m in ("auto", PLAIN, TABLE, "together") if m in view.methods]
    rest = sorted((m for m in view.methods if m not in first and m not in _fixed(view)), key=speed, reverse=True)
    return [*first, *rest][:MOST]


def _colour(method: str, i: int) -> str:
    return "var(--ink)" if method == PLAIN else line_colour(i if i == 0 else i - 1)


def _fixed(view: Load) -> list[str]:
    """Methods that always draft the same length, 0 first."""
    named = [m for m in view.methods if m == "off" or (m.startswith("fixed ") and m[6:].isdecimal())]
    return sorted(named, key=_number_of) if len(named) > 1 else []


def _number_of(method: str) -> int:
    return 0 if method == "off" else int(method[6:])


def _length(method: str) -> str:
    return str(_number_of(method))


def _best(view: Load, fixed: Sequence[str], point: str) -> str:
    found = [(row.ratio.value, m) for m in fixed if (row := view.at(m, point)) is not None and row.ratio is not None]
    return max(found)[1] if found else ""


def _tabled(table: Sequence[Sequence[int]], point: str) -> str:
    if not point.isdecimal():
        return ""
    return next((str(length) for low, high, length in table if low <= int(point) <= high), "")


def _cell(view: Load, method: str, point: str, *, best: bool) -> dict[str, Any] | None:
    row = view.at(method, point)
    if row is None or row.ratio is None:
        return None
    value = row.ratio.value
    return {
        "said": f"{value:.2f}", "best": best, "hue": "var(--c1)" if value >= 1 else "var(--c2)",
        "share": min(55, round(abs(value - 1) * 150)),
        "told": f"{method}, {point}\n{value:.3f} times the throughput of no speculation",
    }  # fmt: skip


def _seconds(measure: Measure | None) -> Value | None:
    if measure is None:
        return None
    spread = f" ({number(measure.low)} to {number(measure.high)})" if measure.low is not None and measure.high else ""
    return Value(measure.value, f"{number(measure.value)} s{spread}")


def _ratio(measure: Measure | None) -> Value | None:
    return None if measure is None else Value(measure.value, f"{measure.value:.3f}")
