"""Drafters by name: how the command line and the tests build them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wager.drafters.base import Drafter
from wager.drafters.datastore import Datastore, fingerprint
from wager.drafters.prompt_lookup import PromptLookup
from wager.drafters.retrieval import Retrieval
from wager.drafters.suffix import Suffix


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
}


def build(spec: str, *, load: Callable[[str], Any] | None = None, tokenizer: Any = None) -> Drafter | None:
    """The drafter a specification such as ``suffix`` or ``retrieval=PATH`` describes; None for ``off``.

    ``load`` turns the name after ``draft-model=`` into a loaded model. With a ``tokenizer``, a datastore made with
    another one is refused.
    """
    name, value = parse(spec)
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
    if load is None:
        raise ValueError(f"drafter {spec!r} needs a way to load models; pass load=")
    from wager.drafters.draft_model import DraftModel  # imports torch

    drafter: Drafter = DraftModel(load(value))
    return drafter


def parse(spec: str) -> tuple[str, str]:
    """The name and the value of a specification, both checked."""
    name, equals, value = spec.partition("=")
    if name not in DRAFTERS:
        known = ", ".join(entry.written(key) for key, entry in DRAFTERS.items())
        raise ValueError(f"unknown drafter {spec!r}; choose from {known}")
    entry = DRAFTERS[name]
    if bool(entry.needs) != bool(value) or (equals and not value):
        raise ValueError(f"drafter {spec!r} is written {entry.written(name)}")
    return name, value
