"""Small models of several families, and what tests of trees have in common."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import small
import torch
from small import path_to
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import wager
from wager.drafters import Draft
from wager.models.hf_runner import HFRunner
from wager.models.llama_runner import LlamaRunner
from wager.models.runner import Runner

VOCABULARY = 64

PROMPT = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2]

NEAR = 2e-4  # largest difference of two ways to the same float32 logits, in their standard deviations

SHAPE = {**small.SHAPE, "vocab_size": VOCABULARY, "head_dim": 8, "max_position_embeddings": 512}

ODD: dict[str, Any] = {"vocab_size": VOCABULARY, "initializer_range": 0.3, "bos_token_id": None, "eos_token_id": None}

QWEN2 = {name: value for name, value in SHAPE.items() if name != "head_dim"}

FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**QWEN2)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=512, **ODD)),
    "mistral, window": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=12)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**SHAPE, sliding_window=12)),
    "bloom": lambda: BloomForCausalLM(BloomConfig(hidden_size=32, n_layer=2, n_head=4, **ODD)),
}

RUNNERS = [
    ("llama", LlamaRunner),
    ("qwen2", LlamaRunner),
    ("qwen3", LlamaRunner),
    ("llama", HFRunner),
    ("qwen3", HFRunner),
    ("gpt2", HFRunner),
]


def tiny(family: str = "llama") -> Any:
    torch.manual_seed(0)
    return FAMILIES[family]().eval()


def begun(kind: type[Runner], model: Any) -> Runner:
    made: Runner = kind(model)
    made.begin()
    return made


def tokens_of(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(VOCABULARY) for _ in range(count)]


def far(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.std())


def plain(model: Any, prompt: Sequence[int] = PROMPT, **settings: Any) -> list[int]:
    settings = {"max_new_tokens": 60, "do_sample": False, **settings}
    ids = torch.tensor([prompt])
    return model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0, len(prompt) :].tolist()


def ours(decoder: wager.Decoder, **settings: Any) -> list[int]:
    return decoder.generate(PROMPT, **{"max_new_tokens": 60, "do_sample": False, **settings}).tokens


def paths(draft: Draft) -> set[tuple[int, ...]]:
    assert draft.parents is not None
    return {tuple(draft.tokens[i] for i in path_to(draft.parents, at)) for at in range(len(draft.tokens))}
