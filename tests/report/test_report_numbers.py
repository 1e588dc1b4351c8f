"""The report's numbers: every one on the page is one of its files'."""

import json
import re
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_files import ARMS, ONE, RESULTS, Tables, a_run, put, rounds_of, write_trace

from wager.bench import verdict
from wager.report.figures.choice import columns
from wager.report.figures.lines import curve
from wager.report.page import render
from wager.report.read import read
from wager.report.scales import TIMES


def kept(name: str) -> dict[str, Any]:
    return dict(json.loads((RESULTS / name).read_text()))


def tables(*paths: Path) -> Tables:
    return Tables(render([read(path) for path in paths]))


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
    rows, made = a_run()["summary"]["tasks"][0]["methods"], read(run)
    for row, (name, overall, *_) in zip(rows, made.cards[0].table.rows, strict=True):
        spread = " ({:.2f} to {:.2f})".format(*row["interval"]) if row["interval"] else ""
        assert (name, getattr(overall, "said", "")) == (row["method"], f"{row['speedup']:.3f}{spread}")
    assert rows[-1]["interval"]
    assert "95 % intervals" in render([made])


@pytest.mark.parametrize("kinds", [("plain", "peer", "off", "arm", "policy"), ("plain", "off", "arm"), ("plain",)])
def test_the_big_figures_are_of_the_method_that_the_verdict_is_about(kinds: tuple[str, ...], tmp_path: Path) -> None:
    held = a_run()
    for task in held["summary"]["tasks"]:
        task["methods"] = [row for row in task["methods"] if row["kind"] in kinds]
    about = verdict.headline(held["summary"]["tasks"][0]["methods"])
    big, drafts = read(put(tmp_path / "run.json", held)).figures[0], about["kind"] in ("arm", "policy")
    against = "off, the same engine without speculation" if drafts else "transformers"
    assert big.label == f"{about['method']} over {against}"
    assert big.value == f"{about['over_off'] if drafts else about['speedup']:.2f}{TIMES}"


def test_regret_ends_where_the_runs_summary_says(run: Path) -> None:
    held = a_run()
    every = held["summary"]["tasks"][0]
    shown = tables(run).of["Regret over time"]
    assert list(shown) == ["auto", "ucbspec"]
    for row in every["methods"]:
        if row["kind"] == "policy":
            assert shown[row["method"]][1] == pytest.approx(row["regret_seconds"], abs=1e-3)
    ours, theirs = (
        sum(a["seconds"] for a in held["answers"] if a["method"] == name) for name in ("auto", every["best_arm"])
    )
    assert shown["auto"][1] == pytest.approx(ours - theirs)


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
    values = tables(run).of["Acceptance by draft position"]["prompt-lookup"]
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
        values = shown.of[title][row["method"]]
        assert values == [row["speedup"], *(row["tasks"][task]["speedup"] for task in shown.columns[title][2:])]
    auto = next(row for row in held["methods"] if row["method"] == "auto")
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
        plain = row["method"] == "no speculation"
        found = 1 if plain else shown.of["Choice of length by load"][row["method"]][column]
        assert found == row["throughput_ratio"]
        own = [t for t in held["turns"] if (t["method"], t["point"]) == (row["method"], row["point"])]
        taken = [t["latency_seconds"]["mean"] for t in own]
        assert shown.of["Latency against load"][row["method"]][column] == statistics.median(taken)
    for point in ("1", "4", "12", "trace"):
        rows = [r for r in held["compared"] if r["point"] == point and r["method"].startswith(("off", "fixed"))]
        best = max(rows, key=lambda row: row["throughput_ratio"])["method"]
        assert re.search(rf'class="cell best"[^>]*data-tip="{best}, {point}\n', page), (point, best)
    assert "0 of 1,122 texts differ" in page


def test_a_trace_is_counted_whole(tmp_path: Path) -> None:
    rounds = rounds_of(300)
    path = write_trace(tmp_path / "made-up.trace", rounds, ("qa", "rag"))
    made = read(path)
    shown = Tables(render([made]))
    counts = {arm: v[0] for arm, v in shown.of["Arm choice over time: auto"].items()}
    assert counts == Counter(str(r.arm) for r in rounds)
    assert re.findall(r">(qa|rag)</text>", str(made.cards[0].panels[0][1](640))) == ["qa", "rag"]
    tokens = sum(r.emitted for r in rounds)
    assert made.figures[0].value == f"{tokens:,}"
    assert made.figures[2].value == f"{tokens / 300:.2f}"
    assert "suffix (tree)" in shown.of["Acceptance by draft position"]


def test_a_servers_trace_shows_its_choice_by_load(tmp_path: Path) -> None:
    rounds = rounds_of(200, batches=(1, 4))
    shown = tables(write_trace(tmp_path / "served.trace", rounds))
    at = shown.columns["Choice of length by load"].index("off") - 1
    four = [r for r in rounds if r.batch == 4]
    assert shown.of["Choice of length by load"]["4"][0] == len(four)
    assert shown.of["Choice of length by load"]["4"][at] == sum(str(r.arm) == "off" for r in four) / len(four)
