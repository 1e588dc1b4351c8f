"""Regret of MetaSD's policies in the environment its theorems assume, at several horizons, beside their bounds."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from reproduction import theory_metasd as bounds
from wager.simulation import Drafter, Stream, play
from wager.simulation.base import CLAIRVOYANT

N = 5  # draft length, N_max of the paper's experiments
EASY = (0.8, 0.5, 0.3)  # alpha of the drafters
NOISY, NOISY_N, NOISY_CONCENTRATION = (0.6, 0.2), 2, 0.2  # short drafts whose 1 - TV is nearly 0 or 1
APART = (0.9, 0.4, 0.2, 0.1)  # for halving, whose constant is large where drafters are close
PHASES = ((0.8, 0.2, 0.3), (0.3, 0.8, 0.2))
CHANGES = 4
RESAMPLES = 2000
Bound = Callable[[float], float]  # of the tokens of a text


@dataclass(frozen=True, slots=True)
class Case:
    """A policy, where it plays, and what a theorem says of it there."""

    name: str
    theorem: str  # empty: none applies
    policy: str
    bound: Bound | None = None
    arms: Sequence[float] = EASY
    length: int = N
    concentration: float = 2.0


@dataclass(frozen=True, slots=True)
class Curve:
    """Regret in rounds at every horizon: one row a seed."""

    case: Case
    horizons: Sequence[float]  # tokens
    regret: Any  # (seeds, horizons)
    more: Mapping[str, Any] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        low, high = bootstrap(self.regret)
        rows = []
        for i, tokens in enumerate(self.horizons):
            bound = self.case.bound(tokens) if self.case.bound is not None else None
            found: dict[str, Any] = {"tokens": tokens, "regret": round(float(self.regret[:, i].mean()), 3)}
            found |= {"interval": [round(low[i], 3), round(high[i], 3)], "bound": bound and round(bound, 3)}
            verdicts = {"holds": high[i] <= bound, "exceeded": low[i] > bound} if bound is not None else {}
            rows.append(found | verdicts)
        about = {"name": self.case.name, "theorem": self.case.theorem, "policy": self.case.policy}
        shape = {"alpha": list(self.case.arms), "length": self.case.length, "concentration": self.case.concentration}
        return {**about, **shape, "seeds": len(self.regret), "horizons": rows, **self.more}


def bootstrap(values: Any) -> tuple[list[float], list[float]]:
    """The 95 % interval of the mean over seeds, per column."""
    rng = np.random.default_rng(0)
    rows = rng.integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.quantile(np.asarray(values, float)[rows].mean(axis=1), (0.025, 0.975), axis=0)
    return low.tolist(), high.tolist()


def stream(arms: Sequence[float], length: int, tokens: int, concentration: float = 2.0, lag: float = 0.0) -> Stream:
    """Drafters whose 1 - TV is drawn for every position from a Beta distribution of mean alpha (assumption 1)."""
    drafters = tuple(Drafter(f"d{i + 1}", (alpha,)) for i, alpha in enumerate(arms))
    return Stream(drafters, (length,), tokens, concentration=concentration, lag_seconds=lag)


def best_arm(arms: Sequence[float], length: int) -> str:
    return f"fixed:drafter=d{1 + list(arms).index(max(arms))},length={length}"


def cases() -> list[Case]:
    """UCB where the theorems apply, and where the paper runs it."""
    efficient = [bounds.block_efficiency(alpha, N).mean for alpha in EASY]
    five, root = bounds.theorem_5_beta(EASY, N), math.sqrt(N)
    made = [
        Case("BD, beta = 1/sqrt(N)", "Theorem 2", f"meta-ucb:beta={1 / root}", lambda b: bounds.theorem_2(EASY, N, b)),
        Case("BD, beta = 1", "Theorem 4", "meta-ucb:beta=1", lambda b: bounds.theorem_4(EASY, b)),
        Case("BE, beta = 1", "Theorem 4", "meta-ucb:beta=1,reward=be", lambda b: bounds.theorem_4(efficient, b)),
        Case("BE, beta = sqrt(4 Var + 2)", "Theorem 5", f"meta-ucb:beta={five},reward=be",
             lambda b: bounds.theorem_5(EASY, N, b)),
    ]  # fmt: skip
    for beta in (0.6, 2.0):
        spec, bound = f"meta-ucb:beta={beta / root}", _seventh(beta)
        made.append(Case(f"BD, beta = {beta:g}/sqrt(N)", "Theorem 7", spec, bound))
    noisy = {"arms": NOISY, "length": NOISY_N, "concentration": NOISY_CONCENTRATION}

    def second(tokens: float) -> float:
        return bounds.theorem_2(NOISY, NOISY_N, tokens)

    spec = f"meta-ucb:beta={1 / math.sqrt(NOISY_N)}"
    made.append(Case("noisy, beta = 1/sqrt(N)", "Theorem 2", spec, second, **noisy))  # type: ignore[arg-type]
    # The paper says that its analysis holds for every beta > 0 (G.4), and runs 0.01.
    made.append(Case("noisy, beta = 0.01", "said to hold (G.4)", "meta-ucb:beta=0.01", second, **noisy))  # type: ignore[arg-type]
    return made


def _seventh(beta: float) -> Bound:
    return lambda tokens: bounds.theorem_7(EASY, N, tokens, beta)


def ucb_curve(case: Case, horizons: Sequence[int], seeds: int) -> Curve:
    """Regret against the best drafter alone, on the same draws; one run serves all horizons."""
    scenario = stream(case.arms, case.length, horizons[-1], case.concentration)
    best = best_arm(case.arms, case.length)
    regret = [
        np.subtract(
            _rounds(scenario, case.policy, seed, tuple(horizons)), _rounds(scenario, best, seed, tuple(horizons))
        )
        for seed in range(seeds)
    ]
    return Curve(case, horizons, np.array(regret))


@cache
def _rounds(scenario: Stream, spec: str, seed: int, horizons: tuple[int, ...]) -> list[int]:
    return [taken for taken, _ in play(scenario, spec, seed, marks=horizons).curve]


def random_length(means: Sequence[int], seeds: int) -> Curve:
    """Theorem 6: texts that end after a token with a fixed probability."""
    spec = f"meta-ucb:beta={1 / math.sqrt(N)}"
    case = Case("BD, random length", "Theorem 6", spec, lambda b: bounds.theorem_6(EASY, N, b))
    regret = np.zeros((seeds, len(means)))
    for column, mean in enumerate(means):
        drawn = np.random.default_rng(column).geometric(1 / mean, seeds).tolist()
        for seed, tokens in enumerate(drawn):
            scenario = stream(EASY, N, tokens)
            both = [play(scenario, played, seed).rounds for played in (spec, best_arm(EASY, N))]
            regret[seed, column] = both[0] - both[1]
    return Curve(case, means, regret)


def committed(horizons: Sequence[int], seeds: int, *, lag: float = 0.01) -> list[Curve]:
    """Theorem 8: PETC with the c its proof takes, and with a small one; every horizon has an exploration of its own."""
    curves = []
    needed = bounds.theorem_8_c(APART)
    for c in (needed, 2.0):
        name = f"PETC, c = {c:.0f}" + (" (8 H2 log2 K)" if c == needed else "")

        def bound(tokens: float, c: float = c) -> float:
            return bounds.theorem_8(APART, N, tokens, c, lag)

        case = Case(name, "Theorem 8", f"petc:c={c}", bound, APART)
        regret = np.zeros((seeds, len(horizons)))
        for column, tokens in enumerate(horizons):
            scenario = stream(APART, N, tokens, lag=lag)
            for seed in range(seeds):  # a round takes a second, so seconds are rounds and what switching costs
                both = [play(scenario, played, seed).seconds for played in (case.policy, best_arm(APART, N))]
                regret[seed, column] = both[0] - both[1]
        curves.append(Curve(case, horizons, regret, {"lag_rounds_per_token": lag}))
    return curves


def changing(horizons: Sequence[int], seeds: int) -> list[Curve]:
    """Section H.2: drafters that swap places, against one who knows the phases; the number of changes is fixed."""
    beta = 1 / math.sqrt(N)
    windows = {tokens: _window(tokens) for tokens in horizons}
    policies: dict[str, Callable[[int], str]] = {
        "sliding window": lambda tokens: f"sliding-ucb:window={windows[tokens]},beta={beta}",
        "discounted": lambda tokens: f"discounted-ucb:gamma={1 - math.sqrt(CHANGES / tokens) / 4},beta={beta}",
        "no forgetting": lambda tokens: f"meta-ucb:beta={beta}",
    }

    def bound(tokens: float) -> float:
        return bounds.sliding_bound(PHASES, N, tokens, CHANGES, windows[int(tokens)])

    curves = []
    for name, spec in policies.items():
        told = "none; after Garivier and Moulines" if name == "sliding window" else ""
        case = Case(f"changing, {name}", told, spec(horizons[0]), bound if told else None, PHASES[0])
        regret = np.zeros((seeds, len(horizons)))
        for column, tokens in enumerate(horizons):
            drafters = tuple(Drafter(f"d{i + 1}", alpha) for i, alpha in enumerate(zip(*PHASES, strict=True)))
            scenario = Stream(drafters, (N,), tokens, phase_tokens=math.ceil(tokens / (CHANGES + 1)))
            for seed in range(seeds):
                both = [play(scenario, played, seed).rounds for played in (spec(tokens), CLAIRVOYANT)]
                regret[seed, column] = both[0] - both[1]
        slope = float(np.polyfit(np.log(horizons), np.log(np.maximum(regret.mean(axis=0), 1.0)), 1)[0])
        specs = [spec(tokens) for tokens in horizons]
        curves.append(Curve(case, horizons, regret, {"policies": specs, "changes": CHANGES, "growth": round(slope, 3)}))
    return curves


def _window(tokens: int) -> int:
    """2 sqrt(T ln T / changes), as Garivier and Moulines tune it, for about T rounds of this many tokens."""
    rounds = tokens / 3
    return round(2 * math.sqrt(rounds * math.log(rounds) / CHANGES))
