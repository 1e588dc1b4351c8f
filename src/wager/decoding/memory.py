"""Memory: what a policy learned, kept from one run to the next."""

from __future__ import annotations

import copy
import hashlib
import json
import platform
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Literal

import torch

import wager
from wager.core import Arm, files
from wager.core.files import MemoryWarning
from wager.drafters import Drafter
from wager.models.embedded import cache
from wager.policies.base import Policy

FORMAT = "wager-memory"
VERSION = 1
DAMAGED = (TypeError, LookupError, AttributeError, ArithmeticError)  # what loading a state of another shape may raise
HUB_CACHE = re.compile(r"models--([^/]+)/snapshots/")  # where huggingface_hub keeps org/name


class Memory:
    """One policy's file: taken up at once, saved after texts and when the process ends.

    ``of`` says in words what the policy learned about; without a ``path`` the file is found by it in the user's cache.
    Of two processes that save to one file the last wins, and a reader finds the whole of one or the other.
    """

    def __init__(
        self, policy: Policy, of: dict[str, str], path: Path | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        self.policy, self.of, self.clock = policy, of, clock
        self.path = default_path(of) if path is None else path
        if path is not None:
            _refuse_foreign(path)
        self.learned = False  # anything since it was loaded or saved
        self.loaded = self._load()  # the state taken up; None where there was none
        self._next = clock() + files.EVERY
        self._said = False

    def _load(self) -> dict[str, Any] | None:
        before = self.policy.state_dict()
        try:
            state = self._read()
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
        # at the line that made the Decoder: above are __init__, opened and the Decoder's own __init__
        warnings.warn(f"memory {self.path} is not used and will be replaced: {why}", MemoryWarning, stacklevel=5)
        return None

    def _read(self) -> dict[str, Any]:
        """The state in the file; ValueError with the reason where it does not fit."""
        try:
            content = files.read_json(self.path)
        except ValueError as error:
            raise ValueError(f"it is damaged ({error})") from None
        if content.get("format") != FORMAT:
            raise ValueError(f"it does not say that it is a {FORMAT}")
        # A state is what one version of wager makes of it: another's might be taken up and mean something else.
        for key, ours in (("version", VERSION), ("wager", wager.__version__)):
            if content.get(key) != ours:
                raise ValueError(f"it has {key} {content.get(key)}, not {ours}")
        theirs = content["of"]
        for key in self.of:
            if theirs.get(key) != self.of[key]:
                raise ValueError(f"it was learned with {key} {theirs.get(key)!r}, not {self.of[key]!r}")
        state: dict[str, Any] = content["state"]
        return state

    def text_over(self) -> None:
        """Something was learned; save it if the last time is long enough ago."""
        self.learned = True
        if self.clock() >= self._next:
            self.save()

    def save(self) -> None:
        """Save what was learned since the last time, if anything was; where that fails it is said once."""
        if not self.learned:
            return
        self._next = self.clock() + files.EVERY
        head = {"format": FORMAT, "version": VERSION, "wager": wager.__version__, "of": self.of}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(self.path, {**head, "state": self.policy.state_dict()})
            self.learned = False
            return
        except OSError as error:
            why = error.strerror or str(error)
        except (TypeError, ValueError) as error:  # a policy of the user's own
            why = f"its state is not JSON ({error})"
        if not self._said:
            self._said = True
            warnings.warn(f"cannot keep what was learned in {self.path}: {why}", MemoryWarning, stacklevel=2)

    def restore(self) -> None:
        """Let the policy go on from what was loaded, once it forgot all else."""
        self.learned = False
        if self.loaded is not None:
            self.policy.load_state_dict(copy.deepcopy(self.loaded))


def opened(
    where: Literal[True] | str | Path, policy: Policy, model: Any, drafters: Iterable[Drafter], arms: Sequence[Arm]
) -> Memory | None:
    """The memory of a decoder: in the user's cache (True), or in this file; None where there is nothing to keep."""
    if not policy.learned:  # a fixed arm, for one
        return None
    of = described(policy, model, drafters, arms)
    return Memory(policy, of, None if where is True else Path(where).expanduser())


def default_path(of: dict[str, str]) -> Path:
    """The file in the user's cache for what was learned about this: a name to recognise, and a hash of all of it."""
    digest = hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:12]
    words = (of["model"].rpartition("/")[2], of["policy"].partition("(")[0], of["device"].partition(",")[0])
    slug = "-".join(re.sub(r"[^a-z0-9.]+", "-", word.lower()).strip("-.")[:32] for word in words)
    return cache() / "memory" / f"{slug}-{digest}.json"


def _refuse_foreign(path: Path) -> None:
    """Refuse a file of the user's that is something else: it would be replaced."""
    try:
        if path.is_dir():
            raise ValueError(f"memory {path} is a folder; name a file in it")
        with path.open("rb") as file:
            head = file.read(256)
    except OSError:
        return
    if head and FORMAT.encode() not in head:
        raise ValueError(f"{path} is there and no memory of wager's, which would replace it; name another file")


# -- what a policy learned about, in words


def described(policy: Policy, model: Any, drafters: Iterable[Drafter], arms: Sequence[Arm]) -> dict[str, str]:
    """Everything that what is learned depends on."""
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
        if not key.startswith("_") and key != "name" and all(isinstance(part, (str, int, float)) for part in parts):
            settings[key] = value
    if (store := getattr(drafter, "datastore", None)) is not None:
        settings["datastore"] = f"{Path(store.path).resolve()}, {store.header.tokens} tokens"
    if (model := getattr(getattr(drafter, "runner", None), "model", None)) is not None:
        settings["model"] = f"{_name(model)}, {_parameters(model)} parameters"
    return _called(drafter.name, settings)


def _called(name: str, settings: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value}' for key, value in settings.items())})"


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return f"cuda, {torch.cuda.get_device_name(device)}"
    return f"{device.type}, {_processor()}, {torch.get_num_threads()} threads"


def _processor() -> str:
    """The processor's name where the system tells it, else its kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
