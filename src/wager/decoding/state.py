"""Where a decoder's policy keeps its state, and what that state belongs to."""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from wager.core import Arm
from wager.core.state_file import StateFile, refuse_foreign
from wager.drafters import Drafter
from wager.models.calibration import processor
from wager.models.embedded import cache
from wager.policies.base import Policy

HUB_CACHE = re.compile(r"models--([^/]+)/snapshots/")  # where huggingface_hub keeps org/name


def open_state(
    where: Literal[True] | str | Path, policy: Policy, model: Any, drafters: Iterable[Drafter], arms: Sequence[Arm]
) -> StateFile | None:
    """The state file of a decoder: in the user's cache (True), or this one; None where the policy learns nothing."""
    if not policy.learned:
        return None
    of = described(policy, model, drafters, arms)
    path = default_path(of) if where is True else Path(where).expanduser()
    if where is not True:
        refuse_foreign(path)
    return StateFile(path, policy, of)


def default_path(of: dict[str, str]) -> Path:
    """The file in the user's cache for what was learned about this: a name to recognise, and a hash of all of it."""
    digest = hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:12]
    words = (of["model"].rpartition("/")[2], of["policy"].partition("(")[0], of["device"].partition(",")[0])
    slug = "-".join(re.sub(r"[^a-z0-9.]+", "-", word.lower()).strip("-.")[:32] for word in words)
    return cache() / "state" / f"{slug}-{digest}.json"


def described(policy: Policy, model: Any, drafters: Iterable[Drafter], arms: Sequence[Arm]) -> dict[str, str]:
    """Everything that the learned state depends on, in words."""
    return {
        "model": _name(model),
        "parameters": str(_parameters(model)),
        "dtype": str(model.dtype).removeprefix("torch."),
        "drafters": "; ".join(map(_drafter, drafters)),
        "arms": " ".join(map(str, arms)),
        "policy": _called(type(policy).__name__, policy.parameters),
        "device": _device(model.device),
    }


def _name(model: Any) -> str:
    """The hub's id or the whole path of a folder; for a model that was never loaded, its class."""
    name: str = getattr(model, "name_or_path", "") or type(model).__name__
    if downloaded := HUB_CACHE.search(name):
        return downloaded[1].replace("--", "/", 1)
    return str(Path(name).resolve()) if Path(name).is_dir() else name


def _parameters(model: Any) -> int:
    return sum(weights.numel() for weights in model.parameters())


def _drafter(drafter: Drafter) -> str:
    """Its name, and those of its settings that can be seen: numbers, words, a datastore, a model."""
    settings: dict[str, Any] = {"kind": type(drafter).__name__}
    for key, value in vars(drafter).items():
        parts = value if isinstance(value, tuple) else (value,)
        known = key.startswith("_") or key in ("name", "acceptance")  # told elsewhere, or no setting
        if not known and all(isinstance(part, (str, int, float)) for part in parts):
            settings[key] = value
    if (store := drafter.datastore) is not None:
        settings["datastore"] = f"{Path(store.path).resolve()}, {store.header.tokens} tokens"
    if (model := getattr(drafter.runner, "model", None)) is not None:
        settings["model"] = f"{_name(model)}, {_parameters(model)} parameters"
    return _called(drafter.name, settings)


def _called(name: str, settings: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value}' for key, value in settings.items())})"


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return f"cuda, {torch.cuda.get_device_name(device)}"
    return f"{device.type}, {processor()}, {torch.get_num_threads()} threads"
