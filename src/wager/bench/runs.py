"""A benchmark run as files: every answer is kept as soon as it is there, and a run that was killed goes on.

``run.json`` (format wager-run) holds how the run was made and, once it is over, every answer and what follows from
them. While it goes on, answers are appended to ``answers.jsonl``, one a line, and what policies have learned lies in
``state/``. See docs/bench.md.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from wager.bench.answers import Answer
from wager.core import Arm, Round, files

FORMAT, VERSION = "wager-run", 1
RUN, ANSWERS, STATE, LOCK = "run.json", "answers.jsonl", "state", ".lock"
# What two parts of one run must have in common, as it is called on the command line or in words.
SETTINGS = {
    "suite": "--suite",
    "model": "--model",
    "weights": "the model's weights",
    "device": "the device",
    "dtype": "--dtype",
    "seed": "--seed",
    "max_tokens": "--max-tokens",
    "longest_prompt": "--longest-prompt",
    "methods": "--methods",
    "arms": "the arms",
    "prompts": "the prompts",
    "machine": "the machine",
    "versions": "the versions",
}
Key = tuple[str, str]  # a prompt's id, a method's name


class Run:
    """One folder with one run; as a context manager it keeps others out."""

    def __init__(self, folder: Path, head: Mapping[str, Any], *, afresh: bool = False) -> None:
        """``head`` holds the run's settings, and how it came about; a run that is there must have the same settings."""
        self.folder, self.head = folder, dict(head)
        self.answers: dict[Key, Answer] = {}  # in the order they were given
        self.pieces: dict[Key, list[Any]] = {}
        self.complete = False
        self._arms = [Arm.parse(arm) for arm in head["arms"]]
        self._names = [method["name"] for method in head["methods"]]
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ValueError(f"{folder} is not a folder; give --out a folder for the results") from None
        self._lock = FileLock(folder / LOCK)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ValueError(f"another run is writing to {folder}; wait for it, or give another --out") from None
        try:
            if afresh:
                self._clear()
            self._open()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let others use the folder."""
        self._lock.release()

    # -- reading what is there

    def _clear(self) -> None:
        for name in (RUN, ANSWERS):
            (self.folder / name).unlink(missing_ok=True)
        shutil.rmtree(self.folder / STATE, ignore_errors=True)

    def _open(self) -> None:
        path = self.folder / RUN
        if not path.exists():
            if (self.folder / ANSWERS).exists():
                raise ValueError(f"{self.folder} holds answers but no {RUN}; give another --out, or --afresh")
            self.save()
            return
        there = read(path)
        self._check(there)
        self.head |= {key: there[key] for key in ("command", "date") if key in there}
        self.complete = bool(there["complete"])
        self._read_answers()

    def _check(self, there: Mapping[str, Any]) -> None:
        """Refuse a run with other settings, naming the first that differs."""
        for key, name in SETTINGS.items():
            theirs, ours = there.get(key), json.loads(json.dumps(self.head.get(key)))
            if theirs == ours:
                continue
            what = f"{name}: {_short(key, theirs)} there, {_short(key, ours)} here"
            if key in ("prompts", "arms", "weights"):
                what = f"{name}: they are not the same"
            raise ValueError(
                f"{self.folder} holds a run with other settings ({what}); give another --out, or --afresh to overwrite"
            )

    def _read_answers(self) -> None:
        """Take up all answers; a last line that was not finished is cut off."""
        path = self.folder / ANSWERS
        if not path.exists():
            return
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        prompts = {prompt["id"] for prompt in self.head["prompts"]}
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                record = json.loads(line)
                key = record["prompt"], record["method"]
                if key[0] not in prompts or key[1] not in self._names:
                    raise ValueError
                self._take(key, record)
            except (ValueError, LookupError, TypeError, AttributeError):
                raise ValueError(
                    f"{path}, line {number}: not an answer of this run; --afresh measures everything anew"
                ) from None
        if len(whole) < len(content):
            os.truncate(path, len(whole))

    def _take(self, key: Key, record: Mapping[str, Any]) -> None:
        if key in self.answers:  # it counts once
            return
        rounds = [
            Round(self._arms[arm], drafted, accepted, emitted, draft_seconds=drafting, verify_seconds=verifying)
            for arm, drafted, accepted, emitted, drafting, verifying in record["rounds"]
        ]
        own = record["seconds"] - record["prefill_seconds"] - sum(r.seconds for r in rounds)
        self.answers[key] = Answer(
            record["ids"],
            record["seconds"],
            record["forwards"],
            rounds,
            max(0.0, own) if rounds else 0.0,
            record["prefill_seconds"],
        )
        if record.get("pieces") is not None:
            self.pieces[key] = record["pieces"]

    # -- going on

    def add(
        self, key: Key, answer: Answer, *, pieces: list[Any] | None = None, state: dict[str, Any] | None = None
    ) -> None:
        """Keep an answer, on the disk before this returns; ``state`` is what its policy knows now."""
        record = {**self._json(key, answer), "ids": answer.tokens}
        if pieces is not None:
            record["pieces"] = pieces
        if state is not None:  # before the answer: whichever answers are there, the state after them is there, too
            self._keep_state(key[1], self.given(key[1]) + 1, state)
        with (self.folder / ANSWERS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._take(key, record)

    def given(self, method: str) -> int:
        """How many answers of a method there are."""
        return sum(name == method for _, name in self.answers)

    def state(self, method: str) -> dict[str, Any]:
        """What the method's policy knew after the last answer."""
        path = self._state_path(method, self.given(method))
        try:
            return files.read_json(path)
        except (OSError, ValueError):
            raise ValueError(
                f"what {method} had learned cannot be read from {path}; --afresh measures everything anew"
            ) from None

    def _keep_state(self, method: str, count: int, state: dict[str, Any]) -> None:
        path = self._state_path(method, count)
        path.parent.mkdir(exist_ok=True)
        files.write_json(path, state)
        # The one before stays: the last line of the answers may be cut off.
        self._state_path(method, count - 2).unlink(missing_ok=True)

    def _state_path(self, method: str, count: int) -> Path:
        return self.folder / STATE / f"{self._names.index(method)}-{count}.json"

    # -- the file for others

    def save(
        self, summary: Mapping[str, Any] | None = None, verdict: Sequence[str] = (), *, complete: bool = False
    ) -> Path:
        """Write ``run.json`` with all answers so far; a complete run needs no state any more."""
        path = self.folder / RUN
        content = {
            "format": FORMAT,
            "version": VERSION,
            **self.head,
            "complete": complete,
            "answers": [self._told(key) for key in self.answers],
            "summary": dict(summary or {}),
            "verdict": list(verdict),
        }
        files.write_text(path, json.dumps(content, allow_nan=False))
        self.complete = complete
        if complete:
            shutil.rmtree(self.folder / STATE, ignore_errors=True)
        return path

    def _told(self, key: Key) -> dict[str, Any]:
        told = self._json(key, self.answers[key])
        plain = self.answers.get((key[0], self._names[0]))
        told["same"] = None if plain is None else plain.tokens == self.answers[key].tokens
        if key in self.pieces:
            told["pieces"] = self.pieces[key]
        return told

    def _json(self, key: Key, answer: Answer) -> dict[str, Any]:
        return {
            "prompt": key[0],
            "method": key[1],
            "tokens": len(answer.tokens),
            "seconds": round(answer.seconds, 6),
            "prefill_seconds": round(answer.prefill_seconds, 6),
            "forwards": answer.forwards,
            "rounds": [self._row(played) for played in answer.rounds],
        }

    def _row(self, played: Round) -> list[float]:
        """Arm, drafted, accepted, emitted; seconds drafting (catching up included) and verifying."""
        drafting, verifying = played.draft_seconds + played.lag_seconds, played.verify_seconds
        counts = (played.drafted, played.accepted, played.emitted)
        return [self._arms.index(played.arm), *counts, round(drafting, 6), round(verifying, 6)]


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
