"""On-the-fly adaptation: tables 1, 2, 3, 7, 9, 10, 12, 13 and figure 3."""

from dataclasses import replace

from reproduction import onthefly_claims as claims
from reproduction import runs
from reproduction.analyses import Stopped
from reproduction.engine import Generated
from reproduction.experiment import experiment
from reproduction.onthefly_claims import FIXED, HISTORIES, LIMITS, OURS, SETS, SIZES, THREE, WAYS
from reproduction.recorded import Replayed
from reproduction.simulated import Routing
from reproduction.workspace import Run

LENGTHS = (1, 2, 3, 4, 5)


def window(quick: bool, drafter: str) -> Replayed:
    """One drafter, windows of 1 to 5 tokens, chosen anew in every round of every text; every window alone."""
    labels = tuple(SETS.values())
    return Replayed(runs.everything(quick), (drafter,), LENGTHS, (OURS,), apart=True, off=True, labels=labels)


def selection(quick: bool) -> tuple[Run, ...]:
    count, tokens = (3, 24) if quick else (12, 128)
    single = f"fixed:drafter=draft:ofa,length={FIXED}"
    one = Generated(THREE, count, tokens, ("draft:ofa:1", "draft:ofa:2", "draft:ofa:5"), (OURS, single), alone=())
    every = tuple(f"{name}:{length}" for name in runs.MODELS for length in (1, 2, 5))
    return (one, Generated(THREE, count, tokens, every, ("prompt-router",), alone=()))


def stopping(quick: bool) -> tuple[Stopped, ...]:
    return tuple(Stopped(runs.everything(quick), drafter, 8, (OURS,)) for drafter in ("draft:ofa", "eagle:ofa"))


def sampled(quick: bool) -> tuple[Run, ...]:
    arms = tuple(f"eagle:ofa:{n}" for n in (1, 2, 3, FIXED))
    return (Generated(THREE, 2 if quick else 12, 36 if quick else 128, arms, (OURS,), temperature=1.0),)


def trees(quick: bool) -> tuple[Run, ...]:
    arms = ("eagle:ofa:2@4x16", "eagle:ofa:4@4x16", "eagle:ofa:6@4x16")
    tasks = ("mt_bench", *THREE)
    return (Generated(tasks, 1 if quick else 6, 40 if quick else 128, arms, (OURS,)),)


def histories(quick: bool) -> tuple[Run, ...]:
    policies = tuple(f"{OURS}:history={h}" for h in HISTORIES)
    lengths = [tuple(range(1, n + 1)) for n in LIMITS]
    recorded = Replayed(runs.everything(quick), ("eagle:ofa",), (), policies, alone=False, labels=THREE)
    return tuple(replace(recorded, lengths=own, apart=True, off=True) for own in lengths)


def ways(quick: bool) -> tuple[Run, ...]:
    arms = tuple(f"eagle:ofa:{n}" for n in (1, 2, 3, 4, 5))
    policies = (*WAYS, f"fixed:drafter=eagle:ofa,length={FIXED}")
    return (Generated(THREE, 2 if quick else 12, 40 if quick else 128, arms, policies, alone=()),)


EXPERIMENTS = (
    experiment(
        "onthefly-table1",
        lambda quick: tuple(window(quick, drafter) for drafter in ("draft:ofa", "eagle:ofa")),
        lambda results: claims.check_windows(results, ("draft:ofa", "eagle:ofa"), tuple(SETS)),
    ),
    experiment("onthefly-table2", selection, claims.check_selection),
    experiment("onthefly-table3", stopping, claims.check_stopping),
    experiment(
        "onthefly-table7",
        lambda quick: (window(quick, "eagle:ofa"),),
        lambda results: claims.check_windows(results, ("eagle:ofa",), ("finance-alpaca", "HumanEval", "GSM8K")),
    ),
    experiment("onthefly-table9", sampled, lambda found: claims.check_sampled(found[0]), "temperature-1.0-h200.json"),
    experiment("onthefly-table10", trees, lambda results: claims.check_trees(results[0]), "depth-h200.json"),
    experiment("onthefly-table12", histories, claims.check_histories),
    experiment(
        "onthefly-table13", lambda quick: (Routing(SIZES, 200 if quick else 2000, 150, runs=3),), claims.check_sizes
    ),
    experiment("onthefly-figure3", ways, claims.check_ways, "depth-h200.json"),
)
