"""Nightjar's claims in the serving environment, those that hold and those that do not."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from wager.core import Context, Round
from wager.simulation import CLAIRVOYANT, Costs, Serving, compare, load_trace, play

FIXED = ["off", *(f"fixed:drafter=draft,length={k}" for k in range(1, 6))]


def goodput(scenario: Serving, spec: str, warmup: int = 0) -> float:
    run = play(scenario, spec, 0, warmup=warmup)
    return run.tokens / run.seconds


def share_off_at_the_end(scenario: Serving, spec: str) -> float:
    """How many of the steps of the last quarter ran without speculation."""
    off: list[bool] = []

    def watch(context: Context, outcome: Round) -> None:
        if context.tokens > 0.75 * scenario.goal:
            off.append(outcome.arm.length == 0)

    play(scenario, spec, 0, watch=watch)
    return float(np.mean(off))


def test_speculation_pays_when_idle_and_costs_when_busy() -> None:
    idle, busy = Serving(goal=4000, load=(1,)), Serving(goal=40000, load=(48,))
    assert goodput(idle, "fixed:drafter=draft,length=4") > 1.5 * goodput(idle, "off")
    assert goodput(busy, "fixed:drafter=draft,length=4") < 0.8 * goodput(busy, "off")


def test_a_constant_load_keeps_the_batch_and_a_lag_is_paid_once() -> None:
    seen: list[tuple[int, int, int]] = []
    scenario = Serving(goal=5000, load=(6,))
    play(scenario, "round-robin", 0, watch=lambda c, r: seen.append((r.batch, r.arm.length, r.lag)))
    assert {batch for batch, _, _ in seen} == {6}
    for (_, before, _), (_, length, lag) in pairwise(seen):
        assert (lag > 0) == (before == 0 and length > 0)


def test_every_policy_serves_the_same_requests() -> None:
    scenario = Serving(goal=20000, load=(8,))
    finished = {spec: play(scenario, spec, 3).facts["requests"] for spec in ("off", "nightjar", "tetris")}
    assert max(finished.values()) - min(finished.values()) <= 3


def test_requests_arrive_by_rate_and_wait_their_turn() -> None:
    calm = play(Serving(goal=8000, load=(), rate=0.2), "off", 0).facts
    rush = play(Serving(goal=8000, load=(), rate=50, max_batch=4), "off", 0).facts
    assert rush["latency_mean"] > 3 * calm["latency_mean"]


def test_runs_in_which_no_request_ended_are_summed_up_too() -> None:
    outcome = compare(Serving(goal=60, load=(2,)), ["off"], runs=4, seed=2)
    assert {len(run.facts) for run in outcome.results[0].runs} == {3, 5}  # some have latencies, some do not
    assert outcome.json()["policies"][0]["facts"]["latency_mean"] > 0


CSV = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)


def test_arrivals_come_from_a_trace_file(tmp_path: Path) -> None:
    path = tmp_path / "load.csv"
    path.write_text(CSV)
    arrivals = load_trace(path, speed=2)
    assert [a.output for a in arrivals] == [44, 109]
    assert arrivals[1].at == pytest.approx(4.314579 / 2, abs=1e-4)
    run = play(Serving(goal=10**6, load=(), trace=arrivals), "off", 0)
    assert run.tokens == 44 + 109


@pytest.mark.parametrize("content", ["", "a,b\n1,2\n", CSV.replace("374", "many"), CSV.splitlines()[0] + "\n"])
def test_a_file_that_is_no_load_trace_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "load.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match="is not a load trace"):
        load_trace(path)


def test_nightjar_comes_within_5_percent_of_the_best_length_at_low_load() -> None:
    """At a load of 1 after some 7,000 steps; at high load it takes far longer (docs/simulation.md)."""
    scenario = Serving(goal=40_000, load=(1,))
    best = goodput(scenario, FIXED[4], warmup=20_000)  # the next, 5 and 3, are 2 % slower here
    assert goodput(scenario, "nightjar", warmup=20_000) > 0.95 * best


def test_nightjar_beats_every_fixed_length_and_ucbspec_when_the_load_changes() -> None:
    # Costs under which a wrong length is dear: with the usual ones it takes 600,000 tokens (docs/simulation.md).
    scenario = Serving(goal=120_000, load=(1, 16, 1, 16), costs=Costs(per_token=0.002, draft_step=0.0005))
    nightjar = goodput(scenario, "nightjar")
    assert nightjar > goodput(scenario, FIXED[3])  # the best of all here; the next, 4, is 1 % slower
    assert nightjar > goodput(scenario, "ucbspec")


def test_nightjar_switches_less_than_ada_bingreedy_when_waking_the_drafter_is_dear() -> None:
    """The clearest of six settings recorded; the claim is weak in general (docs/simulation.md)."""
    scenario = Serving(goal=120_000, load=(24,), costs=Costs(wake=0.1))

    ours, theirs = ([play(scenario, spec, seed) for seed in range(2)] for spec in ("nightjar", "ada-bingreedy"))
    assert sum(run.switches for run in ours) < sum(run.switches for run in theirs)
    assert sum(run.facts["wakes"] for run in ours) < sum(run.facts["wakes"] for run in theirs)


def test_nightjar_returns_from_off_when_the_load_falls_and_analytical_does_not() -> None:
    falling = Serving(goal=80_000, load=(64, 64, 64, 2), output=50)
    assert share_off_at_the_end(falling, "nightjar") < 0.2
    assert share_off_at_the_end(falling, "analytical") == 1.0
    # Nightjar's paper says the same of DSD. Here it returns: batch size is in its latency model, and the acceptance it
    # remembers was good. It is stuck when a poor acceptance turned it off, see the next test.
    assert share_off_at_the_end(falling, "dsd") < 0.2


def test_dsd_stays_off_for_good_once_poor_acceptance_turned_it_off() -> None:
    recovering = Serving(goal=120_000, load=(24,), output=50, acceptance=(0.1, 0.1, 0.1, 0.85))
    assert share_off_at_the_end(recovering, CLAIRVOYANT) < 0.2
    assert share_off_at_the_end(recovering, "dsd") == 1.0
    assert share_off_at_the_end(recovering, "analytical") == 1.0
    assert share_off_at_the_end(recovering, "nightjar") < 1.0
