"""Runs that load a model, with a tiny one: real rounds prompt by prompt, memory, and prompts in other words."""

import json

import pytest
from letters import Letters, writer

from reproduction.banditspec import check_memory
from reproduction.engine import Generated
from reproduction.measured import Memory
from reproduction.perturb import lengthened, rephrased
from reproduction.units import Table
from reproduction.workspace import Workspace


@pytest.fixture
def workspace(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A tiny model, and no data folder."""
    monkeypatch.delenv("WAGER_DATA", raising=False)
    return Workspace(_loaded=(writer(), Letters()), with_model=True)


def test_real_rounds_are_told_prompt_by_prompt(workspace: Workspace) -> None:
    arms = ("suffix:2", "prompt-lookup:3")
    run = Generated(
        ("qa", "humaneval"), 1, 24, arms, ("ucbspec",), prompt=60, rephrase=True, route=True, alone=arms[:1], seeds=2
    )
    result = json.loads(json.dumps(run(workspace)))
    made = Table.of(result)
    assert list(made.methods) == ["off", "suffix:2", "ucbspec", "router"]
    assert sorted(made.labels) == ["humaneval", "qa"]
    assert made.methods["ucbspec"]["tokens"].tolist() == [23.0, 23.0]  # the first comes with the prompt's own forward
    assert made.mat("off") == 1.0
    assert sum(result["shares"]["ucbspec"].values()) == pytest.approx(1.0)
    assert result["protocol"]["reset"] == "every prompt"
    assert result["seeds"] == 2


def test_a_policy_learns_nothing_from_warm_up_nor_from_the_prompt_before(workspace: Workspace) -> None:
    run = Generated(
        ("qa", "humaneval"), 1, 12, ("suffix:2", "prompt-lookup:3"), ("ucbspec",), prompt=60, alone=(), seeds=1
    )
    # begun anew, UCBSpec tries each of its arms once in every prompt
    assert set(run(workspace)["shares"]["ucbspec"]) >= {"suffix:2", "prompt-lookup:3"}


def test_memory_is_compared_with_the_first_arm_alone(workspace: Workspace) -> None:
    result = Memory(("qa",), 2, 12, "suffix:2", ("prompt-lookup:2",), ("ucbspec",), orders=2)(workspace)
    assert list(result["units"]) == ["suffix:2", "ucbspec"]
    assert all(len(own["bytes"]) == len(own["read"]) == 2 for own in result["units"].values())
    assert result["seeds"] == 2


def test_memory_that_grows_is_told() -> None:
    base = {"bytes": [100.0] * 24, "read": [10.0] * 24}
    alike = {
        "labels": ["qa"] * 24,
        "seeds": 5,
        "units": {"eagle:ofa:4": base, "ucbspec": {**base, "bytes": [101.0] * 24}},
    }
    assert check_memory([alike]).verdict == "holds"
    worse = {**alike, "units": {"eagle:ofa:4": base, "ucbspec": {"bytes": [120.0] * 24, "read": [20.0] * 24}}}
    assert check_memory([worse]).verdict == "does not hold"
    assert check_memory([{**alike, "seeds": 4}]).verdict == "undecided"


def test_rephrasing_changes_the_instruction_and_keeps_the_question() -> None:
    asked = "Translate German to English: Der Hafen war still."
    said = {rephrased("translation", asked, seed) for seed in range(20)}
    assert len(said) > 1
    assert asked not in said
    assert all(one.endswith("Der Hafen war still.") for one in said)
    assert rephrased("qa", "Who was it?", 3) == rephrased("qa", "Who was it?", 3)
    assert all("Who was it?" in rephrased("qa", "Who was it?", seed) for seed in range(9))
    code = "Complete this Python function. Write out the whole function.\n\ndef f(x):\n    "
    assert all("def f(x)" in one != code for one in (rephrased("humaneval", code, seed) for seed in range(5)))


def test_prompts_are_joined_to_long_ones() -> None:
    long = lengthened(["Translate to English: ein Hund", "Translate to English: eine Katze und mehr"], 4)
    assert long == "Translate to English: ein Hund eine Katze und mehr"
    assert lengthened(["no colon here"], 3).endswith("no colon here")


def test_without_data_prompts_come_with_wager(workspace: Workspace) -> None:
    chosen = workspace.prompts(("humaneval", "qa", "math_then_code"), 2)
    assert [p.task for p in chosen] == ["humaneval", "humaneval", "qa", "qa", "math_then_code", "math_then_code"]
    assert all(p.text for p in chosen)
    assert workspace.folder("corpora") is None
