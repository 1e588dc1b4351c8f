"""Any decoder-only model of transformers, through its own forward."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from wager.models.runner import Runner


class Eager(Runner):
    """Runs the model as transformers does, over transformers' own cache."""

    def __init__(self, model: Any, cache: Any = None, mask: torch.Tensor | None = None) -> None:
        super().__init__(model)
        self.model = model
        self.cache = cache
        self.mask = mask  # (1, prompt) of a padded prompt; None: nothing is padded
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._positions = "position_ids" in inspect.signature(model.forward).parameters
        self.temporary = False  # whether another runner could take over once the model is back to its usual shape
        if "past_key_values" not in inspect.signature(model.forward).parameters:
            raise ValueError(
                f"{type(model).__name__} takes no key-value cache, and what else it keeps cannot be cropped, so drafts "
                "cannot be taken back; use it without wager"
            )
        self.length = int(cache.get_seq_length()) if cache is not None else 0
        if cache is not None:
            self._prepare()

    def begin(self) -> None:
        from transformers import DynamicCache

        self.cache, self.mask, self.length = DynamicCache(config=self.model.config), None, 0
        self._prepare()

    def _prepare(self) -> None:
        """Refuse a cache that cannot be cropped; tell one that forgets to keep what it may have to give back."""
        kinds = {type(layer).__name__ for layer in self.cache.layers if not _croppable(layer)}
        if kinds:
            raise ValueError(
                f"{type(self.model).__name__} keeps a cache that cannot be cropped ({', '.join(sorted(kinds))}), "
                "so drafts cannot be taken back; use it without wager"
            )
        if hasattr(self.cache, "activate_past_recording"):
            self.cache.activate_past_recording()

    @torch.no_grad()
    def forward(self, tokens: Sequence[int], keep: int) -> torch.Tensor:
        width = len(tokens)
        given: dict[str, Any] = {"logits_to_keep": keep} if self._keeps else {}
        if self.mask is not None:
            grown = self.length + width - self.mask.shape[1]
            mask = torch.cat((self.mask, self.mask.new_ones((1, grown))), dim=1) if grown > 0 else self.mask
            given["attention_mask"] = mask[:, : self.length + width]
            if self._positions:
                positions = given["attention_mask"].cumsum(-1) - 1
                given["position_ids"] = positions.clamp(min=0)[:, -width:]
        ids = torch.tensor([tokens], device=self.device)
        out = self.model(input_ids=ids, past_key_values=self.cache, use_cache=True, return_dict=True, **given)
        self.length += width
        logits: torch.Tensor = out.logits[0, -keep:]
        return logits

    def crop(self, length: int) -> None:
        if length < self.length:
            self.cache.crop(length - self.length)  # negative: so many tokens fewer
        elif self.length:
            # Layers that forget (sliding windows, linear attention) shrink back to their size only when asked.
            for layer in self.cache.layers:
                if getattr(layer, "record_past", False):
                    layer.crop(0)
        self.length = length


def _croppable(layer: Any) -> bool:
    # Quantized layers inherit a crop that knows nothing of what they packed away.
    return getattr(layer, "is_croppable", True) and "Quantized" not in type(layer).__name__
