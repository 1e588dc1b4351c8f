"""Drafters by name: how the command line and the tests build them."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from wager.core.require import nearest, require, require_type
from wager.drafters import shipped
from wager.drafters.base import Drafter
from wager.drafters.datastore import Datastore, fingerprint
from wager.drafters.prompt_lookup import PromptLookup
from wager.drafters.retrieval import Retrieval
from wager.drafters.suffix import Suffix
from wager.drafters.together import Together

NAME = re.compile(r"[A-Za-z0-9_.-]+")  # of a head or a model, as an arm can hold it
Load = Callable[[str], Any]  # a name into a loaded model; a pair with its tokenizer where that is not the target's


@dataclass(frozen=True, slots=True)
class Entry:
    """A drafter as it is listed."""

    summary: str
    make: Callable[..., Drafter | None]  # from its name, what stands after the equals sign, and the options of `build`
    value: str = ""  # what stands after the equals sign; empty: nothing
    servable: bool = False  # in vLLM, beside others, one for every request

    def written(self, name: str) -> str:
        """How a specification of it is written."""
        return f"{name}={self.value}" if self.value else name


def _entry(drafter: type[Drafter], make: Callable[..., Drafter], value: str = "") -> Entry:
    return Entry((inspect.getdoc(drafter) or "").splitlines()[0], make, value, drafter.servable)


def _retrieval(name: str, path: str, *, tokenizer: Any, **_: Any) -> Drafter:
    store = Datastore.open(path)
    if tokenizer is not None:
        store.check(fingerprint(tokenizer))
    return Retrieval(store)


def _draft_model(name: str, model: str, *, load: Load | None, tokenizer: Any, **_: Any) -> Drafter:
    if load is None:
        raise ValueError(f"drafter '{name}={model}' needs a way to load models; pass load=")
    from wager.drafters.draft_model import DraftModel  # imports torch
    from wager.drafters.universal import UniversalDraftModel

    loaded = load(model)
    if not isinstance(loaded, tuple):
        return DraftModel(loaded, name)
    draft, theirs = loaded
    return UniversalDraftModel(draft, theirs, tokenizer, name)


def _eagle(name: str, folder: str, **_: Any) -> Drafter:
    # By name: wager.eagle imports torch, and stands above this package.
    head: Drafter = import_module("wager.eagle.drafter").Eagle(folder, name)
    return head


def _together(name: str, several: str, **options: Any) -> Drafter:
    specs = shipped.expand(several.split("+"), options["target"], options["mark"])
    require(len(set(specs)) == len(specs), f"drafter 'together' names one twice: {name}={several}")
    return Together([one for each in specs if (one := build(each, **options)) is not None])


DRAFTERS: dict[str, Entry] = {
    "off": Entry("No drafter: plain decoding, which is always an arm.", lambda *_, **__: None),
    "prompt-lookup": _entry(PromptLookup, lambda *_, **__: PromptLookup()),
    "suffix": _entry(Suffix, lambda *_, **__: Suffix()),
    "retrieval": _entry(Retrieval, _retrieval, "PATH"),
    "draft-model": Entry("Lets a smaller model write ahead, of any vocabulary.", _draft_model, "MODEL"),
    "eagle": Entry("Goes on from the target's own features with an EAGLE head, of EAGLE-3 too.", _eagle, "PATH"),
    "eagle3": Entry("The same, as the head is called in vLLM.", _eagle, "PATH"),
    "together": _entry(Together, _together, "SPEC+SPEC"),
}
SHIPPED: dict[str, str] = {
    "eagle:NAME": "An EAGLE head shipped for the target; eagle:* is all of them.",
    "eagle3:NAME": "An EAGLE-3 head shipped for the target; eagle3:* is all of them.",
    "draft:NAME": "A small model shipped for the target; draft:* is all of them.",
    "eagle:NAME?": "The same where there is one, and nothing where there is none.",
}


def build(
    spec: str, *, load: Load | None = None, tokenizer: Any = None, target: str = "", mark: shipped.Mark | None = None
) -> Drafter | None:
    """The drafter a specification such as ``suffix`` or ``retrieval=PATH`` describes; None for ``off``.

    ``load`` turns the name after ``draft-model=`` into a loaded model, or a pair with its tokenizer where the target's
    is another. With a ``tokenizer``, a datastore made with another one is refused. ``target`` is the name of the model
    that is drafted for, and ``mark`` tells its fingerprint: by one of them ``eagle:NAME`` and ``draft:NAME`` are found.
    A drafter is called what stands before the equals sign.
    """
    name, value = parse(spec)
    kind, named, _ = name.partition(":")
    if named and not value:
        value = str(shipped.find(spec, target, mark).folder)
    entry = DRAFTERS["draft-model" if kind == "draft" else kind]
    return entry.make(name, value, load=load, tokenizer=tokenizer, target=target, mark=mark)


def parse(spec: str) -> tuple[str, str]:
    """The name and the value of a specification, both checked; whether a shipped drafter is there is not.

    A head or a model may be given a name of its own, to have several: ``eagle:mine=PATH``, ``draft:mine=MODEL``. A
    question mark after a shipped one, which may be missing then, is not part of its name.
    """
    require_type(isinstance(spec, str), f"a drafter is named by a text such as 'suffix', not {spec!r}")
    maybe = shipped.split(spec) is not None and spec.endswith(shipped.MAYBE)
    spec = spec.removesuffix(shipped.MAYBE) if maybe else spec
    name, equals, value = spec.partition("=")
    kind, colon, own = name.partition(":")
    if colon and kind in shipped.KINDS:
        every = own == shipped.EVERY and not equals and not maybe
        if (equals and not value) or not (every or NAME.fullmatch(own)):
            raise ValueError(f"drafter {spec!r} is written {kind}:NAME, {kind}:* or {kind}:NAME=PATH")
        return name, value
    if name not in DRAFTERS:
        raise ValueError(f"unknown drafter {spec!r}{nearest(name, DRAFTERS)}; choose from {', '.join(written())}")
    entry = DRAFTERS[name]
    fits = bool(entry.value) == bool(value) and not (equals and not value)
    require(fits, f"drafter {spec!r} is written {entry.written(name)}")
    return name, value


def servable() -> tuple[str, ...]:
    """The drafters that wager itself runs in vLLM, any number of them side by side."""
    return tuple(name for name, entry in DRAFTERS.items() if entry.servable)


def written() -> list[str]:
    """How every drafter is written."""
    return [*(entry.written(name) for name, entry in DRAFTERS.items()), *SHIPPED]
