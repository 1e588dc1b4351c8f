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
    for name in ("output_scores", "output_logits", "output_attentions", "output_hidden_states"):
        if getattr(generation_config, name, False):
            raise ValueError(f"wager does not collect {name.removeprefix('output_')}; generate without {name}")
    known = {"attention_mask", "cache_position", "logits_to_keep", "past_key_values", "position_ids", "use_cache"}
    if more := sorted(name for name, value in inputs.items() if name not in known and value is not None):
        raise ValueError(f"wager decodes text alone; it cannot pass on {', '.join(more)}")
    processors = Processors(logits_processor)
    return Prepared(input_ids, processors, stopping_criteria, generation_config)
