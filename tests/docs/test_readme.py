"""The README fits two screens; its figures are rows of docs/bench.md, and those are the figures in the result files."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pages import ROOT, blocks

README, BENCH = ROOT / "README.md", ROOT / "docs" / "bench.md"
LINES, ROWS = 100, 8
PICTURES = 200_000  # bytes of one at most
ROUNDED = 0.0051  # two decimals


def rows(page: Path = BENCH) -> list[list[str]]:
    """The cells of a page's table of figures, row by row."""
    lines = page.read_text(encoding="utf-8").splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("| workload |")) + 2
    end = next(at for at in range(start, len(lines)) if not lines[at].startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[start:end]]


def result(cell: str) -> dict[str, Any]:
    path = re.fullmatch(r"\[[\w.-]+\]\(\.\./(results/[\w.-]+\.json)\)", cell)
    assert path is not None, cell
    found: dict[str, Any] = json.loads((ROOT / path[1]).read_text())
    return found


def generated(found: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Of wager bench generate: auto and the best of its own arms, plain decoding among them, over off."""
    every = found["methods"] if "summary" not in found else found["summary"]["tasks"][0]["methods"]  # or wager bench
    speeds = {(method["kind"], method["method"]): method["tokens_per_second"] for method in every}
    off, alone = speeds["off", "off"], found.get("alone", [])
    best = max(speed for (kind, name), speed in speeds.items() if kind in ("arm", "off") and name not in alone)
    return [speeds["policy", "auto"] / off], [best / off]


def turns(
    plan: str, profile: str, kind: str, engine: str
) -> Callable[[dict[str, Any]], tuple[list[float], list[float]]]:
    """Of reproduction.turns: auto and the best of off and the fixed lengths, over the engine without speculation."""

    def read(found: dict[str, Any]) -> tuple[list[float], list[float]]:
        wanted = {"plan": plan, "profile": profile, "kind": kind, "engine": engine}
        mine = [one for one in found["summary"] if wanted.items() <= one.items()]
        auto = {one["batch"]: one["ratio"] for one in mine if one["policy"] == "auto"}
        alone = [one for one in mine if one["policy"] == "off" or one["policy"].isdigit()]
        fixed = [max(one["ratio"] for one in alone if one["batch"] == n) for n in sorted(auto)]
        return [auto[n] for n in sorted(auto)], fixed

    return read


def drafters(found: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Of wager lab drafters: all of them in one engine."""
    return [one["throughput_ratio"] for one in found["compared"] if one["method"] == "together"], []


READ = [
    *[generated] * 11,
    turns("adaptive", "well", "chat", "8B head"),
    turns("adaptive", "fair", "chat", "8B head"),
    turns("adaptive", "bad", "chat", "8B head"),
    turns("default", "", "copy", "matching"),
    turns("default", "", "chat", "matching"),
    drafters,
]


def numbers(cell: str) -> list[float]:
    return [] if cell == "not measured" else [float(number) for number in cell.split(", ")]


@pytest.mark.parametrize("at", range(len(READ)))
def test_a_figure_is_the_one_of_its_result(at: int) -> None:
    _, requests, auto, fixed, machine, file = rows()[at]
    found = result(file)
    measured, best = READ[at](found)
    assert numbers(auto) == pytest.approx(measured, abs=ROUNDED)
    assert len(numbers(requests)) == len(measured)
    if numbers(fixed):
        assert numbers(fixed) == pytest.approx(best, abs=ROUNDED)
    assert found["date"] in machine
    unknown = found["commit"].startswith("unknown")
    assert ("†" in machine) == unknown, "a result from before the restructuring is marked, and no other"


def test_the_text_says_how_often_a_fixed_setting_is_ahead_of_auto() -> None:
    pairs = [pair for row in rows() for pair in zip(numbers(row[2]), numbers(row[3]), strict=False)]
    ahead = [(auto, fixed) for auto, fixed in pairs if fixed > auto]
    auto, fixed = max(ahead, key=lambda pair: pair[1] / pair[0])
    text = " ".join(BENCH.read_text(encoding="utf-8").split())
    assert f"In {len(ahead)} of the {len(pairs)} values with a best fixed setting that one is ahead of `auto`" in text
    assert f"({fixed:.2f} against {auto:.2f})" in text


def test_what_is_over_transformers_stands_beside_what_is_over_wagers_own_plain_decoding() -> None:
    speeds = {method["method"]: method["speedup"] for method in result(rows()[0][5])["methods"]}
    assert speeds["transformers"] == 1
    text = " ".join(BENCH.read_text(encoding="utf-8").split())
    assert f"{speeds['auto']:.1f} for `auto` and {speeds['off']:.1f} for wager without speculation" in text


def test_every_row_is_checked() -> None:
    assert len(rows()) == len(READ)


def test_every_row_of_the_readme_is_one_of_the_whole_table() -> None:
    whole = [[*row[1:5], row[5].replace("../", "")] for row in rows()]
    shown = [row[1:] for row in rows(README)]
    assert 0 < len(shown) <= ROWS
    for row in shown:
        assert row in whole


def test_the_readme_keeps_the_losses_and_says_that_fixed_settings_are_ahead() -> None:
    lost = [row[5].rpartition("/")[2] for row in rows() if min(numbers(row[2])) < 1]
    shown = [row[5].rpartition("/")[2] for row in rows(README) if min(numbers(row[2])) < 1]
    assert shown == lost
    pairs = [pair for row in rows(README) for pair in zip(numbers(row[2]), numbers(row[3]), strict=False)]
    ahead = sum(fixed > auto for auto, fixed in pairs)
    told = f"The best fixed setting is ahead of `auto` in {ahead} of the {len(pairs)} values that have one"
    assert told in README.read_text(encoding="utf-8")


def test_the_chart_is_described_by_the_figures_of_its_result() -> None:
    text = README.read_text(encoding="utf-8")
    told = re.search(r"auto at (\S+) times plain decoding, fixed arms between (\S+) and (\S+)\]", text)
    name = re.search(r"chart of `wager report (results/\S+)`", text)
    assert told is not None
    assert name is not None
    found = json.loads((ROOT / name[1]).read_text())
    arms = [row["over_off"] for row in found["methods"] if row["kind"] == "arm"]
    auto = next(row["over_off"] for row in found["methods"] if row["method"] == "auto")
    assert [float(number) for number in told.groups()] == pytest.approx([auto, min(arms), max(arms)], abs=ROUNDED)
    assert found["date"] in text


def test_the_readme_fits_two_screens_and_shows_its_use_first() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LINES
    parts = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
    assert parts == ["Use it", "Serve it", "Does it pay?", "How it works", "More"]
    assert any("wager bench" in block.code for block in blocks(README))


def test_pictures_are_there_and_small() -> None:
    shown = re.findall(r"!\[[^\]]+\]\((\S+)\)", README.read_text(encoding="utf-8"))
    assert len(shown) == 3
    for name in shown:
        assert (ROOT / name).stat().st_size < PICTURES, name
    for drawing in (ROOT / "docs/img").glob("*.svg"):
        assert not re.findall(r"(?:href=|url\()['\"]?https?:", drawing.read_text()), f"{drawing.name} fetches something"
