"""A small system of linear equations, some of whose unknowns are 0."""

from collections.abc import Sequence


def solved(rows: Sequence[Sequence[float]], free: Sequence[int]) -> list[float]:
    """What solves a positive definite system where only some of the unknowns are free and the others 0."""
    system = [[*(rows[i][k] for k in free), rows[i][-1]] for i in free]
    for i, top in enumerate(system):
        for below in system[i + 1 :]:
            times = below[i] / top[i]
            for k in range(i, len(top)):
                below[k] -= times * top[k]
    found = [0.0] * len(rows)
    for i in reversed(range(len(free))):
        known = sum(system[i][k] * found[free[k]] for k in range(i + 1, len(free)))
        found[free[i]] = (system[i][-1] - known) / system[i][i]
    return found
