"""Engines measured by turns: the schedules, and what is made of their rows."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from reproduction import turns as command
from reproduction.turn_plans import ENGINES, PLANS, PROFILES, Extent, best_lengths, dense_table, grouped, orders
from reproduction.turn_summary import against, lines, summary


def row(engine: str, policy: str, turn: int, tokens: int, processor: float = 1.0, **more: object) -> dict[str, Any]:
    load = {"plan": "default", "do": "closed", "profile": "", "kind": "chat", "batch": 8, "engine": engine}
    said = {"policy": policy, "turn": turn, "tokens": tokens, "took": 1.0, "steps": 100, "step_ms": 2.0}
    return {**load, **said, "slowest_ms": 5.0, "stalls": [], "processor_ms": (processor, processor), **more}


def test_each_turn_is_compared_with_the_plain_ones_of_its_round_and_a_round_under_way_with_nothing() -> None:
    rows = [row("plain", "none", 0, 100), row("plain again", "none", 0, 300, 2.0), row("matching", "auto", 0, 400)]
    rows += [row("matching", "auto", 1, 999)]  # nobody else has had this turn yet
    plain, matching = summary("default", rows)
    assert (plain["engine"], plain["turns"], plain["least"], plain["most"]) == ("plain", 2, 0.5, 1.5)
    assert matching["ratio"] == 2.0
    assert matching["full_speed"] == pytest.approx((400 + 999) / 2 / 100)
    assert summary("default", rows[3:]) == []


def test_every_engine_has_its_turn_at_every_load_and_the_order_is_turned_round() -> None:
    turns = [
        (order["engine"], order["policy"]) for order in orders("default", Extent(rounds=1)) if order["batch"] == 32
    ]
    assert turns[:6] == turns[11:5:-1]
    assert ("plain", "none") in turns
    assert ("matching", "off") in turns


def test_every_plan_names_engines_that_there_are_and_lasts_ten_minutes_with_loading_at_most() -> None:
    for plan in PLANS:
        turns = grouped(orders(plan, Extent()))
        assert {order["engine"] for group in turns for order in group} <= ENGINES.keys()
        # A turn of texts ends when all are there, which takes seconds.
        lasts = sum(
            max(order["seconds"] for order in group) for group in turns if group[0]["do"] not in ("sample", "texts")
        )
        assert lasts <= 420, plan
    assert {order["kind"] for order in orders("default", Extent(kinds=("chat",)))} == {"chat"}
    assert {order["engine"] for order in orders("stress", Extent(only=("head",)))} == {"head"}


def test_three_commands_measure_every_row_with_three_rounds_and_up_to_256_requests() -> None:
    given = command.arguments().parse_args(["small", "large", "rates", "--dry-run"])
    turns = command.planned(given)
    wanted = ["default", "texts", "sampled", "stress", "large-default", "adaptive", "rates"]
    assert given.plan == wanted == list(dict.fromkeys(order["plan"] for order in turns))
    for plan in ("default", "large-default", "adaptive", "rates"):
        own = [order for order in turns if order["plan"] == plan]
        assert {order["turn"] for order in own} == {-1, 0, 1, 2}
        assert plan == "rates" or {order["batch"] for order in own} == {1, 8, 32, 128, 256}
    assert "adaptive 263" in command.arguments().format_help()


def test_every_acceptance_meets_every_policy_and_the_table_comes_after_the_lengths_it_is_made_of() -> None:
    turns = orders("adaptive", Extent(rounds=1, batches=(8,)))
    first = [order["policy"] for order in turns if order["turn"] < 0 and order["profile"] == "bad"]
    assert first == ["none", "off", "1", "2", "4", "auto", "adaptive", "table"]
    assert Counter(order["profile"] for order in turns) == dict.fromkeys(PROFILES, 16)
    assert {order["seconds"] for order in turns if order["turn"] >= 0} == {0.25}


def test_the_table_has_the_best_fixed_length_of_the_nearest_load_of_the_same_acceptance() -> None:
    made = {1: (10, 20, 40), 32: (100, 300, 200), 128: (500, 400, 300)}  # requests: tokens with 0, 1 and 4 drafted
    rows = [
        row("8B head", policy, -1, tokens, batch=batch, profile="well")
        for batch, each in made.items()
        for policy, tokens in zip(("off", "1", "4"), each, strict=True)
    ]
    rows += [row("8B head", "4", 0, 9000, batch=128, profile="bad"), row("8B head", "auto", 0, 9000, profile="well")]
    rows += [row("8B head", "4", -1, 9000, batch=128, profile="well", plan="rates")]  # to learn from, not to compare
    best = best_lengths(rows, "well")
    assert best == [(1, 4), (32, 1), (128, 0)]
    table = dense_table(best, 256)
    assert len(table) == 257
    assert [table[n] for n in (1, 5, 6, 63, 64, 65, 128, 256)] == [4, 4, 1, 1, 1, 0, 0, 0]
    assert set(dense_table((), 8)) == {0, 4}


def test_auto_is_put_beside_the_best_fixed_length_and_beside_what_stock_vllm_has() -> None:
    rows = [row("8B plain", "none", 0, 100, profile="bad"), row("8B head", "off", 0, 98, profile="bad")]
    rows += [row("8B head", "2", 0, 120, profile="bad"), row("8B head", "auto", 0, 110, profile="bad")]
    rows += [row("8B adaptive", "adaptive", 0, 55, profile="bad")]
    (found,) = against(summary("default", rows))
    assert (found["best"], found["over_best"]) == ("2", pytest.approx(110 / 120))
    assert (found["over_none"], found["over_adaptive"]) == (pytest.approx(1.1), pytest.approx(2.0))
    assert "auto 1.10 (best 2): over best 0.92" in list(lines("default", summary("default", rows)))[-1]


def test_a_stress_counts_all_engines_together_and_the_one_that_failed_too() -> None:
    load = {"plan": "stress", "do": "stress", "policy": "random", "aborted": 3, "tokens": 9, "took": 2.0}
    sound = {**load, "engine": "head", "steps": 100, "finished": 40, "stalls": [{"ms": 120.0}], "slowest_ms": 120.0}
    failed = {**load, "engine": "matching", "steps": 7, "finished": 2, "error": "illegal memory access"}
    *_, every = summary("stress", [sound, failed])
    assert (every["steps"], every["finished"], every["stalls"]) == (107, 42, 1)
    assert every["errors"] == ["illegal memory access"]


def test_texts_are_equal_or_part_at_a_tie_or_elsewhere() -> None:
    load = {"plan": "texts", "do": "texts", "accepted": 2, "tokens": 12, "leads": [[], [], []]}
    true = {**load, "engine": "plain", "policy": "none", "leads": [[1.0, 2.0], [0.01, 3.0], [3.0, 0.9]]}
    rows = [{**true, "written": [[1, 2], [3, 4], [5, 6]]}]
    rows += [{**load, "engine": "head", "policy": "auto", "written": [[1, 2], [9, 4], [5, 8]]}]
    (head,) = summary("texts", rows)
    assert (head["equal"], head["ties"], head["gaps"]) == (1, 1, [0.01, 0.9])
    assert "1 of 3 texts equal, 1 ties, 1 others" in next(lines("texts", [head]))


ECHO = """
import json, sys
print(json.dumps({"gpu": "stub"}), flush=True)
for line in sys.stdin:
    order = json.loads(line)
    if order["policy"] == "off":
        sys.exit("out of memory")
    said = {"tokens": 100, "took": 1.0, "steps": 10, "step_ms": 1.0, "slowest_ms": 1.0, "processor_ms": [1.0, 1.0]}
    print(json.dumps({**order, **said, "stalls": [], "requests": 1}), flush=True)
"""


def test_a_run_goes_on_without_an_engine_that_ends_and_its_file_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = command.subprocess.Popen
    monkeypatch.setattr(
        command.subprocess, "Popen", lambda words, **how: started([words[0], "-c", ECHO, *words[3:]], **how)
    )
    out, prompts = tmp_path / "out.json", tmp_path / "prompts.json"
    prompts.write_text("{}")
    words = ["turns", "default", "--batches", "8", "--rounds", "1", "--prompts", str(prompts)]
    monkeypatch.setattr(command.sys, "argv", [*words, "--out", str(out)])
    command.main()
    said = json.loads(out.read_text())
    assert said["ended"] == {"matching": "out of memory"}
    assert [one["policy"] for one in said["turns"] if one.get("error")] == ["off"]
    assert {one["engine"] for one in said["summary"]} == {"plain", "head", "head and matching"}
    assert "head and matching" in capsys.readouterr().out
