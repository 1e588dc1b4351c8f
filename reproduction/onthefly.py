"""On-the-fly adaptation: tables 1, 2, 3, 7 to 13 and figures 3, 5, 6."""

from collections.abc import Sequence

from reproduction import asked, runs
from reproduction import onthefly_claims as claims
from reproduction.analyses import Stopped
from reproduction.experiment import experiment
from reproduction.onthefly_claims import HISTORIES, LIMITS, SETS, SIZES, THREE, WAYS
from reproduction.recorded import EVERY_SET, NEVER, Replayed
from reproduction.recordings import Wanted
from reproduction.runs import ANALYTICAL as OURS
from reproduction.simulated import Routing
from reproduction.workspace import Run

LENGTHS = (1, 2, 3, 4, 5)
BOTH = ("draft:ofa", "eagle:ofa")
SURE = ("draft:ofa",)  # recordings hold how sure it is of each token
TRIALS = 25  # prompts on which the paper lets RL learn first


def windows(drafters: Sequence[str], labels: Sequence[str], cost: str = "cpu", **how: object) -> tuple[Run, ...]:
    """Windows of 1 to 5 tokens, each alone and chosen anew in every round."""
    own = {"labels": tuple(labels), **how}
    return tuple(runs.window(drafter, cost, (OURS,), LENGTHS, **own) for drafter in drafters)


def selection() -> tuple[Run, ...]:
    """One drafter with an adaptive window, and the drafter chosen by the prompt as well, from the first prompt on."""
    wanted, shared = Wanted(("draft:ofa", *runs.MODELS)), {"cost": "cpu", "reset": NEVER, "labels": THREE}
    one = Replayed(wanted, LENGTHS, (OURS,), pool=("draft:ofa",), alone=("draft:ofa",), **shared)  # type: ignore[arg-type]
    chosen = Replayed(wanted, LENGTHS, ("prompt-router",), alone=(), file=asked.FILE, **shared)  # type: ignore[arg-type]
    return one, chosen


def stopping() -> tuple[Run, ...]:
    found: list[Run] = []
    for drafter in SURE:
        found += windows((drafter,), THREE)
        found.append(Stopped(Wanted((drafter,), confidence=True), 8, "cpu", THREE))
    return tuple(found)


def trees() -> tuple[Run, ...]:
    """The recorded trees of a head, each alone and its depth chosen in every round."""
    wanted = Wanted(("eagle:ofa",), trees=True)
    return (Replayed(wanted, (1,), (OURS,), reset=EVERY_SET, labels=("mt_bench", *THREE)),)


def histories() -> tuple[Run, ...]:
    policies = tuple(f"{OURS}:history={h}" for h in HISTORIES)
    return tuple(
        runs.window("draft:ofa", "cpu", policies, tuple(range(1, n + 1)), labels=THREE, alone=()) for n in LIMITS
    )


def ways(drafter: str, cost: str) -> tuple[Run, ...]:
    """All four ways to adapt; the first prompts of every order teach only, as RL's trials do in the paper."""
    shared = {"cost": cost, "reset": NEVER, "labels": THREE, "alone": (), "warmup": TRIALS}
    others = tuple(way for way in WAYS if way != OURS)
    every = ((OURS,), False), (others, True)  # a counter may fall to 0; the model's windows begin at 1
    wanted = Wanted((drafter,), repeats=True)
    return tuple(Replayed(wanted, LENGTHS, ways, off=off, **shared) for ways, off in every)  # type: ignore[arg-type]


EXPERIMENTS = (
    experiment(
        "onthefly-table1",
        lambda: windows(BOTH, tuple(SETS.values())),
        lambda results: claims.check_windows(results, BOTH, tuple(SETS)),
    ),
    experiment("onthefly-table2", selection, claims.check_selection),
    experiment("onthefly-table3", stopping, lambda results: claims.check_stopping(results, SURE)),
    experiment(
        "onthefly-table7",
        lambda: windows(("eagle:ofa",), THREE, "1b", target="other"),
        lambda results: claims.check_windows(results, ("eagle:ofa",), ("finance-alpaca", "HumanEval", "GSM8K")),
    ),
    experiment(
        "onthefly-table8",
        lambda: windows(BOTH, ("mt_bench",)),
        lambda results: claims.check_windows(results, BOTH, ("mt_bench",)),
    ),
    experiment(
        "onthefly-table9",
        lambda: windows(BOTH, THREE, temperature=1.0),
        lambda results: claims.check_windows(results, BOTH, ("finance-alpaca", "HumanEval", "GSM8K")),
        "temperature-1.0-h200.json",
    ),
    experiment("onthefly-table10", trees, claims.check_trees, "depth-h200.json"),
    experiment("onthefly-table11", trees, claims.check_tree_rates, "depth-h200.json"),
    experiment("onthefly-table12", histories, claims.check_histories),
    experiment("onthefly-table13", lambda: (Routing(SIZES, 200, 150, seeds=60),), claims.check_sizes),
    experiment("onthefly-figure3", lambda: ways("draft:ofa", "cpu"), claims.check_ways, "depth-h200.json"),
    experiment("onthefly-figure5", lambda: ways("eagle:ofa", "cpu"), claims.check_ways),
    experiment("onthefly-figure6", lambda: ways("draft:ofa", "8b"), claims.check_ways),
)
