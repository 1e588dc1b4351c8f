"""Routers are replayed with the prompts that were recorded, and with no others."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paper_recordings import recording

from reproduction import asked, metasd_claims, recordings
from reproduction.onthefly import selection
from reproduction.recordings import Wanted
from reproduction.registry import EXPERIMENTS
from reproduction.rows import row
from reproduction.walk import Rounds, walk
from reproduction.workspace import NotHereError, Workspace
from wager.core import Arm, Context
from wager.policies import build
from wager.simulation import RoundCost, VerifyCost

RESULTS = Path(__file__).parents[2] / "results"
TASKS = ("alpaca", "humaneval", "math_reasoning")
ARMS = (Arm("draft:ofa", 2), Arm("draft:code", 2), Arm("draft:math", 2))
COST = RoundCost(VerifyCost(((1, 1.0), (3, 1.1))), step=dict.fromkeys(("draft:ofa", "draft:code", "draft:math"), 0.01))


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A recording whose prompts have 40 tokens, and what is known of them."""
    recording(tmp_path / "recordings" / "one.jsonl.gz", 4, tasks=TASKS, tokens=16)
    rng = np.random.default_rng(0)
    tokens = {task: [rng.integers(0, 50, 40).tolist() for _ in range(4)] for task in TASKS}
    known = {task: [{"perplexity": 5.0 + i, "tokens": own} for i, own in enumerate(tokens[task])] for task in TASKS}
    (tmp_path / asked.FILE).write_text(json.dumps({"domains": {}, "read": known}))
    return Workspace(recordings=tmp_path / "recordings")


def test_what_is_kept_of_prompts_is_of_those_that_were_recorded() -> None:
    held = json.loads((RESULTS / asked.FILE).read_text())
    for of in ("tasks", "rephrased"):
        one = recordings.find(Wanted(("draft:code", "eagle:code"), prompts=of), RESULTS / "recordings")
        counts = {task: len(own) for task, own in held["domains"][of].items()}
        assert counts == {task: one.tasks.count(task) for task in one.tasks}
    one = recordings.find(Wanted(("draft:code",)), RESULTS / "recordings")
    numbers = [i for i, task in enumerate(one.tasks) if task in held["read"]]
    known = asked.told(asked.FILE, Workspace(recordings=RESULTS / "recordings"), one, numbers)
    assert [len(known[i][0]) for i in numbers] == [one.texts[i].prompt for i in numbers]
    assert len(numbers) == 120


def test_prompts_of_another_length_than_the_recorded_ones_are_refused(workspace: Workspace) -> None:
    path = workspace.recordings.parent / asked.FILE
    held = json.loads(path.read_text())
    held["read"]["alpaca"][2]["tokens"].append(1)
    path.write_text(json.dumps(held))
    one = recordings.find(Wanted(("draft:ofa",)), workspace.recordings)
    with pytest.raises(NotHereError, match="prompts of alpaca that were recorded"):
        asked.told(asked.FILE, workspace, one, range(len(one.texts)))
    path.unlink()
    told = row(EXPERIMENTS["onthefly-table2"], workspace)
    assert "reproduction.asked" in told["missing"][0]


def test_a_router_is_told_of_a_prompt_once_and_before_its_first_round(workspace: Workspace) -> None:
    one = recordings.find(Wanted(("draft:ofa",)), workspace.recordings)
    known = asked.told(asked.FILE, workspace, one, range(3))
    policy = build("prompt-router", ARMS)
    saw: list[Any] = []
    choose = policy.choose

    def watched(context: Context) -> Arm:
        saw.append(context.prompt)
        return choose(context)

    policy.choose = watched  # type: ignore[method-assign]
    ways = walk([Rounds(one.texts[i], ARMS, COST, known[i]) for i in range(3)], policy, np.ones(100))
    first = [0, len(ways[0].at), len(ways[0].at) + len(ways[1].at)]
    assert [i for i, prompt in enumerate(saw) if prompt is not None] == first
    assert [saw[i].length for i in first] == [40, 40, 40]
    assert [saw[i].perplexity for i in first] == [known[i][1] for i in range(3)]
    assert saw[first[0]].tfidf == pytest.approx((1.0,))  # nothing seen before: every token as rare as any
    assert saw[first[1]].tfidf > (1.0,)


def test_a_router_without_prompts_is_refused(workspace: Workspace) -> None:
    _, chosen = selection()
    with pytest.raises(ValueError, match="no file of them"):
        workspace.result(replace(chosen, file=""))  # type: ignore[type-var]


def test_the_row_about_choosing_by_the_prompt_needs_no_model(workspace: Workspace) -> None:
    told = row(EXPERIMENTS["onthefly-table2"], workspace)
    assert not told["missing"]
    assert len(told["parts"]) == 6
    assert {part["verdict"] for part in told["parts"]} == {"undecided"}  # 4 prompts a task are too few


def test_a_router_plays_the_drafter_of_the_domain_it_takes_a_prompt_for() -> None:
    labels = ["humaneval", "math_reasoning", "humaneval", "rag"]
    arms = {"draft:code:5": 1.0, "draft:math:5": 2.0, "draft:ofa:5": 3.0, "off": 4.0}
    units = {name: {"seconds": [x, x + 10, x + 20, x + 30]} for name, x in arms.items()}
    domains = {"humaneval": ["code", "math"], "math_reasoning": ["math"], "rag": ["chat"]}
    result = {"labels": labels, "units": units, "seeds": 5}
    table = metasd_claims.routed(result, domains, "draft")
    assert table.methods["router"]["seconds"].tolist() == [1.0, 12.0, 22.0, 33.0]
    with pytest.raises(ValueError, match="every prompt of humaneval"):
        metasd_claims.routed(result, {**domains, "humaneval": ["code"]}, "draft")


@pytest.mark.parametrize(("lost", "verdict"), [(0.5, "holds"), (2.0, "does not hold")])
def test_that_rephrasing_costs_the_bandit_less_is_a_part_of_its_own(lost: float, verdict: str) -> None:
    rng, labels = np.random.default_rng(0), ["humaneval", "math_reasoning", "rag", "alpaca"] * 30
    home = {"draft:code:5": "humaneval", "draft:math:5": "math_reasoning"}
    right = {"humaneval": ["code"] * 30, "math_reasoning": ["math"] * 30, "rag": ["chat"] * 30, "alpaca": ["chat"] * 30}
    wrong = {**right, "humaneval": ["math"] * 30, "math_reasoning": ["code"] * 30}

    def made(ucb: float) -> dict[str, Any]:
        units = {}
        for name in ("off", *home, "draft:ofa:5", "meta-ucb"):
            rounds = np.array([10.0 if home.get(name) == label else 20.0 for label in labels])
            seconds = rounds * np.exp(rng.normal(0, 0.01, 120)) if name != "meta-ucb" else np.full(120, ucb)
            units[name] = {"tokens": np.full(120, 30.0), "rounds": rounds, "seconds": seconds}
        return {"labels": labels, "units": units, "seeds": 5}

    found = [made(12.0), made(12.0 * 2 * lost), {"domains": {"tasks": right, "rephrased": wrong}}]
    parts = {part.says: part.verdict for part in metasd_claims.routing(found, ("draft",)).parts}
    assert parts["draft: rephrasing costs meta-ucb less than the router"] == verdict
    assert parts["draft, at home: meta-ucb is faster than router"] == "does not hold"
