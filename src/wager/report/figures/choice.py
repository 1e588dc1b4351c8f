"""Which arm was played when: a band over rounds, over batch sizes, or shares where the order is not known."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise

from wager.report.charts import Slab, band_chart, share_chart
from wager.report.colours import Palette
from wager.report.scales import plural
from wager.report.views import SIMULATION, Cell, Figure, Key, Source, Table, Value

ROWS = 12  # of shares; the table has all
MARKS = 16  # most names above a band
COLUMNS, LEAST = 60, 6  # of the band; rounds in one, unless every round has its own


Marks = Sequence[tuple[int, str]]  # round at which something begins, and what


def choice(who: str, arms: Sequence[str], palette: Palette, source: Source, marks: Marks = ()) -> Figure:
    """The band of one policy's choices over its rounds; ``arms`` has one a round."""
    colours, total, marks = palette.arms(arms), len(arms), marks if len(marks) <= MARKS else ()
    slabs, counts = columns(arms, list(colours)), Counter(arms)
    most, many = counts.most_common(1)[0]
    says = f"{who} played {plural(total, 'round')}, {many / total:.0%} of them with {most}."
    each = total / len(slabs)
    note = f"Each column is {each:.0f} rounds." if each >= 2 else ""
    draw = partial(band_chart, slabs, colours, marks, title=f"Arm choice of {who}")
    rows: list[list[Cell]] = [
        [arm, Value(counts[arm], f"{counts[arm]:,}"), _share(counts[arm] / total)] for arm in colours
    ]
    table, title = Table(["arm", "rounds", "share"], rows), f"Arm choice over time: {who}"
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


def by_batch(who: str, arms: Sequence[str], batches: Sequence[int], palette: Palette, source: Source) -> Figure:
    """The arms a server chose, by how many requests shared the step."""
    colours = palette.arms(arms)
    rows: list[tuple[str, list[tuple[str, float]]]] = []
    cells: list[list[Cell]] = []
    for size in sorted(set(batches)):
        here = Counter(arm for arm, batch in zip(arms, batches, strict=True) if batch == size)
        total = here.total()
        rows.append((f"{size} in flight", [(arm, here[arm] / total) for arm in colours]))
        cells.append([str(size), Value(total, f"{total:,}"), *(_share(here[arm] / total) for arm in colours)])
    draw = partial(share_chart, rows, colours, title="Length by load")
    says = f"Which arm {who} played with so many requests in one step."
    table, title = Table(["requests in the step", "rounds", *colours], cells), "Choice of length by load"
    return Figure("load", title, says, source, table, [("", draw)], legend=_legend(colours))


def shares(by_row: Mapping[str, Mapping[str, float]], what: str, palette: Palette, source: Source) -> Figure:
    """The share of rounds that each arm had by policy or task, which is ``what``, where the order is not known."""
    colours = palette.arms(arm for row in by_row.values() for arm in row)
    rows = [(name, [(arm, row.get(arm, 0.0)) for arm in colours]) for name, row in by_row.items()]
    cells: list[list[Cell]] = [[name, *(_share(share) for _, share in parts)] for name, parts in rows]
    says = "The share of rounds that each arm had."
    if len(rows) > ROWS:
        says += f" The first {ROWS} of {len(rows)}; the table has all."
    draw = partial(share_chart, rows[:ROWS], colours, title="Arm shares")
    title = f"Arm choice by {what}" + (", simulated" if source.kind == SIMULATION else "")
    table = Table([what, *colours], cells)
    return Figure("choice", title, says, source, table, [("", draw)], legend=_legend(colours))


def _share(share: float) -> Value:
    return Value(share, f"{share:.1%}")


def _legend(colours: dict[str, str]) -> list[Key]:
    return [Key(arm, colour) for arm, colour in colours.items()]
