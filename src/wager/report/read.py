"""Any file a report can show, read: what it is is told by what it holds, not by its name."""

import gzip
import json
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from wager.core import trace as traces
from wager.report import from_results, from_run, from_turns
from wager.report.colours import Palette
from wager.report.views import SIMULATION, Material, NothingShownError, Source

READS = (
    "a run (wager bench), a trace (wager generate --trace), a text (wager generate --json), or the JSON of "
    "wager bench generate, of wager lab engine, versus, drafters, simulate or replay, or of reproduction.turns"
)

# What a file is, by keys that it must hold; the first that fits.
KINDS: tuple[tuple[str, tuple[str, ...], Callable[[dict[str, Any], Source, Palette], Material]], ...] = (
    ("a generated text", ("text", "pieces", "summary"), from_results.generated),
    ("servers compared", ("compared", "turns"), from_results.served),
    ("servers measured by turns", ("kind", "summary", "turns"), from_turns.by_turns),
    ("an engine measured", ("widths", "own_seconds_per_round"), from_results.engine),
    (SIMULATION, ("marks", "best_fixed_arm", "policies"), from_results.simulated),
    ("recorded texts replayed", ("rows", "tasks", "best_fixed_arm", "cost"), from_results.replayed),
    ("methods compared", ("methods", "prompts", "max_tokens"), from_results.compared),
)


def read(path: Path, palette: Palette | None = None) -> Material:
    """Everything a file holds that a report can show; the files of one page share a ``palette``."""
    palette = palette or Palette()
    if path.is_dir():
        if not (path / "run.json").is_file():
            raise ValueError(
                f"{path} is a folder without a run.json of wager bench; name a file; a report reads {READS}"
            )
        path = path / "run.json"
    try:
        content = _text(path)
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text; a report reads {READS}") from None
    if f'"{traces.FORMAT}"' in content.partition("\n")[0]:
        return _guarded(path, "a trace", lambda: from_run.traced(path, palette))
    try:
        held = json.loads(content, parse_constant=_refused)
    except ValueError:
        raise ValueError(f"{path} is neither JSON nor a trace; a report reads {READS}") from None
    if not isinstance(held, dict):
        raise ValueError(f"{path} holds no JSON object; a report reads {READS}")
    if held.get("format") == from_run.FORMAT:
        version = held.get("version")
        if version != from_run.VERSION:
            raise ValueError(f"{path} is a run of version {version!r}, not {from_run.VERSION}; run its command again")
        held = from_run.with_answers(held, path)
        return _guarded(path, "a run", lambda: from_run.ran(held, from_run.described(path, "a run", held), palette))
    for kind, keys, make in KINDS:
        if all(key in held for key in keys):
            return _guarded(path, kind, partial(make, held, from_run.described(path, kind, held), palette))
    known = f" (it was written by: {held['command']})" if isinstance(held.get("command"), str) else ""
    raise ValueError(f"{path} holds nothing a report shows{known}; it reads {READS}")


def _refused(word: str) -> float:
    raise ValueError(f"{word} is no JSON")


def _text(path: Path) -> str:
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error):
            raise ValueError(f"{path} is a gzip file that does not unpack; make it again") from None
    return content.decode("utf-8")


def _guarded(path: Path, kind: str, make: Callable[[], Material]) -> Material:
    """What ``make`` makes, or one sentence that names the file and what it lacks."""
    try:
        return make()
    except traces.TraceError as error:
        raise ValueError(f"{error}; record it again") from None
    except NothingShownError as error:
        raise ValueError(f"{path} holds nothing a report shows: {error}; it reads {READS}") from None
    except KeyError as error:
        raise ValueError(f"{path} looks like {kind} but lacks {error}; make it again") from None
    except (TypeError, IndexError, AttributeError, ArithmeticError, ValueError) as error:
        raise ValueError(f"{path} looks like {kind} but does not hold together ({error}); make it again") from None
