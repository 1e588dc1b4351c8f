"""The one file that says what is trained: a target, its prompts by domain, the drafters to be made of its answers."""

from __future__ import annotations  # the types of the fields are read as they are written

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from wager.core.require import require

KINDS = ("eagle", "eagle3", "draft")
STARTS = {"eagle": (), "eagle3": ("frequent",), "draft": ("hidden", "layers", "heads", "intermediate")}  # sizes of both
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
    target = given.get("target", "smollm2-135m")
    require(isinstance(target, str), f"{path}: target is the name of a model or a folder, not {target!r}")
    domains = {
        name: tuple(_source(one, f"{path}: domain {name}") for one in _tables(sources, f"{path}: domain {name}"))
        for name, sources in _table(given.get("domain", {}), f"{path}: domain").items()
    }
    require(bool(domains), f"{path} names no domain; write [[domain.NAME]] with file and kind")
    drafters: dict[str, Drafter] = {}
    for one in _tables(given.get("drafter", []), f"{path}: drafter"):
        drafter = _made(Drafter, one, f"{path}: drafter")
        _check(f"{path}: drafter {drafter.name!r}", drafter, domains, drafters)
        drafters[drafter.name] = drafter
    return Plan(target, _answers(given.get("answers", {}), f"{path}: answers"), domains, drafters)


def _source(given: Any, where: str) -> Source:
    source = _made(Source, given, where)
    require(source.take >= 1, f"{where}: take is at least 1, not {source.take}")
    return source


def _answers(given: Any, where: str) -> Answers:
    answers = _made(Answers, given, where)
    fits = 0 < len(answers.share) == len(answers.temperatures)
    require(fits, f"{where} needs as many shares as temperatures")
    fits = all(0 <= t < math.inf for t in answers.temperatures) and all(0 <= one <= 1 for one in answers.share)
    require(fits, f"{where}: temperatures are 0 or more, and shares lie in [0, 1]")
    once = len({f"{t:g}" for t in answers.temperatures}) == len(answers.temperatures)
    require(once, f"{where}: a temperature stands twice")
    least = min(answers.max_tokens, answers.longest_prompt, answers.batch)
    require(least >= 1, f"{where}: max_tokens, longest_prompt and batch are at least 1, not {least}")
    return answers


def _check(where: str, own: Drafter, domains: Mapping[str, Any], before: Mapping[str, Drafter]) -> None:
    kind, start = own.kind, before.get(own.start)
    require(kind in KINDS, f"{where} is of an unknown kind {kind!r}; choose from {', '.join(KINDS)}")
    require(own.name not in before, f"{where} stands twice")
    require(Path(own.name).name == own.name, f"{where} is called as a folder can be, such as {kind}-code")
    require(own.name.startswith(f"{kind}-"), f"{where} is called {kind}-SOMETHING, so that it is found by its kind")
    if own.domains != ("*",) and (unknown := [d for d in own.domains if d not in domains]):
        raise ValueError(f"{where} learns from an unknown domain {unknown[0]!r}; there are {', '.join(domains)}")
    above = not own.start or (start is not None and start.kind == kind)
    require(above, f"{where} starts from {own.start!r}, which is no {kind} drafter above it")
    differs = [name for name in STARTS[kind] if start is not None and getattr(own, name) != getattr(start, name)]
    require(not differs, f"{where} starts from {own.start!r}; give both the same {', '.join(differs)}")
    numbers = (own.steps, own.tokens, own.unroll, own.evaluate, own.patience, own.layers, own.heads, own.hidden)
    fits = min(*numbers, own.intermediate) >= 1 and own.rate > 0 and not own.hidden % (2 * own.heads)
    require(fits, f"{where}: numbers are at least 1, the rate above 0, and heads of an even size divide hidden")
    require(own.frequent >= 0, f"{where}: frequent is 0 or more, not {own.frequent}")


def _table(given: Any, where: str) -> Mapping[str, Any]:
    require(isinstance(given, dict), f"{where} is a table of keys and values, not {given!r}")
    made: Mapping[str, Any] = given
    return made


def _tables(given: Any, where: str) -> list[Any]:
    require(isinstance(given, list), f"{where} is written in double brackets, as in [[domain.code]] or [[drafter]]")
    made: list[Any] = given
    return made


def _made(kind: type[T], given: Any, where: str) -> T:
    """The record from its table, every key known and of the right type."""
    types = get_type_hints(kind)
    _refuse_unknown(_table(given, where), types, where)
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    for key, value in values.items():
        wanted, of = get_origin(types[key]) or types[key], get_args(types[key])
        require(_fits(value, wanted), f"{where}: {key} is a {wanted.__name__}, not {value!r}")
        for each in value if of else ():
            require(_fits(each, of[0]), f"{where}: each of {key} is a {of[0].__name__}, not {each!r}")
    try:
        return kind(**values)
    except TypeError:
        needed = ", ".join(name for name in types if name in ("file", "kind", "name"))
        raise ValueError(f"{where} needs {needed}") from None


def _fits(value: Any, wanted: Any) -> bool:
    return isinstance(value, (int, float) if wanted is float else wanted) and not isinstance(value, bool)


def _refuse_unknown(given: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    if unknown := sorted(given.keys() - set(known)):
        raise ValueError(f"{where}: unknown key {unknown[0]!r}; there are {', '.join(known)}")
