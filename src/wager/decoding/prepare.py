"""A request as transformers itself prepares it: its defaults, its logits processors, its stopping criteria."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from wager.decoding.checks import check_mode, check_settings
from wager.models.compat_transformers import (
    CACHE_NAMES,
    end_tokens,
    max_length_of,
    pass_tokenizer_to,
    refusal,
    row_wise,
    temperature_of,
)
from wager.models.runner import vocabulary
from wager.policies.base import require

# A configuration of the request's own is not to be mixed with settings.
SPEAK_OF_CACHES = {"cache_config", "cache_implementation", "generation_config", "use_cache"}


class Processors:
    """From raw logits at several positions to the scores the next token is chosen by, as plain decoding would there."""

    def __init__(self, processors: Any) -> None:
        for processor in processors:
            if why := refusal(processor):
                raise ValueError(f"wager cannot verify drafts under {type(processor).__name__}: {why}")
        self.steps = [(processor, row_wise(processor)) for processor in processors]
        self.needs_text = not all(alone for _, alone in self.steps)
        self.temperature = math.prod(map(temperature_of, processors))

    def __call__(self, ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Scores (positions, vocabulary); ``ids`` (1, text and draft) ends where the last position looks back to."""
        # Where nothing needs the text, ``ids`` may be empty. Raw logits are in float32 before anything is done to them.
        if not self.steps:
            return logits
        scores = logits.to(torch.float32, copy=True)
        count, whole = scores.shape[0], ids.shape[1]
        for processor, alone in self.steps:
            if alone:
                scores = processor(ids, scores)
            else:
                rows = [processor(ids[:, : whole - count + 1 + i], scores[i : i + 1]) for i in range(count)]
                scores = torch.cat(rows)
        return scores


class Stopping:
    """transformers' stopping criteria; the two every request has are answered without tensors."""

    def __init__(self, criteria: Any, limit: int) -> None:
        self.limit = limit  # most tokens of prompt and text together
        self.why_limit = "context"
        self.ends: set[int] = set()
        self.rest: list[Any] = []
        for criterion in criteria:
            if (ends := end_tokens(criterion)) is not None:
                self.ends.update(ends)
            elif (longest := max_length_of(criterion)) is not None:
                if longest <= self.limit:
                    self.limit, self.why_limit = longest, "length"
            else:
                self.rest.append(criterion)
        self.needs_text = bool(self.rest)  # whether ``check`` has to see the text itself

    def check(self, length: int, tokens: Sequence[int], ids: torch.Tensor) -> tuple[int, str]:
        """How many of the new tokens the text takes after ``length`` others, and why it then ends; "" if it goes on."""
        # ``ids`` (1, all) holds the text with the new tokens, or nothing where ``needs_text`` is false.
        for at, token in enumerate(tokens, start=1):
            if token in self.ends:
                return at, "eos"
            if self.rest and any(bool(torch.as_tensor(c(ids[:, : length + at], None)).all()) for c in self.rest):
                return at, "stop"
            if length + at >= self.limit:
                return at, self.why_limit
        return len(tokens), ""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request as transformers prepared it."""

    ids: torch.Tensor  # (1, length)
    processors: Processors
    criteria: Any
    config: Any  # GenerationConfig


def without_cache(settings: dict[str, Any], config: Any) -> dict[str, Any]:
    """The same settings; transformers need not make a cache of its own, unless they speak of one."""
    if settings.keys() & SPEAK_OF_CACHES or config.cache_implementation or config.cache_config:
        return settings
    return {**settings, "use_cache": False}


def prepared(model: Any, input_ids: torch.Tensor, logits_processor: Any, stopping_criteria: Any,
             generation_config: Any, tokenizer: Any = None, **inputs: Any) -> Prepared:  # fmt: skip
    """As a custom_generate function: give back what transformers prepared; it makes a criterion of ``tokenizer``."""
    check_settings(vars(generation_config), vocabulary(model))
    check_mode(generation_config)
    require(inputs.get("inputs_embeds") is None, "drafters read tokens; generate with input_ids, without inputs_embeds")
    require(input_ids.shape[0] == 1, f"wager decodes one sequence at a time, not {input_ids.shape[0]}")
    require(bool(input_ids.shape[1]), "the prompt is empty; give at least one token")
    if generation_config.prompt_lookup_num_tokens:
        raise ValueError("wager looks tokens up in the prompt by itself; generate without prompt_lookup_num_tokens")
    for name in ("output_scores", "output_logits", "output_attentions", "output_hidden_states"):
        if getattr(generation_config, name, False):
            raise ValueError(f"wager does not collect {name.removeprefix('output_')}; generate without {name}")
    known = {"attention_mask", "cache_position", "logits_to_keep", "position_ids", "use_cache", *CACHE_NAMES}
    # Models that also take images get an empty dict of what was seen in them.
    known |= {name for name, value in inputs.items() if isinstance(value, dict) and not value}
    cache = inputs.get("past_key_values")
    if cache is None or not cache.get_seq_length():
        _check_positions(input_ids.shape[1], inputs.get("attention_mask"), inputs.get("position_ids"))
    if more := sorted(name for name, value in inputs.items() if name not in known and value is not None):
        raise ValueError(f"wager decodes text alone; it cannot pass on {', '.join(more)}")
    return Prepared(input_ids, Processors(logits_processor), stopping_criteria, generation_config)


def _check_positions(length: int, mask: torch.Tensor | None, positions: torch.Tensor | None) -> None:
    """Refuse padding after the prompt, and positions other than those that wager counts itself."""
    if mask is not None and mask.dim() == 2:
        require(bool(mask[0, -1]), "the attention mask ends with padding; pad prompts on the left")
    if positions is None or positions.dim() != 2:
        return
    seen = torch.ones(1, length, device=positions.device) if mask is None else mask[:, -length:] != 0
    counted = (seen.long().cumsum(-1) - 1)[:, -positions.shape[1] :]
    own = seen[:, -positions.shape[1] :].bool()
    same = counted.shape == positions.shape and bool((counted == positions)[own].all())
    require(same, "positions of tokens are counted here; generate without position_ids")


@cache
def take_tokenizer() -> None:
    """Have transformers hand on a tokenizer beside ``prepared``: it makes a criterion of stop strings with it."""
    pass_tokenizer_to(prepared)
