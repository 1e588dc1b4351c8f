"""One small picture a paper: how many parts of each row's claim hold, do not hold, and are undecided."""

import io
from collections.abc import Mapping
from typing import Any

from reproduction.rows import counted

COLOURS = {"holds": "#2a7f4f", "does not hold": "#b8422f", "undecided": "#c9c9c9"}


def picture(title: str, rows: Mapping[str, Mapping[str, Any] | None]) -> str:
    """Bars of a paper's rows, as SVG; the same rows make the same picture."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "wager", "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(6.4, 0.6 + 0.2 * len(rows)), layout="constrained")
        axes = figure.subplots()
        names = list(rows)
        left = dict.fromkeys(names, 0)
        for kind, colour in COLOURS.items():
            widths = [counted(told)[kind] if told is not None else 0 for told in rows.values()]
            axes.barh(names, widths, left=list(left.values()), color=colour, label=kind)
            left = {name: left[name] + width for name, width in zip(names, widths, strict=True)}
        axes.invert_yaxis()
        axes.set_title(f"{title}: parts of every claim", loc="left", fontsize=9)
        axes.legend(frameon=False, ncols=3, loc="upper right", bbox_to_anchor=(1, 1.02 + 0.9 / len(rows)))
        axes.spines[["top", "right"]].set_visible(False)
        made = io.StringIO()
        figure.savefig(made, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in made.getvalue().splitlines()) + "\n"
