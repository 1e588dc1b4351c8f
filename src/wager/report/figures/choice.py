"""Which arm was played when: a band over rounds, over batch sizes, or shares where the order is not known."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from wager.report.charts import Slab, band_chart, share_chart
from wager.report.colours import Palette
from wager.report.scales import plural
from wager.report.views import SIMULATION, Cell, Choice, Figure, Key, Shares, Source, Table, Value

ROWS = 12  # of shares; the table has all
COLUMNS, LEAST = 60, 6  # of the band; rounds in one, unless every round has its own


def choice(view: Choice, palette: Palette, source: Source) -> Figure:
    """The band of one policy's choices over its rounds."""
    colours, total = palette.arms(view.arms), len(view.arms)
    slabs, counts = columns(view.arms, list(colours)), Counter(view.arms)
    most, many = counts.most_common(1)[0]
    says = f"{view.who} played {plural(total, 'round')}, {many / total:.0%} of them with {most}."
    each = total / len(slabs)
    note = f"Each column is {each:.0f} rounds." if each >= 2 else ""
    draw = partial(band_chart, slabs, colours, view.marks, title=f"Arm choice of {view.who}")
    rows: list[list[Cell]] = [
        [arm, Value(counts[arm], f"{counts[arm]:,}"), _share(counts[arm] / total)] for arm in colours
    ]
    table, title = Table(["arm", "rounds", "share"], rows), f"Arm choice over time: {view.who}"
    return Figure("choice", title, says, source, table, [("", draw)], legend=_legend(colours), note=note)


def columns(arms: Sequence[str], order: Sequence[str]) -> list[Slab]:
    """Rounds in at most so many columns of equal width, each with the share of every arm."""
    count = len(arms) if len(arms) <= COLUMNS else min(COLUMNS, len(arms) // LEAST)
    slabs = []
    for start, end in pairwise(round(i * len(arms) / count) for i in range(count + 1)):
        here = Counter(arms[start:end])
        parts = [(arm, here[arm] / (end - start)) for arm in order]
        said = "\n".join(f"{arm}: {share:.0%}" for arm, share in reversed(parts) if share)
        head = f"rounds {start + 1:,} to {end:,}" if end - start > 1 else f"round {end:,}"
        slabs.append(Slab(start, end, parts, f"{head}\n{said}"))
    return slabs


def by_batch(view: Choice, palette: Palette, source: Source) -> Figure:
    """The arms a server chose, by how many requests shared the step."""
    colours = palette.arms(view.arms)
    rows: list[tuple[str, list[tuple[str, float]]]] = []
    cells: list[list[Cell]] = []
    for size in sorted(set(view.batches)):
        here = Counter(arm for arm, batch in zip(view.arms, view.batches, strict=True) if batch == size)
        total = here.total()
        rows.append((f"{size} in flight", [(arm, here[arm] / total) for arm in colours]))
        cells.append([str(size), Value(total, f"{total:,}"), *(_share(here[arm] / total) for arm in colours)])
    draw = partial(share_chart, rows, colours, title="Length by load")
    says = f"Which arm {view.who} played with so many requests in one step."
    table, title = Table(["requests in the step", "rounds", *colours], cells), "Choice of length by load"
    return Figure("load", title, says, source, table, [("", draw)], legend=_legend(colours))


def shares(view: Shares, palette: Palette, source: Source) -> Figure:
    """Shares of arms by row."""
    colours = palette.arms(arm for row in view.rows.values() for arm in row)
    rows = [(name, [(arm, row.get(arm, 0.0)) for arm in colours]) for name, row in view.rows.items()]
    cells: list[list[Cell]] = [[name, *(_share(share) for _, share in parts)] for name, parts in rows]
    says = "The share of rounds that each arm had."
    if len(rows) > ROWS:
        says += f" The first {ROWS} of {len(rows)}; the table has all."
    draw = partial(share_chart, rows[:ROWS], colours, title="Arm shares")
    title = f"Arm choice by {view.what}" + (", simulated" if source.kind == SIMULATION else "")
    table = Table([view.what, *colours], cells)
    return Figure("choice", title, says, source, table, [("", draw)], legend=_legend(colours))


def _share(share: float) -> Value:
    return Value(share, f"{share:.1%}")


def _legend(colours: dict[str, str]) -> list[Key]:
    return [Key(arm, colour) for arm, colour in colours.items()]
