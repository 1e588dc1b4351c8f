"""Costs of rounds measured on shapes, and replay that takes them for drafters of a kind."""

import json
from pathlib import Path
from typing import Any

import pytest

from wager.bench import shapes
from wager.simulation.costs import parse_cost


def test_costs_of_a_shape_are_what_replay_reads(tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(shapes.SHAPES, "tiny", (32, 48, 2, 2, 1, 64))
    done = cli("lab", "costs", "tiny", "--longest", "3", "--trees", "2@2x4", "--device", "cpu", "--json", "c.json")
    assert done.code == 0, done.err
    found = json.loads((tmp_path / "c.json").read_text())
    assert [width for width, _ in found["verify"]] == [1, 2, 3, 4, 5]
    costs = parse_cost(str(tmp_path / "c.json"), {"drafters": ["suffix", "eagle:code", "eagle:math"]})
    assert costs.step["eagle:code"] == costs.step["eagle:math"] == found["step"]["eagle"] > 0
    assert costs.draft["eagle:math:2@2x4"] == found["draft"]["eagle:2@2x4"] > 0
    for key, read in (("lag", costs.lag), ("lag_fixed", costs.lag_fixed)):
        assert read["eagle:code"] == found[key]["eagle"] >= 0
    assert "suffix" not in costs.step
    assert cli("lab", "costs", "vast").code == 2


def test_a_drafters_own_costs_come_before_those_of_its_kind(tmp_path: Path) -> None:
    body = {"verify": [[1, 1.0]], "step": {"eagle": 2.0, "eagle:code": 1.0}, "draft": {"eagle:code:2@2x4": 3.0}}
    (tmp_path / "c.json").write_text(json.dumps(body))
    costs = parse_cost(str(tmp_path / "c.json"), {"drafters": ["eagle:code", "eagle:math"]})
    assert (costs.step["eagle:code"], costs.step["eagle:math"]) == (1.0, 2.0)
    assert set(costs.draft) == {"eagle:code:2@2x4"}


def test_rounds_on_the_device_are_refused_without_one(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    done = cli("lab", "rounds")
    assert done.code == 2
    assert "needs an NVIDIA GPU" in done.err


def test_rounds_are_profiled_by_arm_temperature_and_path(tmp_path: Path) -> None:
    from heads import PROMPT, save, tiny

    from wager.bench.round_profile import profile

    model = tiny()
    head = f"eagle={save(tmp_path / 'head', model)}"
    how: dict[str, Any] = {"policies": ["auto"], "beside": ["suffix"]}
    rows = profile(model, None, head, ["off", "eagle:2"], [0.0], 8, 1, [PROMPT], **how)
    cases = [("off", "host"), ("eagle:2", "host"), ("eagle:2", "device"), ("auto", "device")]
    assert [(row["arm"], row["path"]) for row in rows] == cases
    assert all(row["round_seconds"] > row["exposed_seconds"] > 0 for row in rows)
