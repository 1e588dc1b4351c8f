"""Numbers as they are written, the room they take, and scales from numbers to pixels."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

TIMES = "\N{MULTIPLICATION SIGN}"  # after a ratio
SMALL = 12.0  # pixels, the size of all text in a chart
_WIDE, _NARROW = {*"mwMW@%", TIMES}, set("ijl.,:;'|!()[] /")


def plural(count: int, one: str) -> str:
    """A count and its noun."""
    return f"{count:,} {one}{'s' * (count != 1)}"


def listed(words: Iterable[str]) -> str:
    """Words one after the other, the last with an 'and'."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def width_of(text: str) -> float:
    """Pixels a text takes at most in a common sans-serif face."""
    return SMALL * sum(0.95 if c in _WIDE else 0.38 if c in _NARROW else 0.68 if c.isupper() else 0.62 for c in text)


def fitted(text: str, room: float) -> str:
    """The text, cut with an ellipsis where it does not fit."""
    if width_of(text) <= room:
        return text
    while text and width_of(text + "…") > room:
        text = text[:-1]
    return text.rstrip() + "…"


def number(value: float) -> str:
    """A number for reading: about three figures, thousands apart, no exponent for what people meet."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e9 or size < 1e-4:
        return f"{value:.1e}"
    if size >= 1000:
        return f"{value / 1e6:.3g}M" if size >= 1e6 else f"{value:,.0f}"
    places = max(0, 2 - math.floor(math.log10(size)))
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
