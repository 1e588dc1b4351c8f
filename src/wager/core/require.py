"""Refusing what cannot be meant."""


def require(ok: bool, what: str) -> None:
    """Refuse a parameter with a sentence."""
    if not ok:
        raise ValueError(what)
