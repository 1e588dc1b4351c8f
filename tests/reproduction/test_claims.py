"""Every table and figure has an experiment, and verdicts follow from figures both ways."""

from typing import Any

import pytest
from paper_results import board, flat, selected

from reproduction import EXPERIMENTS, PAPERS, Check, Figures, Outcome, banditspec, metasd_claims, runs
from reproduction import nightjar_claims as nightjar
from reproduction import onthefly_claims as onthefly
from reproduction.comparison import Comparison
from reproduction.experiment import NO, PART, UNTRIED, YES, shown
from reproduction.workspace import Workspace

WANTED = {
    "banditspec": [*(f"table{n}" for n in (1, 2, 3, 4)), "figure3"],
    "onthefly": [*(f"table{n}" for n in (1, 2, 3, 7, 9, 10, 12, 13)), "figure3"],
    "nightjar": [*(f"figure{n}" for n in (2, 5, 6, 8, 9, 10, 11)), *(f"table{n}" for n in (1, 2, 3))],
    "metasd": [*(f"table{n}" for n in (*range(2, 18), 19)), *(f"figure{n}" for n in (2, 3, 6))],
}


def test_every_table_and_figure_has_an_experiment() -> None:
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


def test_runs_that_experiments_share_go_by_one_name() -> None:
    names = ("nightjar-figure2", "nightjar-figure5", "nightjar-figure11")
    made = [Workspace().name(run) for name in names for run in EXPERIMENTS[name].runs(True)]
    assert (len(made), len(set(made))) == (3 * len(runs.LOADS), len(runs.LOADS))


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
        onthefly.check_trees(board({"analytical": {"qa": 1.5}}))


def served(**goodput: float) -> dict[str, Any]:
    cells = {name: {"goodput": x, "pulls": {"off": 0.9}} for name, x in goodput.items()}
    lengths = {f"draft:{n}": {"goodput": 10.0 - n} for n in range(1, 6)}
    return {"methods": {**lengths, **{NAME.get(name, name): cell for name, cell in cells.items()}}}


NAME = {"banditspec": "ucbspec:reward=goodput", "ada": "ada-bingreedy"}


def test_nightjar_has_to_be_ahead_of_all() -> None:
    best = [served(nightjar=20.0, banditspec=9.0, dsd=9.0, tetris=9.0, off=19.9, ada=8, linucb=8, lints=8)] * 4
    assert nightjar.check_low(best).holds == YES
    assert nightjar.check_high(best).holds == YES
    assert nightjar.check_contexts(best).holds == YES
    worst = [served(nightjar=5.0, banditspec=9.0, dsd=9.0, tetris=9.0, off=20.0, ada=8, linucb=8, lints=8)] * 4
    assert nightjar.check_low(worst).holds == NO
    assert nightjar.check_contexts(worst).holds == NO
    assert nightjar.check_high(worst).holds == PART  # it does turn itself off


def test_a_trace_has_to_change() -> None:
    assert nightjar.check_arrivals([{"rates": [1.0, 2.0, 9.0], "requests": 120}]).holds == YES
    assert nightjar.check_arrivals([{"rates": [5.0, 6.0, 7.0], "requests": 120}]).holds == NO
