"""Another policy on a running engine: a file names it. Compares policies without loading the model again."""

from __future__ import annotations

import logging
import os
from time import monotonic

from wager.policies import Policy
from wager.vllm.settings import Settings

log = logging.getLogger("vllm.wager")

EVERY = 0.2  # seconds between two looks at the file


class Control:
    """The policy that the control file names; each keeps what it learned while another plays."""

    def __init__(self, settings: Settings, first: Policy) -> None:
        self._settings, self._path = settings, settings.control
        self._policies = {settings.policy: first}
        self._now = first
        self._seen = 0  # nanoseconds: the file as it was last read
        self._next = 0.0

    def policy(self) -> Policy:
        """The policy to play in this step."""
        now = monotonic()
        if now >= self._next:
            self._next = now + EVERY
            self._look()
        return self._now

    def _look(self) -> None:
        try:
            changed = os.stat(self._path).st_mtime_ns
            if changed == self._seen:
                return
            with open(self._path) as file:
                spec = file.read().strip()
        except FileNotFoundError:
            return
        except (OSError, UnicodeDecodeError) as error:
            log.error("wager: cannot read %s, the last policy goes on: %s", self._path, error)
            self._next = float("inf")
            return
        if not spec:  # being written
            return
        self._seen = changed
        # "+" before the name: a fresh start, even where this policy has played before
        name = spec.removeprefix("+")
        try:
            if spec != name or name not in self._policies:
                self._policies[name] = self._settings.build_policy(name)
            self._now = self._policies[name]
        except ValueError as error:
            log.error("wager: %s names no policy that could play, the last one goes on: %s", self._path, error)
