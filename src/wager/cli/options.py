"""What `generate` and `chat` can be told, and what is refused before a model is loaded."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from wager.cli.simulate import parse_ints
from wager.core import OFF, Arm
from wager.drafters import registry, shipped
from wager.drafters.datastore import Datastore
from wager.policies import build
from wager.policies.registry import parse

# As in Decoder, which cannot be asked here: importing it imports torch, and help should not wait for that.
MODEL, POLICY, MAX_TOKENS = "smollm2-135m", "auto", 256
DRAFTERS, LENGTHS = "suffix,prompt-lookup,eagle:ofa?", "1,2,3,4,5,6,7,8"

_ENGINE, _TEXT, _SAMPLING = "Model and speculation", "Text", "Sampling"

Model = Annotated[
    str,
    typer.Option(
        "--model", "-m", help="smollm2-135m (embedded), a folder, or a Hugging Face id.", rich_help_panel=_ENGINE
    ),
]
PolicySpec = Annotated[
    str,
    typer.Option("--policy", "-p", help="NAME or NAME:parameter=value,… See wager policies.", rich_help_panel=_ENGINE),
]
Drafters = Annotated[
    str,
    typer.Option(
        help="Who drafts, separated by commas: " + ", ".join(registry.written()) + ".",
        rich_help_panel=_ENGINE,
    ),
]
Lengths = Annotated[
    str, typer.Option(help="Draft lengths the policy chooses from; off always is one.", rich_help_panel=_ENGINE)
]
Trees = Annotated[
    str,
    typer.Option(
        help="Also draft trees of these shapes, BREADTHxNODES, such as 4x16,8x32; as deep as the lengths that fit in.",
        rich_help_panel=_ENGINE,
        show_default="chains only",
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        help="auto, float32, bfloat16 or float16; auto is float32 on a CPU, else what the model was published in.",
        rich_help_panel=_ENGINE,
    ),
]
Device = Annotated[
    str, typer.Option(help="auto, cpu, cuda; auto takes a GPU where there is one.", rich_help_panel=_ENGINE)
]
Memory = Annotated[
    bool | None,
    typer.Option(
        "--memory/--no-memory",
        help="Start from what earlier runs with this model, drafters, policy and device taught, and keep what this "
        "one does.",
        rich_help_panel=_ENGINE,
        show_default="memory, without --seed",
    ),
]
MaxTokens = Annotated[int, typer.Option(help="Most tokens to generate.", rich_help_panel=_TEXT)]
System = Annotated[
    str | None,
    typer.Option(
        help="System message before the conversation.",
        rich_help_panel=_TEXT,
        show_default="what the model's template has",
    ),
]
Stop = Annotated[
    list[str] | None, typer.Option(help="End the text after these characters; repeat it.", rich_help_panel=_TEXT)
]
RepetitionPenalty = Annotated[
    float | None,
    typer.Option(
        help="Above 1 makes tokens that occurred before less likely.",
        rich_help_panel=_TEXT,
        show_default="the model's own",
    ),
]
Temperature = Annotated[
    float, typer.Option("--temperature", "-t", help="0 is greedy; above 0 samples.", rich_help_panel=_SAMPLING)
]
TopP = Annotated[
    float | None,
    typer.Option(
        help="Sample from the likeliest tokens that together have this probability.",
        rich_help_panel=_SAMPLING,
        show_default="the model's own",
    ),
]
TopK = Annotated[
    int | None,
    typer.Option(
        help="Sample from this many of the likeliest tokens; 0 is all of them.",
        rich_help_panel=_SAMPLING,
        show_default="the model's own",
    ),
]
MinP = Annotated[
    float | None,
    typer.Option(
        help="Sample from tokens at least this probable, measured by the likeliest.",
        rich_help_panel=_SAMPLING,
        show_default="the model's own",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        help="Of sampled text: a seed has one text, whatever is drafted; also the policy's seed.",
        rich_help_panel=_SAMPLING,
        show_default="drawn anew",
    ),
]


@dataclass(slots=True)
class Options:
    """One command's choices, refused with one sentence where they cannot be meant."""

    model: str = MODEL
    policy: str = POLICY
    drafters: str = DRAFTERS
    lengths: str = LENGTHS
    trees: str = ""
    dtype: str = "auto"
    device: str = "auto"
    memory: bool | None = None
    max_tokens: int = MAX_TOKENS
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop: list[str] | None = None
    seed: int | None = None
    specs: list[str] = field(init=False)  # of the drafters, without off
    lengths_tried: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"--max-tokens is at least 1, not {self.max_tokens}")
        if self.seed is not None and not 0 <= self.seed < 1 << 63:
            raise ValueError(f"--seed is a whole number from 0 to 2^63 - 1, not {self.seed}")
        self._check_sampling()
        if self.stop is not None and not all(self.stop):
            raise ValueError("--stop needs at least one character")
        self.lengths_tried = parse_ints(self.lengths, "--lengths")
        if min(self.lengths_tried) < 1:
            raise ValueError(f"--lengths are 1 or more, not {self.lengths!r}; plain decoding is an arm anyway")
        names = self._check_drafters()
        chains = [Arm(name, length) for name in names for length in sorted(set(self.lengths_tried))]
        self._check_policy((OFF, *chains, *self._trees(chains)))

    def _check_sampling(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"--temperature is 0 (greedy) or above, not {self.temperature:g}")
        for name, low, high in (("top_p", 0, 1), ("min_p", 0, 1), ("top_k", 0, math.inf)):
            value, option = getattr(self, name), "--" + name.replace("_", "-")
            if value is None:
                continue
            if not low <= value <= high or (name == "top_p" and value == 0):
                wanted = {"top_p": "above 0 and at most 1", "min_p": "from 0 to 1", "top_k": "0 or more"}[name]
                raise ValueError(f"{option} is {wanted}, not {value:g}")
            if not self.temperature:
                raise ValueError(
                    f"{option} narrows what is sampled, and temperature 0 is greedy; give --temperature too"
                )
        if self.repetition_penalty is not None and not 0 < self.repetition_penalty < math.inf:
            raise ValueError(f"--repetition-penalty is above 0, not {self.repetition_penalty:g}")

    def _check_drafters(self) -> list[str]:
        """The drafters' names; what can be found out without a model is found out."""
        specs = [spec.strip() for spec in self.drafters.split(",")]
        if shipped.available(self.model):  # else the model's weights tell what there is for it
            specs = shipped.expand(specs, self.model)
        parsed = [registry.parse(spec) for spec in specs]
        self.specs = [spec for spec, (name, _) in zip(specs, parsed, strict=True) if name != "off"]
        names = [name for name, _ in parsed if name != "off"]
        if len(set(names)) != len(names):
            raise ValueError(f"--drafters names one twice: {self.drafters!r}")
        for spec, (name, value) in zip(specs, parsed, strict=True):
            if name == "retrieval":
                Datastore.open(value).close()
            shipped.known(spec, self.model)
        return names

    def _trees(self, chains: list[Arm]) -> list[Arm]:
        """The arms that trees add, each shape checked."""
        shapes = []
        for shape in filter(None, (shape.strip() for shape in self.trees.split(","))):
            try:
                shapes.append(Arm.parse(f"x:1@{shape}").tree)
            except ValueError:
                raise ValueError(f"--trees are written BREADTHxNODES, such as 4x16, not {shape!r}") from None
        found = [
            Arm(arm.drafter, arm.length, shape)
            for arm in chains
            for shape in shapes
            if shape is not None and arm.length <= shape.nodes
        ]
        if shapes and not found:
            raise ValueError(f"no tree of {self.trees} holds as many tokens as --lengths {self.lengths} ask for")
        return found

    def _check_policy(self, arms: tuple[Arm, ...]) -> None:
        """Build it once, as the Decoder will."""
        name, given = parse(self.policy)
        if name == "fixed" and not {"drafter", "length"} <= given.keys():
            raise ValueError(
                f"policy 'fixed' needs drafter and length, as in fixed:drafter={arms[-1].drafter},length=4"
            )
        build(self.policy, arms, tokens=self.max_tokens)

    @property
    def remembers(self) -> bool:
        """Whether to go on from earlier runs; not where a seed asks for a run that can be repeated."""
        return self.seed is None if self.memory is None else self.memory

    @property
    def sample(self) -> bool:
        return self.temperature > 0

    def settings(self) -> dict[str, Any]:
        """As keywords of ``model.generate``, and so of a Decoder."""
        chosen: dict[str, Any] = {"max_new_tokens": self.max_tokens, "do_sample": self.sample}
        if self.sample:
            chosen["temperature"] = self.temperature
        for name in ("top_p", "top_k", "min_p", "repetition_penalty"):
            if getattr(self, name) is not None:
                chosen[name] = getattr(self, name)
        if self.stop:
            chosen["stop_strings"] = list(self.stop)
        return chosen

    def sampling_seed(self) -> int | None:
        """The seed given, else one drawn anew; None where nothing is sampled."""
        if not self.sample:
            return None
        return self.seed if self.seed is not None else int.from_bytes(os.urandom(4))

    def described(self) -> dict[str, Any]:
        """As JSON, for traces and results."""
        return {
            "model": self.model,
            "policy": self.policy,
            "drafters": self.specs,
            "lengths": list(self.lengths_tried),
            "trees": self.trees,
            "memory": self.remembers,
            "settings": self.settings(),
        }


def check_new(path: Path) -> None:
    """Refuse a path for a trace that is taken or cannot be written."""
    if path.exists() or path.is_symlink():
        raise ValueError(f"{path} exists; a trace is never overwritten")
    folder = path.resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f"cannot write {path}: no folder {folder} to write in")
