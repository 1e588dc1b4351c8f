"""The report in a real browser: what is seen, pointed at, tapped and tabbed through, at all widths, in both schemes."""

import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, Page, browser, find
from report_files import RESULTS, a_run, a_text, put, rounds_of, write_trace

from wager.core import files
from wager.report.page import figures, render
from wager.report.read import read
from wager.report.views import Material

CHROMIUM = find()
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here; install one (apt-get install chromium) or name it in WAGER_CHROMIUM"
)
VIEWS = [(1280, False), (1280, True), (820, False), (390, False), (390, True), (320, False)]

# Everything that is cut off at the right, that overlaps, or that leaves its picture; [] is what one wants.
FAULTS = """
(() => {
  const wide = document.documentElement.clientWidth, found = [];
  const seen = (el) => el.getClientRects().length && getComputedStyle(el).visibility !== 'hidden';
  const box = (el) => el.getBoundingClientRect();
  const meets = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  const whole = document.documentElement.scrollWidth;
  if (whole > wide) found.push(`the page is ${whole} wide`);
  for (const el of document.querySelectorAll('body *')) {
    if (!seen(el) || el.id === 'tip' || el.closest('.scroll')) continue;
    if (box(el).right > wide + 0.5 || box(el).left < -0.5) found.push(`${el.tagName} ${el.className} leaves the page`);
  }
  for (const svg of document.querySelectorAll('svg[role=img]')) {
    if (!seen(svg)) continue;
    const labels = [...svg.querySelectorAll('text')].filter((t) => t.textContent), frame = box(svg);
    labels.forEach((a, i) => {
      const one = box(a), across = one.left < frame.left - 2 || one.right > frame.right + 2;
      if (across || one.top < frame.top - 2 || one.bottom > frame.bottom + 2)
        found.push(`"${a.textContent}" leaves ${svg.getAttribute('aria-label').slice(0, 40)}`);
      for (const b of labels.slice(i + 1)) if (meets(one, box(b)))
        found.push(`"${a.textContent}" touches "${b.textContent}" in ${svg.getAttribute('aria-label').slice(0, 40)}`);
    });
  }
  for (const group of ['.cards', 'figure', '.panels', '.big', '.legend', 'nav', 'header', 'section', '.others']) {
    for (const parent of document.querySelectorAll(group)) {
      const parts = [...parent.children].filter(seen);
      parts.forEach((a, i) => parts.slice(i + 1).forEach((b) => {
        const names = `${a.tagName} ${a.className} overlaps ${b.tagName} ${b.className}`;
        if (meets(box(a), box(b))) found.push(`${names} in ${group}`);
      }));
    }
  }
  for (const el of document.querySelectorAll('h1, h3, dd, dt, p, li, summary'))
    if (seen(el) && el.scrollWidth > el.clientWidth + 1 && getComputedStyle(el).display !== 'inline')
      found.push(`${el.tagName} "${el.textContent.slice(0, 30)}" is cut`);
  return found;
})()
"""
TIP = "(() => { const t = document.getElementById('tip'); return t.hidden ? null : t.textContent; })()"


@pytest.fixture(scope="module")
def running() -> Iterator[Browser]:
    assert CHROMIUM is not None
    with browser(CHROMIUM) as started:
        yield started


@pytest.fixture(scope="module")
def materials(tmp_path_factory: pytest.TempPathFactory) -> list[Material]:
    folder = tmp_path_factory.mktemp("files")
    kept = ["serving-auto-cpu.json", "engine-cpu.json", "engine-h200.json", "regret.json", "spec-h200.json"]
    kept += ["serving-small-h200.json", "serving-8b-adaptive-h200.json"]
    paths = [put(folder / "run.json", a_run()), *(RESULTS / name for name in kept)]
    paths.append(put(folder / "text.json", a_text()))
    paths.append(write_trace(folder / "served.trace", rounds_of(200, batches=(1, 4))))
    return [read(path) for path in paths]


@pytest.fixture(scope="module")
def url(materials: list[Material], tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    files.write_text(path, render(materials))
    return path.as_uri()


@pytest.fixture
def open_page(running: Browser, url: str) -> Iterator[Any]:
    opened: list[Page] = []

    def at(width: int, *, dark: bool = False, of: str = url) -> Page:
        opened.append(Page(running, of, width=width, dark=dark))
        return opened[-1]

    yield at
    for page in opened:
        page.close()


@pytest.mark.parametrize(("width", "dark"), VIEWS)
def test_everything_is_there_and_nothing_overlaps(
    width: int, dark: bool, open_page: Any, materials: list[Material]
) -> None:
    page, drawn = open_page(width, dark=dark), "[...f.querySelectorAll('svg[role=img], .tokens, .heat')]"
    shown = f"[...document.querySelectorAll('figure')].filter(f => {drawn}.some(e => e.getClientRects().length))"
    assert page.run("document.querySelectorAll('figure').length") == len(figures(materials))
    assert page.run(f"{shown}.length") == len(figures(materials))
    assert page.run(FAULTS) == []
    page.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    page.run("document.querySelectorAll('.rejections').forEach(c => c.click())")
    assert page.run(FAULTS) == [], "with everything unfolded"
    assert page.complaints() == []
    if folder := os.environ.get("WAGER_SCREENSHOTS"):
        page.shot(Path(folder) / f"test-{width}-{'dark' if dark else 'light'}.png")


def test_the_search_for_faults_finds_them(open_page: Any) -> None:
    for plant, said in {
        "document.querySelector('figure .wide svg text').setAttribute('x', 4000)": "leaves",
        "const t = document.querySelectorAll('figure .wide svg text'); t[2].setAttribute('y', t[0].getAttribute('y'));"
        "t[2].setAttribute('x', t[0].getAttribute('x'))": "touches",
        "document.querySelector('h3').style.width = '3000px'": "leaves the page",
        "document.querySelectorAll('.cards figure')[1].style.marginTop = '-300px'": "overlaps",
    }.items():
        page = open_page(1280)
        assert page.run(FAULTS) == []
        page.run(plant)
        assert any(said in fault for fault in page.run(FAULTS)), plant


def test_an_error_in_the_page_is_heard_of(running: Browser, tmp_path: Path, open_page: Any) -> None:
    path = tmp_path / "bad.html"
    path.write_text("<script>nothing.here()</script><img src='none.png'>")
    page = open_page(390, of=path.as_uri())
    told = " ".join(page.complaints())
    assert "nothing is not defined" in told
    assert "none.png" in told


def middle(page: Page, selector: str) -> tuple[float, float]:
    """Where an element is, brought into view."""
    script = (
        f"(() => {{ const e = [...document.querySelectorAll({selector!r})].find(e => e.getClientRects().length);"
        "e.scrollIntoView({block: 'center', behavior: 'instant'}); const b = e.getClientRects()[0];"
        "return [b.left + b.width / 2, b.top + b.height / 2]; })()"
    )
    x, y = page.run(script)
    page.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")  # the scroll is over
    return x, y


INSIDE = """
(() => { const b = document.getElementById('tip').getBoundingClientRect();
  return b.left >= 0 && b.top >= 0 && b.right <= document.documentElement.clientWidth && b.bottom <= innerHeight; })()
"""


def test_pointing_at_charts_tells_their_numbers(open_page: Any) -> None:
    page = open_page(1280)
    assert page.run(TIP) is None
    page.point(*middle(page, "#speed .wide .mark"))
    assert "times as fast as transformers" in page.run(TIP)
    for section, said in {
        "#regret .wide .column": "tokens generated: ",
        "#choice .wide .slab": "round",
        ".of-survival .wide .column": "k, drafted tokens: ",
        ".of-cost .wide .column": " ms",
        "#load .wide .column": "requests in flight: ",
        "#load .cell": "times the throughput",
        "#load .panels .mark": "least and most over rounds: ",
    }.items():
        page.point(*middle(page, section))
        assert said in (page.run(TIP) or ""), section
        assert page.run(INSIDE)
    page.point(2, 2)
    assert page.run(TIP) is None


def test_pointing_at_a_token_tells_its_round_and_what_was_rejected(open_page: Any) -> None:
    page = open_page(1280)
    place = middle(page, ".t[data-tip*='rejected:']")
    page.point(*place)
    told = page.run(TIP)
    assert all(said in told for said in ("round ", "accepted", "rejected: “"))
    lit = page.run("[...document.querySelectorAll('.t.lit')].map(t => t.dataset.round)")
    assert lit
    assert len(set(lit)) == 1, "the whole round lights up"
    assert page.run(INSIDE)


def test_tokens_are_reached_by_keyboard(open_page: Any) -> None:
    page = open_page(1280)
    reached = "document.querySelectorAll('details[open] .tokens')[0].querySelectorAll('[tabindex=\"0\"]').length"
    assert page.run(reached) == 1
    page.run("document.querySelector('.t').focus()")
    assert "from the prompt's own forward" in page.run(TIP)
    page.press("ArrowRight")
    assert "round 1, " in page.run(TIP)
    assert page.run("document.activeElement.getAttribute('aria-describedby')") == "tip"
    page.press("End")
    last = "[...document.activeElement.parentElement.querySelectorAll('.t')].at(-1)"
    assert page.run(f"document.activeElement === {last}")
    page.press("Escape")
    assert page.run(TIP) is None


def test_tapping_works_on_a_phone(open_page: Any) -> None:
    page = open_page(390, dark=True)
    page.tap(*middle(page, ".t[data-tip*='rejected:']"))
    assert "rejected: “" in page.run(TIP)
    assert page.run(INSIDE)
    page.tap(*middle(page, "#speed .v330 .mark"))
    assert "times as fast as" in page.run(TIP)
    page.tap(*middle(page, "h2"))
    assert page.run(TIP) is None


def test_rejected_drafts_can_be_shown_in_the_text(open_page: Any) -> None:
    page = open_page(1280)
    count = "[...document.querySelectorAll('#tokens figure')[0].querySelectorAll('details[open] .rejected')]"
    assert page.run(f"{count}.filter(e => e.getClientRects().length).length") == 0
    page.run("document.querySelector('#tokens .rejections').click()")
    assert page.run(f"{count}.filter(e => e.getClientRects().length).length") > 0


def colours(page: Page) -> dict[str, list[float]]:
    """The colours of the style sheet as the browser has them, in linear RGB."""
    names = ["card", "bg", "ink", "soft", "bonus", "tip", "tip-ink", *(f"c{i}" for i in range(9))]
    script = (
        f"{names}.map((name) => {{ const c = document.createElement('canvas').getContext('2d'); c.fillStyle ="
        "getComputedStyle(document.documentElement).getPropertyValue('--' + name); c.fillRect(0, 0, 1, 1);"
        "return [...c.getImageData(0, 0, 1, 1).data].slice(0, 3); })"
    )
    found = [[v / 255 for v in rgb] for rgb in page.run(script)]
    linear = [[v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in rgb] for rgb in found]
    return dict(zip(names, linear, strict=True))


def luminance(linear: list[float]) -> float:
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: list[float], other: list[float]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


# What an eye without one of the cones makes of linear RGB (Machado and others, 2009, severity 1).
BLIND = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}


def lab(linear: list[float], seen: list[list[float]] | None = None) -> list[float]:
    """CIE L*a*b* of a colour, as seen."""
    if seen is not None:
        linear = [min(1.0, max(0.0, sum(a * b for a, b in zip(row, linear, strict=True)))) for row in seen]
    rows = ((0.4124, 0.3576, 0.1805, 0.9505), (0.2126, 0.7152, 0.0722, 1.0), (0.0193, 0.1192, 0.9505, 1.089))
    x, y, z = (sum(a * b for a, b in zip(row[:3], linear, strict=True)) / row[3] for row in rows)
    f = [v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z)]
    return [116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])]


@pytest.mark.parametrize("dark", [False, True])
def test_both_schemes_can_be_read_and_colours_stay_apart_for_the_colour_blind(dark: bool, open_page: Any) -> None:
    of = colours(open_page(1280, dark=dark))
    assert (luminance(of["bg"]) < 0.05) == dark
    for ground, text in product(("card", "bg"), ("ink", "soft", "bonus")):
        assert contrast(of[text], of[ground]) >= 4.5, text
    for i in range(9):
        assert contrast(of[f"c{i}"], of["card"]) >= 3, f"mark c{i}"
    assert contrast(of["tip"], of["tip-ink"]) >= 7
    first = [of[f"c{i}"] for i in range(5)]
    for name, seen in (("all cones", None), *BLIND.items()):
        for i, one in enumerate(first):
            for k, other in enumerate(first[:i]):
                apart = sum((a - b) ** 2 for a, b in zip(lab(one, seen), lab(other, seen), strict=True)) ** 0.5
                assert apart >= 10, f"c{k} and c{i}, {name}: {apart:.1f}"


def loaded_until(running: Browser, page: Page, condition: str) -> None:
    """Wait until the page has loaded itself anew and the condition holds in it; it may have before its file changed."""
    for _ in range(100):
        running.wait("Page.loadEventFired")
        if page.run(condition):
            return
    pytest.fail(f"the page was loaded 100 times, and never was {condition}")


def test_a_live_page_loads_itself_anew_until_it_is_finished(running: Browser, tmp_path: Path, open_page: Any) -> None:
    trace, path = write_trace(tmp_path / "live.trace", rounds_of(30)), tmp_path / "live.html"
    files.write_text(path, render([read(trace)], refresh=1.0, now="12:00:00 UTC"))
    page = open_page(390, of=path.as_uri())
    assert page.run("document.querySelector('.live').textContent").startswith("live, written 12:00:00")
    page.run("document.querySelector('.foot details').open = true")
    files.write_text(path, render([read(trace)], refresh=1.0, now="12:00:01 UTC"))
    loaded_until(running, page, "document.querySelector('.live').textContent.includes('12:00:01')")
    assert page.run("document.querySelector('.foot details').open"), "what was unfolded stays so"
    files.write_text(path, render([read(trace)]))
    loaded_until(running, page, "document.querySelector('.live') === null")
    assert page.run("document.querySelector('meta[http-equiv=refresh]')") is None
    assert page.run(FAULTS) == []
