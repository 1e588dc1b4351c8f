"""What `generate` and `chat` can be told, and what is refused before a model is loaded."""

import math
import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

from wager.cli.parameters import opt, option, parse_ints
from wager.core import LONGEST, OFF, Arm, require
from wager.drafters import registry, shipped
from wager.drafters.datastore import Datastore
from wager.policies import build
from wager.policies.registry import parse

# As in Decoder, which cannot be read here: importing it imports torch, and help should not wait for that.
MODEL, POLICY, MAX_TOKENS = "smollm2-135m", "auto", 256
DRAFTERS, LENGTHS = "suffix,prompt-lookup,eagle:ofa?", "1,2,3,4,5,6,7,8"
OWN = "the model's own"
TREES = "4@4x16 and 6@8x32 of heads on a GPU"

_ENGINE, _TEXT, _SAMPLING = "Model and speculation", "Text", "Sampling"

Model = Annotated[str, option("smollm2-135m (fetched once), a folder, or a Hugging Face id.", "--model", "-m")]
Drafters = Annotated[
    str,
    option(
        f"Drafters, separated by commas: {', '.join(registry.written())} (?: if it is shipped).",
        "--drafters",
        "--drafter",
    ),
]
_STATE = "Start from the policy state that earlier runs with this model, drafters, policy and device saved; save it."
_DTYPE = "auto, float32, bfloat16, float16; auto is float32 on a CPU, else the checkpoint's own."
Dtype = Annotated[str, option(_DTYPE, panel=_ENGINE)]
Device = Annotated[str, option("auto, cpu, cuda; auto takes a GPU where there is one.", panel=_ENGINE)]
System = Annotated[str | None, option("System message before the conversation.", panel=_TEXT, shown="the template's")]
# Of benchmarks and replays: which policies start anew with every text.
Reset = Annotated[
    str, option("Policies that start anew with every text: paper (those whose paper does so), text, never.")
]
Data = Annotated[Path | None, option("Folder with prompts/.", shown="WAGER_DATA")]


@dataclass(frozen=True, slots=True)
class Target:
    """The model, and what it runs in and on."""

    model: Model = MODEL
    dtype: Dtype = "auto"
    device: Device = "auto"

    def load(self, **how: Any) -> tuple[Any, Any]:
        from wager.models import load

        loaded = load(self.model, dtype=self.dtype, device=self.device, **how)
        if loaded[0].device.type == "cpu":
            hint_if_busy()
        return loaded


@cache
def hint_if_busy() -> None:
    """Say on standard error, once, that fewer threads may be faster: others already keep all cores busy."""
    from torch import get_num_threads

    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0  # Windows has none
    cores, threads = os.cpu_count() or 1, get_num_threads()
    if load >= cores + 1 and threads > 1:
        print(
            f"wager: this machine was busy in the last minute (load {load:.1f} on {cores} cores); "
            f"fewer threads may be faster: set OMP_NUM_THREADS={threads // 2}",
            file=sys.stderr,
        )


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts of the benchmark tasks, and how long their answers are."""

    data: Data = None
    count: int = opt(3, "Prompts per task.", "--prompts", min=1)
    tokens: int = opt(96, "Tokens per answer.", "--max-tokens", min=2)
    longest: int = opt(1024, "Longer prompts are cut.", "--longest-prompt", min=16)


@dataclass(frozen=True, slots=True)
class Options(Target):
    """One command's choices, refused with one sentence where they cannot be meant."""

    policy: str = opt(POLICY, "NAME or NAME:parameter=value,… See wager policies.", "--policy", "-p")
    drafters: Drafters = DRAFTERS
    max_tokens: int = opt(MAX_TOKENS, "Most tokens to generate.")
    temperature: float = opt(0.0, "0 is greedy; above 0 samples.", "--temperature", "-t")
    seed: int | None = opt(
        None, "Random seed of sampling and of the policy; the same seed gives the same text.", shown="drawn anew"
    )
    lengths: str = opt(
        LENGTHS, "Draft lengths the policy chooses from, such as 1-4 or 2,5; off always is one.", panel=_ENGINE
    )
    trees: str | None = opt(None, "Trees to draft, BREADTHxNODES, such as 4x16,8x32.", panel=_ENGINE, shown=TREES)
    state: bool | None = opt(None, _STATE, "--state/--no-state", panel=_ENGINE, shown="state, without --seed")
    stop: list[str] | None = opt(None, "End the text after these characters; repeat it.", panel=_TEXT)
    repetition_penalty: float | None = opt(None, "Above 1 makes repeated tokens less likely.", panel=_TEXT, shown=OWN)
    top_p: float | None = opt(None, "Sample from the likeliest of this probability.", panel=_SAMPLING, shown=OWN)
    top_k: int | None = opt(None, "Sample from so many of the likeliest tokens; 0: all.", panel=_SAMPLING, shown=OWN)
    min_p: float | None = opt(None, "Least probability, relative to the likeliest.", panel=_SAMPLING, shown=OWN)

    # option -> the least and the most it may be, and how that is said
    RANGES: ClassVar[dict[str, tuple[float, float, str]]] = {
        "max_tokens": (1, math.inf, "at least 1"),
        "seed": (0, (1 << 63) - 1, "a whole number from 0 to 2^63 - 1"),
        "temperature": (0, math.nextafter(math.inf, 0), "0 (greedy) or above"),
        "top_p": (math.ulp(0.0), 1, "above 0 and at most 1"),
        "min_p": (0, 1, "from 0 to 1"),
        "top_k": (0, math.inf, "0 or more"),
        "repetition_penalty": (math.ulp(0.0), math.nextafter(math.inf, 0), "above 0"),
    }

    def __post_init__(self) -> None:
        for name, (least, most, wanted) in self.RANGES.items():
            value, called = getattr(self, name), "--" + name.replace("_", "-")
            if value is not None and not least <= value <= most:
                said = f"{value:g}" if isinstance(value, float) else value
                raise ValueError(f"{called} is {wanted}, not {said}")
            if value is not None and name in ("top_p", "min_p", "top_k") and not self.sample:
                raise ValueError(f"{called} narrows what is sampled, and 0 is greedy; give --temperature too")
        require(all(self.stop or ()), "--stop needs at least one character")
        if min(self.lengths_tried) < 1:
            raise ValueError(f"--lengths are 1 or more, not {self.lengths!r}; plain decoding is an arm anyway")
        longest = max(self.lengths_tried)
        require(longest <= LONGEST, f"a draft is at most {LONGEST:,} tokens long, not {longest:,}")
        drafters = [registry.parse(spec) for spec in self.specs]
        require(len(dict(drafters)) == len(drafters), f"--drafters names one twice: {self.drafters!r}")
        for spec, (name, value) in zip(self.specs, drafters, strict=True):
            if name == "retrieval":
                Datastore.open(value).close()
            shipped.known(spec, self.model)
        chains = [Arm(name, length) for name, _ in drafters for length in sorted(set(self.lengths_tried))]
        arms = (OFF, *chains, *self._trees(chains))
        policy, given = parse(self.policy)
        if policy == "fixed" and not {"drafter", "length"} <= given.keys():
            raise ValueError(f"policy 'fixed' needs an arm, as in fixed:drafter={arms[-1].drafter},length=4")
        build(self.policy, arms, tokens=self.max_tokens)  # once, as the Decoder will

    def _trees(self, chains: list[Arm]) -> list[Arm]:
        """The arms that trees add, each shape checked."""
        shapes = []
        for shape in filter(None, (shape.strip() for shape in (self.trees or "").split(","))):
            try:
                shapes.append(Arm.parse(f"x:1@{shape}").tree)
            except ValueError:
                raise ValueError(f"--trees are written BREADTHxNODES, such as 4x16, not {shape!r}") from None
        pairs = [(arm, shape) for arm in chains for shape in shapes if shape is not None]
        found = [Arm(arm.drafter, arm.length, shape) for arm, shape in pairs if arm.length <= shape.nodes]
        if shapes and not found:
            raise ValueError(f"no tree of {self.trees} holds as many tokens as --lengths {self.lengths} name")
        return found

    @property
    def specs(self) -> list[str]:
        """The drafters as they are written, without off."""
        specs = [spec.strip() for spec in self.drafters.split(",")]
        if shipped.available(self.model):  # else the model's weights tell what there is for it
            specs = shipped.expand(specs, self.model)
        return [spec for spec in specs if registry.parse(spec)[0] != "off"]

    @property
    def lengths_tried(self) -> tuple[int, ...]:
        return parse_ints(self.lengths, "--lengths")

    @property
    def keeps_state(self) -> bool:
        """Whether to go on from earlier runs; not where a seed is to make a run repeatable."""
        return self.seed is None if self.state is None else self.state

    @property
    def sample(self) -> bool:
        return self.temperature > 0

    def settings(self) -> dict[str, Any]:
        """As keywords of ``model.generate``, and so of a Decoder."""
        chosen: dict[str, Any] = {"max_new_tokens": self.max_tokens, "do_sample": self.sample}
        chosen |= {"temperature": self.temperature} if self.sample else {}
        own = {name: getattr(self, name) for name in ("top_p", "top_k", "min_p", "repetition_penalty")}
        chosen |= {name: value for name, value in own.items() if value is not None}
        return chosen | ({"stop_strings": list(self.stop)} if self.stop else {})

    def sampling_seed(self) -> int | None:
        """The seed given, else one drawn anew; None where nothing is sampled."""
        if not self.sample:
            return None
        return self.seed if self.seed is not None else int.from_bytes(os.urandom(4))

    def described(self) -> dict[str, Any]:
        lengths, settings = list(self.lengths_tried), self.settings()
        chosen = {"model": self.model, "policy": self.policy, "drafters": self.specs, "lengths": lengths}
        return {**chosen, "trees": self.trees, "state": self.keeps_state, "settings": settings}
