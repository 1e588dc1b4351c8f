"""The picture of an experiment: regret over the tokens generated."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from wager.simulation.experiment import Comparison

# Colours that stay apart in print and for the colour-blind; line styles go on where they end.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6BB1", "#7F7F7F", "#A6761D", "#1B1B1B")
STYLES = ("-", "--", "-.", ":")


def draw(
    comparison: Comparison, path: str | Path, *, title: str, bounds: Mapping[str, Sequence[float]] | None = None
) -> None:
    """Write a PNG with every policy's regret in rounds and its 95 % band; ``bounds`` are drawn as grey lines."""
    from matplotlib.figure import Figure
    from matplotlib.rcsetup import cycler

    figure = Figure(figsize=(9.5, 6), layout="constrained")
    axes = figure.subplots()
    axes.set_prop_cycle(cycler(linestyle=STYLES) * cycler(color=COLOURS))
    # The legend reads like the right edge of the picture: most regret on top.
    for result in sorted(comparison.results, key=lambda r: -r.regret_curve[-1].mean):
        mean, half = np.array([(e.mean, e.half or 0.0) for e in result.regret_curve]).T
        (line,) = axes.plot(comparison.marks, mean, label=result.policy, linewidth=1.8)
        axes.fill_between(comparison.marks, mean - half, mean + half, color=line.get_color(), alpha=0.15, linewidth=0)
    for (name, bound), style in zip((bounds or {}).items(), ("--", ":"), strict=False):
        axes.plot(comparison.marks, bound, style, color="0.35", linewidth=2.2, label=name, zorder=5)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=10)
    axes.set_ylim(bottom=min(-5.0, *(e.mean for result in comparison.results for e in result.regret_curve)))
    axes.set_xlabel("tokens generated")
    axes.set_ylabel(f"regret: rounds beyond the best fixed arm ({comparison.best})")
    axes.set_title(title, fontsize=11)
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(path, dpi=110, format="png")
