"""The report on files of reproduction.turns: throughput by load, every number as in the file, losses named."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from commands import Wager, one_sentence
from report_files import RESULTS, Tables, a_turn, put, turns_of

from wager.report.page import figures, render
from wager.report.read import read
from wager.report.scales import TIMES

# Those with draft models have rows of stock vLLM, which the reference below does not know.
FILES = sorted(path for path in RESULTS.glob("serving-*.json") if "draft-models" not in path.stem)
MADE = [path for path in FILES if json.loads(path.read_text()).get("kind") == "turns"]
NAMES = {"none": "no speculation", "adaptive": "vLLM's adaptive"}


def loads_of(held: dict[str, Any]) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """Rows under constant loads, by plan, profile and kind of prompts."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in held["summary"]:
        if "batch" in row:
            found.setdefault((row["plan"], row["profile"], row["kind"]), []).append(row)
    return found


def shown(path: Path) -> str:
    return render([read(path)])


def both() -> list[dict[str, Any]]:
    """Two loads: auto loses at the second, where the best fixed length is off."""
    rows = [a_turn("none", n, 1.0, "plain") for n in (1, 16)]
    for policy, ratios in {"off": (1.01, 0.97), "2": (1.5, 0.8), "4": (2.25, 0.6), "auto": (2.0, 0.95)}.items():
        rows += [a_turn(policy, n, ratio) for n, ratio in zip((1, 16), ratios, strict=True)]
    return rows


def test_all_ten_files_of_turns_are_tried() -> None:
    assert len(MADE) == 10


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.stem)
def test_every_ratio_and_its_spread_are_the_files(path: Path) -> None:
    groups = loads_of(json.loads(path.read_text()))
    made = read(path)
    assert len(made.cards) == len(groups)
    for card, (key, rows) in zip(made.cards, groups.items(), strict=True):
        _, profile, kind = key
        assert f"{kind} prompts" + f", profile {profile}" * bool(profile) in card.title
        points = [int(point) for point in card.table.head[1:]]
        assert points == sorted({row["batch"] for row in rows})
        cells = {(str(name), n): cell for name, *own in card.table.rows for n, cell in zip(points, own, strict=True)}
        several = len({row["engine"] for row in rows if row["policy"] in ("auto", "off")}) > 1
        assert len(cells) == len(rows), "every row of the file once"
        drawn = [str(draw(330)) for _, draw in card.panels]
        for row in rows:
            policy = row["policy"]
            name = NAMES.get(policy) or (f"fixed {policy}" if policy.isdigit() else policy)
            name += f" ({row['engine']})" if several and policy != "none" else ""
            cell: Any = cells[name, row["batch"]]
            assert cell.number == row["ratio"]
            assert cell.said == f"{row['ratio']:.3f} ({row['least']:.2f} to {row['most']:.2f})"
            tip = f"least and most over rounds: {row['least']:.3f} to {row['most']:.3f}"
            assert tip in drawn[points.index(row["batch"])]


@pytest.mark.parametrize(
    ("name", "values"),
    {
        "serving-8b-adaptive-h200": ["2.01, 2.15, 1.89 and 1.22", "2.36 (fixed 4), 2.14 (fixed 4), 1.85 (fixed 4)"],
        "serving-default-h200": [
            "2.59, 2.06, 1.77 and 2.20",
            "0.95, 1.03, 0.89 and 1.28 times as fast",
            "with 1 and 32.",
        ],
        "serving-chats-h200": ["0.98, 1.05, 1.00 and 1.16 times as fast"],
    }.items(),
)
def test_the_rows_of_the_readme_can_be_read_off_the_head_of_the_page(name: str, values: list[str]) -> None:
    head = shown(RESULTS / f"{name}.json").partition("</header>")[0]
    assert all(value in head for value in values)


def test_the_headline_names_auto_at_each_load_its_losses_and_the_best_fixed_length(tmp_path: Path) -> None:
    made = read(put(tmp_path / "turns.json", turns_of(both())))
    auto = "auto (head) serves chat prompts: 2.00 and 0.95 times as fast as no speculation with 1 and 16 requests"
    best = "the best fixed length, known only afterwards, reaches 2.25 (fixed 4) and 0.97 (off)"
    assert made.verdict == [f"{auto}, a loss with 16; {best}."]
    assert [(big.value, big.label) for big in made.figures] == [
        (f"2.00{TIMES}", "1 request"),
        (f"0.95{TIMES}", "16 requests"),
    ]
    page = render([made])
    assert re.findall(r'class="cell best"[^>]*data-tip="([^"\n]*)\n', page) == ["off, 16", "fixed 4, 1"]
    losses = re.findall(r'--hue:var\(--c2\)[^>]*data-tip="([^"\n]*)\n', page)
    assert losses == ["off, 16", "fixed 2, 16", "fixed 4, 16", "auto, 16"]
    assert "NVIDIA H200" in page


def test_bars_are_as_long_as_their_ratios_and_coloured_by_class(tmp_path: Path) -> None:
    rows = [*both(), *(a_turn("adaptive", n, 1.25, "adaptive") for n in (1, 16))]
    (card,) = read(put(tmp_path / "turns.json", turns_of(rows))).cards
    assert [heading for heading, _ in card.panels] == ["1 request", "16 requests"]
    drawn = str(card.panels[0][1](330))
    bars = re.findall(r'width="([\d.]+)" height="14" rx="3" style="fill:([^"]*)"', drawn)
    long = [float(width) for width, _ in bars]
    assert [one / long[0] for one in long] == pytest.approx([1.0, 1.01, 1.5, 2.25, 1.25, 2.0], rel=0.01)
    colours = [colour for _, colour in bars]
    assert colours[2] == colours[3], "two fixed lengths"
    assert len(set(colours)) == 5
    assert colours[-1] == "var(--c1)"
    assert {key.colour for key in card.legend} == set(colours)


def test_a_file_without_auto_is_about_its_fastest_method(tmp_path: Path) -> None:
    rows = [row for row in both() if row["policy"] != "auto"]
    made = read(put(tmp_path / "turns.json", turns_of(rows)))
    said = "fixed 4 (head) serves chat prompts: 2.25 and 0.60 times as fast as no speculation with 1 and 16 requests"
    assert made.verdict == [f"{said}, a loss with 16."]
    assert "auto" not in render([made]).partition("<main>")[2].partition('<section id="missing"')[0]


def test_a_single_load_has_one_wide_chart(tmp_path: Path) -> None:
    rows = [row for row in both() if row["batch"] == 1]
    page = shown(put(tmp_path / "turns.json", turns_of(rows)))
    assert "2.00 times as fast as no speculation with 1 request." in page
    assert 'class="panels"' not in page
    assert 'viewBox="0 0 1062 ' in page
    assert Tables(page).of["Serving, by load: chat prompts"]["auto"] == [2.0]


def test_a_method_that_was_not_run_at_a_load_has_no_number_there(tmp_path: Path) -> None:
    rows = [row for row in both() if (row["policy"], row["batch"]) not in (("auto", 16), ("4", 1))]
    made = read(put(tmp_path / "turns.json", turns_of(rows)))
    table = Tables(render([made])).of["Serving, by load: chat prompts"]
    assert table["auto"] == [2.0, None]
    assert table["fixed 4"] == [None, 0.6]
    assert made.verdict[0].endswith(
        "with 1 request; the best fixed length, known only afterwards, reaches 1.50 (fixed 2)."
    )


def test_several_plans_and_loads_that_differ_are_told_apart_and_what_is_not_shown_is_said(tmp_path: Path) -> None:
    others = [a_turn("none", 4, 1.0, "plain"), a_turn("auto", 4, 0.9)]
    rows = [*both(), *({**row, "plan": "peers", "profile": "bad"} for row in others), {"plan": "rates", "load": "4/s"}]
    made = read(put(tmp_path / "turns.json", turns_of(rows)))
    assert [card.title.partition(": ")[2] for card in made.cards] == [
        "chat prompts (plan heads)", "chat prompts, profile bad (plan peers)",
    ]  # fmt: skip
    assert made.verdict[1] == "Chat prompts, profile bad: auto (head) 0.90 with 4 requests, a loss."
    assert made.cards[0].note.endswith("Also in this file, not shown: rates.")
    assert "set probabilities" in made.cards[1].note
    assert "set probabilities" not in made.cards[0].note


def test_it_stands_beside_other_files(tmp_path: Path) -> None:
    paths = [RESULTS / "serving-auto-cpu.json", put(tmp_path / "turns.json", turns_of(both()))]
    materials = [read(path) for path in paths]
    assert [card.kind for card in figures(materials)] == ["load"] * 3
    assert render(materials).count('<section id="load">') == 1


BAD: dict[str, tuple[Any, str]] = {
    "no ratio's spread": ([{k: v for k, v in a_turn("auto", 1, 2.0).items() if k != "least"}], "lacks 'least'"),
    "a word for a number": ([a_turn("auto", 1, 2.0, most="many")], "does not hold together"),
    "a spread beside its ratio": ([a_turn("auto", 1, 2.0, most=1.0)], "not 2.0 in 1.8 to 1.0"),
    "a ratio of nothing": ([a_turn("auto", 1, 0.0)], "a ratio lies between its least and its most above 0"),
    "a load of nothing": ([a_turn("auto", 0, 2.0)], "a load is at least 1 request, not 0"),
    "twice": ([a_turn("auto", 1, 2.0), a_turn("auto", 1, 2.5)], "auto on head with 1 request is there twice"),
    "nothing compared": ([a_turn("none", 1, 1.0, "plain")], "needs at least one method beside no speculation"),
    "rows that are none": (["auto"], "does not hold together"),
    "no row": ([], "holds nothing a report shows: it has no rows yet"),
    "other plans": ([{"plan": "stress", "engine": "all"}], "holds nothing a report shows: its plans, stress,"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_malformed_file_is_refused_in_one_sentence(case: str, tmp_path: Path, cli: Wager) -> None:
    rows, said = BAD[case]
    bad, out = put(tmp_path / "turns.json", turns_of(rows)), tmp_path / "page.html"
    done = cli("report", bad, "-o", out)
    one_sentence(done, said)
    assert "turns.json" in done.err
    assert not out.exists()
