"""The one file that says what is trained: a target, its prompts by domain, the drafters to be made of its answers."""

from __future__ import annotations  # the types of the fields are read as they are written

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_origin, get_type_hints

from wager.core.require import require

KINDS = ("eagle", "eagle3", "draft")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Source:
    """Prompts of one kind, made of the records of one file."""

    file: str
    kind: str  # a recipe of `prompts`
    take: int = 1 << 30  # most prompts
    language: str = ""  # of what is to be translated
    origin: str = ""  # where the file comes from and its licence, for the drafter's card


@dataclass(frozen=True, slots=True)
class Answers:
    """How the target answers them."""

    temperatures: tuple[float, ...] = (0.0, 0.3, 0.7, 1.0)
    share: tuple[float, ...] = (1.0, 0.25, 0.25, 0.25)  # of the prompts answered at each temperature
    max_tokens: int = 256
    longest_prompt: int = 1024
    batch: int = 64


@dataclass(frozen=True, slots=True)
class Drafter:
    """One drafter to be trained."""

    name: str  # its folder: eagle-ofa, eagle3-ofa, draft-code
    kind: str
    domains: tuple[str, ...] = ("*",)  # to learn from; *: all
    start: str = ""  # another drafter of the plan to start from
    steps: int = 2000
    tokens: int = 16384  # a step
    rate: float = 1e-3  # highest learning rate, after a warm-up and before a cosine decay
    unroll: int = 5  # draft steps trained through (both kinds of EAGLE)
    feature: float = 0.2  # weight of the distance between drafted and true features (EAGLE)
    decay: float = 0.85  # weight of a draft step beside the one before it (both)
    evaluate: int = 200  # steps between two looks at held-out answers
    patience: int = 5  # looks without a better acceptance before training stops
    frequent: int = 0  # tokens the drafter's output is cut to, the most frequent ones; 0: all (both)
    hidden: int = 96  # size (draft)
    layers: int = 4  # (draft)
    heads: int = 3  # (draft)
    intermediate: int = 384  # (draft)
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a training file holds."""

    target: str
    answers: Answers
    domains: Mapping[str, tuple[Source, ...]]
    drafters: Mapping[str, Drafter] = field(default_factory=dict)


def read(path: Path) -> Plan:
    """The plan in a TOML file; a ValueError says in one sentence what is wrong with it."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    _refuse_unknown(given, ("target", "answers", "domain", "drafter"), f"{path}")
    domains = {
        name: tuple(_made(Source, one, f"{path}: domain {name}") for one in sources)
        for name, sources in given.get("domain", {}).items()
    }
    require(bool(domains), f"{path} names no domain; write [[domain.NAME]] with file and kind")
    drafters: dict[str, Drafter] = {}
    for one in given.get("drafter", ()):
        drafter = _made(Drafter, one, f"{path}: drafter")
        _check(f"{path}: drafter {drafter.name!r}", drafter, domains, drafters)
        drafters[drafter.name] = drafter
    answers = _made(Answers, given.get("answers", {}), f"{path}: answers")
    fits = 0 < len(answers.share) == len(answers.temperatures)
    require(fits, f"{path}: answers needs as many shares as temperatures")
    fits = min(answers.temperatures) >= 0 and min(answers.share) >= 0 and max(answers.share) <= 1
    require(fits, f"{path}: temperatures are 0 or more, and shares lie in [0, 1]")
    return Plan(given.get("target", "smollm2-135m"), answers, domains, drafters)


def _check(where: str, own: Drafter, domains: Mapping[str, Any], before: Mapping[str, Drafter]) -> None:
    kind, start = own.kind, before.get(own.start)
    require(kind in KINDS, f"{where} is of an unknown kind {kind!r}; choose from {', '.join(KINDS)}")
    require(own.name not in before, f"{where} stands twice")
    require(own.name.startswith(f"{kind}-"), f"{where} is called {kind}-SOMETHING, so that it is found by its kind")
    if own.domains != ("*",) and (unknown := [d for d in own.domains if d not in domains]):
        raise ValueError(f"{where} learns from an unknown domain {unknown[0]!r}; there are {', '.join(domains)}")
    above = not own.start or (start is not None and start.kind == kind)
    require(above, f"{where} starts from {own.start!r}, which is no {kind} drafter above it")
    numbers = (own.steps, own.tokens, own.unroll, own.evaluate, own.patience, own.layers)
    fits = min(numbers) >= 1 and own.rate > 0 and not own.hidden % (2 * own.heads)
    require(fits, f"{where}: numbers are at least 1, the rate above 0, and heads of an even size divide hidden")


def _made(kind: type[T], given: Mapping[str, Any], where: str) -> T:
    """The record from its table, every key known and of the right type."""
    types = get_type_hints(kind)
    _refuse_unknown(given, types, where)
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    for key, value in values.items():
        wanted = get_origin(types[key]) or types[key]
        fits = isinstance(value, (int, float) if wanted is float else wanted) and not isinstance(value, bool)
        require(fits, f"{where}: {key} is a {wanted.__name__}, not {value!r}")
    try:
        return kind(**values)
    except TypeError:
        needed = ", ".join(name for name in types if name in ("file", "kind", "name"))
        raise ValueError(f"{where} needs {needed}") from None


def _refuse_unknown(given: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    if unknown := sorted(given.keys() - set(known)):
        raise ValueError(f"{where}: unknown key {unknown[0]!r}; there are {', '.join(known)}")
