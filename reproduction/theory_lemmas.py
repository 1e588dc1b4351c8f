"""MetaSD's lemmas and Theorem 3, each beside a simulation of what it states."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reproduction import theory_metasd as bounds
from reproduction.theory_runs import N, best_arm, bootstrap, stream
from wager.core import Context, Round
from wager.policies.base import expected_tokens
from wager.simulation import play

ALPHAS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9)
CONCENTRATION = 2.0


def rewards(seeds: int, rounds: int) -> list[dict[str, Any]]:
    """Lemmas 5, 6 and 7: mean and variance of both rewards, as stated and as drawn."""
    rows = []
    for alpha in ALPHAS:
        drawn = np.array([_moments(alpha, seed, rounds) for seed in range(seeds)])
        low, high = bootstrap(drawn)
        be, bd = bounds.block_efficiency(alpha, N), bounds.block_divergence(alpha, N, CONCENTRATION)
        stated = {"be_mean": be.mean, "be_variance": be.variance, "bd_mean": bd.mean, "bd_variance": bd.variance}
        seen = {
            name: {
                "stated": round(value, 5),
                "seen": round(float(drawn[:, i].mean()), 5),
                "interval": [low[i], high[i]],
            }
            for i, (name, value) in enumerate(stated.items())
        }
        rows.append({"alpha": alpha, **seen, "bd_variance_limit": 1 / (4 * N)})
    return rows


def _moments(alpha: float, seed: int, rounds: int) -> tuple[float, float, float, float]:
    values: list[tuple[float, float]] = []

    def watch(context: Context, outcome: Round) -> None:
        values.append((outcome.accepted / N, sum(outcome.overlap) / N))

    goal = int(rounds * expected_tokens(alpha, N))
    play(stream((alpha,), N, goal, CONCENTRATION), best_arm((alpha,), N), seed, watch=watch)
    drawn = np.array(values)
    mean, variance = drawn.mean(axis=0), drawn.var(axis=0)
    return float(mean[0]), float(variance[0]), float(mean[1]), float(variance[1])


def signals() -> dict[str, Any]:
    """Theorem 3: how much better block divergence tells two drafters apart, and where its condition holds."""
    rows, wrong = [], 0
    grid = np.arange(0.05, 0.96, 0.05).round(2).tolist()
    for best in grid:
        for alpha in (a for a in grid if a < best):
            be, be_best = (bounds.block_efficiency(a, N) for a in (alpha, best))
            # the largest variance Lemma 6 allows: the theorem's own lower bound on the signal
            bd = bounds.signal(bounds.Moments(alpha, 1 / (4 * N)), bounds.Moments(best, 1 / (4 * N)))
            ratio = bd / bounds.signal(be, be_best)
            assumed = bounds.signal_condition(best, N) >= 0 and be.variance < be_best.variance
            wrong += assumed and ratio <= 1
            rows.append({"best": best, "alpha": alpha, "ratio": round(ratio, 4), "assumed": bool(assumed)})
    outside = [row["ratio"] for row in rows if not row["assumed"]]
    return {
        "length": N,
        "condition_from": round(_edge(lambda a: bounds.signal_condition(a, N) >= 0, 0.0, 0.5), 4),
        "condition_to": round(_edge(lambda a: bounds.signal_condition(a, N) < 0, 0.5, 1.0), 4),
        "be_variance_rises_to": round(_edge(_falls, 0.5, 0.999), 4),
        "printed": {"condition_from": 0.06, "condition_to": 0.8, "be_variance_rises_to": 0.815},
        **{"pairs": len(rows), "pairs_assumed": sum(row["assumed"] for row in rows), "assumed_and_wrong": wrong},
        "outside_and_be_better": sum(ratio < 1 for ratio in outside),
        "rows": rows,
    }


def _falls(alpha: float) -> bool:
    return bounds.block_efficiency(alpha + 1e-6, N).variance < bounds.block_efficiency(alpha, N).variance


def _edge(reached: Callable[[float], bool], low: float, high: float) -> float:
    """Where a condition that fails at ``low`` begins to hold, by bisection."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def stopping_time(seeds: int) -> list[dict[str, Any]]:
    """Lemma 12: rounds of one drafter alone for B tokens, between B/mu - 1 and (B + 1)/mu as printed.

    Wald's identity gives (B + N)/mu instead: the last round may emit N tokens more than were needed.
    """
    rows = []
    for alpha in (0.3, 0.8):
        mu = expected_tokens(alpha, N)
        drawn = np.random.default_rng(0).geometric(1 - alpha, (seeds, 1000))  # accepted in a row, and one more
        reached = np.minimum(drawn, N + 1).cumsum(axis=1)
        for tokens in (1, 10, 100, 1000):
            taken = 1 + (reached < tokens).sum(axis=1, keepdims=True)
            (low,), (high,) = bootstrap(taken)
            printed = (tokens + 1) / mu
            about = {"alpha": alpha, "tokens": tokens, "rounds": float(taken.mean()), "interval": [low, high]}
            limits = {"lower": tokens / mu - 1, "printed_upper": printed, "wald_upper": (tokens + N) / mu}
            rows.append({**about, **limits, "printed_holds": bool(low <= printed)})
    return rows


def two_regrets(seeds: int, tokens: int = 5000) -> dict[str, Any]:
    """Lemma 8: regret in rewards times N is regret in rounds, as printed; here it is that over mu of the best drafter.

    Every round of another drafter lacks N times its gap in tokens, and the best drafter makes those up at mu tokens a
    round.
    """
    arms, mu = (0.8, 0.3), expected_tokens(0.8, N)
    scenario, gap = stream(arms, N, tokens), bounds.block_efficiency(0.8, N).mean - bounds.block_efficiency(0.3, N).mean
    values = []
    for seed in range(seeds):
        run = play(scenario, "random", seed)
        lost = gap * next(count for arm, count in run.pulls.items() if arm.drafter == "d2")
        values.append((run.rounds - play(scenario, best_arm(arms, N), seed).rounds, N * lost, N * lost / mu))
    rounds, printed, corrected = np.mean(values, axis=0).tolist()
    low, high = bootstrap(np.array(values))
    about = {"alpha": list(arms), "tokens": tokens, "seeds": seeds, "policy": "random"}
    return {**about, "regret_rounds": rounds, "interval": [low[0], high[0]], "printed": printed, "over_mu": corrected}
