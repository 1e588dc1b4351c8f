"""Runs on recordings: told text by text, begun anew where the paper does so, and what is missing is said."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paper_recordings import HEADS, MODELS, TASKS, recording

from reproduction import costs, flags, recordings
from reproduction.analyses import Batched, DraftAll, Rewards, Stopped
from reproduction.recorded import EVERY_SET, NEVER, Lengths, Replayed
from reproduction.recordings import Wanted
from reproduction.registry import EXPERIMENTS
from reproduction.rows import row
from reproduction.runs import UCB, pool
from reproduction.units import Table
from reproduction.workspace import NotHereError, Workspace, make
from wager.core import OFF
from wager.policies import fixed
from wager.simulation import Replay, play


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recordings")
    recording(path / "small.jsonl.gz", 1)
    recording(path / "large.jsonl.gz", 3, tokens=24)
    return path


@pytest.fixture
def workspace(folder: Path) -> Workspace:
    return Workspace(recordings=folder)


def test_the_largest_recording_that_holds_what_is_wanted_is_taken(folder: Path) -> None:
    assert recordings.find(Wanted(("suffix",)), folder).path.name == "large.jsonl.gz"
    for wanted in (
        Wanted(("nobody",)), Wanted(("suffix",), overlap=True), Wanted(("suffix",), temperature=1.0),
        Wanted(("suffix",), target="other"), Wanted(("suffix",), prompts="rephrased"),
    ):  # fmt: skip
        with pytest.raises(NotHereError, match="needs a recording with drafters"):
            recordings.find(wanted, folder)


def test_a_run_whose_recording_is_missing_says_so_and_is_not_kept(tmp_path: Path) -> None:
    workspace = Workspace(recordings=tmp_path, keep=tmp_path / "keep")
    assert "needs a recording" in workspace.result(Replayed(Wanted(("suffix",)), (4,), ()))["missing"]
    assert not (tmp_path / "keep").exists()


def test_a_fixed_arm_takes_what_a_replay_of_all_texts_takes(workspace: Workspace, folder: Path) -> None:
    found = Table.of(workspace.result(Replayed(Wanted(("eagle:ofa",)), (4,), (), cost="cpu")))
    own = recordings.find(Wanted(("eagle:ofa",)), folder)
    texts = tuple(own.only(("eagle:ofa",), range(len(own.texts))))
    for name in ("off", "eagle:ofa:4"):
        run = play(Replay(texts, costs.table("cpu"), (4,), noise=0.0), fixed_spec(name), 0)
        assert found.total(name, "tokens") == run.tokens
        assert found.total(name, "rounds") == run.rounds
        assert found.total(name, "seconds") == pytest.approx(run.seconds * np.exp(0.05**2 / 2), rel=1e-4)
    assert len(found.labels) == 30
    assert set(found.labels) == set(TASKS)


def fixed_spec(name: str) -> str:
    from wager.core import Arm

    return fixed(Arm.parse(name) if name != "off" else OFF)


def test_a_policy_that_begins_anew_for_every_prompt_plays_every_drafter_in_every_prompt(workspace: Workspace) -> None:
    anew = workspace.result(replace(pool("eagle"), policies=(UCB,), labels=("humaneval", "qa")))
    assert anew["protocol"]["reset"] == "every prompt"
    assert anew["protocol"]["beta"] == "0.01"
    assert len(anew["shares"][UCB]) == 5  # the drafter for everything is no arm of the pool
    assert flags.of_run(anew) == {}
    best = dict(zip(anew["labels"], anew["best"][UCB], strict=True))
    assert best["humaneval"] > 0.3
    table = Table.of(anew)
    assert table.mat("eagle:code:5", ("humaneval",)) > 1.3 * table.mat("eagle:chat:5", ("humaneval",))


def test_a_policy_that_froze_on_an_arm_is_flagged() -> None:
    told = {"shares": {"meta-ucb": {"a:4": 0.998, "b:4": 0.002}}, "arms": ["a:4", "b:4", "c:4"]}
    assert flags.of_run(told) == {"meta-ucb": "meta-ucb played a:4 in 99.8% of its rounds and never played c:4"}
    assert flags.of_run({**told, "arms": ["a:4", "b:4"]}) == {}  # it tried the other one


def test_texts_that_only_teach_do_not_count_and_state_is_kept_within_a_data_set(workspace: Workspace) -> None:
    shared: dict[str, Any] = {"cost": "cpu", "labels": ("qa", "alpaca"), "alone": ()}
    warm = Replayed(Wanted(("draft:ofa",)), (1, 2), ("analytical",), reset=NEVER, warmup=3, **shared)
    table = Table.of(workspace.result(warm))
    assert 3 < len(table.labels) <= 6  # each counts in the orders in which it is not among the first
    tokens = table.methods["analytical"]["tokens"]
    assert tokens == pytest.approx([23] * len(tokens))
    in_sets = workspace.result(Replayed(Wanted(("draft:ofa",)), (1, 2), ("analytical",), reset=EVERY_SET, **shared))
    assert in_sets["protocol"]["reset"] == EVERY_SET
    assert len(in_sets["labels"]) == 6
    with_none = Workspace(recordings=workspace.recordings).result(
        Replayed(Wanted(("draft:ofa",)), (1,), ("analytical",), reset=NEVER, warmup=9, **shared)
    )
    assert "more than 9 texts" in with_none["missing"]


def test_two_texts_joined_are_one_unit(workspace: Workspace) -> None:
    run = Replayed(Wanted(HEADS[2:], overlap=True), (5,), (UCB,), pairs=(("qa", "humaneval"),))
    result = workspace.result(run)
    assert result["labels"] == ["qa then humaneval"] * 3
    assert Table.of(result).methods[UCB]["tokens"].tolist() == [46.0] * 3


def test_what_recordings_tell_beside_replay(workspace: Workspace) -> None:
    rewards = workspace.result(Rewards(Wanted(MODELS, overlap=True), 3, ("humaneval",)))["drafters"]
    assert len(rewards["draft:ofa"]) == 3
    home, away = (np.mean([cell["bd"]["mean"] for cell in rewards[name]]) for name in ("draft:code", "draft:math"))
    assert home > away + 0.2
    everyone = workspace.result(DraftAll(Wanted(MODELS), 5, "h200", ("qa",)))
    alone = Table.of(workspace.result(Replayed(Wanted(MODELS), (5,), (), labels=("qa",))))
    best = min(alone.total(name, "rounds") for name in alone.methods)
    assert sum(everyone["units"]["all drafters"]["rounds"]) <= best
    stopped = workspace.result(Stopped(Wanted(("draft:ofa",), confidence=True), 8, "cpu", ("qa", "alpaca")))
    assert stopped["drafted"] > 0.5
    assert len(stopped["thresholds"]) == 2
    batch = Batched(Wanted(MODELS, overlap=True), MODELS[1:], "draft:ofa", 5, 2, UCB, ("qa", "humaneval"))
    assert len(workspace.result(batch)["units"]["mixed tasks"]["seconds"]) == 3
    assert workspace.result(Lengths(("qa",)))["lengths"]["qa"] == [40.0, 40.0, 24.0, 24.0]


def test_costs_are_refused_by_a_wrong_name_and_no_draft_is_free() -> None:
    with pytest.raises(ValueError, match="choose from cpu, h200, 1b, 8b"):
        costs.table("abacus")
    h200, larger = (costs.of(name, {}, ("eagle:ofa", "draft:ofa", "suffix")) for name in ("h200", "8b"))
    assert larger.verify(1) > 3 * h200.verify(1)
    assert larger.step["eagle:ofa"] > h200.step["eagle:ofa"]  # its head is as large as one of its layers
    assert larger.step["draft:ofa"] == h200.step["draft:ofa"]
    with pytest.raises(ValueError, match="would be free"):
        costs.of("cpu", {}, ("eagle:unheard",))
    meta = {"device": "NVIDIA H200", "costs": {"verify": [[1, 0.5]], "step": {"eagle:new": 0.1}}}
    assert costs.of("h200", meta, ("eagle:new",)).verify(1) == 0.5
    assert costs.of("8b", meta, ("eagle:new",)).verify(1) == pytest.approx(larger.verify(1))


def test_results_of_runs_are_kept_by_their_settings_and_the_recordings_at_hand(tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    recording(folder / "one.jsonl.gz", 1)
    run = Replayed(Wanted(("suffix",)), (2,), ())
    keep = tmp_path / "keep"
    first = Workspace(keep=keep, recordings=folder).result(run)
    path = next(keep.glob("replayed-*.json"))
    path.write_text(json.dumps({**first, "kept": True}))
    assert Workspace(keep=keep, recordings=folder).result(run)["kept"]
    assert "kept" not in Workspace(keep=keep, recordings=folder, again=True).result(run)
    recording(folder / "two.jsonl.gz", 2)
    assert len(Workspace(keep=keep, recordings=folder).result(run)["labels"]) == 20


def test_runs_made_in_processes_give_what_they_give_in_one(tmp_path: Path) -> None:
    recording(tmp_path / "one.jsonl.gz", 1, tasks=("qa",))
    runs = [Replayed(Wanted(("suffix",)), (length,), ()) for length in (1, 2)]
    alone = [Workspace(recordings=tmp_path).result(run)["units"] for run in runs]
    workspace = Workspace(recordings=tmp_path, keep=tmp_path / "keep")
    make([*runs, *runs], workspace, 2)
    assert [workspace.result(run)["units"] for run in runs] == alone
    assert len(workspace.done) == len(list((tmp_path / "keep").iterdir())) == 2


def test_recordings_made_alike_of_different_tasks_are_one(tmp_path: Path) -> None:
    for i, (task, how) in enumerate((("qa", {}), ("rag", {}), ("qa", {}), ("alpaca", {"temperature": 1.0}))):
        recording(tmp_path / f"{i}.jsonl.gz", 3 - i // 2, tasks=(task,), seed=i, **how)
    whole = recordings.find(Wanted(("suffix",)), tmp_path)
    assert whole.tasks == ("qa",) * 3 + ("rag",) * 3  # the second part with qa, and the sampled one, are left out
    assert [text.label for text in whole.texts] == list("012345")
    alone = recordings.load(tmp_path / "1.jsonl.gz")
    assert [text.tracks for text in whole.texts[3:]] == [text.tracks for text in alone.texts]


def test_a_head_timed_once_catches_up_in_fixed_seconds_on_a_gpu_and_by_the_entry_otherwise() -> None:
    timed = {"device": "NVIDIA H200", "costs": {"verify": [[1, 1e-3]], "step": {"eagle:ofa": 1e-4, "draft:ofa": 1e-4}}}
    timed["costs"]["lag"] = {"eagle:ofa": 2e-5, "draft:ofa": 5e-7}  # type: ignore[index]
    cost = costs.of("h200", timed, ("eagle:ofa", "draft:ofa"))
    other = costs.otherwise("h200", cost)
    for tokens in (2, 64, 500):
        assert cost.catch_up("eagle:ofa", tokens) == pytest.approx(64 * 2e-5)
        assert other.catch_up("eagle:ofa", tokens) == pytest.approx(tokens * 2e-5)
        assert cost.catch_up("draft:ofa", tokens) == other.catch_up("draft:ofa", tokens) == pytest.approx(tokens * 5e-7)
    twice = {**timed, "costs": {**timed["costs"], "lag_fixed": {"eagle:ofa": 1e-3}}}  # type: ignore[dict-item]
    cost = costs.of("h200", twice, ("eagle:ofa",))
    assert costs.otherwise("h200", cost) == cost  # nothing is left to be read in two ways
    assert cost.catch_up("eagle:ofa", 64) == pytest.approx(1e-3 + 64 * 2e-5)


def test_a_row_says_what_the_other_reading_of_a_cost_would_decide(workspace: Workspace) -> None:
    content = row(EXPERIMENTS["metasd-table4"], workspace)
    assert content["otherwise"]["if"] == costs.OTHERWISE["h200"]
    assert content["otherwise"]["parts"] == len(content["parts"])
    assert row(EXPERIMENTS["metasd-table3"], workspace)["otherwise"] == {}  # draft models were timed at two widths


def test_a_second_target_with_too_few_model_drafters_is_said_in_the_protocol(workspace: Workspace) -> None:
    few = replace(pool("eagle"), policies=(UCB,), labels=("qa",), seeds=1)
    assert workspace.result(few)["protocol"]["second"].startswith("none: no other target is recorded")
    kept = Path("results") / "recordings"
    says = recordings.second_target(HEADS, kept)
    assert says == "none: tinyllama-1.1b is recorded with eagle:ofa alone, and a choice of model drafters takes two"


def test_a_kept_result_is_not_used_by_other_code(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Replayed(Wanted(("suffix",)), (4,), (), labels=("qa",))
    before = workspace.name(run)
    monkeypatch.setattr("reproduction.workspace.made_by", lambda: "other sources")
    assert workspace.name(run) != before
