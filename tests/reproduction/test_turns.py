"""Engines measured by turns: what is made of their rows."""

import pytest

from reproduction.turns import orders, summary


def row(engine: str, policy: str, turn: int, tokens: int, processor: float = 1.0) -> dict[str, object]:
    load = {"plan": "default", "kind": "chat", "batch": 8, "engine": engine, "policy": policy, "turn": turn}
    return {**load, "tokens": tokens, "took": 1.0, "steps": 100, "step_ms": 2.0, "slowest_ms": 5.0} | {
        "processor_ms": (processor, processor)
    }


def test_each_turn_is_compared_with_the_plain_ones_of_its_round_and_a_round_under_way_with_nothing() -> None:
    rows = [row("plain", "none", 0, 100), row("plain again", "none", 0, 300, 2.0), row("matching", "auto", 0, 400)]
    rows += [row("matching", "auto", 1, 999)]  # nobody else has had this turn yet
    plain, matching = summary("default", rows)
    assert (plain["engine"], plain["turns"], plain["least"], plain["most"]) == ("plain", 2, 0.5, 1.5)
    assert matching["ratio"] == 2.0
    assert matching["full_speed"] == pytest.approx((400 + 999) / 2 / 100)
    assert summary("default", rows[3:]) == []


def test_every_engine_has_its_turn_at_every_load_and_the_order_is_turned_round() -> None:
    turns = [(order["engine"], order["policy"]) for order in orders("default", 1.0, 1) if order["batch"] == 32]
    assert turns[:6] == turns[11:5:-1]
    assert ("plain", "none") in turns
    assert ("matching", "off") in turns
