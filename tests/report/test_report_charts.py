"""The report's charts: what is drawn has the size of its number."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wager.report.charts import Axes, Bar, Line, Slab, band_chart, bar_chart, line_chart, x_labels
from wager.report.colours import Palette
from wager.report.page import shortened
from wager.report.scales import Scale, linear_ticks, number, rounded_up, width_of


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(2, 9), st.sampled_from(["linear", "symlog"]))
def test_ticks_lie_inside_and_are_few(low: float, span: float, most: int, kind: str) -> None:
    scale = Scale(low, low + span, 0, 100, kind, 10.0)
    ticks = scale.ticks(most)
    assert len(ticks) <= most + 1
    places = [scale(t) for t in ticks]
    assert places == sorted(places)
    assert all(-1e-6 <= p <= 100 + 1e-6 for p in places)


def test_scales_and_numbers() -> None:
    assert linear_ticks(0, 2.1, 5) == [0, 1, 2]
    assert rounded_up(3.29, 5) == 4
    log = Scale(10, 1e6, 0, 100, "log")
    assert log.ticks(6) == [10, 100, 1000, 1e4, 1e5, 1e6]
    assert log(1000) == pytest.approx(40)
    said = ["0", "0.0123", "1.50", "12.3", "1,234", "2.5M"]
    assert [number(v) for v in (0, 0.0123, 1.5, 12.34, 1234.5, 2.5e6)] == said
    assert shortened("wager bench versus -p auto --x 1") == "wager bench versus …"
    assert shortened("wager generate 'Say it' --json") == "wager generate …"
    assert shortened("wager bench") == "wager bench"


def test_what_is_drawn_has_the_size_of_its_number() -> None:
    """Bars, lines and bands measured in the picture itself."""
    bars = [Bar(name, value, None, None, "red", False, "", "") for name, value in (("a", 0.5), ("b", 1.0), ("c", 2.0))]
    drawn = bar_chart(bars, 2.0, 600, "bars", "")
    long = [float(w) for w in re.findall(r'width="([\d.]+)" height="14"', drawn)]
    assert long == pytest.approx([long[2] / 4, long[2] / 2, long[2]], abs=0.1)
    line = line_chart([Line("a", [(0, 0), (1, 5), (2, 10)], "red")], Axes("x", "y"), 600, 300, "line")
    found = re.search(r'<polyline[^>]*points="([^"]*)"', line)
    assert found is not None
    (x0, y0), (x1, y1), (x2, y2) = (tuple(map(float, pair.split(","))) for pair in found[1].split())
    assert (x1, y1) == pytest.approx(((x0 + x2) / 2, (y0 + y2) / 2), abs=0.1)
    assert y2 < y0
    slabs = [Slab(0, 10, [("off", 0.25), ("suffix:4", 0.75)], "")]
    band = band_chart(slabs, {"off": "grey", "suffix:4": "blue"}, (), 600, "band")
    high = {colour: float(h) for h, colour in re.findall(r'height="([\d.]+)" style="fill:(\w+)"', band)}
    assert high["blue"] == pytest.approx(3 * high["grey"], abs=0.05)


@given(st.lists(st.tuples(st.floats(0, 330), st.text("abcdefm0123", min_size=1, max_size=9)), max_size=12))
def test_labels_below_an_axis_never_touch_or_leave_the_picture(places: list[tuple[float, str]]) -> None:
    drawn = x_labels(sorted(places), 10, 330)
    ends = -1e9
    for label in drawn:
        centre, half = label.x, width_of(label.said) / 2
        assert centre - half >= ends
        assert centre - half >= -0.1
        assert centre + half <= 330.1
        ends = centre + half


def test_colours_tell_drafters_and_lengths_apart() -> None:
    colours = Palette().arms(["suffix:8", "off", "suffix:4", "prompt-lookup:4"])
    assert list(colours) == ["off", "suffix:4", "suffix:8", "prompt-lookup:4"]
    assert len(set(colours.values())) == 4
    assert colours["suffix:8"] == "var(--c1)"
    assert "var(--c1)" in colours["suffix:4"]
