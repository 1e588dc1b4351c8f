"""From a plan to a trainer, and from a trained drafter back to something that can be judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from wager.eagle import checkpoint
from wager.models import load_model
from wager.training import export
from wager.training.answers import Text
from wager.training.config import KINDS, Drafter, Plan
from wager.training.learners import EagleLearner, Learner, SmallLearner, Target
from wager.training.trainer import Trainer

Export = Callable[[Path, Mapping[str, Any]], None]


def learner(
    drafter: Drafter, target: Target, config: Any = None, columns: torch.Tensor | None = None
) -> tuple[Learner, Any]:
    """The untrained drafter, and the configuration it will be saved with; a head may draft the ``columns`` only."""
    torch.manual_seed(drafter.seed)
    if drafter.kind == "eagle":
        config = config or export.head_config(target.model)
        return EagleLearner(target, drafter, config, columns), config
    config = config or export.small_config(target.model, drafter)
    return SmallLearner(target, drafter, config), config


def trainer(plan: Plan, drafter: Drafter, target: Target, texts: Sequence[Text], work: Path) -> tuple[Trainer, Export]:
    """What trains a drafter of the plan on these answers, and what writes it to a folder afterwards."""
    common = export.frequent(texts, drafter.frequent) if drafter.frequent else None
    made, config = learner(drafter, target, columns=None if common is None else torch.from_numpy(common).long())
    domains = plan.domains_of(drafter)
    if drafter.start:
        made.module.load_state_dict(best(work / drafter.start))
    own = [text for text in texts if text.domain in domains]
    running = Trainer(made, drafter, own, work / drafter.name, target.embed.device)

    def save(folder: Path, about: Mapping[str, Any]) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        recipe = {**asdict(drafter), "domains": list(domains)}
        held_out = max(running.progress.looks, key=lambda look: float(look["mat"]), default={})  # of the weights kept
        notes = {**about, "recipe": recipe, "held_out": held_out}
        export.save(folder, drafter, running.best, config, notes, common=common)

    return running, save


def best(folder: Path) -> dict[str, torch.Tensor]:
    """The best weights of a drafter trained before."""
    path = folder / "checkpoint.pt"
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        found: dict[str, torch.Tensor] = state["best"]
        return found
    except (OSError, KeyError, RuntimeError, EOFError, UnpicklingError):
        raise ValueError(f"no checkpoint {path} to start from; train {folder.name} first") from None


def loaded(folder: Path, target: Target) -> Learner:
    """A trained drafter, to be judged."""
    notes = checkpoint.read_config(folder).get("wager", {})
    kind = notes.get("kind") if isinstance(notes, dict) else None
    if kind not in KINDS:
        raise ValueError(
            f"{folder} holds no drafter that `wager train` made: its config.json does not say of what kind"
        )
    weights: Mapping[str, torch.Tensor]
    columns: torch.Tensor | None = None
    if kind == "eagle":
        head = checkpoint.read(folder)
        config, weights, columns = head.config, head.tensors, head.frequent
    else:
        model = load_model(folder, device=str(target.embed.device))
        config, weights = model.config, model.state_dict()
    if config.vocab_size != target.embed.shape[0] or (kind == "eagle" and config.hidden_size != target.embed.shape[1]):
        raise ValueError(f"{folder} was trained for another target: its sizes differ")
    made, _ = learner(Drafter(f"{kind}-judged", kind), target, config, columns)
    made.module.load_state_dict(weights)
    return made
