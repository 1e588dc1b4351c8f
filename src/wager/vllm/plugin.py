"""wager's entry in vLLM's processes: which speculator the V2 model runner makes, and which CUDA graphs it looks up.

An entry point of the group ``vllm.general_plugins``, which vLLM loads in every process it starts. There is no hook for
either, so two functions are replaced: the factory ``init_speculator``, and ``CudaGraphManager._init_candidates``. Both
replacements read the engine's configuration and leave every engine alone that was not started by wager. The first one
also wraps the runner's ``sample_tokens``, which then passes over a speculator that has nothing to do.
"""

import logging
import os
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from wager.vllm import compat

GROUP, NAME = "vllm.general_plugins", "wager"
FACTORY, CANDIDATES = "init_speculator", "_init_candidates"
RUNNER = "vllm.v1.worker.gpu.model_runner"
KEY = "wager"  # in additional_config, as in wager.vllm.settings

log = logging.getLogger("vllm.wager")


def register() -> None:
    """Replace the two functions; not in a vLLM this was not tried with, nor on a CPU, which has another runner."""
    try:
        compat.check_version()
    except ValueError as error:
        log.debug("wager: %s", error)
        return
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        replace()


def replace() -> None:
    """Replace the two functions, once in a process."""
    from vllm.v1.worker.gpu import spec_decode
    from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager

    if not hasattr(getattr(CudaGraphManager, CANDIDATES), "original"):
        setattr(CudaGraphManager, CANDIDATES, _init_candidates(getattr(CudaGraphManager, CANDIDATES)))
    if not hasattr(getattr(spec_decode, FACTORY), "original"):
        setattr(spec_decode, FACTORY, _init_speculator(getattr(spec_decode, FACTORY)))
        log.debug("wager: vLLM's %s and %s are replaced; both act where wager started the engine", FACTORY, CANDIDATES)
    runner = sys.modules.get(RUNNER)
    if runner is not None:  # it imports the factory by name
        setattr(runner, FACTORY, getattr(spec_decode, FACTORY))


def _init_speculator(original: Callable[..., Any]) -> Callable[..., Any]:
    def replacement(vllm_config: Any, device: Any, req_states: Any) -> Any:
        if _settings(vllm_config.additional_config) is None:
            return original(vllm_config, device, req_states)
        from wager.vllm.drafts import skip_idle_speculators
        from wager.vllm.speculator import make_speculator

        if (runner := sys.modules.get(RUNNER)) is not None:  # it is the one that asks
            skip_idle_speculators(runner.GPUModelRunner)
        return make_speculator(original, vllm_config, device, req_states)

    replacement.original = original  # type: ignore[attr-defined]
    return replacement


def _init_candidates(original: Callable[[Any], None]) -> Callable[[Any], None]:
    def replacement(manager: Any) -> None:
        original(manager)
        config = manager.vllm_config
        scheduler = str(config.scheduler_config.scheduler_cls)  # wager's, where vLLM was started without `wager serve`
        if _settings(config.additional_config) is not None or scheduler.startswith("wager."):
            from wager.vllm.graphs import offer_every_length

            offer_every_length(manager)

    replacement.original = original  # type: ignore[attr-defined]
    return replacement


def _settings(additional_config: Any) -> Mapping[str, Any] | None:
    """What wager has set for an engine; None: it was not started by wager."""
    given = additional_config.get(KEY) if isinstance(additional_config, Mapping) else None
    return given if isinstance(given, Mapping) else None


def missing() -> str:
    """Why vLLM would not find this, and what to do, in one sentence; empty if it would."""
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and NAME not in allowed.split(","):
        return f"VLLM_PLUGINS={allowed} keeps wager's speculator out of vLLM; add {NAME} to it"
    if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "0":
        return "wager's speculator runs in vLLM's V2 model runner; unset VLLM_USE_V2_MODEL_RUNNER"
    if NAME not in {entry.name for entry in entry_points(group=GROUP)}:
        found = f"the installed wager has no entry point in {GROUP}; install it again"
        return f"vLLM would not find wager's speculator: {found}"
    return ""


def check() -> None:
    """Refuse with one sentence an installation in which vLLM would not find this."""
    if why := missing():
        raise ValueError(why)
