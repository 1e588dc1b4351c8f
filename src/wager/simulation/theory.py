"""What BanditSpec proves about regret, as numbers to hold a simulation against."""

import math
from collections.abc import Sequence
from typing import Any

from wager.policies.base import expected_tokens
from wager.simulation.stream import Stream


def truncated_geometric_kl(p: float, q: float, length: int) -> float:
    """KL divergence between truncated geometrics with acceptance p and q (proof of Proposition 4.5)."""
    accepted = expected_tokens(p, length) - 1  # expected successes of a round
    return accepted * math.log(p / q) + (1 - p**length) * math.log((1 - p) / (1 - q))


def lower_bound(acceptance: Sequence[float], length: int, tokens: float) -> float:
    """Theorem 4.4: asymptotically, no consistent policy has less regret (in rounds) on truncated-geometric arms."""
    best = max(acceptance)
    top = expected_tokens(best, length)
    gaps = [(top - expected_tokens(p, length), truncated_geometric_kl(p, best, length)) for p in acceptance if p < best]
    return math.log(tokens) * sum(gap / top / kl for gap, kl in gaps)


def ucbspec_bound(acceptance: Sequence[float], length: int, rounds: float, delta: float = 0.5) -> float:
    """Theorem 4.3 with the constants of its proof (D.2): UCBSpec's expected regret over this many expected rounds."""
    k, top = len(acceptance), expected_tokens(max(acceptance), length)
    total = k + math.pi**2 * delta / 6
    for gap in (top - expected_tokens(p, length) for p in acceptance):
        if gap > 0:
            pulls = 4 + 2 * length**2 / gap**2 * (1 + 2 * math.log(length * k * rounds**2 / (gap * delta)))
            total += gap / top * pulls
    return total


def bounds(scenario: Any, marks: Sequence[int]) -> dict[str, list[float]]:
    """What BanditSpec proves for this scenario, at every mark of tokens; nothing where its assumptions do not hold."""
    if not isinstance(scenario, Stream) or scenario.phase_tokens or len(scenario.lengths) > 1 or scenario.off:
        return {}
    acceptance, length = [d.acceptance[0] for d in scenario.drafters], scenario.lengths[0]
    if min(acceptance) <= 0 or max(acceptance) >= 1 or len(set(acceptance)) < 2:
        return {}
    return {
        "Theorem 4.3: UCBSpec's upper bound": [ucbspec_bound(acceptance, length, n) for n in marks],
        "Theorem 4.4: asymptotic lower bound": [lower_bound(acceptance, length, n) for n in marks],
    }
