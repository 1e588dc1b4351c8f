"""Every table and figure has an experiment, verdicts follow from figures both ways, and the page is what they make."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from small import SHAPE

from reproduction import (
    EXPERIMENTS,
    PAPERS,
    Check,
    Figures,
    Outcome,
    banditspec,
    metasd_claims,
    nightjar_claims,
    onthefly_claims,
    recorded,
    runs,
)
from reproduction.__main__ import main
from reproduction.analyses import Batched, BestShare, DraftAll, Rewards, Routed, Stopped, reward_statistics
from reproduction.comparison import Comparison
from reproduction.engine import Generated
from reproduction.experiment import NO, PART, UNTRIED, YES, shown
from reproduction.measured import Memory
from reproduction.page import page
from reproduction.perturb import lengthened, rephrased
from reproduction.recorded import Recorded, Replayed
from reproduction.simulated import Served
from reproduction.workspace import Workspace
from wager.core.recording import Text, Track

ROOT = Path(__file__).parents[2]
WANTED = {
    "banditspec": [*(f"table{n}" for n in (1, 2, 3, 4)), "figure3"],
    "onthefly": [*(f"table{n}" for n in (1, 2, 3, 7, 9, 10, 12, 13)), "figure3"],
    "nightjar": [*(f"figure{n}" for n in (2, 5, 6, 8, 9, 10, 11)), *(f"table{n}" for n in (1, 2, 3))],
    "metasd": [*(f"table{n}" for n in (*range(2, 18), 19)), *(f"figure{n}" for n in (2, 3, 6))],
}


def board(speeds: dict[str, dict[str, float]]) -> dict[str, Any]:
    """A result as `wager bench generate --json` writes it; tokens a round are as many as the speed."""
    rows = []
    for method, tasks in {"off": dict.fromkeys(next(iter(speeds.values())), 1.0), **speeds}.items():
        mean = sum(tasks.values()) / len(tasks)
        cells = {task: {"speedup": x, "mat": x} for task, x in tasks.items()}
        rows.append({"method": method, "speedup": mean, "steady": mean, "mat": mean, "tasks": cells})
    return {"methods": rows}


def flat(tasks: tuple[str, ...], **speeds: float) -> dict[str, dict[str, float]]:
    return {name: dict.fromkeys(tasks, x) for name, x in speeds.items()}


# -- the registry


def test_every_table_and_figure_has_an_experiment() -> None:
    assert list(EXPERIMENTS)
    assert set(EXPERIMENTS) == {f"{paper}-{place}" for paper in WANTED for place in WANTED[paper]}
    assert set(PAPERS) == set(WANTED)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_says_what_it_claims_and_what_it_runs(name: str) -> None:
    experiment = EXPERIMENTS[name]
    assert experiment.claim.endswith(".")
    assert experiment.differs
    assert experiment.what
    for quick in (True, False):
        assert experiment.runs(quick)
        assert all(run.command.startswith("wager ") for run in experiment.runs(quick))
    workspace = Workspace()
    assert [workspace.name(run) for run in experiment.runs(True)] == [
        workspace.name(run) for run in experiment.runs(True)
    ]


def test_runs_that_experiments_share_are_made_once() -> None:
    made: list[str] = []

    class Counted(Workspace):
        def result(self, run: Any) -> dict[str, Any]:
            made.append(self.name(run))
            return {}

    workspace = Counted()
    for name in ("nightjar-figure2", "nightjar-figure5", "nightjar-figure11"):
        for run in EXPERIMENTS[name].runs(True):
            workspace.result(run)
    assert len(set(made)) == len(runs.LOADS)
    assert len(made) == 3 * len(runs.LOADS)


# -- verdicts


def test_a_verdict_follows_from_its_parts() -> None:
    holds, fails = Check("one", True), Check("two", False, "For a reason.")
    figures = Figures(("a",), (("x",),))
    assert Outcome("", figures, (holds,)).holds == YES
    assert Outcome("", figures, (holds, fails)).holds == PART
    assert Outcome("", figures, (fails,)).holds == NO
    assert Outcome("", figures).holds == UNTRIED
    assert Outcome("", figures, (holds, fails)).why == "Not: two. For a reason."
    with pytest.raises(ValueError, match="1 cells"):
        Figures(("a",), (("x", "y"),))
    assert [shown(x) for x in (None, "a", 1.234, 123.45, 12345.6)] == ["", "a", "1.23", "123.5", "12,346"]


def test_a_bandit_has_to_beat_every_drafter_alone() -> None:
    tasks = ("alpaca", "humaneval")
    speeds = flat(tasks, ucbspec=1.5, exp3spec=1.4) | {"suffix:4": dict.fromkeys(tasks, 1.3)}
    assert banditspec.check_bandits(board(speeds)).holds == YES
    speeds["suffix:4"] = dict.fromkeys(tasks, 1.6)
    assert banditspec.check_bandits(board(speeds)).holds == PART  # UCBSpec still is ahead of EXP3Spec
    speeds["exp3spec"] = dict.fromkeys(tasks, 1.55)
    assert banditspec.check_bandits(board(speeds)).holds == NO


def test_memory_that_grows_is_told() -> None:
    cell = {"bytes": 100.0, "grown": 0.0, "read": 10.0}
    found = {"eagle:ofa:4": cell, "ucbspec": {**cell, "bytes": 101.0}}
    assert banditspec.check_memory([{"methods": found}]).holds == YES
    found["ucbspec"] = {"bytes": 120.0, "grown": 20.0, "read": 20.0}
    assert banditspec.check_memory([{"methods": found}]).holds == NO


def selected(ucb: float, home: float = 1.9) -> dict[str, Any]:
    tasks = ("humaneval", "math_reasoning", "qa")
    speeds = {"eagle:ofa:4": dict.fromkeys(tasks, 1.5), "meta-ucb": dict.fromkeys(tasks, ucb)}
    speeds["eagle:code:4"] = {"humaneval": home, "math_reasoning": 1.2, "qa": 1.2}
    speeds["eagle:math:4"] = {"humaneval": 1.2, "math_reasoning": home, "qa": 1.2}
    speeds["random"] = dict.fromkeys(tasks, 1.3)
    return board(speeds)


def test_specialists_are_judged_at_home_and_ucb_against_the_rest() -> None:
    assert metasd_claims.selection(selected(1.7), "eagle").holds == YES
    assert metasd_claims.selection(selected(1.4), "eagle").holds == PART
    worse = metasd_claims.selection(selected(1.2, home=1.1), "eagle")
    assert worse.holds == NO
    assert "eagle:code:4" in worse.why


def test_ucb_has_to_beat_the_best_drafter_where_tasks_are_mixed() -> None:
    assert metasd_claims.mixed(selected(1.8)).holds == YES
    assert metasd_claims.mixed(selected(1.1)).holds == NO


def test_a_result_without_what_a_claim_needs_is_refused() -> None:
    with pytest.raises(ValueError, match="no meta-ucb"):
        metasd_claims.mixed(board({"eagle:ofa:4": {"qa": 1.5}}))
    with pytest.raises(ValueError, match="eagle:ofa"):
        metasd_claims.selection(board({"meta-ucb": {"qa": 1.5}}), "eagle")
    with pytest.raises(ValueError, match=r"plain decoding through wager \(off\)"):
        Comparison({"methods": [{"method": "auto", "speedup": 1, "mat": 1, "tasks": {}}]})
    with pytest.raises(ValueError, match="trees"):
        onthefly_claims.check_trees(board({"analytical": {"qa": 1.5}}))


def served(**goodput: float) -> dict[str, Any]:
    cells = {name: {"goodput": x, "pulls": {"off": 0.9}} for name, x in goodput.items()}
    lengths = {f"draft:{n}": {"goodput": 10.0 - n} for n in range(1, 6)}
    return {"methods": {**lengths, **{NAME.get(name, name): cell for name, cell in cells.items()}}}


NAME = {"banditspec": "ucbspec:reward=goodput", "ada": "ada-bingreedy"}


def test_nightjar_has_to_be_ahead_of_all() -> None:
    best = [served(nightjar=20.0, banditspec=9.0, dsd=9.0, tetris=9.0, off=19.9, ada=8, linucb=8, lints=8)] * 4
    assert nightjar_claims.check_low(best).holds == YES
    assert nightjar_claims.check_high(best).holds == YES
    assert nightjar_claims.check_contexts(best).holds == YES
    worst = [served(nightjar=5.0, banditspec=9.0, dsd=9.0, tetris=9.0, off=20.0, ada=8, linucb=8, lints=8)] * 4
    assert nightjar_claims.check_low(worst).holds == NO
    assert nightjar_claims.check_contexts(worst).holds == NO
    assert nightjar_claims.check_high(worst).holds == PART  # it does turn itself off


def test_a_trace_has_to_change() -> None:
    assert nightjar_claims.check_arrivals([{"rates": [1.0, 2.0, 9.0], "requests": 120}]).holds == YES
    assert nightjar_claims.check_arrivals([{"rates": [5.0, 6.0, 7.0], "requests": 120}]).holds == NO


# -- recorded texts


def text(label: str, tokens: int = 40) -> Text:
    """One whose drafters a and b agree with it in stretches of 3 and of 0 or 1 tokens."""
    tracks = {}
    for name, stretch in (("draft:ofa", 4), ("draft:code", 2)):
        agreed = [min(stretch - 1 - at % stretch, tokens - 1 - at) for at in range(tokens - 1)]
        sure = [tuple(0.9 if i < agreed[at] else 0.2 for i in range(5)) for at in range(tokens - 1)]
        overlap = [0.8 if name == "draft:ofa" else 0.4] * (tokens - 1)
        tracks[name] = Track([5] * (tokens - 1), agreed, [0] * (tokens - 1), sure, overlap, cheap=False)
    return Text(label, 10, tokens, tracks)


class Kept(Workspace):
    """Workspace that have the recording already."""

    def result(self, run: Any) -> dict[str, Any]:
        if isinstance(run, Recorded):
            from dataclasses import asdict

            texts = [text("humaneval"), text("qa"), text("humaneval", 30), text("qa", 30)]
            body = {"texts": [asdict(one) for one in texts], "routes": ["code", "chat", "code", "chat"]}
            found: dict[str, Any] = json.loads(json.dumps(body))
            return found
        return super().result(run)


RECORDING = Recorded(("humaneval", "qa"), 2, 40, ("draft:ofa", "draft:code"))
BOTH = ("draft:ofa", "draft:code")


def test_a_replay_gives_tokens_a_round_and_times_plain_decoding() -> None:
    result = Kept().result(Replayed(RECORDING, BOTH, (3,), ("meta-ucb", "random"), cost="h200", seeds=1))
    made = Comparison(result)
    assert made.speed("off") == pytest.approx(1.0, abs=0.02)
    assert made.mat("draft:ofa:3") > made.mat("meta-ucb") > made.mat("random") > made.mat("draft:code:3") > 1
    assert set(made.tasks) == {"humaneval", "qa"}
    assert made.arms == ["draft:ofa:3", "draft:code:3"]


def test_what_recordings_tell_beside_replay() -> None:
    workspace = Kept()
    rewards = workspace.result(Rewards(RECORDING, BOTH, 3, ("qa",)))["drafters"]
    assert rewards["draft:ofa"]["bd"]["mean"] == pytest.approx(0.8)
    assert rewards["draft:ofa"]["bd"]["zeros"] == 0
    assert rewards["draft:code"]["be"]["mean"] < rewards["draft:ofa"]["be"]["mean"]
    together = Comparison(workspace.result(DraftAll(RECORDING, BOTH, 3, "h200")))
    alone = Comparison(workspace.result(Replayed(RECORDING, BOTH, (3,), (), cost="h200", seeds=1)))
    assert together.mat("all drafters") >= alone.mat("draft:ofa:3")
    stopped = workspace.result(Stopped(RECORDING, "draft:ofa", 5, ("analytical",), seeds=1))
    assert 0.2 < stopped["threshold"] <= 0.9
    assert Comparison(stopped).speed("trained to stop") > 1
    routed = Comparison(workspace.result(Routed(RECORDING, BOTH, "draft:ofa", 3, ("meta-ucb",), seeds=1)))
    assert routed.mat("router", "qa") > routed.mat("router", "humaneval")  # it takes the worse drafter for code
    share = workspace.result(BestShare(RECORDING, BOTH, 3, ("meta-ucb", "random"), ("qa",), seeds=2))["policies"]
    assert share["meta-ucb"]["all"] > share["random"]["all"]
    batched = workspace.result(Batched(RECORDING, BOTH, "draft:ofa", 3, (1, 2), "meta-ucb", ()))["batches"]
    assert set(batched) == {"1", "2"}
    assert batched["2"]["one for all"] >= batched["2"]["mixed tasks"]


def test_rewards_are_of_the_positions_that_have_a_whole_draft_left() -> None:
    told = reward_statistics([text("a", 20)], "draft:ofa", 3)
    assert told["count"] == 16
    assert told["be"]["mean"] == pytest.approx(0.5)


def test_results_of_runs_are_kept_by_their_settings(tmp_path: Path) -> None:
    run = Served((1,), 600, ("nightjar",), lengths=(1, 2))
    first = Workspace(keep=tmp_path).result(run)
    assert {"off", "draft:1", "draft:2", "nightjar"} == set(first["methods"])
    path = next(tmp_path.glob("served-*.json"))
    path.write_text(json.dumps({**first, "kept": True}))
    assert Workspace(keep=tmp_path).result(run)["kept"]
    assert "kept" not in Workspace(keep=tmp_path, again=True).result(run)
    assert len(list(tmp_path.iterdir())) == 1


# -- prompts


def test_rephrasing_changes_the_instruction_and_keeps_the_question() -> None:
    asked = "Translate German to English: Der Hafen war still."
    said = {rephrased("translation", asked, seed) for seed in range(20)}
    assert len(said) > 1
    assert asked not in said
    assert all(one.endswith("Der Hafen war still.") for one in said)
    assert rephrased("qa", "Who was it?", 3) == rephrased("qa", "Who was it?", 3)
    assert all("Who was it?" in rephrased("qa", "Who was it?", seed) for seed in range(9))
    code = "Complete this Python function. Write out the whole function.\n\ndef f(x):\n    "
    assert all(
        "def f(x)" in rephrased("humaneval", code, s) and code != rephrased("humaneval", code, s) for s in range(5)
    )


def test_prompts_are_joined_to_long_ones() -> None:
    long = lengthened(["Translate to English: ein Hund", "Translate to English: eine Katze und mehr"], 4)
    assert long == "Translate to English: ein Hund eine Katze und mehr"
    assert lengthened(["no colon here"], 3).endswith("no colon here")


def test_without_data_prompts_come_with_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WAGER_DATA", raising=False)
    workspace = Workspace()
    chosen = workspace.prompts(("humaneval", "qa", "math_then_code"), 2)
    assert [p.task for p in chosen] == ["humaneval", "humaneval", "qa", "qa", "math_then_code", "math_then_code"]
    assert all(p.text for p in chosen)
    assert workspace.folder("corpora") is None


# -- the page and the command


def test_the_page_is_what_the_results_make() -> None:
    made = page(ROOT / "results")
    assert (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8") == made, (
        "run `python -m reproduction --doc docs/reproduction.md`"
    )
    rows = [line for line in made.splitlines() if line.startswith("| [")]
    assert len(rows) == len(EXPERIMENTS)
    assert "not run yet" not in made


def test_a_longer_result_decides_and_one_of_other_methods_does_not(tmp_path: Path) -> None:
    (tmp_path / "reproduction").mkdir()
    quick = {"quick": True, "machine": "here", "date": "today", **metasd_claims.mixed(selected(1.1)).json()}
    (tmp_path / "reproduction" / "metasd-table19.json").write_text(json.dumps(quick))
    row = next(line for line in page(tmp_path).splitlines() if line.startswith("| [table 19]"))
    assert "**no**" in row
    longer = {**selected(1.8), "device": "a GPU", "date": "today", "command": "wager bench generate"}
    (tmp_path / "mixed-h200.json").write_text(json.dumps(longer))
    row = next(line for line in page(tmp_path).splitlines() if line.startswith("| [table 19]"))
    assert "**yes**" in row
    assert "a GPU" in page(tmp_path)
    (tmp_path / "mixed-h200.json").write_text(json.dumps(board({"auto": {"qa": 2.0}})))
    assert "**no**" in next(line for line in page(tmp_path).splitlines() if line.startswith("| [table 19]"))
    (tmp_path / "mixed-h200.json").write_text("[]")
    with pytest.raises(ValueError, match="holds no result"):
        page(tmp_path)


def called(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["reproduction", *arguments])
    with pytest.raises(SystemExit) as done:
        main()
    return int(done.value.code or 0)


def test_the_command_lists_runs_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WAGER_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert called(monkeypatch) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in EXPERIMENTS)
    assert called(monkeypatch, "nightjar-figure9", "--quick", "--out", "r/reproduction", "--json", "all.json") == 0
    assert "Does the claim hold? cannot be tried here." in capsys.readouterr().out  # no trace at hand
    kept = json.loads((tmp_path / "r" / "reproduction" / "nightjar-figure9.json").read_text())
    assert kept["holds"] == UNTRIED
    assert kept["quick"]
    assert kept["command"].startswith("python -m reproduction nightjar-figure9")
    assert json.loads((tmp_path / "all.json").read_text())["experiments"][0]["experiment"] == "nightjar-figure9"
    assert called(monkeypatch, "--doc", "page.md", "--results", "r") == 0
    assert "| [figure 9](#nightjar-figure9) |" in (tmp_path / "page.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nosuch-table1",), "unknown experiment 'nosuch-table1'; choose from banditspec"),
        (("metasd-table99",), "metasd-table2"),
        (("nightjar", "--all"), "leave out the names"),
        (("--doc", "page.md", "--results", "nowhere"), "no folder nowhere"),
        (("nightjar-figure9", "--data", "nowhere"), "no folder nowhere"),
    ],
)
def test_bad_input_ends_in_one_sentence(
    arguments: tuple[str, ...],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert called(monkeypatch, *arguments) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_costs_are_refused_by_a_wrong_name() -> None:
    with pytest.raises(ValueError, match="choose from cpu, h200, larger"):
        recorded.costs.table("abacus")
    h200, larger = (recorded.costs.table(name).verify(1) for name in ("h200", "larger"))
    assert larger == pytest.approx(10 * h200)


# -- real rounds, of a tiny model


class Letters:
    """A tokenizer of 60 tokens, by the letters' codes."""

    chat_template = None

    def __call__(self, text: str) -> Any:
        return type("Ids", (), {"input_ids": [2 + ord(letter) % 58 for letter in text]})()


def tiny() -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(vocab_size=96, max_position_embeddings=512, **SHAPE)).eval()


@pytest.mark.usefixtures("one_thread")
def test_real_rounds_are_kept_with_their_arms_and_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WAGER_DATA", raising=False)
    workspace = Workspace(_loaded=(tiny(), Letters()))
    arms = ("suffix:2", "prompt-lookup:3")
    run = Generated(
        ("qa", "humaneval"), 1, 24, arms, ("ucbspec",), prompt=60, rephrase=True, route=True, alone=arms[:1]
    )
    result = json.loads(json.dumps(run(workspace)))
    made = Comparison(result)
    assert list(made.cells) == ["off", "suffix:2", "ucbspec", "router"]
    assert made.tasks in (["qa", "humaneval"], ["humaneval", "qa"])
    answers = result["rounds"]["ucbspec"]
    assert {answer["task"] for answer in answers} == {"qa", "humaneval"}
    for answer in answers:
        assert sum(r[3] for r in answer["rounds"]) == 23  # the first token comes with the prompt's own forward
        assert {r[0] for r in answer["rounds"]} <= {"off", *arms}
    assert made.mat("off") == 1.0
    assert made.speed("off", "qa") == 1.0


@pytest.mark.usefixtures("one_thread")
def test_texts_are_recorded_with_the_domain_a_router_takes_them_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WAGER_DATA", raising=False)
    workspace = Workspace(_loaded=(tiny(), Letters()))
    run = Recorded(("qa", "humaneval"), 1, 16, ("suffix", recorded.STORE), longest=3, prompt=60, route=True)
    result = json.loads(json.dumps(run(workspace)))
    assert [one["label"] for one in result["texts"]] == ["qa", "humaneval"]
    assert set(result["routes"]) <= set(recorded.DOMAIN.values())
    assert [list(one.tracks) for one in recorded.texts_of(result)] == [["suffix"], ["suffix"]]  # no corpora: no REST


@pytest.mark.usefixtures("one_thread")
def test_memory_is_compared_with_the_first_arm_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WAGER_DATA", raising=False)
    workspace = Workspace(_loaded=(tiny(), Letters()))
    result = Memory(("qa",), 1, 12, "suffix:2", ("prompt-lookup:2",), ("ucbspec",))(workspace)
    assert list(result["methods"]) == ["suffix:2", "ucbspec"]
    assert all(cell["bytes"] > 0 and cell["read"] > 0 for cell in result["methods"].values())
