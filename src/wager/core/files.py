"""Files that are always whole: what a policy learned, results, pages."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

EVERY = 10.0  # seconds between two savings of what is being learned


class MemoryWarning(UserWarning):
    """What was learned before is not used, or what is learned now is not kept."""


def read_json(path: Path) -> dict[str, Any]:
    """The object in the file; ValueError where it holds none, OSError where it cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError("it holds no JSON object")
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write it as JSON, for nobody but the user."""
    write_text(path, json.dumps(content), mode=0o600)


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write it beside the path, and onto the disk, before it takes the path's name: a reader never sees half."""
    path = path.resolve()
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
