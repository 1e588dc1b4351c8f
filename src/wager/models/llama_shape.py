"""Which models are shaped like a Llama, and by what small differences."""

from dataclasses import dataclass
from typing import Any

import torch

from wager.models.tree_mask import FULL, SLIDING, layer_kinds

STEADY_ROPES = ("default", "linear", "llama3")  # rotary angles that do not depend on the text's length
ACTIVATIONS = ("silu", "gelu_pytorch_tanh")
LLAMA_LIKE = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


@dataclass(frozen=True, slots=True)
class Differences:
    """From a Llama, where they cannot be read off a model's modules."""

    interleaved: bool = False  # rotary pairs are neighbours; a Llama's are half a head apart
    gemma: bool = False  # norms multiply by 1 + weight, embeddings are scaled by the root of their size


# Every one is compared with the model's own forward before it is used.
FAMILIES: dict[str, Differences] = {
    **dict.fromkeys(LLAMA_LIKE, Differences()),
    **dict.fromkeys(("MinistralForCausalLM", "Phi3ForCausalLM", "SmolLM3ForCausalLM"), Differences()),
    **dict.fromkeys(("MixtralForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"), Differences()),
    **dict.fromkeys(("GlmForCausalLM", "Glm4ForCausalLM"), Differences(interleaved=True)),
    **dict.fromkeys(("Ernie4_5ForCausalLM", "Ernie4_5_MoeForCausalLM"), Differences(interleaved=True)),
    **dict.fromkeys(("GemmaForCausalLM", "Gemma3ForCausalLM"), Differences(gemma=True)),
}


def head_size(config: Any) -> int:
    """Numbers in one attention head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def activation(config: Any) -> str:
    """What the gate of a model's MLP goes through."""
    return str(getattr(config, "hidden_activation", None) or config.hidden_act)


def windows(config: Any, layers: int) -> list[int]:
    """Tokens that each layer sees, itself included; 0: all."""
    kinds = layer_kinds(config)
    sliding = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    return [int(sliding or 0) if kind == SLIDING else 0 for kind in (kinds if len(kinds) > 1 else kinds * layers)]


def configured(model: Any) -> str:
    """What its configuration says against running a model by LlamaRunner; empty if nothing."""
    config, name = model.config, type(model).__name__
    if name not in FAMILIES:
        return f"{name} is not shaped like a Llama, or not known to be"
    if getattr(config, "quantization_config", None) is not None or hasattr(model, "peft_config"):
        return "its weights are quantized or adapted"
    if model.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"its weights are {model.dtype}"
    if FAMILIES[name].gemma and model.dtype != torch.float32:
        return "its norms are computed in float32 and its weights are not"
    if not set(layer_kinds(config)) <= {FULL, SLIDING}:
        return "some of its layers see neither all tokens nor a window"
    ropes = config.rope_parameters
    types = {rope["rope_type"] for rope in (ropes.values() if "rope_type" not in ropes else (ropes,))}
    if not types <= set(STEADY_ROPES) or activation(config) not in ACTIVATIONS:
        return f"rotary type {', '.join(sorted(types))} or activation {activation(config)!r} is not covered"
    capped = (getattr(config, f"{where}_logit_softcapping", None) for where in ("attn", "final"))
    if any(cap is not None for cap in capped) or getattr(config, "use_bidirectional_attention", False):
        return "it caps its scores or looks ahead"
    return _on_cuda(model) if model.device.type == "cuda" else ""


def _on_cuda(model: Any) -> str:
    """What the kernels for CUDA do not cover."""
    head = head_size(model.config)
    if type(model).__name__ not in LLAMA_LIKE:
        return f"on CUDA {type(model).__name__} is not one of {', '.join(LLAMA_LIKE)}"
    if head < 16 or head & (head - 1):
        return f"a head of {head} is not a power of two of at least 16"
    if activation(model.config) != "silu":
        return f"on CUDA activation {activation(model.config)!r} is not covered"
    return "some of its layers see a window only" if any(windows(model.config, 1)) else ""
