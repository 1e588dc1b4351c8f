"""A file that names the policy of a running engine: policies are compared without loading the model again."""

from __future__ import annotations

import logging
import os
from time import monotonic

from wager.policies import Policy
from wager.vllm.guarded import guard
from wager.vllm.settings import Settings

log = logging.getLogger("vllm.wager")

INTERVAL = 0.2  # seconds between two looks at the file
# What a specification that cannot be meant may raise: mostly a sentence, but numbers may be of any size.
REFUSED = (ValueError, TypeError, ArithmeticError, MemoryError)


class PolicyFile:
    """The policy that the file names; each keeps what it learned while another is used."""

    def __init__(self, settings: Settings, first: Policy) -> None:
        self._settings, self._path = settings, settings.control
        self._policies = {settings.policy: guard(first)}
        self._now = first
        self._seen = 0, 0  # nanoseconds and bytes: the file as it was last read
        self._unreadable = False  # whether it was at the last look
        self._next = 0.0

    def policy(self) -> Policy:
        """The policy of this step."""
        now = monotonic()
        if now >= self._next:
            self._next = now + INTERVAL
            self._look()
        return self._now

    def _look(self) -> None:
        try:
            found = os.stat(self._path)
            # Two writes may fall into one tick of the file system's clock: the first half of a name, and all of it.
            changed = found.st_mtime_ns, found.st_size
            if changed == self._seen:
                return
            with open(self._path) as file:
                spec = file.read().strip()
            self._unreadable = False
        except FileNotFoundError:
            return
        except (OSError, UnicodeDecodeError) as error:  # it may pass: the next look tries again
            if not self._unreadable:
                log.error("wager: cannot read %s, the policy stays as it is: %s", self._path, error)
            self._unreadable = True
            return
        if spec:  # else it is being written
            self._seen = changed
            self._play(spec)

    def _play(self, spec: str) -> None:
        # "+" before the name: a fresh start, even where this policy was used before
        name = spec.removeprefix("+")
        try:
            if spec != name or name not in self._policies:
                self._policies[name] = guard(self._settings.build_policy(name))
            self._now = self._policies[name]
        except REFUSED as error:
            why = str(error) or type(error).__name__
            log.error("wager: %s names no policy for this engine, the policy stays as it is: %s", self._path, why)
