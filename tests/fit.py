"""Does a sample come from a distribution? One chi-square test for sound code and for planted bugs."""

import math

import numpy as np
import numpy.typing as npt

# In standard deviations: a sound sample passes it once in some three million seeds (and the tests' seeds are fixed).
FITS = 5.0


def misfit(observed: npt.ArrayLike, expected: npt.ArrayLike, groups: int = 1, least: float = 5.0) -> float:
    """How many standard deviations Pearson's statistic lies above what it is for a sample of ``expected``.

    Both are counts per cell; ``groups`` says into how many separately normalised distributions the cells fall. Cells
    that expect fewer than ``least`` are pooled. An observation where none can be is infinitely far off. The statistic
    is brought to a normal scale by Wilson and Hilferty's cube root.
    """
    seen, due = np.asarray(observed, float).ravel(), np.asarray(expected, float).ravel()
    assert math.isclose(seen.sum(), due.sum(), rel_tol=1e-4), "the counts must be of the same sample"
    if seen[due <= 0].any():
        return math.inf
    rare = due < least
    seen = np.append(seen[~rare], seen[rare].sum())
    due = np.append(due[~rare], due[rare].sum())
    seen, due = seen[due > 0], due[due > 0]
    free = len(due) - groups
    if free < 1:
        return 0.0
    statistic = float(((seen - due) ** 2 / due).sum())
    spread = 2 / (9 * free)
    return ((statistic / free) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
