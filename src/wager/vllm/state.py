"""The file that keeps what an engine's policy learned."""

import atexit
import logging
from pathlib import Path

from wager.core.state_file import StateFile
from wager.policies import Policy

log = logging.getLogger("vllm.wager")


def open_state(path: Path, policy: Policy, replica: int = 0) -> StateFile:
    """The state file at this path, loaded; ValueError where it belongs to another policy or is none at all.

    Further data-parallel replicas keep files of their own beside it: state.json, state.1.json, ….
    """
    if replica:
        path = path.with_name(f"{path.stem}.{replica}{path.suffix}")
    opened = StateFile(path, policy, strict=True, in_background=True, warn=_warn)
    atexit.register(opened.save)
    return opened


def _warn(message: str) -> None:
    log.warning("wager: %s", message)
