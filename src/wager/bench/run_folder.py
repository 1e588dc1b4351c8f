"""A run's folder: ``run.json`` for readers, ``answers.jsonl`` until it is complete, ``state/`` of its policies."""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from wager.core import files

FORMAT, VERSION = "wager-run", 1
RUN, ANSWERS, STATE, LOCK = "run.json", "answers.jsonl", "state", ".lock"
# What two parts of one run must have in common: options of the command, and what is not chosen by one.
OPTIONS = ("suite", "model", "dtype", "seed", "reset", "max_tokens", "longest_prompt", "methods")
SETTINGS = (*OPTIONS, "weights", "device", "arms", "prompts", "machine", "versions", "commit")
ANEW = "--afresh measures everything anew"


def check_folder(path: Path) -> None:
    """Refuse a path at which no folder can be made."""
    there = next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
    if not there.is_dir():
        raise ValueError(f"{path} is not a folder; give --out a folder for the results")


class RunFolder:
    """The files of one run; no other process may write to the folder until ``close``."""

    def __init__(self, path: Path, head: Mapping[str, Any], *, afresh: bool = False) -> None:
        """``head`` says how the run is made; a run that is there must have the same settings, unless ``afresh``."""
        self.path = path
        self.names = [method["name"] for method in head["methods"]]
        check_folder(path)
        path.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(path / LOCK)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ValueError(f"another run is writing to {path}; wait for it, or give another --out") from None
        try:
            if afresh:
                _check_own(path / RUN)
                for name in (RUN, ANSWERS):
                    (path / name).unlink(missing_ok=True)
                self._forget()
            self.there = read(path / RUN) if (path / RUN).exists() else None  # the run that is there
            if self.there is not None and not self.there.get("complete") and not _holds_any(path / ANSWERS):
                self.there = None  # it ended before its first answer
            if self.there is not None:
                self._check(self.there, head)
            elif not (path / RUN).exists() and (path / ANSWERS).exists():
                raise ValueError(f"{path} holds answers but no {RUN}; give another --out, or --afresh")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._lock.release()

    def _check(self, there: Mapping[str, Any], head: Mapping[str, Any]) -> None:
        """Refuse a run with other settings, naming the first that differs."""
        for key in SETTINGS:
            theirs, ours = there.get(key), json.loads(json.dumps(head.get(key)))
            if theirs != ours:
                name = f"the {key}".replace("weights", "model's weights")
                name = f"--{key.replace('_', '-')}" if key in OPTIONS else name
                what = f"{_short(key, theirs)} there, {_short(key, ours)} here"
                what = "they are not the same" if key in ("prompts", "arms", "weights") else what
                other = f"{self.path} holds a run with other settings ({name}: {what})"
                raise ValueError(f"{other}; give another --out, or --afresh to overwrite")

    def read_answers(self, take: Callable[[dict[str, Any]], None]) -> None:
        """Pass every answer to ``take``; a last line that was not finished is cut off."""
        path = self.path / ANSWERS
        if not path.exists():
            return
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(path, len(whole))
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                take(json.loads(line))
            except (ValueError, LookupError, TypeError, AttributeError):
                raise ValueError(f"{path}, line {number}: not an answer of this run; {ANEW}") from None

    def append(self, record: Mapping[str, Any]) -> None:
        """Add an answer; it is on the disk when this returns."""
        with (self.path / ANSWERS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def state(self, method: str, count: int) -> dict[str, Any]:
        """The state of the method's policy after so many answers."""
        path = self._state_path(method, count)
        try:
            return files.read_json(path)
        except (OSError, ValueError):
            raise ValueError(f"what {method} had learned cannot be read from {path}; {ANEW}") from None

    def keep_state(self, method: str, count: int, state: dict[str, Any]) -> None:
        path = self._state_path(method, count)
        path.parent.mkdir(exist_ok=True)
        files.write_json(path, state)
        # The one before stays: the last line of the answers may be cut off.
        self._state_path(method, count - 2).unlink(missing_ok=True)

    def _state_path(self, method: str, count: int) -> Path:
        return self.path / STATE / f"{self.names.index(method)}-{count}.json"

    def write(self, content: Mapping[str, Any]) -> Path:
        """Write ``run.json``; a complete run needs no state any more."""
        path = self.path / RUN
        files.write_text(path, json.dumps({"format": FORMAT, "version": VERSION, **content}, allow_nan=False))
        if content["complete"]:
            self._forget()
        return path

    def _forget(self) -> None:
        """Remove the states of policies, and their folder where nothing else is in it."""
        folder = self.path / STATE
        for path in folder.glob("*.json*") if folder.is_dir() else ():  # also what a kill left half written
            if re.fullmatch(r"\d+-\d+\.json(.*\.part)?", path.name):
                path.unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()


def _holds_any(answers: Path) -> bool:
    return answers.exists() and answers.stat().st_size > 0


def _check_own(path: Path) -> None:
    """Refuse to remove a file that is no run of wager's; a damaged one may be removed."""
    if path.exists() and path.stat().st_size:
        begins = path.read_bytes()[:100].decode(errors="replace")
        if f'"{FORMAT}"' not in begins:
            raise ValueError(f"{path} is not a run of wager bench, so it is not overwritten; give another --out")


def read(path: Path) -> dict[str, Any]:
    """A run's file; ValueError with one sentence where it is none that this version reads."""
    try:
        content = files.read_json(path)
    except UnicodeDecodeError:
        content = {}
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); measure anew with --afresh") from None
    if content.get("format") != FORMAT:
        raise ValueError(f"{path} is not a run of wager bench, which is a JSON object of format {FORMAT}")
    if content.get("version") != VERSION:
        raise ValueError(f"{path} has version {content.get('version')} of {FORMAT}; this wager reads {VERSION}")
    return content


def _short(key: str, value: Any) -> str:
    if key == "methods" and isinstance(value, Iterable):
        return ", ".join(str(method.get("name")) for method in value)
    if isinstance(value, Mapping):
        return " ".join(f"{name} {held}" for name, held in value.items())
    return str(value)
