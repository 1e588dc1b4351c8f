"""Each defect that a careful reader once found in the reproduction would be seen now."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paper_recordings import recording

from reproduction import flags, metasd, onthefly, protocol, recordings
from reproduction.claims import lead_at_home
from reproduction.engine import Generated
from reproduction.metasd_claims import selection
from reproduction.onthefly_claims import check_stopping
from reproduction.recorded import EVERY_PROMPT, Replayed
from reproduction.recordings import Wanted
from reproduction.registry import EXPERIMENTS
from reproduction.result_files import read
from reproduction.units import Table
from reproduction.workspace import Workspace
from wager.bench.methods import Target, policy_method

ALIKE = ("humaneval", "math_reasoning", "translation", "summarization", "qa", "rag", "alpaca", "mt_bench")
RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("name", ["metasd-black-h200.json", "metasd-white-h200.json", "mixed-h200.json"])
def test_earlier_runs_of_metasd_that_kept_state_are_flagged_and_decide_nothing(name: str) -> None:
    warned = flags.of_older(name, read(RESULTS / name))
    assert any("kept from prompt to prompt" in says for says in warned)
    assert any("prompts a task" in says for says in warned)
    assert all(name in EXPERIMENTS[row].older for row in ("metasd-table3",) if name == "metasd-black-h200.json")


def test_a_policy_frozen_on_one_arm_is_flagged_in_earlier_results() -> None:
    assert any("never played" in says for says in flags.of_older("mixed", read(RESULTS / "mixed-h200.json")))


@pytest.mark.parametrize("name", [n for n in EXPERIMENTS if n.startswith(("metasd", "banditspec-table"))])
def test_wherever_the_paper_begins_anew_for_every_prompt_so_do_we(name: str) -> None:
    assert protocol.of_paper(name)["reset"] == "every prompt"
    for run in EXPERIMENTS[name].runs():
        if isinstance(run, Replayed) and not run.pairs:
            assert run.reset == EVERY_PROMPT
        if isinstance(run, Generated):
            assert run.reset


def test_parameters_are_the_papers() -> None:
    assert metasd.CHANGING.endswith("beta=0.1")  # table 19
    (halving,) = [p for p in metasd.pool("draft").policies if p.startswith("halving")]
    assert halving == "halving:budget=1"  # every surviving drafter once a phase: a period of 1
    assert metasd.pool("eagle").wanted.overlap  # divergence must not silently become efficiency
    assert "eagle:ofa" not in metasd.pool("eagle").pool


def test_warming_up_teaches_a_policy_nothing(one_thread: None) -> None:
    import torch
    from letters import Letters, writer

    generator = policy_method("ucbspec").make(Target(writer(), Letters()), ("suffix:2", "prompt-lookup:2"))
    assert generator.decoder is not None
    before = generator.decoder.policy.state_dict()
    generator.warm_up(torch.device("cpu"), 16)
    assert generator.decoder.policy.state_dict() == before


def test_specialists_that_are_none_do_not_pass_for_specialists() -> None:
    rng = np.random.default_rng(0)
    columns = {"tokens": np.full(60, 30.0), "rounds": np.full(60, 15.0)}
    names = (
        "off",
        "draft:code:5",
        "draft:math:5",
        "draft:ofa:5",
        "meta-ucb",
        "meta-exp3",
        "halving:budget=1",
        "random",
    )
    units = {name: {**columns, "seconds": np.exp(rng.normal(0, 0.05, 60))} for name in names}
    alike: dict[str, Any] = {"labels": ["humaneval", "math_reasoning"] * 30, "units": units, "seeds": 5}
    told = selection([alike], "draft")
    assert told.verdict == "undecided"
    assert "holds" not in [part.verdict for part in told.parts if "specialist" in part.says]


def test_a_linear_policy_that_never_leaves_off_is_flagged() -> None:
    told = {"shares": {"linucb": {"off": 1.0, "draft:1": 0.0}}, "arms": ["off", "draft:1", "draft:2"]}
    assert "never played draft:1, draft:2" in flags.of_run(told)["linucb"]


def test_a_stopping_rule_that_drafts_nothing_is_no_evidence(tmp_path: Path) -> None:
    run = onthefly.windows(("draft:ofa",), ("qa",))[0]
    recording(tmp_path / "one.jsonl.gz", 1, tokens=12, tasks=("qa",))
    played = Workspace(recordings=tmp_path).result(replace(run, seeds=1))  # type: ignore[type-var]
    stopped = {"units": {"fitted to stop": played["units"]["off"]}, "thresholds": [0.9, 0.9], "drafted": 0.0}
    with pytest.raises(ValueError, match="drafts nothing"):
        check_stopping([played, stopped], ("draft:ofa",))
    with pytest.raises(ValueError, match="with confidence"):
        recordings.find(Wanted(("prompt-lookup", "eagle:ofa"), confidence=True), RESULTS / "recordings")


def test_speeds_of_single_tasks_that_are_no_medians_are_flagged() -> None:
    cell: dict[str, Any] = {"method": "auto", "kind": "arm", "speedup": 2.0, "mat": 2.0}
    wall = {"methods": [{**cell, "tasks": {"qa": {"speedup": 2.0, "mat": 2.0}}}], "prompts": 40}
    assert any("wall-clock" in says for says in flags.of_older("x", wall))
    median = {"methods": [{**cell, "tasks": {"qa": {"speedup": 2.0, "mat": 2.0, "steady": 2.0}}}], "prompts": 40}
    assert flags.of_older("x", median) == []


def test_simulated_rows_say_so_beside_the_papers_hardware() -> None:
    workspace = Workspace(recordings=RESULTS / "recordings")
    changing: Any = replace(EXPERIMENTS["nightjar-figure10"].runs()[0], tokens=400, seeds=1, policies=("off",))  # type: ignore[type-var]
    stated = {name: EXPERIMENTS[name].runs()[-2] for name in ("nightjar-table2", "banditspec-figure3")}
    told = {name: run.protocol for name, run in stated.items()}  # type: ignore[attr-defined]
    for name, own in {**told, "nightjar-figure10": workspace.result(changing)["protocol"]}.items():
        rows = {says: (theirs, ours, same) for says, theirs, ours, same in protocol.compared(name, own)}
        theirs, ours, same = rows["hardware"]
        assert ("simulated, costs fitted" if name == "nightjar-figure10" else "simulated, stated costs") in ours
        assert not same
        assert "simulated" not in theirs


def test_loads_on_an_engine_name_it_beside_the_papers_hardware() -> None:
    """Nightjar was once judged on simulated servers alone."""
    run, *_ = EXPERIMENTS["nightjar-figure5"].runs()
    told = Workspace(recordings=Path(__file__).parents[2] / "results" / "recordings").result(run)
    rows = {says: (theirs, ours) for says, theirs, ours, _ in protocol.compared("nightjar-figure5", told["protocol"])}
    assert "vLLM" in rows["hardware"][0]
    assert "NVIDIA H200" in rows["hardware"][1]
    assert "random weights" in rows["target"][1]
    assert told["seeds"] >= 5


def test_one_drafter_that_is_no_specialist_leaves_its_own_task_undecided_only() -> None:
    labels = ["humaneval", "math_reasoning"] * 30
    leads = {"draft:code:5": ("humaneval", 1.3), "draft:math:5": ("math_reasoning", 1.05)}
    units = {}
    for name in (*leads, "off", "draft:ofa:5", "meta-ucb", "meta-exp3", "halving:budget=1", "random"):
        task, lead = leads.get(name, ("", 1.0))
        rounds = np.array([20.0 / lead if task == label else 20.0 for label in labels])
        seconds = rounds * (0.5 if name == "meta-ucb" else 1.0)
        units[name] = {"tokens": np.full(60, 30.0), "rounds": rounds, "seconds": seconds}
    outcome = selection([{"labels": labels, "units": units, "seeds": 5}], "draft")
    verdicts = {part.says.partition(":")[0]: set[str]() for part in outcome.parts}
    for part in outcome.parts:
        verdicts[part.says.partition(":")[0]].add(part.verdict)
    assert verdicts == {"humaneval": {"holds"}, "math_reasoning": {"undecided"}}
    assert "1 of 2 draft specialists are none" in outcome.premise


@pytest.mark.parametrize(("lead", "clear"), [(1.30, True), (1.16, True), (1.10, False), (0.95, False)])
def test_claims_that_rest_on_specialists_are_decided_with_specialists_only(lead: float, clear: bool) -> None:
    rng = np.random.default_rng(1)
    labels = ["humaneval", "math_reasoning"] * 30
    home = {"draft:code:5": "humaneval", "draft:math:5": "math_reasoning"}
    others = ("off", "draft:ofa:5", "meta-ucb", "meta-exp3", "halving:budget=1", "random")
    units = {}
    for name in (*home, *others):
        rounds = np.array([20.0 / lead if home.get(name) == label else 20.0 for label in labels])
        seconds = rounds * (0.5 if name == "meta-ucb" else 1.0) * np.exp(rng.normal(0, 0.01, 60))
        units[name] = {"tokens": np.full(60, 30.0), "rounds": rounds, "seconds": seconds}
    planted: dict[str, Any] = {"labels": labels, "units": units, "seeds": 5}
    table, outcome = Table.of(planted), selection([planted], "draft")
    assert lead_at_home(table, "draft") == pytest.approx(dict.fromkeys(home, lead - 1))
    assert bool(outcome.premise) is not clear
    if clear:
        assert {part.verdict for part in outcome.parts} == {"holds"}
    else:
        assert outcome.verdict == "undecided"
        assert {part.verdict for part in outcome.parts} == {"undecided"}
        assert f"draft:code:5 {lead - 1:+.0%}" in outcome.premise
        assert any(part.interval.low > 0 for part in outcome.parts)  # what was found stays to be seen


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Recordings of every kind with drafters that are all alike; rows share the runs that they have in common."""
    place = tmp_path_factory.mktemp("alike")
    other: tuple[dict[str, Any], ...] = ({"temperature": 0.7}, {"temperature": 1.0}, {"of": "long"})
    for i, how in enumerate(({}, *other, {"of": "rephrased"})):
        recording(place / f"{i}.jsonl.gz", 2, alike=True, tasks=ALIKE, **how)
    return Workspace(recordings=place)


@pytest.mark.parametrize(
    "name", [f"metasd-table{n}" for n in (3, 4, 5, 7, 8, 9, 10, 11, 12, 14, 15, 16, 17, 19)] + ["metasd-figure3"]
)
def test_every_row_about_specialists_asks_whether_they_are(name: str, alike: Workspace) -> None:
    runs = EXPERIMENTS[name].runs()
    results = [alike.result(replace(run, seeds=1) if isinstance(run, Replayed) else run) for run in runs]
    outcome = EXPERIMENTS[name].evaluate(results)
    assert "specialists are none" in outcome.premise
    assert outcome.verdict == "undecided"


def test_a_model_that_stays_off_once_it_is_off_does_not_decide_a_row() -> None:
    for name in (name for name in EXPERIMENTS if name.startswith("onthefly")):
        for run in EXPERIMENTS[name].runs():
            if isinstance(run, Replayed) and any(policy.startswith("analytical") for policy in run.policies):
                assert not run.off, name


@pytest.mark.parametrize("name", ["banditspec-table1", "banditspec-table3", "banditspec-table4"])
def test_a_benchmark_of_which_tasks_are_missing_is_undecided_and_not_judged_by_the_rest(
    name: str, tmp_path: Path
) -> None:
    for model in ("smollm2-135m", "another"):
        recording(tmp_path / f"{model}.jsonl.gz", 2, tasks=("math_reasoning", "humaneval"), model=model)
    workspace, runs = Workspace(recordings=tmp_path), EXPERIMENTS[name].runs()
    results = [workspace.result(replace(run, seeds=1)) for run in runs]  # type: ignore[type-var]
    parts = [part for part in EXPERIMENTS[name].evaluate(results).parts if "Spec-Bench" in part.says]
    assert parts
    assert all("not all that it takes is recorded" in part.says and part.verdict == "undecided" for part in parts)
