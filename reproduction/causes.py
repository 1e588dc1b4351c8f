"""Why parts of a claim are undecided, read from a row's result."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from reproduction.inference import LEAST, UNDECIDED

ABSENT = "nothing was run for it"
FEW = f"fewer than {LEAST['prompts']} prompts or {LEAST['seeds']} seeds"
PREMISE = "the interval is on one side, but what the claim takes for granted is not so here"
BOTH = "the interval holds both sides"
BAND = "the interval is on one side, but not with all costs of the band around those fitted"
SHORT = {
    ABSENT: "not all was run", FEW: "too few", PREMISE: "a premise is not met", BOTH: "intervals hold both sides",
    BAND: "costs decide",
}  # fmt: skip


def of_part(part: Mapping[str, Any], premise: str = "") -> str:
    """Why a part is undecided; a premise that is not met is named where nothing else left it undecided."""
    _, low, high = part["interval"]
    if low is None or high is None:
        return ABSENT
    if any(part[kind] is not None and part[kind] < least for kind, least in LEAST.items()):
        return FEW
    if part.get("band") and (low > 0 or high <= 0):
        return BAND
    return PREMISE if premise and (low > 0 or high <= 0) else BOTH


def of_row(row: Mapping[str, Any]) -> dict[str, int]:
    """Why its undecided parts are, and how many of them each; the most frequent first."""
    left = [part for part in row["parts"] if part["verdict"] == UNDECIDED]
    return dict(Counter(of_part(part, row.get("premise", "")) for part in left).most_common())


def in_short(row: Mapping[str, Any]) -> str:
    """The reasons alone, in a few words."""
    return ", ".join(SHORT[why] for why in of_row(row))


def told(row: Mapping[str, Any]) -> str:
    """In words: how many of its parts are undecided, and why."""
    return "; ".join(f"{n} of {len(row['parts'])} parts, {why}" for why, n in of_row(row).items())
