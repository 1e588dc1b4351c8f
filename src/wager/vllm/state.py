"""What a policy learned, kept in a file that is always whole."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

from wager.core import files
from wager.core.files import EVERY
from wager.policies import Policy

log = logging.getLogger("vllm.wager")
save = files.write_json


def load(path: Path, policy: Policy) -> bool:
    """Take up what the file holds; False where there is no such file.

    Raises ValueError with one sentence where the file is of another policy or no state at all.
    """
    try:
        policy.load_state_dict(files.read_json(path))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ValueError(f"cannot read policy state {path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"policy state {path} does not fit: {error}; name another file or remove it") from None
    return True


class Keeper:
    """Saves a policy now and then, and when the process ends."""

    def __init__(self, path: Path, policy: Policy, clock: Callable[[], float] = monotonic) -> None:
        self.path, self.policy, self.clock = path, policy, clock
        self._next = clock() + EVERY
        self._writing = threading.Lock()
        load(path, policy)
        atexit.register(self.save)

    def tick(self) -> None:
        """Save if it is time to."""
        if self.clock() >= self._next:
            # the disk may be slow, and requests wait for whoever calls this
            threading.Thread(target=self._write, args=(self.policy.state_dict(),), daemon=True).start()
            self._next = self.clock() + EVERY

    def save(self) -> None:
        """Save now."""
        self._write(self.policy.state_dict())

    def _write(self, content: dict[str, Any]) -> None:
        """Save this; a full disk is said in the log and stops nobody."""
        try:
            with self._writing:
                save(self.path, content)
        except OSError as error:
            log.warning("wager: cannot save policy state to %s: %s", self.path, error)
