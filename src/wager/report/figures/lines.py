"""Figures of lines: regret over tokens, how far drafts survive, and what verifying more tokens at once costs."""

from collections.abc import Mapping, Sequence
from functools import partial
from math import sqrt
from typing import Any, NamedTuple

from markupsafe import Markup

from wager.report.charts import DASHES, Axes, Line, line_chart
from wager.report.colours import Palette, line_colour
from wager.report.scales import number, plural
from wager.report.views import SIMULATION, Cell, Curve, Figure, Key, Measure, Source, Table, Value, measured

MOST = 7  # lines in colour; more are drawn in grey behind them
GREY = "var(--c0)"
Z = 1.96  # standard errors to the end of a 95 % interval


def line_figure(figure: Figure, lines: Sequence[Line], axes: Axes, heights: tuple[int, int] = (320, 320)) -> Figure:
    """The figure with its lines, named in a legend; the heights are a wide chart's and a narrow one's."""

    def draw(width: int) -> Markup:
        return line_chart(lines, axes, width, heights[width < 640], figure.title)

    legend = [Key(line.name, line.colour, line.dash, line=True) for line in lines if not line.faint]
    if len(legend) < len(lines):
        legend.append(Key("the others", GREY, line=True))
    return figure._replace(panels=[("", draw)], legend=legend)


def regret(best: str, unit: str, curves: Sequence[Curve], how: str, source: Source) -> Figure:
    """Rounds or seconds that policies lost against the best fixed arm, adding up over the tokens generated."""
    policies = [c for c in curves if not c.reference]
    order = sorted(policies, key=lambda c: (c.name != "auto", c.y[-1]))  # auto, then those that end lowest
    points = {c.name: list(zip(c.x, c.y, strict=True)) for c in curves}
    lines = []
    for i, c in enumerate(order[:MOST]):
        band = [(x, y - h, y + h) for x, y, h in zip(c.x, c.y, c.half, strict=True)] if c.half else []
        lines.append(Line(c.name, points[c.name], line_colour(i), band, DASHES[i % len(DASHES)]))
    for i, c in enumerate(c for c in curves if c.reference):
        lines.append(Line(c.name, points[c.name], "var(--ink)", dash=DASHES[1 + i % 2]))
    lines += [Line(c.name, points[c.name], GREY, faint=True) for c in order[MOST:]]
    lowest, highest = min(y for c in curves for y in c.y), max(abs(y) for c in curves for y in c.y)
    first, last = min(c.x[0] for c in curves), max(c.x[-1] for c in curves)
    kinds = "log" if first >= 1 and last > 200 * first else "linear", "symlog" if highest > 300 else "linear"
    axes = Axes("tokens generated", f"regret in {unit}", *kinds, y_low=min(0.0, lowest))
    says = f"Regret: {unit} more than the best fixed arm, {best}, which is known only afterwards; cumulative."
    says += " Negative regret: the policy did better than every fixed arm."
    if hidden := len(order[MOST:]):
        says += f" The {MOST} with the least regret are named; {hidden} more are grey, and all are in the table."
    title = "Regret over time" + (", simulated" if source.kind == SIMULATION else "")
    rows: list[list[Cell]] = []
    for c in curves:
        half = Value(c.half[-1], f"± {number(c.half[-1])}") if c.half else None
        rows.append([c.name, *(Value(y, number(y)) for y in (c.y[len(c.y) // 2], c.y[-1])), half])
    at = curves[0].x
    after = [f"after {number(x)} tokens" for x in (at[len(at) // 2], at[-1])]
    table = Table(["policy", *after, "95 % at the end"], rows)
    return line_figure(Figure("regret", title, says, source, table, note=how), lines, axes, (340, 340))


class Step(NamedTuple):
    """One place of a survival curve."""

    k: int
    survival: float
    half: float  # of the 95 % interval


def curve(pairs: Sequence[tuple[int, int]]) -> list[Step]:
    """The product-limit estimate from (drafted, accepted): a draft that ended early says nothing of what came after."""
    # Its variance is Greenwood's.
    steps: list[Step] = []
    alive, spread = 1.0, 0.0
    for k in range(1, max((drafted for drafted, _ in pairs), default=0) + 1):
        risk = [accepted for drafted, accepted in pairs if drafted >= k and accepted >= k - 1]
        if not risk:
            break
        lived = sum(accepted >= k for accepted in risk)
        alive *= lived / len(risk)
        if lived:
            spread += (len(risk) - lived) / (len(risk) * lived)
        steps.append(Step(k, alive, Z * alive * sqrt(spread)))
        if not lived:
            break
    return steps


def survival(pairs: Mapping[str, Sequence[tuple[int, int]]], palette: Palette, source: Source) -> Figure:
    """The probability that at least k drafted tokens are accepted, from every drafter's (drafted, accepted)."""
    lines, steps = [], {name: curve(own) for name, own in pairs.items()}
    for i, (name, own) in enumerate(steps.items()):
        band = [(float(s.k), max(0.0, s.survival - s.half), min(1.0, s.survival + s.half)) for s in own]
        points = [(0.0, 1.0), *((float(s.k), s.survival) for s in own)]
        dash = DASHES[2] if name.endswith(" (tree)") else DASHES[i % 2]
        colour = palette.drafter(name.removesuffix(" (tree)"))
        lines.append(Line(name, points, colour, [(0.0, 1.0, 1.0), *band], dash, dots=True))
    longest = max(map(len, steps.values()))
    rows: list[list[Cell]] = []
    for name, own in steps.items():
        cells = [Value(s.survival, f"{s.survival:.1%} ± {s.half:.1%}") for s in own]
        count = len(pairs[name])
        rows.append([name, Value(count, f"{count:,}"), *cells, *[None] * (longest - len(own))])
    names, ticks = ("k, drafted tokens", "probability that at least k are accepted"), range(longest + 1)
    shares: dict[str, Any] = {"y_high": 1.0, "y_name": "{:.1%}".format, "y_tick": "{:.0%}".format}
    axes = Axes(*names, x_ticks=[(float(k), str(k)) for k in ticks], **shares)
    total = sum(map(len, pairs.values()))
    says = f"Over {plural(total, 'round')} with a draft. Bands: 95 % intervals."
    note = (
        "Product-limit estimate: a draft of 2 tokens counts for k = 1 and 2 only. "
        "Policies draft where they expect much, so this is what they met, not what a drafter gives everywhere."
    )
    table = Table(["drafter", "rounds", *(f"≥ {k}" for k in range(1, longest + 1))], rows)
    return line_figure(
        Figure("survival", "Acceptance by draft position", says, source, table, note=note, wide=False), lines, axes
    )


def cost(seconds: Mapping[str, Mapping[int, Measure]], how: str, source: Source) -> Figure:
    """Milliseconds of one verification over its width in tokens, a line for each engine."""
    lines = []
    for i, (name, own) in enumerate(seconds.items()):
        places = sorted(own.items())
        points = [(float(w), m.value * 1e3) for w, m in places]
        known = [(w, m.low, m.high) for w, m in places if m.low is not None and m.high is not None]
        band = [(float(w), low * 1e3, high * 1e3) for w, low, high in known]
        lines.append(Line(name, points, line_colour(i), band, DASHES[i % len(DASHES)], dots=True))
    widths = sorted({w for places in seconds.values() for w in places})
    ticks = [(float(w), str(w)) for w in widths]
    axes = Axes("tokens verified at once", "milliseconds", y_name=lambda v: f"{number(v)} ms", x_ticks=ticks)
    milliseconds = partial(measured, show=lambda value: number(value * 1e3))
    rows = [[Value(w, str(w)), *(milliseconds(own.get(w)) for own in seconds.values())] for w in widths]
    own = seconds.get("wager") or next(iter(seconds.values()))
    ratio, where = own[max(own)].value / own[min(own)].value, source.machine.partition(";")[0]
    says = f"Verifying {max(own)} tokens takes {ratio:.2f} times as long as verifying {min(own)}. Bands: quartiles."
    title = f"Verify cost by width, {where}" if where else "Verify cost by width"
    table = Table(["tokens", *(f"{name}, ms" for name in seconds)], rows)
    return line_figure(Figure("cost", title, says, source, table, note=how, wide=False), lines, axes)
