"""Which arm was played when: a band over rounds, over batch sizes, or shares where the order is not known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup

from wager.report.charts import Slab, band_chart, share_chart
from wager.report.colours import Palette
from wager.report.figures.base import Cell, Figure, Key, Table, Value, plural
from wager.report.views import SIMULATION, Choice, Shares

ROWS = 12  # of shares; the table has all
COLUMNS, LEAST = 60, 6  # of the band; rounds in one, unless every round has its own


def choice(view: Choice, palette: Palette) -> Figure:
    """The band of one policy's choices over its rounds."""
    colours = palette.arms(view.arms)
    slabs = columns(view.arms, list(colours))
    counts = Counter(view.arms)
    most, many = counts.most_common(1)[0]
    says = f"{view.who} played {plural(len(view.arms), 'round')}, {many / len(view.arms):.0%} of them with {most}."
    each = len(view.arms) / len(slabs)
    note = f"Each column is {each:.0f} rounds." if each >= 2 else ""

    def draw(width: int) -> Markup:
        return band_chart(slabs, colours, view.marks, "rounds", width, 300, f"Arm choice of {view.who}")

    rows: list[list[Cell]] = [
        [arm, Value(counts[arm], f"{counts[arm]:,}"), _share(counts[arm] / len(view.arms))] for arm in colours
    ]
    return Figure(
        "choice", f"Arm choice over time: {view.who}", says, view.source, Table(["arm", "rounds", "share"], rows),
        [("", draw)], legend=_legend(colours), note=note,
    )  # fmt: skip


def columns(arms: Sequence[str], order: Sequence[str]) -> list[Slab]:
    """Rounds in at most so many columns of equal width, each with the share of every arm."""
    count = len(arms) if len(arms) <= COLUMNS else min(COLUMNS, len(arms) // LEAST)
    edges = [round(i * len(arms) / count) for i in range(count + 1)]
    slabs = []
    for start, end in pairwise(edges):
        here = Counter(arms[start:end])
        parts = [(arm, here[arm] / (end - start)) for arm in order]
        said = "\n".join(f"{arm}: {share:.0%}" for arm, share in reversed(parts) if share)
        head = f"rounds {start + 1:,} to {end:,}" if end - start > 1 else f"round {end:,}"
        slabs.append(Slab(start, end, parts, f"{head}\n{said}"))
    return slabs


def by_batch(view: Choice, palette: Palette) -> Figure:
    """The arms a server chose, by how many requests shared the step."""
    colours = palette.arms(view.arms)
    sizes = sorted(set(view.batches))
    rows: list[tuple[str, list[tuple[str, float]]]] = []
    cells: list[list[Cell]] = []
    for size in sizes:
        here = Counter(arm for arm, batch in zip(view.arms, view.batches, strict=True) if batch == size)
        total = sum(here.values())
        rows.append((f"{size} in flight", [(arm, here[arm] / total) for arm in colours]))
        cells.append([str(size), Value(total, f"{total:,}"), *(_share(here[arm] / total) for arm in colours)])

    def draw(width: int) -> Markup:
        return share_chart(rows, colours, width, "Length by load")

    return Figure(
        "load", "Choice of length by load", f"Which arm {view.who} played with so many requests in one step.",
        view.source, Table(["requests in the step", "rounds", *colours], cells), [("", draw)], legend=_legend(colours),
    )  # fmt: skip


def shares(view: Shares, palette: Palette) -> Figure:
    """Shares of arms by row."""
    colours = palette.arms(arm for row in view.rows.values() for arm in row)
    rows = [(name, [(arm, row.get(arm, 0.0)) for arm in colours]) for name, row in view.rows.items()]
    cells: list[list[Cell]] = [[name, *(_share(share) for _, share in parts)] for name, parts in rows]
    says = "The share of rounds that each arm had."
    if len(rows) > ROWS:
        says += f" The first {ROWS} of {len(rows)}; the table has all."
        rows = rows[:ROWS]

    def draw(width: int) -> Markup:
        return share_chart(rows, colours, width, "Arm shares")

    title = f"Arm choice by {view.what}" + (", simulated" if view.source.kind == SIMULATION else "")
    return Figure(
        "choice", title, says, view.source,
        Table([view.what, *colours], cells), [("", draw)], legend=_legend(colours),
    )  # fmt: skip


def _share(share: float) -> Value:
    return Value(share, f"{share:.1%}")


def _legend(colours: dict[str, str]) -> list[Key]:
    return [Key(arm, colour) for arm, colour in colours.items()]
