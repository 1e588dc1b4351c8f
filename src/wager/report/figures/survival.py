"""Survival curves: the probability that at least k drafted tokens are accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from markupsafe import Markup

from wager.report.charts import DASHES, Axes, Line, line_chart
from wager.report.colours import Palette
from wager.report.figures.base import Cell, Figure, Key, Table, Value, plural
from wager.report.views import Drafted

Z = 1.96  # standard errors to the end of a 95 % interval


@dataclass(frozen=True, slots=True)
class Step:
    """One place of a curve."""

    k: int
    survival: float
    half: float  # of the 95 % interval
    at_risk: int  # rounds in which token k could have been accepted


def curve(pairs: Sequence[tuple[int, int]]) -> list[Step]:
    """The product-limit estimate from (drafted, accepted): a draft that ended early says nothing of what came after.

    Its variance is Greenwood's.
    """
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
        steps.append(Step(k, alive, Z * alive * sqrt(spread), len(risk)))
        if not lived:
            break
    return steps


def survival(view: Drafted, palette: Palette) -> Figure:
    """One curve a drafter."""
    lines, rows = [], []
    for i, (name, pairs) in enumerate(view.pairs.items()):
        steps = curve(pairs)
        band = [(s.k, max(0.0, s.survival - s.half), min(1.0, s.survival + s.half)) for s in steps]
        points = [(0.0, 1.0), *((float(s.k), s.survival) for s in steps)]
        colour = palette.drafter(name.removesuffix(" (tree)"))
        dash = DASHES[2] if name.endswith(" (tree)") else DASHES[i % 2]
        lines.append(Line(name, points, colour, [(0.0, 1.0, 1.0), *band], dash, dots=True))
        cells: list[Cell] = [name, Value(len(pairs), f"{len(pairs):,}")]
        rows.append((cells, steps))
    longest = max(len(steps) for _, steps in rows)
    table = Table(
        ["drafter", "rounds", *(f"≥ {k}" for k in range(1, longest + 1))],
        [
            [*cells, *(_value(steps[k]) if k < len(steps) else None for k in range(longest))]
            for cells, steps in rows
        ],
    )  # fmt: skip
    axes = Axes(
        "k, drafted tokens",
        "probability that at least k are accepted",
        y_high=1.0,
        x_ticks=[(float(k), str(k)) for k in range(longest + 1)],
        y_name=lambda v: f"{v:.1%}",
        y_tick=lambda v: f"{v:.0%}",
    )

    def draw(width: int) -> Markup:
        return line_chart(lines, axes, width, 320, "Survival of drafts")

    total = sum(len(pairs) for pairs in view.pairs.values())
    return Figure(
        "survival",
        "How far drafts live",
        f"Over {plural(total, 'round')} with a draft. Bands: 95 % intervals.",
        view.source,
        table,
        [("", draw)],
        legend=[Key(line.name, line.colour, line.dash, line=True) for line in lines],
        note="Product-limit estimate: a draft of 2 tokens counts for k = 1 and 2 only. "
        "Policies draft where they expect much, so this is what they met, not what a drafter gives everywhere.",
        wide=False,
    )


def _value(step: Step) -> Value:
    return Value(step.survival, f"{step.survival:.1%} ± {step.half:.1%}")
