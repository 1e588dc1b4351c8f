"""Results as files: written whole or not at all, with how they came about."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wager.cli.parameters import opt
from wager.core import files, require
from wager.core.provenance import provenance


@dataclass(frozen=True, slots=True)
class Output:
    """The file that a command's results go to, if any; one that cannot be written is refused before the work."""

    json_file: Path | None = opt(None, "Write the results to this file.", "--json")

    def __post_init__(self) -> None:
        if self.json_file is not None:
            check_writable(self.json_file)
            check_own(self.json_file)

    def write(self, content: dict[str, Any]) -> None:
        if self.json_file is not None:
            write_json(self.json_file, content)


def data_file(path: Path, kind: str, folder: Path | None = None) -> Path:
    """The file itself, or the one of that name in the data folder: this one, else that of the variable WAGER_DATA."""
    data = folder or os.environ.get("WAGER_DATA")
    return Path(data) / kind / path if data and not path.exists() else path


def check_writable(path: Path) -> None:
    """Refuse, before long work, a path that could not be written after it."""
    folder = path.resolve().parent
    require(path.is_file() or not path.exists(), f"cannot write {path}: it is there and not a file")
    require(folder.is_dir() and os.access(folder, os.W_OK), f"cannot write {path}: no folder {folder} to write in")


def check_own(path: Path) -> None:
    """Refuse a file of results that is there and holds something else: only earlier results are written over."""
    try:
        ours = not path.exists() or not path.stat().st_size or "command" in files.read_json(path)
    except (ValueError, OSError):
        ours = False
    require(ours, f"{path} exists and holds no results of wager's; give another name, or remove it")


def check_new(path: Path, what: str) -> None:
    """Refuse a path for a file that is never overwritten if it is taken or cannot be written."""
    require(not path.exists() and not path.is_symlink(), f"{path} exists; a {what} is never overwritten")
    check_writable(path)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write JSON beside the path, then move it there."""
    files.write_text(path, json.dumps({**provenance(), **content}, indent=1, allow_nan=False) + "\n")
