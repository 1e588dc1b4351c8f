"""The report: every number on the page is one of its files', and no file leaves half a page."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_files import ARMS, ONE, Tables, a_run, a_text, put, rounds_of, write_trace

from wager.bench import verdict
from wager.cli import main
from wager.core import trace as traces
from wager.report.charts import (
    Axes,
    Bar,
    Line,
    Scale,
    Slab,
    band_chart,
    bar_chart,
    line_chart,
    linear_ticks,
    number,
    rounded_up,
    width_of,
    x_labels,
)
from wager.report.colours import Palette
from wager.report.figures.choice import columns
from wager.report.figures.survival import curve
from wager.report.live import follow
from wager.report.page import MAKES, figures, render, shortened
from wager.report.read import read

RESULTS = Path(__file__).parents[1] / "results"
KEPT = (
    "serving-auto-cpu.json", "serving-cpu.json", "drafters-cpu.json", "engine-cpu.json", "engine-h200.json",
    "regret.json", "regret-auto.json", "load-switches.json", "spec-h200.json", "eagle-cpu.json", "generate-cpu.json",
    "replay-cpu.json", "phases.json", "ablations-h200.json",
)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return put(tmp_path / "run.json", a_run())


def kept(name: str) -> dict[str, Any]:
    return dict(json.loads((RESULTS / name).read_text()))


def tables(*paths: Path) -> Tables:
    return Tables(render([read(path) for path in paths]))


def cli(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["wager", "report", *map(str, arguments)])
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


# -- the numbers


def test_speed_ups_are_tokens_over_seconds_of_the_answers(run: Path) -> None:
    held = a_run()
    shown, task_of = tables(run), {p["id"]: p["task"] for p in held["prompts"]}
    title = "Speed-up by task and method"

    def speed(method: str, task: str) -> float:
        own = [a for a in held["answers"] if a["method"] == method and task in ("all tasks", task_of[a["prompt"]])]
        return float(sum(a["tokens"] for a in own) / sum(a["seconds"] for a in own))

    head = shown.columns[title]
    assert head == ["method", "all tasks", "qa", "rag", "summarization"]
    assert list(shown.of[title]) == [m["name"] for m in held["methods"]]
    for method, values in shown.of[title].items():
        for task, value in zip(head[1:], values, strict=True):
            assert value == pytest.approx(speed(method, task) / speed("transformers", task), abs=1e-4), (method, task)


def test_whiskers_are_the_runs_own_intervals(run: Path) -> None:
    rows = a_run()["summary"]["tasks"][0]["methods"]
    methods = read(run).speedups[0].methods
    for row, method in zip(rows, methods, strict=True):
        assert [method.overall.low, method.overall.high] == (row["interval"] or [None, None])
    assert methods[-1].overall.low is not None
    assert "95 % intervals" in render([read(run)])


@pytest.mark.parametrize("kinds", [("plain", "peer", "off", "arm", "policy"), ("plain", "off", "arm"), ("plain",)])
def test_the_big_figures_are_of_the_method_that_the_verdict_is_about(kinds: tuple[str, ...], tmp_path: Path) -> None:
    held = a_run()
    for task in held["summary"]["tasks"]:
        task["methods"] = [row for row in task["methods"] if row["kind"] in kinds]
    about = verdict.headline(held["summary"]["tasks"][0]["methods"])
    assert read(put(tmp_path / "run.json", held)).figures[0].label == f"{about['method']} over transformers"


def test_regret_ends_where_the_runs_summary_says(run: Path) -> None:
    held = a_run()
    every = held["summary"]["tasks"][0]
    shown = tables(run).of["Regret over time"]
    assert list(shown) == ["auto", "ucbspec"]
    for row in every["methods"]:
        if row["kind"] == "policy":
            assert shown[row["method"]][1] == pytest.approx(row["regret_seconds"], abs=1e-3)
    seconds = {
        name: sum(a["seconds"] for a in held["answers"] if a["method"] == name) for name in ("auto", every["best_arm"])
    }
    assert shown["auto"][1] == pytest.approx(seconds["auto"] - seconds[every["best_arm"]])


def test_arm_choice_counts_the_rounds(run: Path) -> None:
    counts = Counter(ARMS[r[0]] for a in a_run()["answers"] if a["method"] == "auto" for r in a["rounds"])
    shown = tables(run).of["Arm choice over time: auto"]
    assert {arm: values[0] for arm, values in shown.items()} == counts
    assert sum(values[1] or 0.0 for values in shown.values()) == pytest.approx(1)


@given(st.lists(st.sampled_from(ARMS), min_size=1, max_size=700))
def test_the_band_holds_every_round_once(arms: list[str]) -> None:
    slabs = columns(arms, ARMS)
    assert [slab.start for slab in slabs[1:]] == [slab.end for slab in slabs[:-1]]
    held: Counter[str] = Counter()
    for slab in slabs:
        assert sum(share for _, share in slab.parts) == pytest.approx(1)
        held.update({arm: round(share * (slab.end - slab.start)) for arm, share in slab.parts})
    assert +held == Counter(arms)


def test_survival_is_right_where_drafts_end_early() -> None:
    """Half the drafts stop after one token; what came after it is to be judged by the others alone."""
    pairs = [(1, 1)] * 50 + [(1, 0)] * 50 + [(2, 2)] * 25 + [(2, 1)] * 25 + [(2, 0)] * 50
    steps = curve(pairs)
    assert [s.survival for s in steps] == pytest.approx([0.5, 0.25])
    assert [s.at_risk for s in steps] == [200, 50]
    naive = sum(accepted >= 2 for _, accepted in pairs) / len(pairs)
    assert naive == pytest.approx(0.125), "counting short drafts as rejected would halve it"
    # Greenwood by hand: S² (d₁/(n₁(n₁ − d₁)) + d₂/(n₂(n₂ − d₂)))
    assert steps[1].half == pytest.approx(1.96 * 0.25 * (100 / (200 * 100) + 25 / (50 * 25)) ** 0.5)


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), min_size=1, max_size=60))
def test_survival_falls_and_matches_plain_counting_for_drafts_of_one_length(drawn: list[tuple[int, int]]) -> None:
    steps = curve([(drafted, min(drafted, accepted)) for drafted, accepted in drawn])
    lived = [1.0, *(s.survival for s in steps)]
    assert lived == sorted(lived, reverse=True)
    same = [(8, accepted) for _, accepted in drawn]
    for step in curve(same):
        assert step.survival == pytest.approx(sum(a >= step.k for _, a in same) / len(same))


def test_survival_on_the_page_is_that_of_the_runs_rounds(run: Path) -> None:
    rounds = [r for a in a_run()["answers"] for r in a["rounds"] if r[1] and ARMS[r[0]].startswith("prompt-lookup")]
    values = tables(run).of["How far drafts live"]["prompt-lookup"]
    assert values[0] == len(rounds)
    assert values[1] == pytest.approx(sum(r[2] >= 1 for r in rounds) / len(rounds))


def test_verify_cost_is_the_median_of_the_rounds_of_a_width(run: Path) -> None:
    held = a_run()
    shown = tables(run).of["Verify cost by width, CPU, 2 threads"]
    plain = [r[5] for a in held["answers"] for r in a["rounds"] if r[1] == 0]
    assert shown["1"] == [pytest.approx(statistics.median(plain))]
    assert shown["1"][0] == pytest.approx(ONE, rel=0.1)


def test_methods_compared_are_as_in_their_file() -> None:
    held, shown = kept("spec-h200.json"), tables(RESULTS / "spec-h200.json")
    title = "Speed-up by task and method"
    for row in held["methods"]:
        values = shown.of[title][row["method"].removeprefix("wager ")]
        assert values == [row["ratio"], *(row["tasks"][task]["ratio"] for task in shown.columns[title][2:])]
    auto = next(row for row in held["methods"] if row["method"] == "wager auto")
    arms = shown.columns["Arm choice by policy"][1:]
    assert shown.of["Arm choice by policy"]["auto"] == [auto["arms"].get(arm, 0.0) for arm in arms]
    assert "quartiles over prompts" in render([read(RESULTS / "spec-h200.json")])


def test_engines_are_as_in_their_file() -> None:
    held = kept("engine-h200.json")
    shown = tables(RESULTS / "engine-h200.json").of["Verify cost by width, NVIDIA H200"]
    for row in held["widths"]:
        assert shown[str(row["width"])] == [row["seconds"][name]["median"] for name in ("wager", "transformers")]


def test_simulations_are_as_in_their_file() -> None:
    held = kept("regret.json")
    shown = tables(RESULTS / "regret.json").of["Regret over time, simulated"]
    for policy in held["policies"]:
        assert shown[policy["policy"]][1] == policy["regret_curve"][-1]["mean"]
    for name, line in held["bounds"].items():
        assert shown[name][1] == line[-1]


def test_replays_are_as_in_their_file() -> None:
    held, shown = kept("replay-cpu.json"), tables(RESULTS / "replay-cpu.json")
    title = "Speed-up by task and method"
    for row in held["rows"]:
        values = dict(zip(shown.columns[title][1:], shown.of[title][row["policy"]], strict=True))
        assert values.pop("all tasks") == row["to_off"]["mean"]
        for task in held["tasks"]:
            if row["policy"] in task["policies"]:
                assert values[task["label"]] == task["policies"][row["policy"]]["mean"]


def test_servers_are_as_in_their_file() -> None:
    held, path = kept("serving-auto-cpu.json"), RESULTS / "serving-auto-cpu.json"
    shown, page = tables(path), render([read(path)])
    for row in held["compared"]:
        column = shown.columns["Choice of length by load"].index(row["point"]) - 1
        assert (
            shown.of["Choice of length by load"][row["method"]][column] == row["throughput_ratio"]
            if (row["method"] != "no speculation")
            else row["throughput_ratio"] == 1
        )
        taken = [
            t["latency_seconds"]["mean"]
            for t in held["turns"]
            if (t["method"], t["point"]) == (row["method"], row["point"])
        ]
        assert shown.of["Latency against load"][row["method"]][column] == statistics.median(taken)
    for point in ("1", "4", "12", "trace"):
        own = {
            r["method"]: r["throughput_ratio"]
            for r in held["compared"]
            if r["point"] == point and (r["method"] == "off" or r["method"].startswith("fixed"))
        }
        best = max(own, key=lambda method: own[method])
        assert re.search(rf'class="cell best"[^>]*data-tip="{best}, {point}\n', page), (point, best)
    assert "0 of 1,122 texts differ" in page


def test_a_trace_is_counted_whole(tmp_path: Path) -> None:
    rounds = rounds_of(300)
    path = write_trace(tmp_path / "made-up.trace", rounds, ("qa", "rag"))
    made = read(path)
    shown = Tables(render([made]))
    assert {arm: v[0] for arm, v in shown.of["Arm choice over time: auto"].items()} == Counter(
        str(r.arm) for r in rounds
    )
    assert made.choices[0].marks == [(0, "qa"), (150, "rag")]
    tokens = sum(r.emitted for r in rounds)
    assert made.figures[0].value == f"{tokens:,}"
    assert made.figures[2].value == f"{tokens / 300:.2f}"
    assert "suffix (tree)" in shown.of["How far drafts live"]


def test_a_servers_trace_shows_its_choice_by_load(tmp_path: Path) -> None:
    rounds = rounds_of(200, batches=(1, 4))
    shown = tables(write_trace(tmp_path / "served.trace", rounds))
    at = shown.columns["Choice of length by load"].index("off") - 1
    four = [r for r in rounds if r.batch == 4]
    assert shown.of["Choice of length by load"]["4"][0] == len(four)
    assert shown.of["Choice of length by load"]["4"][at] == sum(str(r.arm) == "off" for r in four) / len(four)


# -- the token view


def tokens_of(page: str) -> list[tuple[str, str]]:
    found = re.findall(r'<span class="t( [^"]*)?" style="--t:[^"]*"[^>]*>(.*?)</span>', page, re.S)
    plain = [(kind, re.sub(r'<i class="sign">.</i>', "", text)) for kind, text in found]
    return [(kind.strip(), text) for kind, text in plain]


def test_the_token_view_is_the_text_itself(tmp_path: Path) -> None:
    held = a_text()
    page = render([read(put(tmp_path / "text.json", held))])
    shown = tokens_of(page)
    whole = "".join(text for _, text in shown)
    assert whole == held["text"].replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert ["bonus" in kind for kind, _ in shown] == [who == "bonus" for who in held["sources"]]
    assert "round 1, suffix:4: 2 accepted\nrejected: “ &amp; calm”" in page
    assert '<span class="rejected" aria-hidden="true"> &amp; calm</span>' in page


def test_every_text_of_a_run_is_shown_with_its_tokens(run: Path) -> None:
    made = read(run)
    held = [a for a in a_run()["answers"] if a.get("pieces")]
    assert len(made.texts) == len(held) == 6
    assert [text.title for text in made.texts][:3] == ["qa-0 · auto", "rag-0 · auto", "summarization-0 · auto"]
    count = sum(len(tokens) for a in held for _, tokens, _ in a["pieces"])
    assert len(tokens_of(render([made]))) == count


def test_a_text_without_words_still_shows_who_brought_each_token(tmp_path: Path) -> None:
    page = render([read(put(tmp_path / "text.json", a_text(pieces=False)))])
    assert len(tokens_of(page)) == 5
    assert "write it again with wager generate --json" in page


# -- the page


def test_every_figure_names_its_file_and_its_command(run: Path) -> None:
    paths = [run, *(RESULTS / name for name in ("serving-auto-cpu.json", "engine-cpu.json", "regret.json"))]
    materials = [read(path) for path in paths]
    page = render(materials)
    cards = re.findall(r"<figure.*?</figure>", page, re.S)
    drawn = figures(materials)
    assert len(cards) == len(drawn) > 9
    for card, figure in zip(cards, drawn, strict=True):
        assert f"Source: {figure.source.file}" in card
        assert f"Command: <code>{figure.source.command}</code>" in card
        assert figure.source.command
        assert "<table" in card, "the numbers behind every chart can be read"
    for path in paths:
        assert path.name in page


def test_the_page_needs_nothing_from_outside(run: Path) -> None:
    page = render([read(run), *(read(RESULTS / name) for name in KEPT)])
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#)|url\(|@import|https?://""", page)
    assert "default-src 'none'" in page
    assert page.count("<script>") == 1
    assert 'http-equiv="refresh"' not in page
    assert page == render([read(run), *(read(RESULTS / name) for name in KEPT)]), "the same files give the same page"
    assert str(Path.home()) not in page


@pytest.mark.parametrize("name", KEPT)
def test_every_kept_result_of_a_known_kind_makes_a_page(name: str) -> None:
    page = render([read(RESULTS / name)])
    assert re.search(r"<h1>.+</h1>", page)
    assert "nan" not in re.findall(r'(?:cx|cy|x|y|points|d)="[^"]*(nan|inf)', page)


def test_what_a_file_says_is_shown_and_never_run(tmp_path: Path) -> None:
    held = a_run()
    evil = '<script>alert("1")</script>'
    for answer in held["answers"]:
        answer["prompt"] = evil if answer["prompt"] == "qa-0" else answer["prompt"]
        answer["method"] = evil if answer["method"] == "ucbspec" else answer["method"]
    held["prompts"][0] = {"id": evil, "task": evil, "tokens": 3}
    held["methods"] = [{**m, "name": evil} if m["name"] == "ucbspec" else m for m in held["methods"]]
    held["summary"] = json.loads(json.dumps(held["summary"]).replace('"ucbspec"', json.dumps(evil)))
    held["verdict"], held["command"] = [evil], f"wager bench {evil}"
    page = render([read(put(tmp_path / "run.json", held))])
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


def test_charts_appear_only_where_there_is_data_and_the_page_says_what_makes_the_others() -> None:
    page = render([read(RESULTS / "engine-cpu.json")])
    assert [f.kind for f in figures([read(RESULTS / "engine-cpu.json")])] == ["cost"]
    missing = page.split("Not on this page")[1]
    for kind, (name, commands) in MAKES.items():
        assert (f"<b>{name}</b>" in missing) == (kind != "cost")
        assert (f"<code>{commands[0]}</code>" in missing) or kind == "cost"


def test_a_run_that_is_not_finished_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    whole = a_run()
    last = whole["prompts"][-1]["id"]
    answers = [a for a in whole["answers"] if a["prompt"] != last or a["method"] == "off"]
    cut = {**whole, "complete": False, "answers": [], "summary": {}, "verdict": []}
    lines = [*(json.dumps(a) for a in answers), '{"prompt": "qa-0", "met']
    (tmp_path / "answers.jsonl").write_text("\n".join(lines))
    page = render([read(put(tmp_path / "run.json", cut))])
    assert "run.json is not finished" in page
    assert Tables(page).of["Arm choice over time: auto"]
    assert read(tmp_path).choices[0].arms, "a folder stands for its run"


# -- bad input


def _without(held: dict[str, Any], *path: str | int) -> dict[str, Any]:
    at: Any = held
    for key in path[:-1]:
        at = at[key]
    del at[path[-1]]
    return held


BAD: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "neither JSON nor a trace"),
    "prose": ("hello", "neither JSON nor a trace"),
    "bytes": (b"\xff\xfe\x00\x01", "is not text"),
    "gzip": (b"\x1f\x8b\x08\x00rest", "does not unpack"),
    "damaged gzip": (b"\x1f\x8b\x08\0\0\0\0\0\0\3garbage garbage", "does not unpack"),
    "not a number": (json.dumps({**a_text(), "summary": float("nan")}), "neither JSON nor a trace"),
    "list": ("[1, 2]", "no JSON object"),
    "stranger": ('{"command": "wager bench memory", "rows": []}', "written by: wager bench memory"),
    "version": ('{"format": "wager-run", "version": 9}', "version 9"),
    "old trace": ('{"format": "wager-trace", "version": 7, "meta": {}}\n', "version 7"),
    "broken trace": ('{"format": "wager-trace", "version": 2, "meta": {}}\n{"round": {}}\n{"x": 1}\n', "line 2"),
    "no tokens": (json.dumps(_without(a_run(each=1), "answers", 0, "tokens")), "lacks 'tokens'"),
    "no summary of a task": (json.dumps(_without(a_run(each=1), "summary", "tasks", 0, "methods")), "lacks 'methods'"),
    "odd kind": (json.dumps({**a_run(each=1), "methods": [{"name": "x", "kind": "odd"}]}), "not 'odd'"),
    "unknown arm": (json.dumps({**a_run(each=1), "arms": ["off"]}), "does not hold together"),
    "no widths": ('{"widths": [], "own_seconds_per_round": {"median": 1}, "context": 3}', "lacks"),
    "words for numbers": (json.dumps({**a_text(), "summary": "none"}), "does not hold together"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_cannot_be_read_is_named_in_one_sentence_and_no_page_is_written(
    case: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content, said = BAD[case]
    bad, out = tmp_path / "bad.json", tmp_path / "report.html"
    bad.write_bytes(content if isinstance(content, bytes) else content.encode())
    out.write_text("before")
    assert cli(monkeypatch, run, bad, "-o", out) == 2
    told = capsys.readouterr().err.strip()
    assert "bad.json" in told
    assert said in told
    assert "\n" not in told
    assert out.read_text() == "before"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.json", "report.html", "run.json"]


def test_the_command_line(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    assert cli(monkeypatch, run, RESULTS / "engine-cpu.json", "-o", out) == 0
    assert out.read_text().startswith("<!doctype html>")
    assert "page.html" in capsys.readouterr().err
    for wrong, said in {
        (): "name files to report",
        (run, "--live", run): "name files to report",
        (tmp_path / "none.json",): "none.json",
        (run, "-o", run): "is one of the files to read",
        (run, "-o", tmp_path / "no" / "page.html"): "cannot write",
        ("--live", run, "--every", "0"): "--every is 0.2 to 3,600 seconds",
        ("--live", run, "--every", "inf", "--idle", "inf"): "--every is 0.2 to 3,600 seconds",
        ("--live", run): "is not a wager trace",
    }.items():
        given_out = () if "-o" in wrong else ("-o", out)
        assert cli(monkeypatch, *wrong, *given_out) == 2, wrong
        assert said in capsys.readouterr().err


# -- live


class Clock:
    """Time that passes when someone sleeps; then the next thing happens."""

    def __init__(self, *happens: Any) -> None:
        self.now, self.happens, self.pages = 0.0, list(happens), []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.happens:
            self.happens.pop(0)()


def test_a_live_page_grows_with_its_trace_and_ends_without_a_refresh(tmp_path: Path) -> None:
    rounds = rounds_of(40)
    path, page = write_trace(tmp_path / "live.trace", rounds[:10]), tmp_path / "report.html"
    seen: list[str] = []

    def add(some: list[Any], rest: str = "") -> None:
        seen.append(page.read_text())
        with path.open("a") as file:
            file.write("".join(traces.encode(r) + "\n" for r in some) + rest)

    half = traces.encode(rounds[20])
    clock = Clock(
        lambda: add(rounds[10:20], half[:15]),
        lambda: add([], half[15:] + "\n"),
        lambda: add(rounds[21:]),
    )
    follow(path, page, every=2.0, idle=6.0, sleep=clock.sleep, clock=clock)
    assert all('<meta http-equiv="refresh" content="2">' in each for each in seen)
    counted = [re.search(r"in (\d+) rounds", each) for each in seen]
    assert [int(found[1]) for found in counted if found] == [10, 20, 21]
    last = page.read_text()
    assert "refresh" not in last
    assert 'class="live"' not in last
    assert "in 40 rounds" in last
    assert clock.now == 3 * 2 + 6, "it waited as long as told for more"


def test_ctrl_c_and_a_trace_that_goes_leave_the_last_page(tmp_path: Path) -> None:
    path, page = write_trace(tmp_path / "live.trace", rounds_of(12)), tmp_path / "report.html"

    def interrupt() -> None:
        raise KeyboardInterrupt

    for happens in (interrupt, path.unlink):
        clock = Clock(happens)
        follow(path, page, every=1.0, idle=9.0, sleep=clock.sleep, clock=clock)
        assert "refresh" not in page.read_text()
        assert "in 12 rounds" in page.read_text()
        assert clock.now == 1


def test_a_trace_whose_first_line_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    path, page = tmp_path / "live.trace", tmp_path / "report.html"
    whole = write_trace(tmp_path / "whole.trace", rounds_of(12)).read_text()
    path.write_text(whole[:20])
    clock = Clock(lambda: path.write_text(whole))
    follow(path, page, every=1.0, idle=2.0, sleep=clock.sleep, clock=clock)
    assert "in 12 rounds" in page.read_text()


def test_a_trace_with_no_round_yet_has_a_page(tmp_path: Path) -> None:
    assert "holds no round yet" in render([read(write_trace(tmp_path / "new.trace", []))], refresh=1.0)


# -- charts


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
    assert [number(v) for v in (0, 0.0123, 1.5, 12.34, 1234.5, 2.5e6)] == [
        "0",
        "0.0123",
        "1.50",
        "12.3",
        "1,234",
        "2.5M",
    ]
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
    band = band_chart(slabs, {"off": "grey", "suffix:4": "blue"}, (), "rounds", 600, 300, "band")
    high = {colour: float(h) for h, colour in re.findall(r'height="([\d.]+)" style="fill:(\w+)"', band)}
    assert high["blue"] == pytest.approx(3 * high["grey"], abs=0.05)


@given(st.lists(st.tuples(st.floats(0, 330), st.text("abcdefm0123", min_size=1, max_size=9)), max_size=12))
def test_labels_below_an_axis_never_touch_or_leave_the_picture(places: list[tuple[float, str]]) -> None:
    drawn = x_labels(sorted(places), 10, 330)
    ends = -1e9
    for label in drawn:
        found = re.search(r'x="([\d.-]+)".*>(.*)<', label)
        assert found is not None
        centre, half = float(found[1]), width_of(found[2]) / 2
        assert centre - half >= ends
        assert centre - half >= -0.1
        assert centre + half <= 330.1
        ends = centre + half


def test_colours_tell_drafters_and_lengths_apart() -> None:
    colours = Palette(["suffix", "prompt-lookup"]).arms(["suffix:8", "off", "suffix:4", "prompt-lookup:4"])
    assert list(colours) == ["off", "suffix:4", "suffix:8", "prompt-lookup:4"]
    assert len(set(colours.values())) == 4
    assert colours["suffix:8"] == "var(--c1)"
    assert "var(--c1)" in colours["suffix:4"]


def test_reports_need_no_torch() -> None:
    code = "import sys, wager.report.page, wager.report.read, wager.report.live; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
