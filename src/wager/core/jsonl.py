"""Files of JSON lines under a header that says what they are; lines are only ever appended.

So a file cut off in the middle of its last line is still a good one. A path that ends in .gz is compressed.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, ClassVar, Self, cast


def open_text(path: Path, mode: str) -> IO[str]:
    """The file as text, line by line."""
    if path.suffix == ".gz":
        return cast(IO[str], gzip.open(path, mode + "t", encoding="utf-8"))
    return open(path, mode, encoding="utf-8", errors="strict" if "x" in mode else "replace", buffering=1)


class LinesWriter:
    """Appends to a new file, which is never one that is there; use it as a context manager."""

    format: ClassVar[str]
    version: ClassVar[int]

    def __init__(self, path: str | Path, meta: Mapping[str, Any] | None = None) -> None:
        self._file = open_text(Path(path), "x")
        self.append({"format": self.format, "version": self.version, "meta": dict(meta or {})})

    def append(self, line: Mapping[str, Any]) -> None:
        """Append one line, which can be read at once."""
        self._file.write(json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        """No more lines."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_lines(
    path: str | Path, format: str, version: int, error: type[ValueError], decode: Callable[[str], object]
) -> Iterator[Any]:
    """The header's meta data, then what ``decode`` makes of each line; a last line that was cut off is left out.

    The error is raised, by ``decode`` too, where the file is not one of this format and version.
    """
    kind = format.removeprefix("wager-")
    try:
        with open_text(Path(path), "r") as file:
            try:
                content = json.loads(file.readline())
                known = content["format"] == format and isinstance(content.get("meta", {}), dict)
            except (ValueError, TypeError, KeyError, EOFError):
                known = False
            if not known:
                raise error(f"{path} is not a wager {kind}: its first line is not a '{format}' header")
            if (theirs := content.get("version")) != version:
                raise error(f"{path} is a {kind} of version {theirs}; this wager reads version {version}")
            yield content.get("meta", {})
            for number, line in enumerate(file, 2):
                try:
                    yield decode(line)
                except error as why:
                    if line.endswith("\n"):
                        raise error(f"{path}, line {number}: {why}") from why
    except EOFError:  # compressed, and cut off
        return
    except (gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as why:
        raise error(f"{path} is not a wager {kind} ({why})") from None
