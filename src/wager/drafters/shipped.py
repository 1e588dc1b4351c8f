"""Drafters shipped for a target: where they are looked for, and what ``eagle:NAME`` and ``draft:*`` stand for.

A place holds a folder per target, and in it ``eagle-NAME``, ``eagle3-NAME`` and ``draft-NAME``, one folder each.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from wager.core.require import require
from wager.models import embedded
from wager.models.fingerprint import agree

VARIABLE = "WAGER_DRAFTERS"  # names a place of one's own
PACKAGE = "wager_drafters"  # the namespace package that wheels with drafters fill, a folder per target
# How a specification begins, and how the folder's name does.
KINDS = {"eagle": "eagle-", "eagle3": "eagle3-", "draft": "draft-"}
EVERY = "*"
MAYBE = "?"  # after a specification: left out where there is none
Mark = Callable[[], str]  # the target's fingerprint, worked out only where a name does not tell


@dataclass(frozen=True, slots=True)
class Shipped:
    """One drafter that was found."""

    spec: str  # as it is asked for: eagle:ofa
    folder: Path
    target: str  # the name of the folder it is in
    mark: str  # of the target it was made for; empty where its config.json does not say


def places() -> list[Path]:
    """Where drafters are looked for, in order: WAGER_DRAFTERS, the checkout, installed wheels, the user's cache."""
    checkout = Path(__file__).resolve().parents[3]
    found = [Path(own).expanduser()] if (own := os.environ.get(VARIABLE)) else []
    if (checkout / "pyproject.toml").is_file():  # not where wager is installed among other packages
        found.append(checkout / "drafters")
    installed = find_spec(PACKAGE)  # imports nothing
    wheels = installed.submodule_search_locations if installed is not None else None
    return [*found, *map(Path, wheels or ()), embedded.cache() / "drafters"]


def split(spec: str) -> tuple[str, str] | None:
    """Kind and name of a shipped drafter's specification; None for any other."""
    kind, colon, name = spec.partition(":")
    return (kind, name) if colon and kind in KINDS and "=" not in spec else None


def available(target: str = "", mark: Mark | None = None) -> dict[str, Shipped]:
    """The drafters for a target, by specification: those in the folder of its name, else those made for its weights."""
    every = _every()
    names = {Path(target).name, target} if target else set()
    if f"{embedded.NAME}-r{embedded.REVISION}" in names:  # as the embedded model's own folder is called
        names.add(embedded.NAME)
    ours = [one for one in every if one.target in names]
    if not ours and mark is not None and every:
        known = mark()
        ours = [one for one in every if one.mark and agree(one.mark, known)]
    found: dict[str, Shipped] = {}
    for one in ours:
        found.setdefault(one.spec, one)
    return found


def known(spec: str, target: str) -> None:
    """Refuse what is not there, as far as a target's name tells; whoever knows its weights decides the rest."""
    _, equals, value = spec.partition("=")
    if split(spec) is not None:
        if spec.endswith(MAYBE):
            return
        found = available(target)
        if found and spec not in found and not spec.endswith(f":{EVERY}"):
            raise ValueError(_missing(spec, target, found))
    elif equals and spec.startswith("eagle"):
        check_head(Path(value).expanduser())


def check_head(folder: Path) -> None:
    """Refuse a folder that cannot hold an EAGLE head, as far as is told without reading it."""
    give = "give one with config.json and model.safetensors"
    require(folder.is_dir(), f"no folder {folder} with an EAGLE head; {give}")
    there = (folder / "config.json").is_file()
    require(there, f"the folder {folder} has no config.json, so there is no EAGLE head in it")


def find(spec: str, target: str = "", mark: Mark | None = None) -> Shipped:
    """The drafter that ``eagle:NAME`` or ``draft:NAME`` stands for."""
    spec, found = spec.removesuffix(MAYBE), available(target, mark)
    if spec not in found:
        raise ValueError(_missing(spec, target, found))
    return found[spec]


def expand(specs: Sequence[Any], target: str = "", mark: Mark | None = None) -> list[Any]:
    """The same specifications, with ``eagle:*`` and ``draft:*`` replaced by all there are; what is no text stays.

    One that ends with a question mark is left out where there is none; as long as only weights could tell, it stays.
    """
    expanded: list[Any] = []
    for spec in specs:
        named = split(spec.strip()) if isinstance(spec, str) else None
        if named is None or not (named[1] == EVERY or named[1].endswith(MAYBE)):
            expanded.append(spec)
            continue
        spec, found = spec.strip(), available(target, mark)
        plain = spec.removesuffix(MAYBE)
        if plain != spec:
            expanded += [plain] if plain in found else [spec] if mark is None and not found else []
            continue
        ours = [one for one in found if one.startswith(f"{named[0]}:")]
        if not ours:
            raise ValueError(_missing(spec, target, found))
        expanded += ours
    return expanded


def _every() -> list[Shipped]:
    """All drafters of all places, those of earlier places first."""
    found = []
    for place in places():
        for kind, begins in KINDS.items():
            for folder in sorted(place.glob(f"*/{begins}*")):
                if (folder / "config.json").is_file():
                    spec = f"{kind}:{folder.name.removeprefix(begins)}"
                    found.append(Shipped(spec, folder, folder.parent.name, _mark(folder)))
    return found


def _mark(folder: Path) -> str:
    try:
        notes = json.loads((folder / "config.json").read_text(encoding="utf-8"))["wager"]
        return str(notes.get("target_fingerprint") or "")
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ""  # whoever loads it says what is wrong with it


def _missing(spec: str, target: str, found: dict[str, Shipped]) -> str:
    there = f"there are {', '.join(found) or 'none'} in {', '.join(map(str, places()))}"
    return f"no drafter {spec!r} for {Path(target).name or 'this model'}; {there}"
