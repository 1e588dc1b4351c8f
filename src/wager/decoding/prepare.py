"""A request as transformers itself prepares it: its defaults, its processors, its stopping criteria."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from wager.decoding.processors import Processors


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request as transformers prepared it."""

    ids: torch.Tensor  # (1, length)
    processors: Processors
    criteria: Any
    config: Any  # GenerationConfig
    inputs: dict[str, Any]  # for the model's forward

    @property
    def sample(self) -> bool:
        return bool(self.config.do_sample)


def prepared(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    **inputs: Any,
) -> Prepared:
    """As a custom_generate function: give back what transformers prepared."""
    if generation_config.num_beams > 1:
        raise ValueError(f"wager has no beam search; num_beams is 1, not {generation_config.num_beams}")
    if input_ids.shape[0] != 1:
        raise ValueError(f"wager decodes one sequence at a time, not {input_ids.shape[0]}")
    processors = Processors(logits_processor)
    return Prepared(input_ids, processors, stopping_criteria, generation_config, inputs)
