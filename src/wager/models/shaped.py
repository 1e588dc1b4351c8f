"""The weights of a Llama-shaped model, read once: who has that shape, and how its products are run."""

from __future__ import annotations

import logging
import os
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import linear, silu

from wager.models import packed

log = logging.getLogger("wager")

SHAPED = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
NUMBERS = ("scaling", "variance_epsilon", "attention_scaling")  # of modules, which their arithmetic goes by
STEADY_ROPES = ("default", "linear", "llama3")  # rotary angles that do not depend on the text's length


def why_not(model: Any) -> str:
    """Why a model cannot take the lean forward; empty if it can."""
    return configured(model) or composed(model)


def configured(model: Any) -> str:
    """What its configuration says against it."""
    config = model.config
    if type(model).__name__ not in SHAPED:
        return f"{type(model).__name__} is not one of {', '.join(SHAPED)}"
    if getattr(config, "quantization_config", None) is not None or hasattr(model, "peft_config"):
        return "its weights are quantized or adapted"
    if model.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"its weights are {model.dtype}"
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if model.device.type == "cuda" and (head < 16 or head & (head - 1)):
        return f"a head of {head} is not a power of two of at least 16"
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
        return "some of its layers see a window only"
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        return "its layers see a window only"
    if config.rope_parameters["rope_type"] not in STEADY_ROPES or config.hidden_act != "silu":
        return f"rotary type {config.rope_parameters['rope_type']!r} or activation {config.hidden_act!r} is not covered"
    return ""


def composed(model: Any) -> str:
    """What its modules and weights say against it."""
    if len({(p.device, p.dtype) for p in model.parameters()}) != 1:
        return "its weights lie on several devices or have several dtypes"
    if hooked_everywhere():
        return "every module has hooks"
    for name, module in model.named_modules():
        if "forward" in module.__dict__:
            return f"{name or 'the model'} has a forward of its own"
        if module._forward_hooks or module._forward_pre_hooks or hasattr(module, "_hf_hook"):
            return f"{name or 'the model'} has hooks"
        if name.endswith(("_proj", "lm_head")) and type(module) is not torch.nn.Linear:
            return f"{name} is {type(module).__name__}, not Linear"
    return ""


@dataclass(slots=True)
class Weights:
    """One way to run a layer's products."""

    qkv: packed.Product
    out: packed.Product2  # the residual is added
    gated: packed.Product  # silu(gate) * up
    down: packed.Product2


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
        self.plain_head: packed.Product = lambda x: linear(x, head.weight, head.bias)
        self.packed_head: packed.Product | None = None
        self.use_packed = [False] * (packed.WIDTHS[-1] + 1)  # width -> whether the packed products are faster
        self.use_packed_head = list(self.use_packed)
        self.stamp = stamp(model)
        if self.device.type == "cpu" and self.dtype == torch.float32 and packed.available():
            if not _fits(model):
                log.warning("too little memory for packed weights: verifying several tokens will be slower")
                return
            try:
                self._pack(model)
            except RuntimeError as error:  # a processor this build's kernels do not cover
                log.warning("packed weights do not work here (%s): verifying several tokens will be slower", error)
                self._unpack()

    def _pack(self, model: Any) -> None:
        """Lay the weights out for several tokens at once, and keep that only if it is faster at some width."""
        for layer, block in zip(self.layers, model.model.layers, strict=True):
            layer.packed = _packed(block)
        head = packed.pack(model.lm_head.weight, model.lm_head.bias)
        config = model.config
        heads = config.num_attention_heads * model.model.layers[0].self_attn.head_dim

        def run(side: str, width: int) -> None:  # some eight of the layers are sample enough
            x, mixed = torch.zeros(width, config.hidden_size), torch.zeros(width, heads)
            for layer in self.layers[:: max(1, len(self.layers) // 8)]:
                by: Weights = getattr(layer, side)
                by.qkv(x)
                by.down(by.gated(by.out(mixed, x)), x)

        self.use_packed = packed.faster(lambda width: run("plain", width), lambda width: run("packed", width))
        ends = {width: torch.zeros(width, config.hidden_size) for width in packed.WIDTHS}
        self.use_packed_head = packed.faster(
            lambda width: self.plain_head(ends[width]), lambda width: head(ends[width])
        )
        self.packed_head = head if any(self.use_packed_head) else None
        if not any(self.use_packed):
            self._unpack()

    def _unpack(self) -> None:
        self.use_packed = [False] * (packed.WIDTHS[-1] + 1)
        for layer in self.layers:
            layer.packed = None


_SHAPED: weakref.WeakKeyDictionary[Any, Shaped] = weakref.WeakKeyDictionary()


def shaped(model: Any) -> Shaped:
    """The model's weights, read and packed once for as long as they stay what they are."""
    known = _SHAPED.get(model)
    if known is None or known.stamp != stamp(model):  # someone trained, merged or moved the model: copies are stale
        known = _SHAPED[model] = Shaped(model)
    return known


def hooked_everywhere() -> bool:
    """Whether torch runs hooks of someone's around every module there is."""
    module = torch.nn.modules.module
    return bool(module._global_forward_hooks or module._global_forward_pre_hooks)


def outline(model: Any) -> tuple[object, ...]:
    """Changes whenever a module, its forward, a hook, a weight or a buffer does, unless written through ``.data``.

    A request asks for it, so it walks the modules itself: torch's own walks take milliseconds.
    """
    found: list[object] = [hooked_everywhere()]
    waiting = [model]
    while waiting:
        module = waiting.pop()
        held = module.__dict__
        hooked = bool(held["_forward_hooks"] or held["_forward_pre_hooks"] or "_hf_hook" in held)
        found += (type(module), hooked, id(held.get("forward")), *(held.get(name) for name in NUMBERS))
        for weight in (*held["_parameters"].values(), *held["_buffers"].values()):
            if weight is not None:
                found += (weight.data_ptr(), 0 if weight.is_inference() else weight._version)
        waiting.extend(child for child in held["_modules"].values() if child is not None)
    return tuple(found)


def stamp(model: Any) -> object:
    """Changes whenever a weight does.

    Writing through ``.data`` leaves address and version as they are, so where there are packed copies that could go
    stale, on the CPU, a few numbers of each weight are looked at too, and all of the output head's, where people write
    the rows of tokens they add.
    """
    if model.device.type != "cpu":
        return outline(model)
    head = model.lm_head.weight
    return [
        (p.data_ptr(), 0 if p.is_inference() else p._version, float(p.detach().sum()) if p is head else _glance(p))
        for p in model.parameters()
    ]


def _glance(weight: torch.Tensor) -> float:
    flat = weight.detach().reshape(-1)
    return float(flat[:: max(1, len(flat) // 16)].sum())


def _fits(model: Any) -> bool:
    """Whether a second copy of the weights leaves as much memory again free; where nobody can say, it does."""
    try:
        pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return True
    return bool(2 * sum(p.numel() * p.element_size() for p in model.parameters()) < pages)


def _layer(block: Any) -> Layer:
    q_norm, k_norm = (getattr(block.self_attn, name, None) for name in ("q_norm", "k_norm"))
    return Layer(
        before=block.input_layernorm.weight,
        after=block.post_attention_layernorm.weight,
        q_norm=None if q_norm is None else q_norm.weight,
        k_norm=None if k_norm is None else k_norm.weight,
        plain=_plain(block),
    )


def _plain(block: Any) -> Weights:
    """The products as torch does them."""
    q, k, v, out = (getattr(block.self_attn, f"{name}_proj") for name in "qkvo")
    gate, up, down = (getattr(block.mlp, f"{name}_proj") for name in ("gate", "up", "down"))

    def added(module: Any) -> packed.Product2:
        weight, bias = module.weight, module.bias
        return lambda x, more: linear(x, weight, bias).add_(more)

    def product(module: Any) -> packed.Product:
        weight, bias = module.weight, module.bias
        return lambda x: linear(x, weight, bias)

    by_q, by_k, by_v, by_gate, by_up = map(product, (q, k, v, gate, up))
    return Weights(
        qkv=lambda x: torch.cat((by_q(x), by_k(x), by_v(x)), dim=-1),
        out=added(out),
        gated=lambda x: silu(by_gate(x)).mul_(by_up(x)),
        down=added(down),
    )


def _packed(block: Any) -> Weights:
    """The same over packed weights; query, key and value are one."""
    qkv = [getattr(block.self_attn, f"{name}_proj") for name in "qkv"]
    biases = [m.weight.new_zeros(len(m.weight)) if m.bias is None else m.bias for m in qkv]
    bias = torch.cat(biases) if any(m.bias is not None for m in qkv) else None
    out, mlp = block.self_attn.o_proj, block.mlp
    return Weights(
        qkv=packed.pack(torch.cat([m.weight for m in qkv]), bias),
        out=packed.pack_added(out.weight, out.bias),
        gated=packed.pack_gated(mlp.gate_proj.weight, mlp.up_proj.weight, mlp.gate_proj.bias, mlp.up_proj.bias),
        down=packed.pack_added(mlp.down_proj.weight, mlp.down_proj.bias),
    )
