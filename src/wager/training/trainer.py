"""The training loop: steps, looks at held-out answers, checkpoints to go on from, the best drafter kept."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from time import perf_counter
from typing import Any

import torch

from wager.core import files
from wager.training.answers import Text
from wager.training.batches import Batch, batches, split
from wager.training.config import Drafter
from wager.training.evaluate import judge
from wager.training.features import Known, known
from wager.training.learners import Learner, mixed

CHECKPOINT = "checkpoint.pt"  # in a drafter's work folder
WARM_UP = 100  # steps, or a tenth of the plan's where that is less
ADAM: dict[str, Any] = {"betas": (0.9, 0.95), "weight_decay": 0.01}
CLIP = 1.0  # longest gradient
AVERAGE = 0.05  # weight of a step in the loss that is shown

# One look at the held-out answers: step, running mean of the loss, acceptance per draft position (of drafts that came
# so far, the share that is right there too), MAT of the longest draft, seconds and tokens of training so far.
Look = dict[str, Any]


@dataclass(slots=True)
class Progress:
    """Where training stands; what a checkpoint holds beside the weights."""

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    loss: float = math.nan
    best: float = 0.0  # highest MAT seen
    best_step: int = 0
    looks: list[Look] = field(default_factory=list)  # at held-out answers


class Trainer:
    """Trains one learner on texts, and can be stopped and started at any step that was checkpointed."""

    def __init__(
        self, learner: Learner, drafter: Drafter, texts: Sequence[Text], folder: Path, device: torch.device
    ) -> None:
        self.learner, self.drafter, self.folder, self.device = learner, drafter, folder, device
        self.train, self.held = split(texts)
        # of an answer of one token nothing is drafted
        learns, judges = (any(len(t.tokens) > t.prompt + 1 for t in part) for part in (self.train, self.held))
        if not learns or not judges:
            few = f"{len(texts)} answers are too few to train {drafter.name}: none of two tokens or more is left to "
            few += "judge it by" if learns else "learn from"
            raise ValueError(f"{few}; answer more prompts of its domains greedily")
        self.best: dict[str, torch.Tensor] = {}
        self.progress = Progress()
        weights = learner.module.parameters()
        self.optimizer = torch.optim.AdamW(weights, **ADAM, lr=drafter.rate, fused=device.type == "cuda")
        folder.mkdir(parents=True, exist_ok=True)
        if self.checkpoint.exists():
            self._resume()

    @property
    def checkpoint(self) -> Path:
        """What the next run goes on from."""
        return self.folder / CHECKPOINT

    def run(self, *, shown: Callable[[Progress, Look | None], None] = lambda *_: None) -> dict[str, torch.Tensor]:
        """Train to the end of the plan, or until acceptance stops rising; the best weights."""
        train([self], shown=lambda trainer, look: shown(trainer.progress, look))
        return self.best

    @property
    def finished(self) -> bool:
        """Whether all steps are done, or acceptance no longer rises."""
        return self.progress.step >= self.drafter.steps or self._stale()

    def batches(self) -> Iterator[Batch]:
        """The batches that are still to be learned from."""
        return batches(self.train, self.drafter.tokens, seed=self.drafter.seed, start=self.progress.step)

    def step(self, batch: Batch, features: torch.Tensor | None, gone: float) -> None:
        """Learn from one batch; ``gone``, in [0, 1], is the share of the time that is over.

        ``features`` are the target's; None where they are not known.
        """
        drafter, progress, began = self.drafter, self.progress, perf_counter()
        for group in self.optimizer.param_groups:
            group["lr"] = drafter.rate * self._rate(progress.step, gone)
        with mixed(self.device):
            loss = self.learner.loss(batch, features)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.learner.module.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        progress.step += 1
        progress.tokens += int(batch.tokens.numel())
        if progress.step % 10 == 0 or progress.step in (1, drafter.steps):
            value = float(loss.detach())
            fresh = math.isnan(progress.loss)
            progress.loss = value if fresh else progress.loss + 10 * AVERAGE * (value - progress.loss)
        progress.seconds += perf_counter() - began

    def _rate(self, step: int, gone: float) -> float:
        """Up in a straight line, then down along a cosine to a twentieth."""
        warm_up = min(WARM_UP, self.drafter.steps // 10)
        if step < warm_up:
            return (step + 1) / warm_up
        gone = max(gone, (step - warm_up) / max(1, self.drafter.steps - warm_up))
        return 0.05 + 0.95 * (1 + math.cos(math.pi * min(1.0, gone))) / 2

    def _stale(self) -> bool:
        behind = self.progress.step - self.progress.best_step
        return bool(self.progress.looks) and behind >= self.drafter.patience * self.drafter.evaluate

    def look(self, features: Known) -> Look:
        """Judge by held-out answers, keep what is best, and write a checkpoint; ``features`` of those answers."""
        progress = self.progress
        (held,) = judge(self.learner, self.held, self.drafter.tokens, [self.drafter.unroll], features)
        look: Look = {"step": progress.step, "loss": progress.loss, "acceptance": held.acceptance, "mat": held.mat}
        look |= {"seconds": progress.seconds, "tokens": progress.tokens}
        progress.looks.append(look)
        if held.mat > progress.best:
            progress.best, progress.best_step = held.mat, progress.step
            self.best = {k: v.detach().to("cpu", copy=True) for k, v in self.learner.module.state_dict().items()}
        self._save()
        return look

    # -- checkpoints

    def _save(self) -> None:
        state: dict[str, Any] = {"drafter": asdict(self.drafter), "progress": asdict(self.progress), "best": self.best}
        state |= {"module": self.learner.module.state_dict(), "optimizer": self.optimizer.state_dict()}
        if self.learner.columns is not None:
            state["columns"] = self.learner.columns.cpu()
        with files.replacing(self.checkpoint) as file:
            torch.save(state, file)
        log = {"drafter": asdict(self.drafter), "looks": self.progress.looks}
        files.write_text(self.folder / "log.json", json.dumps(log, indent=1) + "\n")

    def _resume(self) -> None:
        try:
            state = torch.load(self.checkpoint, map_location=self.device, weights_only=True)
            known = {**state["drafter"], "steps": self.drafter.steps, "patience": self.drafter.patience}
            if known != asdict(self.drafter):
                other = f"{self.checkpoint} was made with other settings of {self.drafter.name}"
                raise ValueError(f"{other}; put them back, or delete it to start anew")
            self.learner.module.load_state_dict(state["module"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.best = {k: v.cpu() for k, v in state["best"].items()}
            self.progress = Progress(**state["progress"])
        except (KeyError, TypeError, RuntimeError, EOFError, OSError, UnpicklingError):
            none = f"{self.checkpoint} is no checkpoint of {self.drafter.name}"
            raise ValueError(f"{none}; delete it to start anew") from None


def train(
    trainers: Sequence[Trainer],
    *,
    minutes: float = math.inf,
    shown: Callable[[Trainer, Look | None], None] = lambda *_: None,
) -> None:
    """Train drafters of one target in turn, a step each, to the end of their plans.

    With a limit all learning rates fall to their end within so many minutes, and all stop at the same step.
    """
    features = known([pair for t in trainers for pair in ((t.learner, t.train), (t.learner, t.held))])
    streams = [trainer.batches() for trainer in trainers]
    began = perf_counter()
    gone = 0.0
    while gone < 1 and not all(trainer.finished for trainer in trainers):
        gone = (perf_counter() - began) / (60 * minutes)
        for trainer, stream, learned, held in zip(trainers, streams, features[::2], features[1::2], strict=True):
            if trainer.finished:
                continue
            batch = next(stream)
            trainer.step(batch, learned(batch), gone)
            step, drafter = trainer.progress.step, trainer.drafter
            due = step % drafter.evaluate == 0 or step == drafter.steps or gone >= 1
            shown(trainer, trainer.look(held) if due else None)
