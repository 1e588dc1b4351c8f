"""A variance learned from comparisons, by the method of moments."""

from collections.abc import Iterable

from wager.policies.auto.config import AutoConfig


def learned_variance(
    variance: float, weight: float, compared: Iterable[tuple[float, float]], config: AutoConfig
) -> tuple[float, float]:
    """A variance that was known from so many comparisons (``weight``), and that number, after more of them.

    compared: of each what the variance is by it alone, a squared difference less what is by chance, and the latter.
    It counts the more the smaller that is.
    """
    scale, most = 0.25 * config.shrinkage, config.round_memory
    for seen, chance in compared:
        share = 1.0 / (1.0 + scale * chance) ** 2
        weight += share
        if weight > most:
            weight = most
        variance += share / weight * (seen - variance)
    return variance, weight
