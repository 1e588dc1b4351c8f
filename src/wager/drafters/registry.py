"""Drafters by name: how the command line and the tests build them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from wager.drafters import shipped
from wager.drafters.base import Drafter
from wager.drafters.datastore import Datastore, fingerprint
from wager.drafters.prompt_lookup import PromptLookup
from wager.drafters.retrieval import Retrieval
from wager.drafters.suffix import Suffix
from wager.drafters.together import Together

NAME = re.compile(r"[A-Za-z0-9_.-]+")  # of a head or a model, as an arm can hold it


@dataclass(frozen=True, slots=True)
class Entry:
    """A drafter as it is listed."""

    summary: str
    needs: str = ""  # what stands after the equals sign; empty: nothing

    def written(self, name: str) -> str:
        """How a specification of it is written."""
        return f"{name}={self.needs}" if self.needs else name


def _summary(drafter: type[Drafter]) -> str:
    return (inspect.getdoc(drafter) or "").splitlines()[0]


DRAFTERS: dict[str, Entry] = {
    "off": Entry("No drafter: plain decoding, which is always an arm."),
    "prompt-lookup": Entry(_summary(PromptLookup)),
    "suffix": Entry(_summary(Suffix)),
    "retrieval": Entry(_summary(Retrieval), needs="PATH"),
    "draft-model": Entry("Lets a smaller model of the same vocabulary write ahead.", needs="MODEL"),
    "eagle": Entry("Goes on from the target's own features with an EAGLE head.", needs="PATH"),
    "together": Entry(_summary(Together), needs="SPEC+SPEC"),
}
SHIPPED: dict[str, str] = {
    "eagle:NAME": "An EAGLE head that lies ready for the target; eagle:* is all of them.",
    "draft:NAME": "A small model that lies ready for the target; draft:* is all of them.",
    "eagle:NAME?": "The same where there is one, and nothing where there is none.",
}


def build(
    spec: str,
    *,
    load: Callable[[str], Any] | None = None,
    tokenizer: Any = None,
    target: str = "",
    mark: Callable[[], str] | None = None,
) -> Drafter | None:
    """The drafter a specification such as ``suffix`` or ``retrieval=PATH`` describes; None for ``off``.

    ``load`` turns the name after ``draft-model=`` into a loaded model. With a ``tokenizer``, a datastore made with
    another one is refused. ``target`` is the name of the model that is drafted for, and ``mark`` tells its fingerprint:
    by one of them ``eagle:NAME`` and ``draft:NAME`` are found. A drafter is called what stands before the equals sign.
    """
    name, value = parse(spec)
    kind = name.partition(":")[0]
    if name == "off":
        return None
    if name == "prompt-lookup":
        return PromptLookup()
    if name == "suffix":
        return Suffix()
    if name == "retrieval":
        store = Datastore.open(value)
        if tokenizer is not None:
            store.check(fingerprint(tokenizer))
        return Retrieval(store)
    if name == "together":
        known: dict[str, Any] = {"load": load, "tokenizer": tokenizer, "target": target, "mark": mark}
        specs = shipped.expand(value.split("+"), target, mark)
        return Together([one for each in specs if (one := build(each, **known)) is not None])
    if not value:
        value = str(shipped.find(spec, target, mark).folder)
    if kind == "eagle":
        # By name: wager.eagle imports torch, and stands above this package.
        head: Drafter = import_module("wager.eagle.drafter").Eagle(value, name)
        return head
    if load is None:
        raise ValueError(f"drafter {spec!r} needs a way to load models; pass load=")
    from wager.drafters.draft_model import DraftModel  # imports torch

    drafter: Drafter = DraftModel(load(value)) if name == "draft-model" else DraftModel(load(value), name)
    return drafter


def parse(spec: str) -> tuple[str, str]:
    """The name and the value of a specification, both checked; whether a shipped drafter is there is not.

    A head or a model may be given a name of its own, to have several: ``eagle:mine=PATH``, ``draft:mine=MODEL``. A
    question mark after a shipped one, which may be missing then, is not part of its name.
    """
    maybe = shipped.split(spec) is not None and spec.endswith(shipped.MAYBE)
    spec = spec.removesuffix(shipped.MAYBE) if maybe else spec
    name, equals, value = spec.partition("=")
    kind, colon, own = name.partition(":")
    if colon and kind in shipped.KINDS:
        if not NAME.fullmatch(own) and not (own == shipped.EVERY and not equals and not maybe):
            raise ValueError(f"drafter {spec!r} is written {kind}:NAME, {kind}:* or {kind}:NAME=PATH")
        if equals and not value:
            raise ValueError(f"drafter {spec!r} is written {kind}:NAME=PATH, or {kind}:NAME for one that is shipped")
        return name, value
    if name not in DRAFTERS:
        known = ", ".join(written())
        raise ValueError(f"unknown drafter {spec!r}; choose from {known}")
    entry = DRAFTERS[name]
    if bool(entry.needs) != bool(value) or (equals and not value):
        raise ValueError(f"drafter {spec!r} is written {entry.written(name)}")
    return name, value


def written() -> list[str]:
    """How every drafter is written."""
    return [*(entry.written(name) for name, entry in DRAFTERS.items()), *SHIPPED]
