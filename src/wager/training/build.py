"""From a plan to a trainer, and from a trained drafter to a folder that wager and vLLM both load, and back."""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch

from wager.core import files
from wager.core.require import require
from wager.eagle import checkpoint, speculators
from wager.models import load_model
from wager.training.answers import Text
from wager.training.config import KINDS, Drafter, Plan
from wager.training.eagle3_learner import Eagle3Learner, layers_of
from wager.training.evaluate import LENGTHS
from wager.training.learners import EagleLearner, Learner, SmallLearner, Target
from wager.training.trainer import CHECKPOINT, Trainer

Weights = Mapping[str, torch.Tensor]
Export = Callable[[Path, Mapping[str, Any]], None]
HEADS = ("eagle", "eagle3")
LEFT_OUT = {"_name_or_path", "id2label", "label2id", "problem_type", "return_dict", "chunk_size_feed_forward"}


def learner(
    drafter: Drafter, target: Target, config: Any = None, columns: torch.Tensor | None = None
) -> tuple[Learner, Any]:
    """The untrained drafter, and the configuration it will be saved with; a head may draft the ``columns`` only."""
    torch.manual_seed(drafter.seed)
    config = config or llama_config(target.model.config, drafter)
    if drafter.kind in HEADS:
        kind = EagleLearner if drafter.kind == "eagle" else Eagle3Learner
        return kind(target, drafter, config, columns), config
    return SmallLearner(target, drafter, config), config


def llama_config(target: Any, drafter: Drafter) -> Any:
    """A Llama of the target's vocabulary: a head is one layer in the target's sizes, a model has the drafter's own."""
    from transformers import LlamaConfig

    shared = ("vocab_size", "max_position_embeddings", "rms_norm_eps", "bos_token_id", "eos_token_id")
    hidden, inner, layers, heads = drafter.hidden, drafter.intermediate, drafter.layers, drafter.heads
    size, kv_heads, rope = hidden // heads, heads, dict[str, Any]()
    if drafter.kind in HEADS:
        hidden, inner, layers, heads = target.hidden_size, target.intermediate_size, 1, target.num_attention_heads
        size, kv_heads = getattr(target, "head_dim", None) or hidden // heads, target.num_key_value_heads
        rope = {"rope_parameters": dict(target.rope_parameters)}
    sizes = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "head_dim": size}
    attention = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, **rope}
    same = {name: getattr(target, name) for name in shared}
    made = {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True, "dtype": "bfloat16"}
    return LlamaConfig(**same, **sizes, **attention, **made)


def trainer(plan: Plan, drafter: Drafter, target: Target, texts: Sequence[Text], work: Path) -> tuple[Trainer, Export]:
    """What trains a drafter of the plan on these answers, and what writes it to a folder afterwards."""
    if drafter.kind == "eagle3":
        layers_of(target.model.config.num_hidden_layers)  # before anything is computed
    common = _columns(drafter, texts, work)
    made, config = learner(drafter, target, columns=common)
    domains = tuple(plan.domains) if drafter.domains == ("*",) else drafter.domains
    if drafter.start:
        made.module.load_state_dict(best(work / drafter.start))
    own = [text for text in texts if text.domain in domains]
    running = Trainer(made, drafter, own, work / drafter.name, target.embed.device)

    def export(folder: Path, about: Mapping[str, Any]) -> None:
        answered = {text.domain for text in own}
        trained = {"domains": [name for name in domains if name in answered], "steps": running.progress.step}
        recipe = {**asdict(drafter), **trained}
        held_out = max(running.progress.looks, key=lambda look: float(look["mat"]), default={})  # of the weights kept
        notes = {**about, "recipe": recipe, "held_out": held_out, "depth": target.model.config.num_hidden_layers}
        if not _noted(folder, notes):
            save(folder, drafter, running.best, config, notes, [] if common is None else common.tolist())

    return running, export


def check_place(folder: Path) -> None:
    """Refuse to put a drafter where something else is, which would be removed."""
    free = not folder.exists() or (folder / "config.json").is_file() or (folder.is_dir() and not any(folder.iterdir()))
    require(free, f"{folder} exists and holds no drafter; name another folder with --out, or remove it")


def _noted(folder: Path, notes: Mapping[str, Any]) -> bool:
    """Whether the drafter in a folder has these weights already; then its notes are renewed and its card is kept."""
    path = folder / "config.json"
    try:
        content = files.read_json(path)
    except (OSError, ValueError):
        return False
    known, told = content.get("wager"), json.loads(json.dumps(notes))
    # A look at held-out answers has its seconds: no other weights have the same.
    marks = [told.get(key) for key in ("held_out", "target_fingerprint")]
    if not isinstance(known, dict) or marks != [known.get(key) for key in ("held_out", "target_fingerprint")]:
        return False
    if known != {**known, **told}:
        files.write_text(path, json.dumps({**content, "wager": {**known, **told}}, indent=2) + "\n")
    return True


def _columns(drafter: Drafter, texts: Sequence[Text], work: Path) -> torch.Tensor | None:
    """The tokens that a head may draft; None: all. Weights trained before stay with the tokens they were made for."""
    if not drafter.frequent:
        return None
    own, start = _state(work / drafter.name), _state(work / drafter.start) if drafter.kind == "eagle3" else {}
    kept: torch.Tensor | None = next((state["columns"] for state in (own, start) if "columns" in state), None)
    return torch.from_numpy(frequent(texts, drafter.frequent)).long() if kept is None else kept


def frequent(texts: Sequence[Text], count: int) -> np.ndarray:
    """The tokens that occur most often in the answers, sorted; fewer where there are not so many."""
    times = np.bincount(np.concatenate([text.tokens[text.prompt :] for text in texts]))
    common = np.argsort(-times, kind="stable")[:count]
    return np.sort(common[times[common] > 0]).astype(np.int32)


def best(folder: Path) -> dict[str, torch.Tensor]:
    """The best weights of a drafter trained before."""
    found: dict[str, torch.Tensor] | None = _state(folder).get("best")
    if found is None:
        raise ValueError(f"no checkpoint {folder / CHECKPOINT} to start from; train {folder.name} first")
    return found


def _state(folder: Path) -> dict[str, Any]:
    """The checkpoint of a drafter trained before; empty where there is none."""
    try:
        state: dict[str, Any] = torch.load(folder / CHECKPOINT, map_location="cpu", weights_only=True)
        return state if isinstance(state, dict) else {}
    except (OSError, RuntimeError, EOFError, UnpicklingError):
        return {}


def save(
    folder: Path, drafter: Drafter, weights: Weights, config: Any, notes: Mapping[str, Any], common: Sequence[int] = ()
) -> None:
    """Write the drafter beside where it belongs, then put it in its place, whole."""
    from safetensors.torch import save_file

    tied = "lm_head.weight" if drafter.kind == "draft" else ""
    tensors = {k: v.to(torch.bfloat16).contiguous() for k, v in weights.items() if k != tied}
    # without what every configuration has and no Llama needs
    known = {k: v for k, v in config.to_dict().items() if k not in LEFT_OUT and v is not None}
    terse = {k: v for k, v in known.items() if not k.startswith(("output_", "is_encoder", "transformers_"))}
    making = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    try:
        if drafter.kind == "eagle":
            checkpoint.write(making, terse, tensors, notes, common)
        elif drafter.kind == "eagle3":
            speculators.write(making, terse, tensors, notes, common)
        else:
            save_file(tensors, making / "model.safetensors", metadata={"format": "pt"})
            content = json.dumps({**terse, "wager": {"kind": "draft", **notes}}, indent=2, sort_keys=True)
            (making / "config.json").write_text(content + "\n", encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        making.replace(folder)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def domains(folder: Path) -> tuple[str, ...]:
    """What the drafter in a folder was trained on; nothing where its notes do not say so."""
    notes = checkpoint.read_config(folder).get("wager", {})
    recipe = notes.get("recipe", {}) if isinstance(notes, dict) else {}
    return tuple(recipe.get("domains", ())) if isinstance(recipe, dict) else ()


def loaded(folder: Path, target: Target) -> Learner:
    """A trained drafter, to be judged."""
    notes = checkpoint.read_config(folder).get("wager", {})
    kind = notes.get("kind") if isinstance(notes, dict) else None
    if kind not in KINDS:
        raise ValueError(f"{folder} holds no drafter that `wager train` made: its config.json does not say which kind")
    weights: Weights
    columns: torch.Tensor | None = None
    if kind in HEADS:
        head = checkpoint.read(folder)
        config, weights, columns = head.config, head.tensors, head.frequent
    else:
        model = load_model(folder, device=str(target.embed.device))
        config, weights = model.config, model.state_dict()
    if config.vocab_size != target.embed.shape[0] or (kind in HEADS and config.hidden_size != target.embed.shape[1]):
        raise ValueError(f"{folder} was trained for another target: its sizes differ")
    made, _ = learner(Drafter(f"{kind}-judged", kind, unroll=max(LENGTHS)), target, config, columns)
    made.module.load_state_dict(weights)
    return made
