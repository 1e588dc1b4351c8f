"""Many policies, many seeds: run them side by side and say what came out."""

import math
import signal
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from functools import partial
from multiprocessing import active_children, get_context
from typing import Any, Self

import numpy as np

from wager.core import Arm, require
from wager.policies import build, fixed
from wager.simulation.base import CLAIRVOYANT, Run, Scenario, play

# 97.5 % points of Student's t for 1, 2, … degrees of freedom; the last serves for all that are more.
STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over runs with the half-width of its 95 % interval (Student's t); one run has none."""

    mean: float
    half: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        n = len(values)
        half = STUDENT[min(n - 1, len(STUDENT)) - 1] * float(np.std(values, ddof=1)) / math.sqrt(n) if n > 1 else None
        return cls(float(np.mean(values)), half)

    def __str__(self) -> str:
        digits = 1 if abs(self.mean) < 1000 else 0
        return f"{self.mean:,.{digits}f}" + ("" if self.half is None else f" ± {self.half:,.{digits}f}")

    def json(self) -> dict[str, float | None]:
        return {"mean": self.mean, "half_width_95": self.half}


@dataclass(frozen=True, slots=True)
class Result:
    """What one policy did over all seeds, beside the best fixed arm on the same seeds."""

    policy: str
    runs: tuple[Run, ...]
    rounds: Estimate
    seconds: Estimate
    regret_rounds: Estimate
    regret_seconds: Estimate
    goodput: Estimate  # tokens per second
    speed: Estimate  # goodput over the best fixed arm's
    tokens_per_round: Estimate  # MAT for a batch of one
    switches: Estimate
    best_share: float  # of rounds played with the best fixed arm
    regret_curve: tuple[Estimate, ...]  # rounds beyond the best fixed arm at each token mark

    @property
    def facts(self) -> dict[str, float]:
        """The environment's further figures, each averaged over the runs that have it."""
        names = dict.fromkeys(name for run in self.runs for name in run.facts)
        return {name: float(np.mean([run.facts[name] for run in self.runs if name in run.facts])) for name in names}

    def json(self) -> dict[str, Any]:
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {
            "policy": self.policy,
            **{name: value.json() for name, value in values if isinstance(value, Estimate)},
            "best_share": self.best_share,
            "pulls": {str(arm): float(np.mean([run.pulls[arm] for run in self.runs])) for arm in self.runs[0].pulls},
            "facts": self.facts,
            "regret_curve": [estimate.json() for estimate in self.regret_curve],
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """An experiment's outcome."""

    marks: tuple[int, ...]  # tokens
    best: Arm  # the fixed arm that took least seconds
    best_fixed: Result
    clairvoyant: Result
    results: tuple[Result, ...]
    fixed: tuple[Result, ...] = ()  # every arm played all the time

    @property
    def rows(self) -> tuple[Result, ...]:
        """Everything to show: what one cannot have first."""
        return (self.clairvoyant, self.best_fixed, *self.results)

    def json(self) -> dict[str, Any]:
        return {
            "marks": list(self.marks),
            "best_fixed_arm": str(self.best),
            "best_fixed": self.best_fixed.json(),
            "clairvoyant": self.clairvoyant.json(),
            "policies": [result.json() for result in self.results],
        }


def token_marks(goal: int, count: int = 60) -> tuple[int, ...]:
    """Token counts at which curves are read: evenly spaced on a logarithmic scale, from 10 to the goal."""
    start = math.log10(min(10, goal))
    return tuple(sorted({round(float(10**x)) for x in np.linspace(start, math.log10(goal), count)}))


def even_marks(goal: int, count: int = 400) -> tuple[int, ...]:
    """Token counts evenly spaced, for what happens anywhere in a run."""
    return tuple(sorted({round(goal * i / count) for i in range(1, count + 1)}))


NEAR = 0.95


def adaptation(comparison: Comparison, start: int, end: int) -> dict[str, Any]:
    """The arm that was best between two token counts in hindsight, and how soon each policy was as good, as JSON.

    ``rounds`` until the seconds since the start are never again more than that arm's / 0.95, all of them if that never
    comes; ``reached``, the share of runs where it does; goodput over all of it, as a share of that arm's.
    """
    first, last = bisect_left(comparison.marks, start), bisect_right(comparison.marks, end) - 1
    require(last > first, f"there are no marks between {start} and {end} tokens")

    def taken(run: Run, at: int) -> float:
        return run.curve[at][1] - run.curve[first][1]

    best = min(comparison.fixed, key=lambda result: sum(taken(run, last) for run in result.runs))
    told = {}
    for result in comparison.results:
        rounds, reached, speed = [], 0, []
        for run, other in zip(result.runs, best.runs, strict=True):
            late = [at for at in range(first + 1, last + 1) if NEAR * taken(run, at) > taken(other, at)]
            until = late[-1] if late else first
            reached += until < last
            rounds.append(float(run.curve[until][0] - run.curve[first][0]))
            speed.append(taken(other, last) / taken(run, last))
        shares = {"reached": reached / len(result.runs), "to_best_fixed": Estimate.of(speed).json()}
        told[result.policy] = {"rounds": Estimate.of(rounds).json(), **shares}
    return {"at": start, "best_fixed_arm": best.policy, "policies": told}


def compare(
    scenario: Scenario, policies: Sequence[str], *, runs: int, seed: int = 0, jobs: int = 1, warmup: int = 0,
    marks: Sequence[int] | None = None, progress: Callable[[int, int], None] = lambda done, of: None,
) -> Comparison:  # fmt: skip
    """Run every policy, every fixed arm and the clairvoyant on the same seeds.

    The first ``warmup`` tokens of a run do not count. ``marks`` are token counts at which curves are read. ``progress``
    is told how many of how many runs are done.
    """
    require(runs >= 1, f"an experiment needs at least 1 run, not {runs}")
    for spec in policies:
        build(spec, scenario.arms, tokens=scenario.goal)  # a bad specification is refused before anything runs
    marks = tuple(marks or token_marks(scenario.goal))
    arms = {fixed(arm): arm for arm in scenario.arms}
    specs = [CLAIRVOYANT, *arms, *dict.fromkeys(policies)]
    tasks = [(spec, seed + run) for spec in specs for run in range(runs)]
    done: list[Run] = []
    with closing(_map(partial(play, scenario, marks=marks, warmup=warmup), tasks, jobs)) as outcomes:
        for outcome in outcomes:
            done.append(outcome)
            progress(len(done), len(tasks))
    by_spec = {spec: tuple(done[i * runs : (i + 1) * runs]) for i, spec in enumerate(specs)}
    best_spec = min(arms, key=lambda spec: float(np.mean([run.seconds for run in by_spec[spec]])))
    best = arms[best_spec]

    def result(name: str, spec: str) -> Result:
        return _summarise(name, by_spec[spec], by_spec[best_spec], best)

    unreachable = result(f"best fixed ({best})", best_spec), result(CLAIRVOYANT, CLAIRVOYANT)
    chosen = tuple(result(spec, spec) for spec in dict.fromkeys(policies))
    return Comparison(marks, best, *unreachable, chosen, tuple(result(str(arm), spec) for spec, arm in arms.items()))


def _map(play_one: Callable[[str, int], Run], tasks: list[tuple[str, int]], jobs: int) -> Generator[Run, None, None]:
    """A run for every policy and seed, in their order."""
    if jobs <= 1:
        yield from (play_one(*task) for task in tasks)
        return
    ignored, before = (signal.SIGINT, signal.SIG_IGN), set(active_children())
    pool = ProcessPoolExecutor(min(jobs, len(tasks)), get_context("spawn"), signal.signal, ignored)
    try:
        with _interrupts_held():
            runs = pool.map(play_one, *zip(*tasks, strict=True))
        yield from runs
    except BaseException:  # what is under way may take long, and nobody waits for it
        for worker in set(active_children()) - before:
            worker.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C is the parent's to handle: processes that are started here never see it, not even before they can say so.

    It reaches the parent afterwards.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _summarise(name: str, runs: tuple[Run, ...], base: tuple[Run, ...], best: Arm) -> Result:
    pairs = list(zip(runs, base, strict=True))
    beyond = ([run.curve[i][0] - o.curve[i][0] for run, o in pairs] for i in range(len(runs[0].curve)))
    return Result(
        policy=name,
        runs=runs,
        rounds=Estimate.of([run.rounds for run in runs]),
        seconds=Estimate.of([run.seconds for run in runs]),
        regret_rounds=Estimate.of([run.rounds - other.rounds for run, other in pairs]),
        regret_seconds=Estimate.of([run.seconds - other.seconds for run, other in pairs]),
        goodput=Estimate.of([run.tokens / run.seconds for run in runs]),
        speed=Estimate.of([(run.tokens / run.seconds) / (o.tokens / o.seconds) for run, o in pairs]),
        tokens_per_round=Estimate.of([run.tokens / run.rounds for run in runs]),
        switches=Estimate.of([run.switches for run in runs]),
        best_share=sum(run.pulls[best] for run in runs) / sum(run.rounds for run in runs),
        regret_curve=tuple(map(Estimate.of, beyond)),
    )
