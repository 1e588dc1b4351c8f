"""Refusing what cannot be meant."""

from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral


def require(ok: bool, what: str) -> None:
    """Refuse a parameter with a sentence."""
    if not ok:
        raise ValueError(what)


def require_type(ok: bool, what: str) -> None:
    """Refuse a value of a wrong type with a sentence."""
    if not ok:
        raise TypeError(what)


def nearest(word: str, known: Iterable[str]) -> str:
    """A guess at what a mistyped word should be, for behind it in a message; empty where none is near."""
    spelled = {name.lower(): name for name in known}
    near = get_close_matches(word.lower(), list(spelled), n=1, cutoff=0.6)
    return f" (did you mean {spelled[near[0]]!r}?)" if near else ""


def is_whole(value: object) -> bool:
    """Whether a value is a whole number; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)
