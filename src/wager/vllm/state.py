"""The file that keeps what an engine's policy learned."""

import atexit
import logging
import socket
from contextlib import suppress
from pathlib import Path

from wager.core.state_file import StateFile
from wager.policies import Policy

log = logging.getLogger("vllm.wager")


def open_state(path: Path, policy: Policy, replica: int = 0) -> StateFile:
    """The state file at this path, loaded; ValueError where it belongs to another policy or is none at all.

    Further data-parallel replicas keep files of their own beside it: state.json, state.1.json, …. In a folder every
    machine keeps its own, and one that has none yet begins with the state that another saved last.
    """
    shared = path if path.is_dir() else None
    if shared:
        path = shared / f"{socket.gethostname()}.json"
    if replica:
        path = path.with_name(f"{path.stem}.{replica}{path.suffix}")
    opened = StateFile(path, policy, strict=True, in_background=True, warn=_warn)
    if shared and opened.loaded is None:
        _begin_with_another(shared, policy)
    atexit.register(opened.save)
    return opened


def _begin_with_another(folder: Path, policy: Policy) -> None:
    saved: dict[Path, float] = {}  # when
    for other in folder.glob("*.json"):
        with suppress(OSError):  # a link to nothing, or another replica has just replaced it
            saved[other] = other.stat().st_mtime
    for other in sorted(saved, key=saved.__getitem__, reverse=True):
        if StateFile(other, policy, warn=log.debug).loaded is not None:
            log.info("wager: the policy begins with what is in %s", other)
            return


def _warn(message: str) -> None:
    log.warning("wager: %s", message)
