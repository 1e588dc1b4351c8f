"""Charts as SVG: lines, bars, bands and shares. Colours are the page's variables, so both schemes work."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from markupsafe import Markup

from wager.report.scales import Scale, fitted, number, rounded_up, tick, width_of
from wager.report.templating import macro

NARROW = 400  # pixels; a chart with less is a phone's or one of several
DASHES = ("", "7 4", "2 3", "10 3 2 3", "5 2")
QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)


class Label(NamedTuple):
    x: float
    y: float
    said: str
    anchor: str = "start"
    kind: str = ""  # its class


class Line(NamedTuple):
    name: str
    points: Sequence[tuple[float, float]]
    colour: str  # a CSS colour
    band: Sequence[tuple[float, ...]] = ()  # x, low, high
    dash: str = ""
    faint: bool = False  # in the background, not in the tooltip
    dots: bool = False


class Axes(NamedTuple):
    """What the axes of a line chart say."""

    x: str
    y: str
    x_kind: str = "linear"
    y_kind: str = "linear"
    y_low: float | None = 0.0
    y_high: float | None = None
    x_ticks: Sequence[tuple[float, str]] = ()  # names for places, instead of numbers
    y_name: Callable[[float], str] = number  # in a tooltip
    y_tick: Callable[[float], str] = tick


class Bar(NamedTuple):
    name: str
    value: float
    low: float | None
    high: float | None
    colour: str
    strong: bool
    said: str  # the number as it is written
    told: str  # the tooltip
    short: str = ""  # its name where there is little room


class Slab(NamedTuple):
    """One column of a stacked band."""

    start: float
    end: float
    parts: Sequence[tuple[str, float]]  # (arm, share), bottom first
    told: str


def _drawn(kind: str, width: float, height: float, title: str, described: str, **given: Any) -> Markup:
    return macro(
        "charts.svg", kind, {"width": width, "height": height, "title": title, "described": described, **given}
    )


def x_labels(places: Sequence[tuple[float, str]], y: float, width: float) -> list[Label]:
    """Labels below an axis; one that would touch the one before it is left out."""
    out: list[Label] = []
    free = -1e9
    for at, said in places:
        half = width_of(said) / 2
        centre = min(max(at, half), width - half)
        if centre - half >= free:
            free = centre + half + 8
            out.append(Label(centre, y, said, "middle"))
    return out


def line_chart(lines: Sequence[Line], axes: Axes, width: int, height: int, title: str) -> Markup:
    """Lines with their bands over one pair of axes; pointing at a place tells every line's value there."""
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points] + [v for line in lines for b in line.band for v in b[1:]]
    low = min(ys) if axes.y_low is None else min(axes.y_low, *ys)
    high = axes.y_high if axes.y_high is not None else max(ys)
    if axes.y_kind == "linear" and axes.y_high is None:
        high = rounded_up(high, 9)
    top, bottom = 30.0, height - 44.0
    y = Scale(low, high if high > low else low + 1, bottom, top, axes.y_kind, knee=10.0)
    y_ticks = y.ticks(6)
    left = max(width_of(axes.y_tick(v)) for v in y_ticks) + 12
    x = Scale(min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1, left + 8, width - 14.0, axes.x_kind)
    named = list(axes.x_ticks) or [(v, tick(v)) for v in x.ticks(7 if width > NARROW else 5)]
    told = [line for line in lines if not line.faint]
    return _drawn(
        "lines", width, height, title, f"{axes.y} over {axes.x} for {', '.join(line.name for line in told)}",
        left=left, top=top, bottom=bottom,
        grid=[("zero" if value == 0 else "grid", y(value)) for value in y_ticks],
        labels=[
            Label(0, 12, axes.y, kind="name"),
            *(Label(left - 8, y(value) + 4, axes.y_tick(value), "end") for value in y_ticks),
            *x_labels([(x(value), said) for value, said in named], bottom + 20, width),
            Label(width, height - 4, axes.x, "end", "name"),
        ],
        lines=[_placed(line, x, y) for line in sorted(lines, key=lambda line: not line.faint)],
        columns=_columns(told, axes, x, width),
    )  # fmt: skip


def _placed(line: Line, x: Scale, y: Scale) -> Line:
    """The line in pixels; its band as the outline of an area."""
    edge = [(x(a), y(low)) for a, low, _ in line.band] + [(x(a), y(high)) for a, _, high in reversed(line.band)]
    return line._replace(points=[(x(a), y(b)) for a, b in line.points], band=edge)


def _columns(lines: Sequence[Line], axes: Axes, x: Scale, width: float) -> list[tuple[float, float, str]]:
    """Invisible columns, one a place, that tell the values there: where each begins, its width, and what it tells."""
    places = sorted({a for line in lines for a, _ in line.points})
    if len(places) > 90:
        places = [places[i] for i in sorted({round(k * (len(places) - 1) / 89) for k in range(90)})]
    named, values = dict(axes.x_ticks), [(line.name, dict(line.points)) for line in lines]
    out = []
    for i, place in enumerate(places):
        here = x(place)
        before = (x(places[i - 1]) + here) / 2 if i else here - 10
        after = min((x(places[i + 1]) + here) / 2 if i + 1 < len(places) else here + 10, width)
        head = f"{axes.x}: {named.get(place) or number(place)}"
        said = [f"{name}: {axes.y_name(at[place])}" for name, at in values if place in at]
        out.append((before, max(after - before, 1), "\n".join([head, *said])))
    return out


def bar_chart(bars: Sequence[Bar], most: float, width: int, title: str, unit: str) -> Markup:
    """Bars from 0 to the right, names on the left, numbers on the right, a line at 1."""
    row, top = 26.0, 8.0
    names = [bar.short if width < NARROW and bar.short else bar.name for bar in bars]
    value_room = max(width_of(bar.said) for bar in bars) + 10
    name_room = min(max(map(width_of, names)) + 10, width * 0.44)
    x = Scale(0, most, name_room, width - value_room)
    bottom = top + row * len(bars)
    ticks = x.ticks(6 if width > NARROW else 5)
    drawn = []
    for i, bar in enumerate(bars):
        y = top + i * row
        whisker = ""
        if bar.low is not None and bar.high is not None:
            a, b, mid = x(max(bar.low, 0)), x(min(bar.high, most)), y + 13
            whisker = f"M{a:.1f} {mid}H{b:.1f}M{a:.1f} {mid - 4}v8M{b:.1f} {mid - 4}v8"
        drawn.append(
            {
                "y": y, "x": x(0), "long": max(x(min(bar.value, most)) - x(0), 1.5), "colour": bar.colour,
                "told": bar.told, "whisker": whisker,
                "name": Label(0, y + 17, fitted(names[i], name_room - 8), kind="strong" if bar.strong else ""),
                "value": Label(width, y + 17, bar.said, "end", "strong" if bar.strong else "value"),
            }
        )  # fmt: skip
    return _drawn(
        "bars", width, bottom + 28, title, ", ".join(f"{bar.name} {bar.said}" for bar in bars),
        row=row, top=top, bottom=bottom + 4, bars=drawn, grid=[x(value) for value in ticks],
        base=x(1.0) if most > 1 else None,
        labels=x_labels([(x(v), f"{tick(v)}{unit}") for v in ticks], bottom + 20, width - value_room + 14),
    )  # fmt: skip


def band_chart(
    slabs: Sequence[Slab], colours: dict[str, str], marks: Sequence[tuple[float, str]], width: int, title: str
) -> Markup:
    """Shares over rounds as one band: every column adds up to everything."""
    single = all(slab.end - slab.start == 1 for slab in slabs)  # a column is one round, so there is no share to read
    height, left = (170, 0.0) if single else (300, 46.0)
    top, bottom = 48.0 if marks else 28.0, height - 44.0
    x, y = Scale(slabs[0].start, slabs[-1].end, left, width - 2.0), Scale(0, 1, bottom, top)
    drawn = []
    for slab in slabs:
        a, b = x(slab.start), x(slab.end)
        tops = accumulate(share for _, share in slab.parts)
        shares = [(arm, share, until) for (arm, share), until in zip(slab.parts, tops, strict=True) if share > 0]
        # half a pixel over its edge, so that no seam shows between columns
        rects = [(a, y(u), b - a + 0.5, y(u - share) - y(u), colours[arm]) for arm, share, u in shares]
        drawn.append((slab.told, rects))
    labels = [Label(0, 12, "arm of each round" if single else "share of rounds", kind="name")]
    labels += [] if single else [Label(left - 8, y(value) + 4, f"{value:.0%}", "end") for value in QUARTERS]
    for i, (at, said) in enumerate(marks):  # the names of what begins stand above, where there is room
        here, until = x(at), x(marks[i + 1][0]) if i + 1 < len(marks) else x.end
        if width_of(said) + 6 <= until - here:
            labels.append(Label(here + (4 if i else 0), top - 8, said))
    labels += x_labels([(x(v), tick(v)) for v in x.ticks(7 if width > NARROW else 5)], bottom + 20, width)
    labels.append(Label(width, height - 4, "rounds", "end", "name"))
    parts = [x(at) for at, _ in marks[1:]]
    more = {"slabs": drawn, "labels": labels, "top": top, "bottom": bottom, "parts": parts}
    return _drawn("band", width, height, title, "share of each arm over rounds", **more)


def share_chart(
    rows: Sequence[tuple[str, Sequence[tuple[str, float]]]], colours: dict[str, str], width: int, title: str
) -> Markup:
    """One bar a row, cut into shares."""
    row, top = 28.0, 4.0
    room = min(max(width_of(name) for name, _ in rows) + 12, width * 0.4)
    x = Scale(0, 1, room, width - 2.0)
    labels, parts = [], []
    for i, (name, shares) in enumerate(rows):
        y, base = top + i * row, 0.0
        labels.append(Label(0, y + 18, fitted(name, room - 8)))
        for arm, share in shares:
            a, b = x(base), x(base + share)
            base += share
            if b - a > 0.2:
                parts.append((a, y + 4, b - a, colours[arm], f"{name}\n{arm}: {share:.1%} of rounds"))
    bottom = top + row * len(rows)
    labels += x_labels([(x(v), f"{v:.0%}") for v in QUARTERS], bottom + 16, width)
    return _drawn("shares", width, bottom + 24, title, "shares of arms by row", labels=labels, parts=parts)
