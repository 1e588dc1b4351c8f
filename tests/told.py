"""What is said where something is refused."""

from collections.abc import Callable

import pytest


def message(call: Callable[[], object]) -> str:
    """What a call says when it fails, which must be one sentence in a ValueError."""
    with pytest.raises(ValueError, match=r"\w") as caught:
        call()
    said = str(caught.value)
    assert len(said.splitlines()) == 1
    assert "Traceback" not in said
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return said
