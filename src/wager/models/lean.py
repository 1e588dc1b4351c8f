"""The forward of Llama-shaped models with nothing in it but the arithmetic.

With one stream, transformers spends a good part of its time on small operations and Python. This is the same arithmetic
over the model's own weights: a preallocated cache that is cropped by setting a number, rotary tables made once, one
product for query, key and value. It runs on the CPU here; ``graphs`` captures it on CUDA.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import embedding, rms_norm, scaled_dot_product_attention, silu

from wager.models import packed
from wager.models.runner import Runner

SHAPED = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
STEADY_ROPES = ("default", "linear", "llama3")  # rotary angles that do not depend on the text's length
NARROW = 32  # up to this width attention is two small products; above it, the fused kernel made for prompts


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
    packed: Weights | None = field(default=None)


class Lean(Runner):
    """Runs a Llama-shaped model on the CPU over a preallocated cache."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        config = model.config
        self.model = model
        self.dtype: torch.dtype = model.dtype
        self.eps = config.rms_norm_eps
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.head = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.scale = self.head**-0.5
        self.hidden, self.wide = config.hidden_size, config.intermediate_size
        self.capacity = 0
        self.cache = torch.empty(0)  # (layers, 2, groups, capacity, head)
        self._read_weights()

    # -- weights

    def _read_weights(self) -> None:
        body = self.model.model
        self.embed, self.final = body.embed_tokens.weight, body.norm.weight
        self.layers = [_layer(block) for block in body.layers]
        head = self.model.lm_head
        self.plain_head = packed.plain([head.weight], [head.bias])
        self.packed_head: packed.Product | None = None
        self.use_packed = [False] * (packed.WIDTHS[-1] + 1)
        self._stamp = self._weights_stamp()
        if self.device.type == "cpu" and self.dtype == torch.float32 and packed.available():
            self._pack()

    def _pack(self) -> None:
        """Lay the weights out for several tokens at once, and keep that only if it is faster at some width."""
        for layer, block in zip(self.layers, self.model.model.layers, strict=True):
            layer.packed = Weights(*(_packed(modules) for modules in _products(block)))
        self.packed_head = packed.pack(self.model.lm_head.weight, self.model.lm_head.bias)
        step = max(1, len(self.layers) // 8)  # every eighth of the layers is sample enough, and the head
        some = self.layers[::step]
        sizes = [self.hidden, self.heads * self.head, self.hidden, self.wide] * len(some) + [self.hidden]
        plain = [p for layer in some for p in _all(layer.plain)] + [self.plain_head]
        other = [p for layer in some if layer.packed for p in _all(layer.packed)] + [self.packed_head]
        self.use_packed = packed.faster(plain, other, sizes, self.dtype)
        if not any(self.use_packed):
            self.packed_head = None
            for layer in self.layers:
                layer.packed = None

    def _weights_stamp(self) -> list[tuple[int, int]]:
        return [(p.data_ptr(), p._version) for p in self.model.parameters()]

    # -- cache

    def begin(self) -> None:
        self.length = 0
        if self._stamp != self._weights_stamp():  # someone trained, merged or moved the model: copies would be stale
            self.device, self.dtype, self.capacity = self.model.device, self.model.dtype, 0
            self._read_weights()

    def crop(self, length: int) -> None:
        self.length = length

    def _reserve(self, tokens: int) -> None:
        """Room for so many tokens; growing copies the cache, at most once per doubling."""
        if tokens <= self.capacity:
            return
        capacity = max(256, 1 << (tokens - 1).bit_length())
        grown = torch.empty(
            (len(self.layers), 2, self.groups, capacity, self.head), dtype=self.dtype, device=self.device
        )
        if self.length:
            grown[:, :, :, : self.length] = self.cache[:, :, :, : self.length]
        self.cache, self.capacity = grown, capacity
        self.cos, self.sin = rotary(self.model, capacity)

    # -- forward

    @torch.inference_mode()
    def forward(self, tokens: Sequence[int], keep: int) -> torch.Tensor:
        width, start = len(tokens), self.length
        end = start + width
        self._reserve(end)
        wide = width > packed.WIDTHS[-1]
        use_packed = self.use_packed[-1] if wide else self.use_packed[width]
        cos, sin = self.cos[start:end], self.sin[start:end]
        mask = self._mask(width, start)
        x = embedding(torch.tensor(tokens, device=self.device), self.embed)
        for layer, cache in zip(self.layers, self.cache, strict=True):
            by = layer.packed if use_packed and layer.packed else layer.plain
            qkv = by.qkv(rms_norm(x, (self.hidden,), layer.before, self.eps))
            x = x + by.out(self._attend(qkv, layer, cache, cos, sin, mask))
            gate, up = by.gate_up(rms_norm(x, (self.hidden,), layer.after, self.eps)).chunk(2, dim=-1)
            x = x + by.down(silu(gate) * up)
        self.length = end
        x = rms_norm(x[-keep:], (self.hidden,), self.final, self.eps)
        if self.packed_head is not None and self.use_packed[min(keep, packed.WIDTHS[-1])]:
            return self.packed_head(x)
        return self.plain_head(x)

    def _mask(self, width: int, start: int) -> torch.Tensor | None:
        """What new tokens may not see, (width, start + width), to be added to the scores; None: they see everything."""
        if width == 1:
            return None
        end = start + width
        mask = torch.full((width, width), float("-inf"), dtype=self.dtype, device=self.device).triu_(1)
        mask = torch.cat((mask.new_zeros(width, start), mask), dim=1)
        if width > NARROW:
            return mask
        share = self.heads // self.groups
        return mask.expand(share, width, end).reshape(1, share * width, end).expand(self.groups, -1, -1)

    def _attend(
        self,
        qkv: torch.Tensor,  # (width, (heads + 2 groups) * head)
        layer: Layer,
        cache: torch.Tensor,  # (2, groups, capacity, head)
        cos: torch.Tensor,  # (width, 1, head)
        sin: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        width, start = qkv.shape[0], self.length
        end = start + width
        heads, groups, head = self.heads, self.groups, self.head
        qkv = qkv.view(width, heads + 2 * groups, head)
        qk = qkv[:, : heads + groups]
        if layer.q_norm is not None and layer.k_norm is not None:
            q_normed = rms_norm(qk[:, :heads], (head,), layer.q_norm, self.eps)
            qk = torch.cat((q_normed, rms_norm(qk[:, heads:], (head,), layer.k_norm, self.eps)), dim=1)
        qk = torch.addcmul(qk * cos, qk.roll(head // 2, -1), sin)  # sin carries rotate_half's minus sign
        cache[0, :, start:end] = qk[:, heads:].transpose(0, 1)
        cache[1, :, start:end] = qkv[:, heads + groups :].transpose(0, 1)
        keys, values = cache[0, :, :end], cache[1, :, :end]  # (groups, end, head)
        if width > NARROW:
            q = qk[:, :heads].transpose(0, 1)[None]
            mixed = scaled_dot_product_attention(
                q, keys[None], values[None], attn_mask=mask, scale=self.scale, enable_gqa=heads != groups
            )
            return mixed[0].transpose(0, 1).reshape(width, heads * head)
        # The heads of a group share its keys: stacked as rows, they are one product a group, and nothing is repeated.
        q = qk[:, :heads].transpose(0, 1).reshape(groups, -1, head)  # (groups, heads / groups * width, head)
        if mask is None:
            scores = torch.bmm(q, keys.transpose(1, 2)) * self.scale
        else:
            scores = torch.baddbmm(mask, q, keys.transpose(1, 2), alpha=self.scale)
        mixed = torch.bmm(torch.softmax(scores, dim=-1, dtype=torch.float32).to(self.dtype), values)
        return mixed.view(heads, width, head).transpose(0, 1).reshape(width, heads * head)


def rotary(model: Any, capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The model's rotary tables for the first ``capacity`` positions, (capacity, 1, head) each, in its dtype.

    The sine's first half is negated, so that rotating is one roll and one multiply-add.
    """
    positions = torch.arange(capacity, device=model.device)[None]
    cos, sin = model.model.rotary_emb(torch.empty(0, dtype=model.dtype, device=model.device), positions)
    sin = sin.clone()
    sin[..., : sin.shape[-1] // 2].neg_()
    return cos[0, :, None].contiguous(), sin[0, :, None].contiguous()


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
