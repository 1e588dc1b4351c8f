"""Heads in the formats in which people publish them, with random weights, and targets that they fit."""

import json
import math
from pathlib import Path
from typing import Any

import small
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

VOCABULARY, DRAFTED = 96, 40  # tokens of the target, and those of them that an EAGLE-3 head drafts
LAYERS = 7
SIZES = {"hidden_size": 64, "intermediate_size": 80, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
ROPE = {"rms_norm_eps": 1e-5, "max_position_embeddings": 256}
TEXT = [(7 * i * i + 5 * i + 3) % VOCABULARY for i in range(40)]
PROMPT = TEXT[:14]


def target(kind: str = "llama", seed: int = 0, **more: Any) -> Any:
    """A tiny target; its states grow from layer to layer, as a trained model's do."""
    torch.manual_seed(seed)
    shape = {**SIZES, **ROPE, **small.SPECIAL, "vocab_size": VOCABULARY, "num_hidden_layers": LAYERS, **more}
    config, made = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}[kind]
    return made(config(**shape, initializer_range=0.15)).eval()


class Weights:
    """Random tensors, by name."""

    def __init__(self, seed: int) -> None:
        self.draw, self.tensors = torch.Generator().manual_seed(seed), dict[str, torch.Tensor]()

    def add(self, name: str, *shape: int, scale: float = 1.0) -> None:
        """A matrix, or a norm's weights around 1."""
        made = torch.randn(shape, generator=self.draw)
        self.tensors[name] = scale * made / math.sqrt(shape[-1]) if len(shape) > 1 else 1 + 0.2 * made

    def layer(self, prefix: str, entering: int, hidden: int, *, bias: bool = False, qk_norm: bool = False) -> None:
        """A decoder layer whose attention reads so many numbers an entry."""
        queries, keys, inner = 2 * 32, 32, SIZES["intermediate_size"]
        for name, size in (("q", queries), ("k", keys), ("v", keys)):
            self.add(f"{prefix}.self_attn.{name}_proj.weight", size, entering)
            if bias:
                self.tensors[f"{prefix}.self_attn.{name}_proj.bias"] = torch.randn(size, generator=self.draw)
            if qk_norm and name != "v":
                self.add(f"{prefix}.self_attn.{name}_norm.weight", 32)
        self.add(f"{prefix}.self_attn.o_proj.weight", hidden, queries)
        for name in ("gate", "up"):
            self.add(f"{prefix}.mlp.{name}_proj.weight", inner, hidden)
        self.add(f"{prefix}.mlp.down_proj.weight", hidden, inner)
        self.add(f"{prefix}.post_attention_layernorm.weight", hidden)


def eagle(folder: Path, *, fc_bias: bool = False, embed: bool = True, qkv_bias: bool = False, seed: int = 1) -> Path:
    """EAGLE-1 or EAGLE-2 as its authors publish it: pytorch_model.bin with fc and layers.0."""
    weights, hidden = Weights(seed), SIZES["hidden_size"]
    if embed:
        weights.add("embed_tokens.weight", VOCABULARY, hidden, scale=2)
    weights.add("fc.weight", hidden, 2 * hidden)
    if fc_bias:
        weights.tensors["fc.bias"] = torch.randn(hidden, generator=weights.draw)
    weights.layer("layers.0", hidden, hidden, bias=qkv_bias)
    config = {**_llama(), "architectures": ["LlamaForCausalLM"], "bias": fc_bias, "rope_theta": 5000.0}
    if qkv_bias:
        config["qkv_bias"] = True
    return _saved(folder, config, weights.tensors, pickled=True)


def eagle3(
    folder: Path, *, embed: bool = False, whole: bool = False, hidden: int = 64, seed: int = 2, **config: Any
) -> Path:
    """EAGLE-3 as its authors publish it: pytorch_model.bin with fc, midlayer, norm, lm_head, d2t and t2d."""
    tensors = _eagle3("midlayer", hidden, whole, embed, seed)
    content = {**_llama(), "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": hidden, "rope_theta": 5000.0}
    content["draft_vocab_size"] = VOCABULARY if whole else DRAFTED
    return _saved(folder, {**content, **config}, tensors, pickled=True)


def speculators(folder: Path, kind: str = "llama", *, embed: bool = True, seed: int = 3, **config: Any) -> Path:
    """EAGLE-3 in the format of the library `speculators`."""
    tensors = _eagle3("layers.0", 64, False, embed, seed, qk_norm=kind == "qwen3")
    states = len(config.get("eagle_aux_hidden_state_layer_ids", "123"))
    draw = Weights(seed + 1)
    draw.add("fc.weight", 64, 64 * states)
    if config.get("norm_before_fc"):
        draw.add("input_norm.weight", 64 * states)
    for at in range(states if config.get("fc_norm") else 0):
        draw.add(f"fc_norm.{at}.weight", 64)
    tensors |= draw.tensors
    layer = {**_llama(), "model_type": kind, "rope_theta": 5000.0, "tie_word_embeddings": False}
    method = {"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    verifier = {"name_or_path": "tiny", "architectures": ["LlamaForCausalLM"]}
    proposal = {"algorithm": "eagle3", "default_proposal_method": "greedy", "proposal_methods": [method]}
    content = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "speculators_config": {**proposal, "verifier": verifier},
        "draft_vocab_size": DRAFTED,
        "norm_before_residual": True,
        "target_hidden_size": None,
        "transformer_layer_config": layer,
    }
    return _saved(folder, {**content, **config}, tensors, pickled=False)


def drafted_tokens(seed: int) -> torch.Tensor:
    """The tokens a head drafts, in order."""
    chosen = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(seed))[:DRAFTED]
    return chosen.sort().values


def _eagle3(
    prefix: str, hidden: int, whole: bool, embed: bool, seed: int, *, qk_norm: bool = False
) -> dict[str, torch.Tensor]:
    weights, drafted = Weights(seed), VOCABULARY if whole else DRAFTED
    if embed:
        weights.add("embed_tokens.weight", VOCABULARY, hidden, scale=2)
    weights.add("fc.weight", hidden, 3 * SIZES["hidden_size"])
    weights.layer(prefix, 2 * hidden, hidden, qk_norm=qk_norm)
    for name in (f"{prefix}.input_layernorm", f"{prefix}.hidden_norm", "norm"):
        weights.add(f"{name}.weight", hidden)
    weights.add("lm_head.weight", drafted, hidden, scale=3)
    if not whole:
        ids = drafted_tokens(seed)
        weights.tensors["d2t"] = ids - torch.arange(DRAFTED)
        weights.tensors["t2d"] = torch.zeros(VOCABULARY, dtype=torch.bool).index_fill_(0, ids, True)
    return weights.tensors


def _llama() -> dict[str, Any]:
    sizes = {**SIZES, **ROPE, "vocab_size": VOCABULARY, "num_hidden_layers": 1, "hidden_act": "silu"}
    return {**sizes, **small.SPECIAL, "model_type": "llama", "torch_dtype": "float32"}


def _saved(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor], *, pickled: bool) -> Path:
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    if pickled:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
