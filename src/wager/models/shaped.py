"""The weights of a Llama-shaped model, read once: who has that shape, and how its products are run."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch

from wager.models import packed

SHAPED = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
STEADY_ROPES = ("default", "linear", "llama3")  # rotary angles that do not depend on the text's length


def why_not(model: Any) -> str:
    """Why a model cannot take the lean forward; empty if it can."""
    config = model.config
    if type(model).__name__ not in SHAPED:
        return f"{type(model).__name__} is not one of {', '.join(SHAPED)}"
    if getattr(config, "quantization_config", None) is not None or hasattr(model, "peft_config"):
        return "its weights are quantized or adapted"
    if len({(p.device, p.dtype) for p in model.parameters()}) != 1:
        return "its weights lie on several devices or have several dtypes"
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
        return "some of its layers see a window only"
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        return "its layers see a window only"
    if config.rope_parameters["rope_type"] not in STEADY_ROPES or config.hidden_act != "silu":
        return f"rotary type {config.rope_parameters['rope_type']!r} or activation {config.hidden_act!r} is not covered"
    for name, module in model.named_modules():
        if module._forward_hooks or module._forward_pre_hooks or hasattr(module, "_hf_hook"):
            return f"{name or 'the model'} has hooks"
        if name.endswith(("_proj", "lm_head")) and type(module) is not torch.nn.Linear:
            return f"{name} is {type(module).__name__}, not Linear"
    return ""


@dataclass(slots=True)
class Weights:
    """One way to run a layer's four products."""

    qkv: packed.Product
    out: packed.Product
    gate_up: packed.Product
    down: packed.Product


@dataclass(slots=True)
class Layer:
    """What one layer's forward needs."""

    before: torch.Tensor  # (hidden,) weight of the norm before attention
    after: torch.Tensor  # (hidden,) of the norm before the MLP
    q_norm: torch.Tensor | None  # (head,) of Qwen3's norm of each query
    k_norm: torch.Tensor | None
    plain: Weights
    packed: Weights | None = None


class Shaped:
    """A model's weights as the lean forward takes them; all that run the model share them."""

    def __init__(self, model: Any) -> None:
        body, head = model.model, model.lm_head
        self.device, self.dtype = model.device, model.dtype
        self.embed, self.final = body.embed_tokens.weight, body.norm.weight
        self.layers = [_layer(block) for block in body.layers]
        self.plain_head = packed.plain([head.weight], [head.bias])
        self.packed_head: packed.Product | None = None
        self.use_packed = [False] * (packed.WIDTHS[-1] + 1)  # width -> whether the packed products are faster
        self.use_packed_head = list(self.use_packed)
        self.stamp = stamp(model)
        if self.device.type == "cpu" and self.dtype == torch.float32 and packed.available():
            self._pack(model)

    def _pack(self, model: Any) -> None:
        """Lay the weights out for several tokens at once, and keep that only if it is faster at some width."""
        for layer, block in zip(self.layers, model.model.layers, strict=True):
            layer.packed = Weights(*(_packed(modules) for modules in _products(block)))
        self.packed_head = packed.pack(model.lm_head.weight, model.lm_head.bias)
        step = max(1, len(self.layers) // 8)  # some eight of the layers are sample enough
        sizes = [modules[0].in_features for block in model.model.layers[::step] for modules in _products(block)]
        plain = [p for layer in self.layers[::step] for p in _all(layer.plain)]
        other = [p for layer in self.layers[::step] if layer.packed for p in _all(layer.packed)]
        self.use_packed = packed.faster(plain, other, sizes, self.dtype)
        self.use_packed_head = packed.faster(
            [self.plain_head], [self.packed_head], [model.lm_head.in_features], self.dtype
        )
        if not any(self.use_packed):
            for layer in self.layers:
                layer.packed = None
        if not any(self.use_packed_head):
            self.packed_head = None


_SHAPED: weakref.WeakKeyDictionary[Any, Shaped] = weakref.WeakKeyDictionary()


def shaped(model: Any) -> Shaped:
    """The model's weights, read and packed once for as long as they stay what they are."""
    known = _SHAPED.get(model)
    if known is None or known.stamp != stamp(model):  # someone trained, merged or moved the model: copies are stale
        known = _SHAPED[model] = Shaped(model)
    return known


def stamp(model: Any) -> list[tuple[int, int]]:
    """Changes whenever a weight does."""
    return [(p.data_ptr(), p._version) for p in model.parameters()]


def _products(block: Any) -> tuple[list[Any], ...]:
    """A layer's linear modules, those with the same input together, in the order of ``Weights``."""
    attention, mlp = block.self_attn, block.mlp
    together = [attention.q_proj, attention.k_proj, attention.v_proj]
    return together, [attention.o_proj], [mlp.gate_proj, mlp.up_proj], [mlp.down_proj]


def _layer(block: Any) -> Layer:
    plain = Weights(*(packed.plain([m.weight for m in ms], [m.bias for m in ms]) for ms in _products(block)))
    q_norm, k_norm = (getattr(block.self_attn, name, None) for name in ("q_norm", "k_norm"))
    return Layer(
        before=block.input_layernorm.weight,
        after=block.post_attention_layernorm.weight,
        q_norm=None if q_norm is None else q_norm.weight,
        k_norm=None if k_norm is None else k_norm.weight,
        plain=plain,
    )


def _packed(modules: list[Any]) -> packed.Product:
    weight = modules[0].weight if len(modules) == 1 else torch.cat([m.weight for m in modules])
    biases = [m.bias for m in modules if m.bias is not None]
    if not biases:
        return packed.pack(weight)
    if len(biases) != len(modules):
        biases = [m.weight.new_zeros(len(m.weight)) if m.bias is None else m.bias for m in modules]
    return packed.pack(weight, torch.cat(biases))


def _all(weights: Weights) -> tuple[packed.Product, ...]:
    return weights.qkv, weights.out, weights.gate_up, weights.down
