"""Charts as SVG text: scales, axes, lines, bars, bands. Colours are the page's variables, so both schemes work."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

TIMES, NONE = "\N{MULTIPLICATION SIGN}", "\N{EN DASH}"  # after a ratio; where there is no number
NARROW = 400  # pixels; a chart with less is a phone's or one of several
SMALL = 12.0  # pixels, the size of all text in a chart
DASHES = ("", "7 4", "2 3", "10 3 2 3", "5 2")
_WIDE, _NARROW = {*"mwMW@%", TIMES}, set("ijl.,:;'|!()[] /")


def width_of(text: str, size: float = SMALL) -> float:
    """Pixels a text takes at most in a common sans-serif face."""
    ems = sum(0.95 if c in _WIDE else 0.38 if c in _NARROW else 0.68 if c.isupper() else 0.62 for c in text)
    return ems * size


def fitted(text: str, room: float, size: float = SMALL) -> str:
    """The text, cut with an ellipsis where it does not fit."""
    if width_of(text, size) <= room:
        return text
    while text and width_of(text + "…", size) > room:
        text = text[:-1]
    return text.rstrip() + "…"


def number(value: float, digits: int = 3) -> str:
    """A number for reading: about three figures, thousands apart, no exponent for what people meet."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.3g}M" if size < 1e9 else f"{value:.2e}"
    if size >= 1000:
        return f"{value:,.0f}"
    if size < 1e-4:
        return f"{value:.1e}"
    places = max(0, digits - 1 - math.floor(math.log10(size)))
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text and size >= 100 else text


def tick(value: float) -> str:
    """A number on an axis: no more figures than it needs."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:g}k"
    return f"{value:,.6g}" if abs(value) >= 1e-4 or value == 0 else f"{value:.0e}"


@dataclass(frozen=True, slots=True)
class Scale:
    """Numbers to pixels: 'linear', 'log', or 'symlog' that is linear up to ``knee`` on both sides of 0."""

    low: float
    high: float
    start: float  # pixel of low
    end: float  # pixel of high
    kind: str = "linear"
    knee: float = 1.0

    def _bent(self, value: float) -> float:
        if self.kind == "log":
            return math.log10(max(value, 1e-12))
        if self.kind == "symlog":
            size = abs(value) / self.knee
            return math.copysign(size if size <= 1 else 1 + math.log10(size), value)
        return value

    def __call__(self, value: float) -> float:
        low, high = self._bent(self.low), self._bent(self.high)
        share = (self._bent(value) - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Round numbers inside the scale, at most so many."""
        if self.kind == "linear":
            return linear_ticks(self.low, self.high, most)
        if self.kind == "log":
            exponents = range(math.ceil(self._bent(self.low) - 1e-9), math.floor(self._bent(self.high) + 1e-9) + 1)
            found = [10.0**e for e in exponents]
        else:
            top = max(abs(self.low), abs(self.high), self.knee)
            powers = [self.knee * 10.0**e for e in range(math.floor(math.log10(top / self.knee) + 1e-9) + 1)]
            found = [v for v in [*(-p for p in reversed(powers)), 0.0, *powers] if self.low <= v <= self.high]
        if len(found) < 2:
            return linear_ticks(self.low, self.high, most)
        step = -(-len(found) // most)
        anchor = found.index(0.0) % step if 0.0 in found else 0
        return found[anchor::step]


def linear_ticks(low: float, high: float, most: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    if high <= low:
        return [low]
    rough = (high - low) / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def rounded_up(value: float, most: int = 6) -> float:
    """The next tick at or above a value, for an axis from 0."""
    ticks = linear_ticks(0, value, most) if value > 0 else [0.0, 1.0]
    step = ticks[1] - ticks[0] if len(ticks) > 1 else value or 1.0
    return math.ceil(value / step - 1e-9) * step or 1.0


def text(x: float, y: float, said: str, anchor: str = "start", kind: str = "") -> str:
    """One label."""
    classes = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{classes}>{escape(said)}</text>'


def svg(width: float, height: float, parts: Sequence[str], title: str, described: str) -> str:
    """A picture with its name and what it shows."""
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(title)}: {escape(described)}" '
        f'preserveAspectRatio="xMinYMin meet">{"".join(parts)}</svg>'
    )


def tip(said: str) -> str:
    """The attribute that makes a mark tell something when it is pointed at."""
    return f' data-tip="{escape(said)}"'


@dataclass(frozen=True, slots=True)
class Line:
    """One line to draw."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str  # a CSS colour
    band: Sequence[tuple[float, float, float]] = ()  # x, low, high
    dash: str = ""
    faint: bool = False  # in the background, not in the tooltip
    dots: bool = False


@dataclass(frozen=True, slots=True)
class Axes:
    """What the axes of a line chart say."""

    x: str
    y: str
    x_kind: str = "linear"
    y_kind: str = "linear"
    y_low: float | None = 0.0
    y_high: float | None = None
    knee: float = 10.0
    x_ticks: Sequence[tuple[float, str]] = ()  # names for places, instead of numbers
    x_name: Callable[[float], str] = number  # a place in a tooltip
    y_name: Callable[[float], str] = number
    y_tick: Callable[[float], str] = tick


def line_chart(lines: Sequence[Line], axes: Axes, width: int, height: int, title: str) -> str:
    """Lines with their bands over one pair of axes; pointing at a place tells every line's value there."""
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points] + [v for line in lines for b in line.band for v in b[1:]]
    low = min(ys) if axes.y_low is None else min(axes.y_low, *ys)
    high = axes.y_high if axes.y_high is not None else max(ys)
    if axes.y_kind == "linear" and axes.y_high is None:
        high = rounded_up(high, 5)
    top, bottom = 30.0, height - 44.0
    y = Scale(low, high if high > low else low + 1, bottom, top, axes.y_kind, axes.knee)
    y_ticks = y.ticks(6)
    left = max(width_of(axes.y_tick(v)) for v in y_ticks) + 12
    x = Scale(min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1, left + 8, width - 14.0, axes.x_kind)
    out = [text(0, 12, axes.y, kind="name")]
    for value in y_ticks:
        kind = "zero" if value == 0 else "grid"
        out.append(f'<line class="{kind}" x1="{left:.1f}" x2="{width}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        out.append(text(left - 8, y(value) + 4, axes.y_tick(value), "end"))
    named = list(axes.x_ticks) or [(v, tick(v)) for v in x.ticks(7 if width > NARROW else 5)]
    out += x_labels([(x(value), said) for value, said in named], bottom + 20, width)
    out.append(text(width, height - 4, axes.x, "end", "name"))
    for line in sorted(lines, key=lambda line: not line.faint):
        out += _drawn(line, x, y)
    told = [line for line in lines if not line.faint]
    out += _columns(told, axes, x, (top, bottom), width)
    return svg(width, height, out, title, f"{axes.y} over {axes.x} for {', '.join(line.name for line in told)}")


def x_labels(places: Sequence[tuple[float, str]], y: float, width: float) -> list[str]:
    """Labels below an axis; one that would touch the one before it is left out."""
    out, free = [], -1e9
    for at, said in places:
        half = width_of(said) / 2
        centre = min(max(at, half), width - half)
        if centre - half < free:
            continue
        free = centre + half + 8
        out.append(text(centre, y, said, "middle"))
    return out


def _drawn(line: Line, x: Scale, y: Scale) -> list[str]:
    out = []
    if line.band:
        edge = [(x(a), y(low)) for a, low, _ in line.band] + [(x(a), y(high)) for a, _, high in reversed(line.band)]
        out.append(f'<polygon class="band" style="fill:{line.colour}" points="{_points(edge)}"/>')
    kind = "line faint" if line.faint else "line"
    dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
    points = [(x(a), y(b)) for a, b in line.points]
    out.append(f'<polyline class="{kind}" style="stroke:{line.colour}"{dash} points="{_points(points)}"/>')
    if line.dots:
        out += [
            f'<circle class="dot" style="fill:{line.colour}" cx="{a:.1f}" cy="{b:.1f}" r="3.5"/>' for a, b in points
        ]
    return out


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in points)


def _columns(lines: Sequence[Line], axes: Axes, x: Scale, span: tuple[float, float], width: float) -> list[str]:
    """Invisible columns, one a place, that tell the values there."""
    places = sorted({a for line in lines for a, _ in line.points})
    if len(places) > 90:
        places = [places[i] for i in sorted({round(k * (len(places) - 1) / 89) for k in range(90)})]
    named = dict(axes.x_ticks)
    out = []
    for i, place in enumerate(places):
        here = x(place)
        before = (x(places[i - 1]) + here) / 2 if i else here - 10
        after = (x(places[i + 1]) + here) / 2 if i + 1 < len(places) else here + 10
        values = [(line.name, dict(line.points).get(place)) for line in lines]
        said = "\n".join(f"{name}: {axes.y_name(v)}" for name, v in values if v is not None)
        head = f"{axes.x}: {named.get(place) or axes.x_name(place)}"
        after = min(after, width)
        out.append(
            f'<rect class="column" x="{before:.1f}" y="{span[0]}" width="{max(after - before, 1):.1f}" '
            f'height="{span[1] - span[0]}"{tip(f"{head}{chr(10)}{said}")}/>'
        )
    return out


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar with its whisker."""

    name: str
    value: float
    low: float | None
    high: float | None
    colour: str
    strong: bool
    said: str  # the number as it is written
    told: str  # the tooltip
    short: str = ""  # its name where there is little room


def bar_chart(bars: Sequence[Bar], most: float, width: int, title: str, unit: str, line_at: float = 1.0) -> str:
    """Bars from 0 to the right, names on the left, numbers on the right, a line where the base stands."""
    row, top = 26.0, 8.0
    names = [bar.short if width < NARROW and bar.short else bar.name for bar in bars]
    value_room = max(width_of(bar.said) for bar in bars) + 10
    name_room = min(max(map(width_of, names)) + 10, width * 0.44)
    x = Scale(0, most, name_room, width - value_room)
    bottom = top + row * len(bars)
    ticks = x.ticks(6 if width > NARROW else 4)
    out = [
        f'<line class="grid" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{top}" y2="{bottom + 4}"/>' for value in ticks
    ]
    for i, bar in enumerate(bars):
        y = top + i * row
        kind = "strong" if bar.strong else ""
        long = max(x(min(bar.value, most)) - x(0), 1.5)
        body = text(0, y + 17, fitted(names[i], name_room - 8), kind=kind)
        body += f'<rect x="{x(0):.1f}" y="{y + 6}" width="{long:.1f}" height="14" rx="3" style="fill:{bar.colour}"/>'
        if bar.low is not None and bar.high is not None:
            a, b, mid = x(max(bar.low, 0)), x(min(bar.high, most)), y + 13
            ends = "".join(f"M{at:.1f} {mid - 4}v8" for at in (a, b))
            path = f"M{a:.1f} {mid}H{b:.1f}{ends}"
            body += f'<path class="halo" d="{path}"/><path class="whisker" d="{path}"/>'
        body += text(width, y + 17, bar.said, "end", kind or "value")
        hit = f'<rect class="hit" x="0" y="{y:.1f}" width="{width}" height="{row}"/>'
        out.append(f'<g class="mark"{tip(bar.told)}>{hit}{body}</g>')
    if 0 < line_at < most:
        out.append(f'<line class="base" x1="{x(line_at):.1f}" x2="{x(line_at):.1f}" y1="{top}" y2="{bottom + 4}"/>')
    out += x_labels([(x(v), f"{tick(v)}{unit}") for v in ticks], bottom + 20, width - value_room + 14)
    said = ", ".join(f"{bar.name} {bar.said}" for bar in bars)
    return svg(width, bottom + 28, out, title, said)


@dataclass(frozen=True, slots=True)
class Slab:
    """One column of a stacked band."""

    start: float
    end: float
    parts: Sequence[tuple[str, float]]  # (arm, share), bottom first
    told: str


def band_chart(
    slabs: Sequence[Slab],
    colours: dict[str, str],
    marks: Sequence[tuple[float, str]],
    x_name: str,
    width: int,
    height: int,
    title: str,
) -> str:
    """Shares over time as one band: every column adds up to everything."""
    single = all(slab.end - slab.start == 1 for slab in slabs)  # a column is one round, so there is no share to read
    height, left = (170, 0.0) if single else (height, 46.0)
    top, bottom = 48.0 if marks else 28.0, height - 44.0
    x = Scale(slabs[0].start, slabs[-1].end, left, width - 2.0)
    y = Scale(0, 1, bottom, top)
    out = [text(0, 12, "arm of each round" if single else "share of rounds", kind="name")]
    if not single:
        out += [text(left - 8, y(value) + 4, f"{value:.0%}", "end") for value in (0, 0.25, 0.5, 0.75, 1)]
    for slab in slabs:
        a, b = x(slab.start), x(slab.end)
        body, base = "", 0.0
        for arm, share in slab.parts:
            if share <= 0:
                continue
            y0, y1 = y(base + share), y(base)
            # half a pixel over its edge, so that no seam shows between columns
            body += (
                f'<rect x="{a:.2f}" y="{y0:.2f}" width="{b - a + 0.5:.2f}" height="{y1 - y0:.2f}" '
                f'style="fill:{colours[arm]}"/>'
            )
            base += share
        out.append(f'<g class="mark slab"{tip(slab.told)}>{body}</g>')
    out += _marks(marks, x, top, bottom)
    out += x_labels([(x(v), tick(v)) for v in x.ticks(7 if width > NARROW else 5)], bottom + 20, width)
    out.append(text(width, height - 4, x_name, "end", "name"))
    return svg(width, height, out, title, f"share of each arm over {x_name}")


def _marks(marks: Sequence[tuple[float, str]], x: Scale, top: float, bottom: float) -> list[str]:
    """Lines where something begins; their names stand above, where there is room."""
    out = []
    for i, (at, said) in enumerate(marks):
        here, until = x(at), x(marks[i + 1][0]) if i + 1 < len(marks) else x.end
        if i:
            out.append(f'<line class="part" x1="{here:.1f}" x2="{here:.1f}" y1="{top - 6}" y2="{bottom}"/>')
        if width_of(said) + 6 <= until - here:
            out.append(text(here + (4 if i else 0), top - 8, said))
    return out


def share_chart(
    rows: Sequence[tuple[str, Sequence[tuple[str, float]]]], colours: dict[str, str], width: int, title: str
) -> str:
    """One bar a row, cut into shares."""
    row, top = 28.0, 4.0
    room = min(max(width_of(name) for name, _ in rows) + 12, width * 0.4)
    x = Scale(0, 1, room, width - 2.0)
    out = []
    for i, (name, parts) in enumerate(rows):
        y, base = top + i * row, 0.0
        out.append(text(0, y + 18, fitted(name, room - 8)))
        for arm, share in parts:
            a, b = x(base), x(base + share)
            base += share
            if b - a > 0.2:
                mark = f'<rect class="mark" x="{a:.1f}" y="{y + 4}" width="{b - a:.1f}" height="20"'
                out.append(f'{mark} style="fill:{colours[arm]}"{tip(f"{name}{chr(10)}{arm}: {share:.1%} of rounds")}/>')
    bottom = top + row * len(rows)
    out += x_labels([(x(v), f"{v:.0%}") for v in (0, 0.25, 0.5, 0.75, 1)], bottom + 16, width)
    return svg(width, bottom + 24, out, title, "shares of arms by row")
