"""Refusing what cannot be meant."""

from numbers import Integral


def require(ok: bool, what: str) -> None:
    """Refuse a parameter with a sentence."""
    if not ok:
        raise ValueError(what)


def require_type(ok: bool, what: str) -> None:
    """Refuse a value of a wrong type with a sentence."""
    if not ok:
        raise TypeError(what)


def is_whole(value: object) -> bool:
    """Whether a value is a whole number; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)
