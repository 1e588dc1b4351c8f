"""Tiny targets and random heads for them."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import small
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from wager.eagle import checkpoint
from wager.models.fingerprint import fingerprint

VOCABULARY = 24
SHAPE = {**small.SHAPE, "vocab_size": VOCABULARY, "max_position_embeddings": 512, "initializer_range": 0.4}
TEXT = [(5 * i * i + 3 * i) % VOCABULARY for i in range(60)]
PROMPT = TEXT[:12]


def tiny(seed: int = 0, **shape: Any) -> Any:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**{**SHAPE, **shape})).eval()


def config(model: Any, **more: Any) -> dict[str, Any]:
    """Another shape than the target's where a head may have one."""
    targets = {"vocab_size": model.config.vocab_size, "hidden_size": model.config.hidden_size}
    sizes = {"intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12}
    return {**targets, **sizes, "rms_norm_eps": 1e-5, "rope_theta": 5000.0, "num_hidden_layers": 1, **more}


def weights(model: Any, seed: int = 1, **more: Any) -> dict[str, torch.Tensor]:
    """Random tensors of a head, that carry the feature through."""
    made = torch.Generator().manual_seed(seed)
    shapes = checkpoint.shapes(LlamaConfig(**config(model, **more)))
    tensors = {name: torch.randn(shape, generator=made) / math.sqrt(shape[-1]) for name, shape in shapes.items()}
    tensors["layers.0.post_attention_layernorm.weight"] += 1
    return tensors


def save(folder: Path, model: Any, seed: int = 1, frequent: Sequence[int] = (), shape: Any = None) -> Path:
    notes, shape = {"target": "tiny", "target_fingerprint": fingerprint(model)}, shape or {}
    checkpoint.write(folder, config(model, **shape), weights(model, seed, **shape), notes, frequent)
    return folder


def plain(model: Any, prompt: Sequence[int] = PROMPT, count: int = 60) -> list[int]:
    ids = torch.tensor([prompt])
    made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)
    tokens: list[int] = made[0, len(prompt) :].tolist()
    return tokens
