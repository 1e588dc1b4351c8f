"""EAGLE-3 heads are trained through their own drafts too, on the target's states after three of its layers."""

from typing import Any

import torch
from torch.nn.functional import linear

from wager.core.require import require
from wager.eagle.formats import default_layers
from wager.training.config import Drafter
from wager.training.learners import EagleLearner, Layer, Target


def layers_of(count: int) -> tuple[int, ...]:
    """After how many layers a target of so many is read; ValueError where it has too few."""
    layers = default_layers(count)
    fits = list(layers) == sorted(set(layers))
    few = f"an EAGLE-3 head reads the target after three of its layers, and it has only {count}"
    require(fits, f"{few}; train one of the kind eagle")
    return layers


class Eagle3Layer(Layer):
    """The decoder layer of an EAGLE-3 head, with the norms of what enters it."""

    def __init__(self, config: Any) -> None:
        super().__init__(config, 2 * config.hidden_size)
        self.input_layernorm = torch.nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.hidden_norm = torch.nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class Eagle3Module(torch.nn.Module):
    """The trained tensors of a head, called as the library ``speculators`` calls them."""

    def __init__(self, config: Any, states: int, norm: torch.Tensor, rows: torch.Tensor | None) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.fc = torch.nn.Linear(states * hidden, hidden, bias=False)
        self.layers = torch.nn.ModuleList([Eagle3Layer(config)])
        self.norm = torch.nn.RMSNorm(hidden, eps=config.rms_norm_eps)
        self.norm.weight.data.copy_(norm)  # both start from the target's own
        if rows is not None:
            self.lm_head = torch.nn.Linear(hidden, len(rows), bias=False)
            self.lm_head.weight.data.copy_(rows)


class Eagle3Learner(EagleLearner):
    """Trains an EAGLE-3 head: by its distributions alone, whatever its outputs are.

    Where it drafts some tokens only, their LM head is trained with it; else it has the target's own.
    """

    def __init__(self, target: Target, drafter: Drafter, config: Any, columns: torch.Tensor | None = None) -> None:
        self.layers = layers_of(target.model.config.num_hidden_layers)
        self.rows = None if columns is None else target.head[columns.to(target.head.device)].float()
        super().__init__(target, drafter, config, columns)

    def _made(self, config: Any) -> torch.nn.Module:
        return Eagle3Module(config, len(self.layers), self.target.model.model.norm.weight, self.rows)

    def _entering(self, read: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.module.fc(read)
        return made

    def _entries(self, known: torch.Tensor, feature: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        layer = self.module.layers[0]
        normed = layer.hidden_norm(feature)
        return torch.cat((layer.input_layernorm(known), normed), -1), normed

    def _logits(self, out: torch.Tensor) -> torch.Tensor:
        normed = self.module.norm(out)
        if self.columns is None:
            return linear(normed.to(self.output.dtype), self.output)
        made: torch.Tensor = self.module.lm_head(normed)
        return made

    def _distance(self, made: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        return made.new_zeros(())
