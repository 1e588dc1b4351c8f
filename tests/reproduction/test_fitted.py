"""Costs of the simulated server are fitted to measured steps, and claims have to withstand a band around them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reproduction import causes, fitted, nightjar_traced, runs
from reproduction.experiment import Part, withstands
from reproduction.inference import Interval, Sample
from reproduction.opened import Opened
from reproduction.rows import sample
from reproduction.simulated import Served
from reproduction.workspace import Workspace
from wager.policies import fixed
from wager.simulation import Costs, Serving, play
from wager.simulation.costs import parse_cost

RESULTS = Path(__file__).parents[2] / "results"
GRID = [(b, n) for b in (1, 8, 32, 128) for n in (0, 1, 2, 4)]
PLANTED = fitted.Fit(Costs(0.005, 3e-5, 4e-4, 2e-6), 1e-5, 0.0, 0.0, len(GRID), 128)


def test_planted_costs_are_found() -> None:
    found = fitted.fit({cell: PLANTED.step(*cell) for cell in GRID})
    assert found.residual < 1e-4
    assert (found.cells, found.requests) == (len(GRID), 128)
    for name in ("floor", "per_token", "draft_step", "draft_per_token"):
        assert getattr(found.costs, name) == pytest.approx(getattr(PLANTED.costs, name), rel=0.01), name
    assert found.per_request == pytest.approx(PLANTED.per_request, rel=0.01)
    with pytest.raises(ValueError, match="at least five"):
        fitted.fit(dict.fromkeys(GRID[:4], 1.0))


def test_errors_are_relative_and_the_residual_is_theirs() -> None:
    """A step of 5 ms that is off by a tenth counts as much as one of 25 ms."""
    measured = {cell: PLANTED.step(*cell) for cell in GRID}
    measured[1, 0] *= 1.1
    found = fitted.fit(measured)
    wrong = [found.step(*cell) / seconds - 1 for cell, seconds in measured.items()]
    assert found.residual == pytest.approx(np.sqrt(np.mean(np.square(wrong))), rel=0.01)
    assert found.worst == pytest.approx(np.abs(wrong).max(), rel=0.01)
    others = [abs(each) for cell, each in zip(measured, wrong, strict=True) if cell != (1, 0)]
    assert max(others) < 0.04 < found.worst


def test_the_fit_is_close_to_the_measured_steps_and_to_timings_it_has_not_seen() -> None:
    found = fitted.of(RESULTS)
    measured = fitted.steps([RESULTS / file for file in fitted.TURNS])
    assert {cell for cell in measured if cell[0] == found.requests} >= {(128, n) for n in (0, 1, 2, 4)}
    assert found.cells == len(measured) >= 16
    assert found.residual < 0.03
    assert found.worst < 0.06
    assert max(abs(found.step(*cell) / seconds - 1) for cell, seconds in measured.items()) < 0.06
    timed = parse_cost(str(RESULTS / fitted.CATCHING_UP), {"drafters": [fitted.HEAD]})
    assert found.costs.draft_step == pytest.approx(timed.step[fitted.HEAD], rel=0.1), "timed without a server"
    switching = fitted.switches([RESULTS / file for file in fitted.TURNS])
    assert max(switching.values()) < 2 * found.costs.wake, "the engine's own switches are inside the band"
    assert f"{found.residual:.1%}" in str(found)


def turn(policy: str, ms: float, **more: Any) -> dict[str, Any]:
    length = 0 if policy == "off" else policy
    own = {"do": "closed", "engine": fitted.ENGINE, "turn": 0, "batch": 8, "policy": policy}
    return {**own, "kinds": {f"{length}>{length} 0 full": (20, ms), f"{length}>{length} 1 full": (20, 900.0)}, **more}


def test_steps_are_those_of_fixed_lengths_without_prompts(tmp_path: Path) -> None:
    few = {"2>2 0 full": (fitted.FEWEST - 1, 900.0)}
    turns = [
        turn("2", 6.0), turn("2", 7.0), turn("2", 20.0), turn("off", 5.0), turn("2", 900.0, turn=-1),
        turn("2", 900.0, do="open"), turn("2", 900.0, engine="8B plain"), turn("2", 900.0, error="it ended"),
        turn("2", 0.0, kinds=few), {**turn("2", 900.0), "policy": "nightjar"},
    ]  # fmt: skip
    path = tmp_path / "turns.json"
    path.write_text(json.dumps({"turns": turns}))
    assert fitted.steps([path]) == {(8, 0): 0.005, (8, 2): 0.007}


def test_switches_are_what_two_steps_around_a_draft_take_more(tmp_path: Path) -> None:
    kinds = {"0>0 0 full": (9, 5.0), "2>2 0 full": (9, 6.0), "0>2 0 full": (1, 4.5), "2>0 0 full": (1, 8.0)}
    path = tmp_path / "turns.json"
    path.write_text(json.dumps({"turns": [turn("2", 0.0, kinds=kinds), turn("2", 0.0, kinds=kinds, engine="other")]}))
    assert fitted.switches([path]) == {8: pytest.approx(0.0015)}


@pytest.mark.parametrize(("requests", "length"), [(1, 0), (8, 4), (128, 2)])
def test_a_simulated_step_takes_the_fitted_seconds(requests: int, length: int) -> None:
    found = replace(PLANTED, costs=replace(PLANTED.costs, prefill_per_token=0.0))
    own: dict[str, Any] = {"lengths": (1, 2, 4), "load": (requests,), "max_batch": 128}
    scenario = fitted.Requests(goal=20000, costs=found.costs, per_request=found.per_request, **own)
    arm = next(arm for arm in scenario.arms if arm.length == length)
    run = play(scenario, fixed(arm), 0)
    assert run.seconds / run.rounds == pytest.approx(found.step(requests, length), rel=1e-6)


@pytest.mark.parametrize("policy", ["tetris", "nightjar", "dsd"])
def test_requests_that_cost_nothing_of_their_own_change_nothing(policy: str) -> None:
    shape: dict[str, Any] = {"goal": 3000, "load": (4,), "costs": PLANTED.costs}
    one, other = play(fitted.Requests(**shape, per_request=0.0), policy, 1), play(Serving(**shape), policy, 1)
    assert (one.seconds, one.rounds, one.pulls) == (other.seconds, other.rounds, other.pulls)


def test_every_entry_of_the_band_changes_what_it_names_and_nothing_else() -> None:
    fit = fitted.of(RESULTS)
    named = {"drafting": {"draft_step", "draft_per_token"}, "slope in tokens": {"per_token", "prefill_per_token"},
             "switching": {"wake", "lag_per_token"}}  # fmt: skip
    times = {what: set() for what in named}  # type: dict[str, set[float]]
    for name in fitted.BAND:
        what, _, factor = name.partition(" x ")
        times[what].add(float(factor))
        varied = fitted.of(RESULTS, name)
        for field in Costs.__dataclass_fields__:
            by = float(factor) if field in named[what] else 1.0
            assert getattr(varied.costs, field) == pytest.approx(by * getattr(fit.costs, field)), (name, field)
    assert {0.8, 1.25} <= times["drafting"] & times["slope in tokens"]


@pytest.mark.parametrize(
    ("mean", "others", "verdict"),
    [(0.02, [0.01, 0.03], "holds"), (0.02, [-0.001, 0.03], "undecided"), (-0.02, [-0.03, 0.001], "undecided"),
     (-0.02, [-0.03, -0.001], "does not hold")],
)  # fmt: skip
def test_a_part_whose_sign_changes_inside_the_band_is_undecided(mean: float, others: list[float], verdict: str) -> None:
    alone = "holds" if mean > 0 else "does not hold"
    part = withstands(Part("", Interval(mean, mean - 0.001, mean + 0.001), Sample(seeds=30), alone), others)
    assert part.verdict == verdict
    assert part.band == (min(others), max(others))
    told = part.json()
    assert "with costs varied" in told["effect"]
    if verdict == "undecided":
        assert causes.of_part(told) == causes.BAND


def result(speed: float, seeds: int, names: tuple[str, ...] = runs.TRACED, **more: Any) -> dict[str, Any]:
    """Nightjar is this many times as fast as the others."""
    noise = np.random.default_rng(0).normal(1, 0.001, (len(names), seeds))
    units = {
        name: {column: (own / (speed if name == "nightjar" else 1)).tolist() for column in ("seconds", "latency")}
        for name, own in zip(names, noise, strict=True)
    }
    return {"labels": [""] * seeds, "units": units, "seeds": seeds, "unit": "seeds", **more}


def traced(fit: float, band: float, stated: float, rounds: int) -> list[dict[str, Any]]:
    sets = len(runs.SETS)
    own = [result(fit, 30)] * sets + [result(fit, 6)] * (sets * (len(fitted.BAND) - 1)) + [result(band, 6)] * sets
    return [*own, *[result(stated, 20)] * (sets * len(runs.PAIRS)), result(fit, rounds, runs.ON_ENGINE, beside=True)]


@pytest.mark.parametrize("check", [nightjar_traced.check_throughput, nightjar_traced.check_latency])
def test_fitted_costs_decide_with_their_band_and_stated_ones_do_not(check: Any) -> None:
    assert check(traced(1.1, 1.05, 0.5, 2)).verdict == "holds"
    assert "with stated costs: does not hold" in check(traced(1.1, 1.05, 0.5, 2)).headline
    assert check(traced(0.9, 0.95, 1.5, 2)).verdict == "does not hold"
    assert {part.verdict for part in check(traced(1.1, 0.95, 1.5, 2)).parts} == {"undecided"}


def test_the_engine_decides_parts_once_it_has_enough_rounds() -> None:
    few, enough = (nightjar_traced.check_throughput(traced(1.1, 1.1, 1.1, n)) for n in (4, 5))
    assert not any(nightjar_traced.ENGINE in part.says for part in few.parts)
    assert "decides nothing, with 4 rounds of at least 5 (Nightjar is faster than DSD: +10." in few.headline
    assert "decides nothing" not in enough.headline
    assert [p.verdict for p in enough.parts if nightjar_traced.ENGINE in p.says] == ["holds"] * 3
    assert "with 0 rounds" in nightjar_traced.check_latency(traced(1.1, 1.1, 1.1, 0)).headline


def test_the_trace_on_the_engine_is_of_rounds_that_every_method_had(tmp_path: Path) -> None:
    def opened(policy: str, number: int, **more: Any) -> dict[str, Any]:
        own = {"plan": "rates", "do": "open", "rate": 0.0, "profile": "fair", "policy": policy, "turn": number}
        return {**own, "took": 2.0, "tokens": 1000 + number, "tpot_ms": {"p50": 4.0, "p99": 9.0}, **more}

    turns = [opened(policy, n) for policy in ("off", "4") for n in (0, 1)] + [opened("off", 2), opened("4", 2, rate=30)]
    (tmp_path / "turns.json").write_text(json.dumps({"turns": turns}))
    told = Workspace(recordings=tmp_path / "recordings").result(Opened(("off", "draft:4"), "turns.json"))
    assert told["units"]["draft:4"] == {"seconds": [2 / 1000, 2 / 1001], "latency": [0.004, 0.004]}
    assert told["seeds"] == 2


def test_runs_with_fitted_costs_depend_on_the_results_they_are_fitted_to(tmp_path: Path) -> None:
    run = Served((2,), 300, ("off",), alone=False, fitted=fitted.FITTED, seeds=1)
    workspace = Workspace(recordings=tmp_path / "recordings")
    assert f"needs {fitted.FILES[0]}" in workspace.result(run)["missing"]
    before = workspace.name(run)
    (tmp_path / fitted.FILES[-1]).write_text("{}")
    assert workspace.name(run) != before
    here = Workspace(recordings=RESULTS / "recordings")
    fit, slower = (here.result(replace(run, fitted=name)) for name in (fitted.FITTED, "slope in tokens x 1.25"))
    assert slower["units"]["off"]["seconds"][0] > fit["units"]["off"]["seconds"][0]
    assert (slower["protocol"], "costs fitted" in fit["protocol"]["hardware"]) == ({}, True)
    assert sample([{**fit, "seeds": 9}, {**slower, "beside": True}]) == {"seeds": 9}
