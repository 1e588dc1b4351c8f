"""Draft models for a target: one that is shipped for it, or the target's own first layers."""

import copy
from typing import Any

import torch

from wager.drafters import shipped
from wager.models import load_model
from wager.models.fingerprint import fingerprint
from wager.models.llama_shape import LLAMA_LIKE

SHARE = 4  # one in so many of the target's layers drafts where no draft model is shipped


def truncated(model: Any, layers: int) -> Any:
    """A draft model for any Llama-shaped target, with nothing to train: its first layers under its own head."""
    # It shares the target's weights; only what wager packs of them is a copy.
    body = getattr(model, "model", None)
    if type(model).__name__ not in LLAMA_LIKE or body is None:
        raise ValueError(f"only {', '.join(LLAMA_LIKE)} can be cut to a draft model, not {type(model).__name__}")
    if not 0 < layers < len(body.layers):
        raise ValueError(f"a draft model has between 1 and {len(body.layers) - 1} of the target's layers, not {layers}")
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    with torch.device("meta"):
        draft = type(model)(config)
    draft.model.embed_tokens, draft.model.norm = model.model.embed_tokens, model.model.norm
    draft.model.layers = torch.nn.ModuleList(list(model.model.layers[:layers]))
    draft.model.rotary_emb, draft.lm_head = model.model.rotary_emb, model.lm_head
    draft.generation_config = copy.deepcopy(model.generation_config)
    return draft.eval()


def has_assistant(model: Any) -> bool:
    """Whether there is a draft model for transformers' assisted generation."""
    return bool(_shipped(model)) or (type(model).__name__ in LLAMA_LIKE and model.config.num_hidden_layers > 1)


def assistant(model: Any) -> Any:
    """A draft model for transformers' assisted generation: a shipped one, else some of the target's own layers."""
    drafts = _shipped(model)
    if not drafts:
        return truncated(model, max(1, model.config.num_hidden_layers // SHARE))
    one = next((each for each in drafts if each.spec == "draft:ofa"), drafts[0])
    return load_model(one.folder, dtype=str(model.dtype).removeprefix("torch."), device=str(model.device))


def _shipped(model: Any) -> list[shipped.Shipped]:
    there = shipped.available(getattr(model, "name_or_path", ""), lambda: fingerprint(model))
    return [one for spec, one in there.items() if spec.startswith("draft:")]
