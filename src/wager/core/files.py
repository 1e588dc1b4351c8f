"""Files that are always whole: policy states, results, pages."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO


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
    """Write it, whole or not at all."""
    with replacing(path, mode) as file:
        file.write(text.encode())


@contextmanager
def replacing(path: Path, mode: int = 0o644) -> Iterator[BinaryIO]:
    """A file beside the path that takes its name once it is on the disk: a reader never sees half."""
    path = path.resolve()
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
