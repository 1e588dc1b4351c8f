"""Results as files: written whole or not at all, with how they came about."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import wager
from wager.core import files


def provenance() -> dict[str, Any]:
    """The command, the date and the machine a result belongs to."""
    return {
        "command": shlex.join(["wager", *sys.argv[1:]]),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {"wager": wager.__version__, "python": platform.python_version(), "numpy": np.__version__},
    }


def data_file(path: Path, kind: str) -> Path:
    """The file itself, or the one of that name in the data folder that the variable WAGER_DATA names."""
    folder = os.environ.get("WAGER_DATA")
    return Path(folder) / kind / path if folder and not path.exists() else path


def check_writable(path: Path) -> None:
    """Refuse, before long work, a path that could not be written after it."""
    folder = path.resolve().parent
    if path.exists() and not path.is_file():
        raise ValueError(f"cannot write {path}: it is there and not a file")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f"cannot write {path}: no folder {folder} to write in")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write JSON beside the path, then move it there."""
    text = json.dumps({**provenance(), **content}, indent=1, allow_nan=False) + "\n"
    files.write_text(path, text)
