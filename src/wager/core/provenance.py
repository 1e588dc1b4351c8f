"""Where a result comes from: the command, the commit, the date, the machine and the versions."""

import os
import platform
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import wager

ABSOLUTE_PATH = re.compile(r"(^|^[^=/]*=)([/~].*)$", re.DOTALL)  # as a word, or as the value of an option or a drafter


def provenance(program: str = "wager") -> dict[str, Any]:
    """What every result file says of how it was made; ``program`` is what the arguments were given to."""
    return {
        "command": without_paths(shlex.join([*program.split(), *sys.argv[1:]])),
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {"wager": wager.__version__, "python": platform.python_version(), "numpy": np.__version__},
    }


@cache
def commit() -> str:
    """The commit of the checkout wager runs from, ``-dirty`` where files differ from it; else the installed version.

    WAGER_COMMIT names it for a copy of a checkout that came without its history.
    """
    if named := os.environ.get("WAGER_COMMIT"):
        return named
    package = Path(wager.__file__).resolve().parent
    root = _git(package, "rev-parse", "--show-toplevel")
    described = ""
    if root and Path(root).resolve() == package.parents[1]:  # not some other repository that holds the environment
        described = _git(package, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return described or f"wager {wager.__version__}, installed"


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def without_paths(command: str) -> str:
    """The command with only the last part of every absolute path, also where it follows an equals sign."""
    words = (ABSOLUTE_PATH.sub(lambda found: found[1] + Path(found[2]).name, word) for word in shlex.split(command))
    return shlex.join(words)
