"""wager's entry in vLLM's processes: which speculator the V2 model runner makes.

An entry point of the group ``vllm.general_plugins``, which vLLM loads in every process it starts. There is no hook for
a speculator, so the one factory, ``init_speculator``, is replaced. The replacement asks the engine's configuration and
leaves every engine alone that was not started for it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from wager.vllm import compat

GROUP, NAME = "vllm.general_plugins", "wager"
FACTORY = "init_speculator"
KEY, SPECULATOR = "wager", "speculator"  # in additional_config, as wager.vllm.settings writes them

log = logging.getLogger("vllm.wager")


def register() -> None:
    """Replace vLLM's factory of speculators, once in a process; a vLLM it was not tried with is left as it is."""
    try:
        compat.check_version()
    except ValueError as error:
        log.debug("wager: %s", error)
        return
    from vllm.v1.worker.gpu import spec_decode

    if not hasattr(getattr(spec_decode, FACTORY), "original"):
        setattr(spec_decode, FACTORY, _replacement(getattr(spec_decode, FACTORY)))
        log.debug("wager: %s.%s replaced; it acts where an engine asks for it", spec_decode.__name__, FACTORY)
    runner = sys.modules.get("vllm.v1.worker.gpu.model_runner")
    if runner is not None:  # it imports the factory by name
        setattr(runner, FACTORY, getattr(spec_decode, FACTORY))


def _replacement(original: Callable[..., Any]) -> Callable[..., Any]:
    def init_speculator(vllm_config: Any, device: Any, req_states: Any) -> Any:
        if not wanted(vllm_config.additional_config):
            return original(vllm_config, device, req_states)
        from wager.vllm.speculator import make_speculator

        return make_speculator(original, vllm_config, device, req_states)

    init_speculator.original = original  # type: ignore[attr-defined]
    return init_speculator


def wanted(additional_config: Any) -> bool:
    """Whether an engine was started for drafts by matching in its model runner."""
    given = additional_config.get(KEY) if isinstance(additional_config, Mapping) else None
    return isinstance(given, Mapping) and given.get(SPECULATOR) is True


def check() -> None:
    """Refuse with one sentence an installation in which vLLM would not find this."""
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and NAME not in allowed.split(","):
        raise ValueError(f"VLLM_PLUGINS={allowed} keeps wager's speculator out of vLLM; add {NAME} to it")
    if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "0":
        raise ValueError("matching on a GPU runs in vLLM's V2 model runner; unset VLLM_USE_V2_MODEL_RUNNER")
    if NAME not in {entry.name for entry in entry_points(group=GROUP)}:
        raise ValueError(
            f"vLLM would not find wager's speculator: the installed wager has no entry point in {GROUP}; install it "
            "again"
        )
