"""The theorems of on-the-fly adaptation, as numbers beside what a simulation of their assumptions gives.

beta (alpha in its section 5) is the probability that one drafted token is accepted, gamma the window, a and b the
seconds of one drafted token and of one verification, c = a / b.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reproduction.theory_runs import bootstrap
from wager.core import Context, Round
from wager.policies.base import expected_tokens
from wager.simulation import Drafter, Stream, VerifyCost, play

STEPS = 50  # verification steps an estimate is made from
HISTORY, CAP = 6, 0.98  # of the adaptive method (eq. 2)
WIDEST = 10  # gamma_max
Draws = Any  # (seeds, steps): tokens that would be accepted in a row


def best_window(beta: float, c: float, least: int = 1, most: int = WIDEST) -> int:
    """Equation 1."""
    return max(range(least, most + 1), key=lambda g: expected_tokens(beta, g) / (g * c + 1))


@dataclass(frozen=True, slots=True)
class Estimates:
    """What a way to choose windows leaves to know beta by: one entry a seed."""

    beta: Any  # estimated by eq. 2 over all steps
    trials: Any  # accepted and rejected tokens it rests on

    def json(self, true: float) -> dict[str, float]:
        error = np.abs(self.beta - true)
        trials = float(self.trials.mean())
        return {"variance": float(self.beta.var()), "error": float(error.mean()), "trials": round(trials, 2)}


def draws(beta: float, seeds: int, steps: int = STEPS) -> Draws:
    """Runs of accepted tokens, the same for every way to choose windows."""
    return np.random.default_rng(round(1000 * beta)).geometric(1 - beta, (seeds, steps)) - 1


def estimate_fixed(runs: Draws, window: int) -> Estimates:
    """A window that never changes."""
    return _estimates(np.minimum(runs, window), runs < window)


def estimate_adaptive(runs: Draws, c: float, least: int = 1) -> Estimates:
    """Equation 1 with eq. 2's estimate over the last steps, windows from ``least`` on; it begins with the widest."""
    table = np.array([best_window(min(CAP, i / 1000), c, least) for i in range(1001)])
    seeds, steps = runs.shape
    accepted, rejected = np.zeros((seeds, steps)), np.zeros((seeds, steps))
    window = np.full(seeds, WIDEST)
    for at in range(steps):
        accepted[:, at] = np.minimum(runs[:, at], window)
        rejected[:, at] = runs[:, at] < window
        recent = slice(max(0, at + 1 - HISTORY), at + 1)
        kept, cut = accepted[:, recent].sum(axis=1), rejected[:, recent].sum(axis=1)
        window = table[np.rint(1000 * np.minimum(CAP, kept / np.maximum(kept + cut, 1))).astype(int)]
    return _estimates(accepted, rejected)


def _estimates(accepted: Any, rejected: Any) -> Estimates:
    kept, cut = accepted.sum(axis=1), rejected.sum(axis=1)
    return Estimates(kept / (kept + cut), kept + cut)


def theorem_1(seeds: int) -> list[dict[str, Any]]:
    """Variance and mean error of both estimates, where windows are at least the fixed one's and where they are not.

    The proof takes every adaptive window to be at least as wide as the fixed one (S + F >= N gamma). Its
    p(1 - p)/(S + F)^2 for the variance has a square too many, and a fixed window does not observe N gamma tokens but
    those up to the first rejection.
    """
    rows = []
    for beta in (0.5, 0.7, 0.9):
        runs = draws(beta, seeds)
        for c in (0.02, 0.1, 0.3):
            for window in (2, 5):
                fixed = estimate_fixed(runs, window)
                for assumed in (True, False):
                    adaptive = estimate_adaptive(runs, c, window if assumed else 1)
                    rows.append(_compared(beta, c, window, assumed, fixed, adaptive))
    return rows


def _compared(beta: float, c: float, window: int, assumed: bool, fixed: Estimates, ours: Estimates) -> dict[str, Any]:
    about = {"beta": beta, "c": c, "fixed_window": window, "windows_at_least_fixed": assumed}
    # Paired: the same runs. Positive: the adaptive estimate is the worse one.
    worse = np.abs(ours.beta - beta) - np.abs(fixed.beta - beta)
    squares = (ours.beta - ours.beta.mean()) ** 2 - (fixed.beta - fixed.beta.mean()) ** 2
    (error_low, square_low), (error_high, square_high) = bootstrap(np.column_stack((worse, squares)))
    intervals = {"error_difference": [error_low, error_high], "variance_difference": [square_low, square_high]}
    highest, lowest = max(error_high, square_high), max(error_low, square_low)
    holds = "holds" if highest <= 0 else "does not hold" if lowest > 0 else "undecided"
    return {**about, "fixed": fixed.json(beta), "adaptive": ours.json(beta), **intervals, "verdict": holds}


def theorem_2(seeds: int, tokens: int) -> list[dict[str, Any]]:
    """Throughput of the analytical policy, and what eq. 3 gives for it.

    Equation 8, L = d n rho, holds where rho counts the target's own token of every step; with rho as stated (accepted
    over drafted tokens) d n rho is L - n. ``literal`` takes it as stated, ``with_bonus`` counts that token.
    """
    rows = []
    for beta in (0.5, 0.7, 0.9):
        for c in (0.05, 0.2):
            scenario = Stream((Drafter("d", (beta,), c),), tuple(range(1, WIDEST + 1)), tokens, verify=VerifyCost())
            off_by = np.array([_throughput(scenario, c, seed) for seed in range(seeds)])
            low, high = bootstrap(off_by)
            names = ("literal", "with_bonus")
            about = {"beta": beta, "c": c, "tokens": tokens, "seeds": seeds}
            errors = {
                name: {"relative_error": float(off_by[:, i].mean()), "interval": [low[i], high[i]]}
                for i, name in enumerate(names)
            }
            rows.append(about | errors)
    return rows


def _throughput(scenario: Stream, c: float, seed: int) -> tuple[float, float]:
    """Relative errors of eq. 3 with both readings of rho, in a run where a verification takes one second."""
    drafted = accepted = 0

    def watch(context: Context, outcome: Round) -> None:
        nonlocal drafted, accepted
        drafted += outcome.drafted
        accepted += outcome.accepted

    run = play(scenario, "analytical", seed, watch=watch)
    length, steps = run.tokens, run.rounds
    real = length / run.seconds
    literal, with_bonus = accepted / drafted, length / drafted
    return tuple(length / (steps + c * length / rho) / real - 1 for rho in (literal, with_bonus))  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A draft model as section 5 sees it: alpha and c, and what follows from them."""

    alpha: float
    c: float

    @property
    def window(self) -> int:
        return best_window(self.alpha, self.c)

    @property
    def rho(self) -> float:
        """Tokens over drafted tokens, the target's own counted, as in the text after Theorem 2."""
        return expected_tokens(self.alpha, self.window) / self.window

    @property
    def steps(self) -> float:
        """Verification steps a token."""
        return 1 / expected_tokens(self.alpha, self.window)

    @property
    def throughput(self) -> float:
        """Tokens per second of a verification (eq. 3)."""
        return 1 / (self.steps + self.c / self.rho)


def condition(small: DraftModel, large: DraftModel) -> bool:
    """Equation 4 as printed: Delta n > Delta c / Delta rho * L."""
    gain = large.rho - small.rho
    return gain != 0 and small.steps - large.steps > (large.c - small.c) / gain


def exact_condition(small: DraftModel, large: DraftModel) -> bool:
    """What eq. 3 gives: Delta n > L Delta(c / rho)."""
    return small.steps - large.steps > large.c / large.rho - small.c / small.rho


def is_faster(small: DraftModel, large: DraftModel) -> bool:
    return large.throughput > small.throughput and not tied(small, large)


def tied(small: DraftModel, large: DraftModel) -> bool:
    """As fast, but for rounding."""
    return math.isclose(large.throughput, small.throughput, rel_tol=1e-9)


def pairs() -> list[tuple[DraftModel, DraftModel]]:
    """A smaller and a larger draft model: less accurate and faster, more accurate and slower."""
    accuracies, costs = np.arange(0.2, 0.96, 0.05).round(2).tolist(), (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
    models = [DraftModel(alpha, c) for alpha in accuracies for c in costs]
    return [(one, other) for one in models for other in models if one.alpha < other.alpha and one.c < other.c]


def theorem_3(made: Sequence[tuple[DraftModel, DraftModel]]) -> dict[str, Any]:
    """How often the larger model is faster where eq. 4 says so, by the sign of Delta rho.

    With Delta rho > 0 the condition suffices: Delta c / Delta rho is at least Delta(c / rho), since the difference has
    the sign of (rho_1 - rho_2)^2. A more accurate model drafts longer windows, though, and then Delta rho may be
    negative: the condition compares with a negative number and always holds.
    """
    told: dict[str, Any] = {"pairs": len(made)}
    for name, part in (
        ("acceptance_rate_rises", [pair for pair in made if pair[1].rho > pair[0].rho]),
        ("acceptance_rate_falls", [pair for pair in made if pair[1].rho < pair[0].rho]),
    ):
        faster = [is_faster(*pair) for pair in part]
        printed = [condition(*pair) for pair in part]
        agree = all(exact_condition(*pair) == is_faster(*pair) for pair in part if not tied(*pair))
        wrong = sum(p and not f for p, f in zip(printed, faster, strict=True))
        missed = sum(f and not p for p, f in zip(printed, faster, strict=True))
        counts = {"pairs": len(part), "larger_is_faster": sum(faster), "condition_holds": sum(printed)}
        told[name] = {**counts, "holds_and_slower": wrong, "faster_and_missed": missed, "exact_agrees": agree}
    return told


def theorem_3_simulated(seeds: int, tokens: int) -> list[dict[str, Any]]:
    """Pairs of models in simulation, their best windows fixed: one for which eq. 4 holds, one where it misleads."""
    rows = []
    chosen = (
        ("eq. 4 holds, rho rises", DraftModel(0.2, 0.01), DraftModel(0.95, 0.02)),
        ("eq. 4 holds, rho falls", DraftModel(0.75, 0.3), DraftModel(0.9, 0.5)),
        ("eq. 4 fails, larger is faster", DraftModel(0.5, 0.05), DraftModel(0.9, 0.1)),
    )
    for name, small, large in chosen:
        speeds = np.array([[_speed(model, tokens, seed) for model in (small, large)] for seed in range(seeds)])
        low, high = bootstrap((speeds[:, 1] / speeds[:, 0])[:, None])
        about = {"case": name, "condition": condition(small, large), "exact_condition": exact_condition(small, large)}
        models = {
            size: {"alpha": m.alpha, "c": m.c, "window": m.window, "rho": round(m.rho, 4)}
            for size, m in (("small", small), ("large", large))
        }
        ratio = float((speeds[:, 1] / speeds[:, 0]).mean())
        expected = large.throughput / small.throughput
        found = {"speed_ratio": round(ratio, 4), "interval": [round(low[0], 4), round(high[0], 4)]}
        rows.append(about | models | found | {"predicted_ratio": round(expected, 4), "seeds": seeds})
    return rows


def _speed(model: DraftModel, tokens: int, seed: int) -> float:
    scenario = Stream((Drafter("d", (model.alpha,), model.c),), (model.window,), tokens)
    run = play(scenario, f"fixed:drafter=d,length={model.window}", seed)
    return run.tokens / run.seconds
