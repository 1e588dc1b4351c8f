"""What a step of a server takes, fitted to step times that `reproduction.turns` measured on a vLLM engine.

A step with b requests that verifies n drafted tokens of each takes

    hypot(floor, per_token · b (n + 1)) + n (draft_step + draft_per_token · b) + per_request · b

seconds: the simulation's `Costs`, and a term for every request (its part of the cache is read, it is scheduled), which
`Requests` adds. The five are fitted to the medians of all turns with a fixed length, off included, by least squares of
relative errors. Three costs are in no step without prompts or changes of length, and come from elsewhere:

- wake, lag_per_token: what a head takes to catch up, as `wager lab costs 8b` timed it. Timed for one number of entries
  it counts as fixed, as in `reproduction/costs.py`.
- prefill_per_token: that of a verified token; both are arithmetic of the same layers.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from reproduction.costs import TIMED
from reproduction.workspace import NotHereError
from wager.core import Round
from wager.policies import Policy
from wager.simulation import Costs, Serving
from wager.simulation.costs import parse_cost
from wager.simulation.serving import Engine

TURNS = ("serving-8b-peers-h200.json", "serving-8b-adaptive-h200.json", "serving-8b-h200.json")
CATCHING_UP = "costs-8b-h200.json"
FILES = (*TURNS, CATCHING_UP)
ENGINE, HEAD = "8B head", "eagle:ofa"
FEWEST = 5  # steps of a turn that a median is taken of
Cells = Mapping[tuple[int, int], float]  # (requests, drafted tokens a request) -> seconds of a step


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted costs, and how far from the measured steps they are."""

    costs: Costs
    per_request: float  # seconds a step
    residual: float  # root of the mean squared relative error
    worst: float  # largest relative error
    cells: int  # loads and lengths that were measured
    requests: int  # most of them in a step

    def step(self, requests: int, length: int) -> float:
        """Seconds of a step in which every request has so many drafted tokens."""
        seconds = self.costs.verify(requests * (length + 1)) + self.costs.draft(length, requests)
        return seconds + self.per_request * requests

    def most_tokens(self) -> float:
        """Tokens a second without speculation, with as many requests as were measured."""
        return self.requests / self.step(self.requests, 0)

    def __str__(self) -> str:
        own = {field.name: getattr(self.costs, field.name) for field in fields(Costs)}
        costs = ", ".join(f"{name} {1000 * s:.3g} ms" for name, s in {**own, "per_request": self.per_request}.items())
        return f"{costs}; off by {self.residual:.1%} in {self.cells} measured steps, {self.worst:.1%} at most"


@dataclass(frozen=True, slots=True)
class Requests(Serving):
    """Serving in which every request adds to the seconds of a step."""

    per_request: float = 0.0  # seconds

    def start(self, seed: int, policy: Policy | None = None) -> Engine:
        return _Engine(self, seed, self.per_request)


class _Engine(Engine):
    def __init__(self, scenario: Serving, seed: int, seconds: float) -> None:
        super().__init__(scenario, seed)
        self._seconds_a_request = seconds

    def advance(self, outcome: Round) -> Round:
        more = self._seconds_a_request * outcome.batch
        return super().advance(replace(outcome, verify_seconds=outcome.verify_seconds + more))


def _drafting(times: float) -> Callable[[Costs], Costs]:
    return lambda own: replace(own, draft_step=times * own.draft_step, draft_per_token=times * own.draft_per_token)


def _slope(times: float) -> Callable[[Costs], Costs]:
    return lambda own: replace(own, per_token=times * own.per_token, prefill_per_token=times * own.prefill_per_token)


def _switching(times: float) -> Callable[[Costs], Costs]:
    return lambda own: replace(own, wake=times * own.wake, lag_per_token=times * own.lag_per_token)


FITTED = "fitted"
# Around the fit: what a claim has to withstand. `switches` is the engine's own measure of switching, and lies inside.
BAND: Mapping[str, Callable[[Costs], Costs]] = {
    "drafting x 0.8": _drafting(0.8), "drafting x 1.25": _drafting(1.25),
    "slope in tokens x 0.8": _slope(0.8), "slope in tokens x 1.25": _slope(1.25),
    "switching x 0": _switching(0.0), "switching x 2": _switching(2.0),
}  # fmt: skip


def of(results: Path, name: str = FITTED) -> Fit:
    """The costs fitted to the results of this folder; ``name`` is FITTED, or an entry of BAND."""
    for file in FILES:
        if not (results / file).is_file():
            raise NotHereError(f"needs {file}, measured on a GPU: costs are fitted to it")
    found = _fitted(results, tuple((results / file).stat().st_size for file in FILES))
    return found if name == FITTED else replace(found, costs=BAND[name](found.costs))


@lru_cache(maxsize=4)
def _fitted(results: Path, sizes: tuple[int, ...]) -> Fit:
    found = fit(steps([results / file for file in TURNS]))
    timed = parse_cost(str(results / CATCHING_UP), {"drafters": [HEAD]})
    fixed, each = timed.lag_fixed.get(HEAD), timed.lag[HEAD]
    wake, lag = (TIMED * each, 0.0) if fixed is None else (fixed, each)
    own = replace(found.costs, wake=wake, lag_per_token=lag, prefill_per_token=found.costs.per_token)
    return replace(found, costs=own)


def steps(paths: Sequence[Path]) -> dict[tuple[int, int], float]:
    """Seconds of a step by requests and length: over turns with a fixed length the median of their medians."""
    found: dict[tuple[int, int], list[float]] = {}
    for path in paths:
        for turn in json.loads(path.read_text(encoding="utf-8"))["turns"]:
            policy = turn["policy"]
            measured = turn["do"] == "closed" and turn["engine"] == ENGINE and turn["turn"] >= 0
            if not measured or turn.get("error") or not (policy == "off" or policy.isdigit()):
                continue
            length = 0 if policy == "off" else int(policy)
            count, ms = turn["kinds"].get(f"{length}>{length} 0 full", (0, 0.0))  # no prompt in it, and a CUDA graph
            if count >= FEWEST:
                found.setdefault((turn["batch"], length), []).append(ms / 1000)
    return {cell: float(np.median(own)) for cell, own in sorted(found.items())}


def switches(paths: Sequence[Path]) -> dict[int, float]:
    """By requests, how many seconds more the two steps around a draft after steps without any took on the engine.

    A check of what catching up takes, not a fit: steps are known by the lengths they verify and draft, medians over a
    turn, and of what the head missed nothing is known.
    """
    found: dict[tuple[int, str], list[float]] = {}
    for path in paths:
        for turn in json.loads(path.read_text(encoding="utf-8"))["turns"]:
            if turn["do"] == "closed" and turn["engine"] == ENGINE and not turn.get("error"):
                for kind, (_, ms) in turn["kinds"].items():
                    found.setdefault((turn["batch"], kind), []).append(ms / 1000)
    more: dict[int, list[float]] = {}
    for requests, kind in found:
        length = kind.partition(">")[0]
        around = [f"0>{length} 0 full", f"{length}>0 0 full", "0>0 0 full", f"{length}>{length} 0 full"]
        if kind == around[1] and length != "0" and all((requests, each) in found for each in around):
            on, back, off, stays = (float(np.median(found[requests, each])) for each in around)
            more.setdefault(requests, []).append(on + back - off - stays)
    return {requests: float(np.mean(own)) for requests, own in sorted(more.items())}


def fit(cells: Cells) -> Fit:
    """Least squares of relative errors: Levenberg and Marquardt's steps in the logarithms, so that no cost is below 0.

    floor, per_token, draft_step, draft_per_token and per_request are what is fitted.
    """
    if len(cells) < 5:
        raise ValueError(f"five costs are fitted to at least five loads and lengths, not {len(cells)}")
    (b, n), seconds = np.array(list(cells), dtype=float).T, np.array(list(cells.values()))

    def errors(logs: np.ndarray) -> np.ndarray:
        floor, per_token, step, per_drafted, per_request = np.exp(logs)
        told = np.hypot(floor, per_token * b * (n + 1)) + n * (step + per_drafted * b) + per_request * b
        wrong: np.ndarray = told / seconds - 1
        return wrong

    least, most = seconds.min(), max(b * (n + 1))
    logs, damping = np.log([least, least / most, least / 10, least / 1000, least / 1000]), 1e-2
    now = errors(logs)
    for _ in range(500):
        slope = np.array([(errors(logs + 1e-6 * row) - now) / 1e-6 for row in np.eye(5)]).T
        square = slope.T @ slope
        step = np.linalg.solve(square + damping * np.diag(np.diag(square) + 1e-9), -slope.T @ now)
        tried = np.maximum(logs + np.clip(step, -2, 2), -40)  # below that a cost is none
        then = errors(tried)
        better = then @ then < now @ now
        damping = max(1e-9, damping / 3) if better else damping * 4
        if better:
            logs, now = tried, then
        if damping > 1e9:
            break
    floor, per_token, draft, per_drafted, per_request = (round(float(x), 9) for x in np.exp(logs))
    costs = Costs(floor, per_token, draft, per_drafted, prefill_per_token=0.0, wake=0.0, lag_per_token=0.0)
    residual, worst = float(np.sqrt(np.mean(now**2))), float(np.abs(now).max())
    return Fit(costs, per_request, residual, worst, len(cells), int(b.max()))
