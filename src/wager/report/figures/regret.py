"""Regret over the tokens generated: what a policy lost against the best fixed arm, adding up."""

from __future__ import annotations

from markupsafe import Markup

from wager.report.charts import DASHES, Axes, Line, line_chart
from wager.report.colours import line_colour
from wager.report.figures.base import Cell, Figure, Key, Table, Value
from wager.report.scales import number
from wager.report.views import SIMULATION, Curve, Regret

MOST = 7  # lines in colour; more are drawn in grey behind them


def regret(view: Regret) -> Figure:
    """Regret curves as a figure."""
    told = leading([c for c in view.curves if not c.reference])
    bounds = [c for c in view.curves if c.reference]
    lines: list[Line] = []
    for curve in view.curves:
        if curve.reference:
            dash = DASHES[1 + bounds.index(curve) % 2]
            lines.append(Line(curve.name, _points(curve), "var(--ink)", dash=dash))
        elif curve.name in told:
            i = told.index(curve.name)
            colour, dash = line_colour(i), DASHES[i % len(DASHES)]
            lines.append(Line(curve.name, _points(curve), colour, _band(curve), dash))
        else:
            lines.append(Line(curve.name, _points(curve), "var(--c0)", faint=True))
    far = max(abs(y) for c in view.curves for y in c.y) > 300
    first, last = min(c.x[0] for c in view.curves), max(c.x[-1] for c in view.curves)
    axes = Axes(
        "tokens generated",
        f"regret in {view.unit}",
        x_kind="log" if first >= 1 and last > 200 * first else "linear",
        y_kind="symlog" if far else "linear",
        y_low=min(0.0, *(y for c in view.curves for y in c.y)),
    )
    hidden = len([c for c in view.curves if not c.reference]) - len(told)
    says = f"{view.unit.capitalize()} beyond the best fixed arm, {view.best}, adding up; below 0 a policy beats it."
    if hidden:
        says += f" The {len(told)} with the least regret are named; {hidden} more are grey, and all are in the table."

    def draw(width: int) -> Markup:
        return line_chart(lines, axes, width, 340, "Regret")

    title = "Regret over time" + (", simulated" if view.source.kind == SIMULATION else "")
    order = [*told, *(c.name for c in bounds)]
    legend = [Key(line.name, line.colour, line.dash, line=True) for line in lines if not line.faint]
    legend.sort(key=lambda key: order.index(key.name))
    if hidden:
        legend.append(Key("the others", "var(--c0)", line=True))
    return Figure("regret", title, says, view.source, _table(view), [("", draw)], legend=legend, note=view.how)


def leading(curves: list[Curve]) -> list[str]:
    """The curves that get a colour: ``auto`` and those that end lowest."""
    order = sorted(curves, key=lambda c: (c.name != "auto", c.y[-1]))
    return [c.name for c in order[:MOST]]


def _points(curve: Curve) -> list[tuple[float, float]]:
    return list(zip(curve.x, curve.y, strict=True))


def _band(curve: Curve) -> list[tuple[float, float, float]]:
    return [(x, y - h, y + h) for x, y, h in zip(curve.x, curve.y, curve.half, strict=True)] if curve.half else []


def _table(view: Regret) -> Table:
    rows: list[list[Cell]] = []
    for curve in view.curves:
        middle = len(curve.y) // 2
        half = Value(curve.half[-1], f"± {number(curve.half[-1])}") if curve.half else None
        rows.append([curve.name, _value(curve.y[middle]), _value(curve.y[-1]), half])
    at = view.curves[0].x
    half_way, end = at[len(at) // 2], at[-1]
    return Table(["policy", f"after {number(half_way)} tokens", f"after {number(end)} tokens", "95 % at the end"], rows)


def _value(value: float) -> Value:
    return Value(value, number(value))
