"""The recordings at hand: which one holds what a run asks for, and its texts."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from reproduction.perturb import OTHER_PROMPTS
from reproduction.workspace import NotHereError
from wager.core.recording import Text, Track, read

FOLDER = Path("results") / "recordings"
TARGET = "smollm2-135m"
ALIKE = (
    "model",
    "drafters",
    "longest",
    "max_tokens",
    "temperature",
    "prompts",
    "part",
    "dtype",
)  # of a recording's parts


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a recording must hold."""

    drafters: tuple[str, ...]
    overlap: bool = False  # for these drafters, as block divergence needs it
    confidence: bool = False
    trees: bool = False
    repeats: bool = False  # which tokens had occurred before; better with than without, not needed
    temperature: float = 0.0
    target: str = TARGET  # "other": any but that
    prompts: str = "tasks"  # as they are; or rephrased, long

    def __str__(self) -> str:
        also = [name for name in ("overlap", "confidence", "trees") if getattr(self, name)]
        parts = [f"drafters {', '.join(self.drafters)}", *(["with " + " and ".join(also)] if also else [])]
        parts += [f"at temperature {self.temperature:g}"] if self.temperature else []
        parts += ["of another target"] if self.target == "other" else []
        parts += [f"of {self.prompts} prompts"] if self.prompts != "tasks" else []
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording's header and texts; every text is labelled with its number, its task stands beside it."""

    path: Path
    meta: dict[str, Any]
    texts: tuple[Text, ...]
    tasks: tuple[str, ...]

    @property
    def repeats(self) -> bool:
        """Whether it says of all texts which tokens had occurred before."""
        return all(text.repeats for text in self.texts)

    def only(self, drafters: Collection[str], at: Collection[int]) -> list[Text]:
        """Texts by their numbers, with the tracks of these drafters only."""
        return [_with(self.texts[i], frozenset(drafters)) for i in at]


def find(wanted: Wanted, folder: Path = FOLDER) -> Recording:
    """Of the recordings that hold what is wanted the one with most texts; parts that were made alike are one.

    Where repeats are wanted one that has them goes first.
    """
    parts: dict[tuple[str, ...], list[Recording]] = {}
    for path in sorted(folder.glob("*.jsonl*")):
        if _fits(one := load(path), wanted):
            parts.setdefault(tuple(str(one.meta.get(field)) for field in ALIKE), []).append(one)
    if not parts:
        raise NotHereError(f"needs a recording with {wanted}")
    return max(map(_joined, parts.values()), key=lambda one: (wanted.repeats and one.repeats, len(one.texts)))


def second_target(pool: Collection[str], folder: Path = FOLDER) -> str:
    """Why recordings of other targets cannot tell which of several model drafters to choose; empty where they can."""
    found: dict[str, set[str]] = {}
    for path in sorted(folder.glob("*.jsonl*")):
        one = load(path)
        if one.meta.get("model") != TARGET:
            models = {name for name, track in one.texts[0].tracks.items() if not track.cheap}
            found.setdefault(str(one.meta.get("model")), set()).update(models)
    if any(len(models & set(pool)) > 1 for models in found.values()):
        return ""
    told = [f"{target} is recorded with {', '.join(sorted(own)) or 'no model'} alone" for target, own in found.items()]
    return "none: " + ("; ".join(told) or "no other target is recorded") + ", and a choice of model drafters takes two"


def _joined(parts: Sequence[Recording]) -> Recording:
    """Recordings of different tasks as one, with the seconds of the part that was timed; of two with a task in common
    the larger."""
    whole, *rest = sorted(parts, key=lambda one: -len(one.texts))
    for one in rest:
        if not set(one.tasks) & set(whole.tasks):
            first = len(whole.texts)
            texts = tuple(_renamed(text, str(first + i)) for i, text in enumerate(one.texts))
            timed = whole.meta if "verify" in (whole.meta.get("costs") or {}) else one.meta
            whole = replace(whole, meta=timed, texts=whole.texts + texts, tasks=whole.tasks + one.tasks)
    return whole


def load(path: Path) -> Recording:
    """A recording, read once."""
    return _load(path.resolve(), path.stat().st_mtime_ns)


@lru_cache(maxsize=16)
def _load(path: Path, changed: int) -> Recording:
    meta, texts = read(path)
    numbered = tuple(_renamed(text, str(i)) for i, text in enumerate(texts))
    return Recording(path, meta, numbered, tuple(text.label for text in texts))


def _fits(one: Recording, wanted: Wanted) -> bool:
    meta, tracks = one.meta, one.texts[0].tracks
    target = meta.get("model") == TARGET if wanted.target == TARGET else meta.get("model") != TARGET
    named = str(meta.get("prompts", "")).partition(".")[0]  # the file they came from
    prompts = named if named in OTHER_PROMPTS else "tasks"
    same = float(meta.get("temperature") or 0) == wanted.temperature and prompts == wanted.prompts
    if not (target and same and all(name in tracks for name in wanted.drafters)):
        return False
    own: list[Track] = [tracks[name] for name in wanted.drafters]
    return (
        (not wanted.overlap or all(track.overlap for track in own))
        and (not wanted.confidence or all(any(track.confidence) for track in own))
        and (not wanted.trees or all(track.trees for track in own))
    )


def _renamed(text: Text, label: str) -> Text:
    """The text under another label; its columns were checked when it was read."""
    made: Text = object.__new__(Text)
    for name in ("prompt", "tokens", "tracks", "limit", "agreement", "repeats"):
        object.__setattr__(made, name, getattr(text, name))
    object.__setattr__(made, "label", label)
    return made


def _with(text: Text, drafters: frozenset[str]) -> Text:
    tracks = {name: track for name, track in text.tracks.items() if name in drafters}
    agreement = {
        one: {other: n for other, n in others.items() if other in tracks}
        for one, others in text.agreement.items()
        if one in tracks
    }
    made = _renamed(text, text.label)
    object.__setattr__(made, "tracks", tracks)
    object.__setattr__(made, "agreement", agreement)
    return made
