"""The pictures of `python -m reproduction.theory`: one a paper."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wager.report.regret import COLOURS

Found = Mapping[str, Any]


def draw_metasd(found: Found, path: Path) -> None:
    """Regret and bounds over tokens: UCB's theorems, beta below them, PETC, changing drafters."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8.5), layout="constrained")
    panels = figure.subplots(2, 2).flatten()
    groups: dict[str, list[Found]] = {"UCB: Theorems 2, 4, 5, 6 and 7": [], "noisy rewards: beta of the proof and of "
                                      "the experiments": [], "PETC with switching costs: Theorem 8": [],
                                      "drafters that change: no theorem": []}  # fmt: skip
    names = list(groups)
    for curve in found["curves"]:
        kind = 1 if curve["name"].startswith("noisy") else 2 if "PETC" in curve["name"] else 0
        groups[names[3 if curve["name"].startswith("changing") else kind]].append(curve)
    for axes, (title, curves) in zip(panels, groups.items(), strict=True):
        for colour, curve in zip(COLOURS, curves, strict=False):
            tokens = [row["tokens"] for row in curve["horizons"]]
            low, high = zip(*(row["interval"] for row in curve["horizons"]), strict=True)
            label = f"{curve['name']} ({curve['theorem']})" if curve["theorem"] else curve["name"]
            axes.plot(tokens, [row["regret"] for row in curve["horizons"]], color=colour, marker="o", label=label)
            axes.fill_between(tokens, low, high, color=colour, alpha=0.2, linewidth=0)
            if curve["horizons"][0]["bound"] is not None:
                axes.plot(tokens, [row["bound"] for row in curve["horizons"]], "--", color=colour, linewidth=1.2)
        axes.set_xscale("log")
        axes.set_yscale("symlog", linthresh=10)
        axes.set_ylim(bottom=0)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("tokens of the text")
        axes.set_ylabel("regret, rounds (dashed: bound)")
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=7, frameon=False, loc="upper left" if "noisy" in title else "best")
    figure.savefig(path, dpi=110, format="png")


def draw_onthefly(found: Found, path: Path) -> None:
    """Variance ratios of Theorem 1, errors of eq. 3, and what eq. 4 says of pairs of draft models."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.6), layout="constrained")
    first, second, third = figure.subplots(1, 3)
    for assumed, colour in ((True, COLOURS[0]), (False, COLOURS[1])):
        rows = [row for row in found["theorem_1"]["rows"] if row["windows_at_least_fixed"] is assumed]
        ratios = [row["adaptive"]["variance"] / row["fixed"]["variance"] for row in rows]
        trials = [row["adaptive"]["trials"] / row["fixed"]["trials"] for row in rows]
        label = "windows at least the fixed one's" if assumed else "windows from 1 on"
        first.scatter(trials, ratios, color=colour, label=label)
    first.axhline(1.0, color="0.4", linestyle="--")
    first.set(xlabel="tokens observed, adaptive over fixed", ylabel="variance, adaptive over fixed",
              title="Theorem 1: at most 1")  # fmt: skip
    first.legend(fontsize=8, frameon=False)
    rows = found["theorem_2"]
    labels = [f"beta {row['beta']:g}\nc {row['c']:g}" for row in rows]
    second.bar(labels, [100 * row["literal"]["relative_error"] for row in rows], color=COLOURS[1])
    second.tick_params(axis="x", labelsize=8)
    second.set(ylabel="error of eq. 3, %", title="Theorem 2, rho as stated; 0 with the bonus token")
    parts = {
        "rho rises": found["theorem_3"]["acceptance_rate_rises"],
        "rho falls": found["theorem_3"]["acceptance_rate_falls"],
    }
    keys = ("larger_is_faster", "condition_holds", "holds_and_slower", "faster_and_missed")
    for i, (name, part) in enumerate(parts.items()):
        places = [at + 0.4 * i for at in range(len(keys))]
        third.bar(places, [100 * part[key] / max(1, part["pairs"]) for key in keys], 0.38, label=name, color=COLOURS[i])
    third.set_xticks([at + 0.2 for at in range(len(keys))], [key.replace("_", "\n") for key in keys], fontsize=8)
    third.set(ylabel="share of pairs, %", title="Theorem 3: eq. 4 as printed")
    third.legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=110, format="png")


DRAW: dict[str, Callable[[Found, Path], None]] = {"metasd": draw_metasd, "onthefly": draw_onthefly}
