"""The page: one file that needs nothing else."""

import re
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import wager
from wager.report.templating import page
from wager.report.views import Figure, Material

# Pixels inside a card: on a phone, on a tablet, over the whole page, over half of it.
WIDTHS = {"PHONE": 330, "TABLET": 640, "WHOLE": 1062, "HALF": 490}
LONG = 110  # characters; a headline with more is cut at its semicolon
# The sections: key, name, and their kinds of figures, with what each is called where it is missing and what makes it.
SECTIONS = (
    ("speed", "Speed-up", {"speed": ("Speed-up", ("wager bench",))}),
    ("regret", "Regret", {"regret": ("Regret", ("wager bench", "wager lab simulate --json"))}),
    ("choice", "Arm choice", {"choice": ("Arm choice", ("wager bench", "wager generate --trace"))}),
    ("drafts", "Acceptance and verification cost",
     {"survival": ("Survival of drafts", ("wager bench", "wager generate --trace")),
      "cost": ("Verify cost by width", ("wager lab engine --json",))}),
    ("load", "Under load", {"load": ("Latency and length under load", ("wager lab versus --json",))}),
    ("tokens", "Token by token", {"tokens": ("Token by token", ("wager bench", "wager generate --json"))}),
)  # fmt: skip
TITLE = "<title>wager report: "  # of every page, by which a page is known ...
HEAD = 2048  # ... within so many bytes of its beginning
MAKES = {kind: made for _, _, kinds in SECTIONS for kind, made in kinds.items()}


def is_report(path: Path) -> bool:
    """Whether a file is a page that ``render`` made, or empty: what may be overwritten."""
    with path.open("rb") as file:
        begins = file.read(HEAD)
    return not begins or (begins.startswith(b"<!doctype html>") and TITLE.encode() in begins)


def figures(materials: Sequence[Material]) -> list[Figure]:
    """Every figure the materials allow, in the order of the page."""
    return sorted((card for m in materials for card in m.cards), key=lambda card: list(MAKES).index(card.kind))


def render(materials: Sequence[Material], *, refresh: float | None = None, now: str = "") -> str:
    """The whole page as text; with ``refresh`` it loads itself anew after so many seconds."""
    drawn = figures(materials)
    present = {figure.kind for figure in drawn}
    lead = next((m for m in materials if m.verdict and m.figures), materials[0])
    first, *rest = lead.verdict or [f"What {lead.source.file} holds."]
    headline, _, tail = first.partition("; ") if len(first) > LONG else (first, "", "")
    lede = " ".join([tail[:1].upper() + tail[1:], *rest]).strip()
    return page(
        "page.html", **WIDTHS, title=TITLE, shortened=shortened, version=wager.__version__, now=now,
        materials=materials,
        refresh=None if refresh is None else max(1, round(refresh)),
        lead=lead, headline=headline.rstrip(".") + ".", lede=lede,
        others=[m for m in materials if m is not lead and m.verdict],
        sections=_sections(drawn),
        missing=[made for kind, made in MAKES.items() if kind not in present],
    )  # fmt: skip


def _sections(drawn: Sequence[Figure]) -> list[tuple[str, str, list[tuple[Figure, int, bool]]]]:
    """The sections that have figures: key, name, and each figure with its number and whether it takes the width."""
    found, numbers = [], count(1)
    for key, name, kinds in SECTIONS:
        own = [figure for figure in drawn if figure.kind in kinds]
        halves = [figure for figure in own if not figure.wide]
        alone = halves[-1] if len(halves) % 2 else None  # nothing stands beside it
        cards = [(figure, next(numbers), figure.wide or figure is alone) for figure in own]
        found += [(key, name, cards)] if cards else []
    return found


def shortened(command: str) -> str:
    """A command without its options and what it was given."""
    words = command.split()
    if words[:2] == ["python", "-m"]:
        return " ".join(words[:3]) + (" …" if len(words) > 3 else "")
    end = next((i for i, word in enumerate(words) if not re.fullmatch("[a-z]+", word)), len(words))
    return " ".join(words[: min(end, 3)]) + (" …" if min(end, 3) < len(words) else "")
