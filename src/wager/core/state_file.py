"""What a policy learned, kept in a file from one run to the next."""

import copy
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import wager
from wager.core import files
from wager.core.require import require

FORMAT = "wager-state"
VERSION = 10
EVERY = 10.0  # seconds between two saves
DAMAGED = (TypeError, LookupError, AttributeError, ArithmeticError)  # what loading a state of another shape may raise


class StateWarning(UserWarning):
    """A saved state is not used, or a state cannot be saved."""


class Stateful(Protocol):
    """A policy, as far as its state goes."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def _warn(message: str) -> None:
    # at the line that made the Decoder: above are _load, __init__, open_state and the Decoder's own __init__
    warnings.warn(message, StateWarning, stacklevel=6)


class StateFile:
    """One policy's file: loaded at once, saved after rounds every few seconds and whenever ``save`` is called.

    ``of`` says in words what the policy learned about, and a file about something else is not used. A file that does
    not fit is replaced, with a warning; with ``strict`` it is an error unless it is only of another version. Saves
    ``in_background`` do not wait for the disk. Of two processes that save to one file the last wins; a reader always
    finds a whole file.
    """

    def __init__(self, path: Path, policy: Stateful, of: Mapping[str, str] | None = None, *, strict: bool = False,
                 in_background: bool = False, warn: Callable[[str], None] = _warn,
                 clock: Callable[[], float] = monotonic) -> None:  # fmt: skip
        self.path, self.policy, self.of = path, policy, dict(of or {})
        self.in_background, self.warn, self.clock = in_background, warn, clock
        self.learned = False  # anything since it was loaded or saved
        self.loaded = self._load(strict)  # the state the policy began with; None: the file had none
        self._next = clock() + EVERY
        self._warned = False
        self._writing = threading.Lock()

    def _load(self, strict: bool) -> dict[str, Any] | None:
        before = self.policy.state_dict()
        try:
            content = self._read()
            for key, version in (("version", VERSION), ("wager", wager.__version__)):
                if content.get(key) != version:  # a state means what the wager that wrote it makes of it
                    strict = False
                    raise ValueError(f"it has {key} {content.get(key)}, not {version}")
            for key, ours in self.of.items():
                if (theirs := content["of"].get(key)) != ours:
                    raise ValueError(f"it was learned with {key} {theirs!r}, not {ours!r}")
            state: dict[str, Any] = content["state"]
            self.policy.load_state_dict(copy.deepcopy(state))
            return state
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            why = error.strerror or str(error)
        except ValueError as error:
            why = str(error)
        except DAMAGED:
            why = "its state is damaged"
        self.policy.load_state_dict(before)  # it may have got half of it
        require(not strict, f"policy state {self.path} does not fit: {why}; name another file or remove it")
        self.warn(f"policy state {self.path} is not used and will be replaced: {why}")
        return None

    def _read(self) -> dict[str, Any]:
        try:
            content = files.read_json(self.path)
        except ValueError as error:
            raise ValueError(f"it is no policy state, or a damaged one ({error})") from None
        require(content.get("format") == FORMAT, f"it does not say that it is a {FORMAT}")
        return content

    def tick(self) -> None:
        """Something was learned; save it if the last save is long enough ago."""
        self.learned = True
        if self.clock() >= self._next:
            self.save(self.in_background)

    def save(self, in_background: bool = False) -> None:
        """Save what was learned since the last save, if anything was; a failure is reported once and stops nobody."""
        if not self.learned:
            return
        self.learned = False
        self._next = self.clock() + EVERY
        state = self.policy.state_dict()
        if in_background:  # the disk may be slow, and requests wait for the caller
            threading.Thread(target=self._write, args=(state,), daemon=True).start()
        else:
            self._write(state)

    def _write(self, state: dict[str, Any]) -> None:
        content = {"format": FORMAT, "version": VERSION, "wager": wager.__version__, "of": self.of, "state": state}
        why = "interrupted"
        try:
            with self._writing:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                files.write_json(self.path, content)
            why = ""
        except OSError as error:
            why = error.strerror or str(error)
        except (TypeError, ValueError) as error:  # a policy of the user's own
            why = f"its state is not JSON ({error})"
        finally:
            self.learned = self.learned or bool(why)
        if why and not self._warned:
            self._warned = True
            self.warn(f"cannot save policy state to {self.path}: {why}")

    def restore(self) -> None:
        """Let the policy go on from what was loaded, once it was reset."""
        self.learned = False
        if self.loaded is not None:
            self.policy.load_state_dict(copy.deepcopy(self.loaded))


def refuse_foreign(path: Path) -> None:
    """Refuse a file that is something else: it would be replaced."""
    try:
        require(not path.is_dir(), f"policy state {path} is a folder; name a file in it")
        with path.open("rb") as file:
            head = file.read(256)
    except OSError:
        return
    if head and FORMAT.encode() not in head:
        raise ValueError(f"{path} is there and no policy state of wager's, which would replace it; name another file")
