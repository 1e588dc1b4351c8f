"""What verifying more tokens at once costs: seconds of one verification by its width."""

from __future__ import annotations

from markupsafe import Markup

from wager.report.charts import DASHES, Axes, Line, line_chart
from wager.report.colours import line_colour
from wager.report.figures.base import Cell, Figure, Key, Table, Value
from wager.report.scales import number
from wager.report.views import Cost, Measure


def cost(view: Cost) -> Figure:
    """Milliseconds over width, a line for each engine."""
    lines = []
    for i, (name, places) in enumerate(view.lines.items()):
        points = [(float(width), m.value * 1e3) for width, m in sorted(places.items())]
        band = [
            (float(w), m.low * 1e3, m.high * 1e3)
            for w, m in sorted(places.items())
            if m.low is not None and m.high is not None
        ]
        lines.append(Line(name, points, line_colour(i), band, DASHES[i % len(DASHES)], dots=True))
    widths = sorted({w for places in view.lines.values() for w in places})
    axes = Axes(
        "tokens verified at once",
        "milliseconds",
        y_name=lambda v: f"{number(v)} ms",
        x_ticks=[(float(w), str(w)) for w in widths],
    )

    def draw(width: int) -> Markup:
        return line_chart(lines, axes, width, 320, "Verify cost")

    names = list(view.lines)
    rows: list[list[Cell]] = [
        [Value(w, str(w)), *(_value(view.lines[name].get(w)) for name in names)] for w in widths
    ]  # fmt: skip
    own = view.lines.get("wager") or view.lines[names[0]]
    narrow, broad = min(own), max(own)
    ratio = own[broad].value / own[narrow].value
    where = view.source.machine.partition(";")[0]
    says = f"Verifying {broad} tokens takes {ratio:.2f} times as long as verifying {narrow}."
    if view.interval:
        says += f" Bands: {view.interval}."
    title = f"Verify cost by width, {where}" if where else "Verify cost by width"
    legend = [Key(line.name, line.colour, line.dash, line=True) for line in lines]
    table = Table(["tokens", *(f"{n}, ms" for n in names)], rows)
    return Figure("cost", title, says, view.source, table, [("", draw)], legend=legend, note=view.how, wide=False)


def _value(measure: Measure | None) -> Value | None:
    if measure is None:
        return None
    said = number(measure.value * 1e3)
    if measure.low is not None and measure.high is not None:
        said += f" ({number(measure.low * 1e3)} to {number(measure.high * 1e3)})"
    return Value(measure.value, said)
