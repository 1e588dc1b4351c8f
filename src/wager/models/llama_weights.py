"""The weights of a Llama-shaped model, read once: who has that shape, and how its products are run."""

import copy
import logging
import os
import weakref
from collections.abc import Iterator
from functools import partial
from operator import mul
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from wager.models import calibration, compat_torch, packed
from wager.models.llama_shape import FAMILIES, activation, configured, windows
from wager.models.norm import rms_norm
from wager.models.rope import rope_kinds
from wager.models.runner import TOLERANCE, apart

log = logging.getLogger("wager")

NUMBERS = (
    "scaling",
    "variance_epsilon",
    "eps",
    "attention_scaling",
    "use_rope",
)  # of modules, which their arithmetic goes by
LARGE = 50_000_000  # parameters from which on a model is compared by a few of its layers: all would take half a second
COMPARED = 8  # widest product of the output head that is compared, and the stride over its outputs
OPERATIONS = ("qkv", "out", "gated", "down")  # of a layer, each of which is run in a way of its own


def why_not(model: Any) -> str:
    """Why a model cannot be run by LlamaRunner; empty if it can."""
    return configured(model) or composed(model)


def composed(model: Any) -> str:
    """What its modules and weights say against it."""
    if len({(p.device, p.dtype) for p in model.parameters()}) != 1:
        return "its weights lie on several devices or have several dtypes"
    if any(type(p) is not torch.nn.Parameter for p in model.parameters()):
        return "its weights are quantized"
    if compat_torch.hooked_globally():
        return "every module has hooks"
    for name, module in model.named_modules():
        if "forward" in module.__dict__:
            return f"{name or 'the model'} has a forward of its own"
        if compat_torch.hooked(module):
            return f"{name or 'the model'} has hooks"
        if name.endswith(("_proj", "lm_head")) and type(module) is not torch.nn.Linear:
            return f"{name} is {type(module).__name__}, not Linear"
    return ""


class Products(NamedTuple):
    """One way to run a layer's products."""

    qkv: packed.Product
    out: packed.AddedProduct  # the residual is added
    gated: packed.Product  # silu(gate) * up
    down: packed.AddedProduct


class Layer:
    """What one layer's forward needs."""

    def __init__(self, block: Any, model: Any, window: int, kind: str) -> None:
        attn, mlp, of = block.self_attn, block.mlp, packed.Weight.of
        self.window, self.kind = window, kind  # tokens it sees, 0 for all; the rotary table it goes by
        self.eps, self.act, self.block = float(model.config.rms_norm_eps), activation(model.config), block
        self.gemma = FAMILIES[type(model).__name__].gemma
        weight = self._norm
        self.before = weight(block.input_layernorm)  # (hidden,) of the norm before attention
        second = getattr(block, "pre_feedforward_layernorm", None)  # where there is one, norms follow both parts too
        self.after = weight(second or block.post_attention_layernorm)  # (hidden,) of the norm before the MLP
        first = block.post_attention_layernorm if second else getattr(block, "post_self_attn_layernorm", None)
        last = getattr(block, "post_feedforward_layernorm", None) or getattr(block, "post_mlp_layernorm", None)
        self.normed = weight(first), weight(last)  # (hidden,) of what each part adds to the residual
        # (head,) of Qwen3's norm of each query and key
        self.q_norm, self.k_norm = (weight(getattr(attn, name, None)) for name in ("q_norm", "k_norm"))
        fused = getattr(attn, "qkv_proj", None)
        self.qkv = of(attn.q_proj, attn.k_proj, attn.v_proj) if fused is None else of(fused)
        self.out = of(attn.o_proj)
        self.gate: packed.Weight | None = None  # of experts, which run by themselves
        if (both := getattr(mlp, "gate_up_proj", None)) is not None and isinstance(both, torch.nn.Linear):
            self.gate, self.up = of(both).halves()
        elif hasattr(mlp, "gate_proj"):
            self.gate, self.up = of(mlp.gate_proj), of(mlp.up_proj)
        if self.gate is not None:
            self.down = of(mlp.down_proj)

    def _norm(self, norm: Any) -> Any:
        """The weights of a norm as it multiplies by them; None where there is no norm."""
        return None if norm is None else 1.0 + norm.weight.detach() if self.gemma else norm.weight

    @property
    def weights(self) -> list[packed.Weight]:
        """Of its products."""
        return [self.qkv, self.out, *((self.gate, self.up, self.down) if self.gate is not None else ())]

    def by(self, qkv: str, out: str, gated: str, down: str) -> Products:
        """The products run in these ways; weights that take packing are packed the first time."""
        attention = packed.product(self.qkv, qkv), self._added(self.out, out, self.normed[0])
        if self.gate is None:
            return Products(*attention, self._experts, lambda made, residual: made.add_(residual))
        gates = packed.gated(self.gate, self.up, gated, self.act)
        return Products(*attention, gates, self._added(self.down, down, self.normed[1]))

    def differences(self, by: Products, x: torch.Tensor) -> Iterator[float]:
        """How far these products are from plain ones, on (width, hidden)."""
        plain = self.by(*(packed.PLAIN,) * len(OPERATIONS))
        qkv = plain.qkv(x)
        yield _off(by.qkv(x), qkv)
        heads = qkv[:, : self.out.shape[1]].contiguous()
        pairs = [(by.out, plain.out, heads)]
        if self.gate is not None:
            gated = plain.gated(x)
            yield _off(by.gated(x), gated)
            pairs.append((by.down, plain.down, gated))
        for ours, theirs, given in pairs:  # the residual is as large as the product, so that neither hides the other
            residual = theirs(given, torch.zeros_like(x))
            yield _off(ours(given, residual), theirs(given, residual))

    def _added(self, weight: packed.Weight, way: str, norm: torch.Tensor | None) -> packed.AddedProduct:
        """A product that is added to the residual, after a norm where there is one."""
        if norm is None:
            return packed.added(weight, way)
        multiply = packed.product(weight, way)
        return lambda x, residual: rms_norm(multiply(x), norm, self.eps).add_(residual)

    def _experts(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's own module on (width, hidden)."""
        made = self.block.mlp(x[None])
        out: torch.Tensor = made[0] if isinstance(made, tuple) else made
        return out.reshape(x.shape)


class LlamaWeights:
    """A model's weights as LlamaRunner takes them; all that run the model share them."""

    def __init__(self, model: Any) -> None:
        body, head = model.model, model.lm_head
        self.device, self.dtype = model.device, model.dtype
        self.embed: torch.Tensor = body.embed_tokens.weight
        self.scale = model.config.hidden_size**0.5 if FAMILIES[type(model).__name__].gemma else 1.0  # of embeddings
        blocks = list(body.layers)[: model.config.num_hidden_layers]  # as transformers runs them
        layers = zip(blocks, windows(model.config, len(blocks)), rope_kinds(model), strict=False)
        self.layers = [Layer(block, model, window, kind) for block, window, kind in layers]
        self.kinds = list(dict.fromkeys((layer.kind, layer.window) for layer in self.layers))
        self.final = self.layers[0]._norm(body.norm)
        self.lm_head = packed.Weight.of(head)
        self.outline = outline(model)
        # Where packed copies could go stale.
        self.samples = Samples(model) if self.device.type == "cpu" else None
        self.nbytes = sum(p.numel() * p.element_size() for p in model.parameters())
        self.packed = False  # whether ``pack`` was called
        self.plan: calibration.Plan = {}  # empty: everything is plain
        self._products: dict[int, list[Products]] = {}  # width -> of every layer

    def current(self, model: Any, outlined: object = None) -> bool:
        """Whether they still are the model's; ``outlined``: its outline now, where that is known."""
        now = outline(model) if outlined is None else outlined
        return now == self.outline and (self.samples is None or self.samples.same())

    def of_layers(self, some: Any) -> "LlamaWeights":
        """The same weights for a model that has some of the layers."""
        shared, blocks = copy.copy(self), list(some.model.layers)
        shared.layers = [layer for layer in self.layers if any(layer.block is block for block in blocks)]
        shared._products = {}
        return shared

    def products(self, width: int) -> list[Products]:
        """Every layer's products for so many tokens; plain ones until weights are packed."""
        width = min(width, calibration.WIDTHS[-1]) if self.plan else 0
        if width not in self._products:
            ways = [calibration.way_at(self.plan.get(name), width) for name in OPERATIONS]
            self._products[width] = [layer.by(*ways) for layer in self.layers]
        return self._products[width]

    def pack(self) -> None:
        """Time the ways to run each product, or take what is remembered, and copy the weights that packed ones need.

        Where that fails, memory is short, or packed products differ from plain ones, all stay plain.
        """
        self.packed = True
        if not packed.usable(self.lm_head.parts[0][0]):
            return
        if not _fits(self.nbytes):
            log.warning("too little memory for packed weights: verifying several tokens will be slower")
            return
        try:
            self.plan = self._calibrated()
            wrong = [off for off in self._differences() if not off <= TOLERANCE[self.dtype]]
        except RuntimeError as error:
            log.warning("weights could not be packed (%s): verifying several tokens will be slower", error)
            self.unpack()
            return
        if wrong:
            log.warning("packed weights give products %.2g standard deviations off and are not used", wrong[0])
            self.unpack()

    @torch.inference_mode()
    def _differences(self) -> Iterator[float]:
        """How far packed products are from plain ones, each kernel at each width, on rows of the embedding; packs."""
        kinds = {tuple(weight.shape for weight in layer.weights): at for at, layer in enumerate(self.layers)}
        for width in calibration.WIDTHS:
            made, way = self.products(width), calibration.way_at(self.plan["lm_head"], width)
            x = functional.rms_norm(self.embed[torch.arange(width) % len(self.embed)], self.final.shape, eps=1e-6)
            for at in kinds.values():
                yield from self.layers[at].differences(made[at], x)
            multiply = packed.product(self.lm_head, way)
            if way != packed.PLAIN and width <= COMPARED:  # the head may be a fifth of a model: some outputs will do
                yield _off(multiply(x)[:, ::COMPARED], packed.product(self.lm_head.every(COMPARED))(x))

    def unpack(self) -> None:
        """Go back to plain products, and give back the memory of the copies."""
        self.plan, self._products = {}, {}
        for weight in (self.lm_head, *(weight for layer in self.layers for weight in layer.weights)):
            weight.unpack()

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """The output head on (n, hidden)."""
        return packed.product(self.lm_head, calibration.way_at(self.plan.get("lm_head"), len(x)))(x)

    def _calibrated(self) -> calibration.Plan:
        """The fastest way of each operation, timed on some rows of one layer and of the output head."""
        layer, ways_of = self.layers[len(self.layers) // 2], calibration.ways_of
        if layer.gate is None:  # experts run by themselves
            some = {"qkv": layer.qkv, "out": layer.out, "lm_head": self.lm_head}
            made = {
                name: ways_of(partial(packed.product, by := w.sample(calibration.SAMPLE)), by)
                for name, w in some.items()
            }
            return calibration.calibrated({name: weight.shape for name, weight in some.items()}, made)
        whole = {"qkv": layer.qkv, "out": layer.out, "gated": layer.gate, "down": layer.down, "lm_head": self.lm_head}
        qkv, out, gate, down, head = (weight.sample(calibration.SAMPLE) for weight in whole.values())
        up = layer.up.sample(calibration.SAMPLE)
        operations = {
            "qkv": ways_of(partial(packed.product, qkv), qkv),
            "out": ways_of(partial(packed.added, out), out, fused=True, residual=True),
            "gated": ways_of(partial(packed.gated, gate, up, act=layer.act), gate, fused=True),
            "down": ways_of(partial(packed.added, down), down, fused=True, residual=True),
            "lm_head": ways_of(partial(packed.product, head), head),
        }
        return calibration.calibrated({name: weight.shape for name, weight in whole.items()}, operations)


def _off(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """``apart``, also of products that are 0 throughout."""
    return 0.0 if torch.equal(ours, theirs) else apart(ours, theirs)


ROW = 2  # numbers of a row of the output head that tell whether it was written, at least
OTHER = 16  # and of any other weight, at most
_KNOWN: weakref.WeakKeyDictionary[Any, LlamaWeights] = weakref.WeakKeyDictionary()


def llama_weights(model: Any, outlined: object = None) -> LlamaWeights:
    """The model's weights, read and packed once for as long as they stay what they are; ``outlined``: its outline now,
    where that is known."""
    known = _KNOWN.get(model)
    if known is None or not known.current(model, outlined):  # it was trained, merged or moved: copies are stale
        known = _KNOWN[model] = LlamaWeights(model)
    return known


def outline(model: Any) -> tuple[object, ...]:
    """Changes whenever a module, its forward, a hook, a weight or a buffer does, unless written through ``.data``."""
    config = model.config  # which transformers reads in every forward
    read = getattr(config, "num_hidden_layers", 0), getattr(config, "sliding_window", None), *_activations(config)
    return (compat_torch.hooked_globally(), *read, *compat_torch.traits(model, NUMBERS))


def _activations(config: Any) -> tuple[object, object]:
    return getattr(config, "hidden_activation", None), getattr(config, "hidden_act", None)


class Samples:
    """Some numbers of every weight, to notice what is written through ``.data``, which leaves address and version as
    they are; of every row of the output head, where people write those of tokens they add."""

    def __init__(self, model: Any) -> None:
        head = model.lm_head.weight.detach()
        step = max(1, (head.shape[1] - 1) // ROW)
        self.rows = head.view(-1)[::step] if head.is_contiguous() else head[:, ::step]
        others = (weight for weight in model.parameters() if weight is not model.lm_head.weight)
        self.others = [_diagonal(weight.detach()) for weight in others]
        self.known = self.rows.clone(), torch.cat(self.others)

    def same(self) -> bool:
        """Whether they are what they were, if the weights are still where they were."""
        rows, others = self.known  # apart: to join many short ones with a long one takes ten times as long
        return torch.equal(self.rows, rows) and torch.equal(torch.cat(self.others), others)


def _diagonal(weight: torch.Tensor) -> torch.Tensor:
    """A view of some numbers of a weight, in one dimension: from its first to about its last row and column at once."""
    count = min(OTHER, *weight.shape)
    steps = ((size - 1) // max(1, count - 1) for size in weight.shape)
    return weight.as_strided((count,), (sum(map(mul, steps, weight.stride())),), weight.storage_offset())


def sample_of(model: Any) -> Any | None:
    """The model with a few of its layers, the first and the last among them, which all others are like."""
    # A large model's forward takes seconds, so it is compared on these. None where it is small, or its layers differ.
    layers = list(model.model.layers)
    small = sum(p.numel() for p in model.parameters()) <= LARGE or len(layers) <= 3
    if small or len(set(windows(model.config, 1))) > 1 or any(_kind(layer) != _kind(layers[0]) for layer in layers):
        return None
    some = torch.nn.ModuleList([layers[0], layers[len(layers) // 2], layers[-1]])
    return compat_torch.with_children(model, model=compat_torch.with_children(model.model, layers=some))


def _kind(layer: Any) -> list[object]:
    """Of what modules and numbers a layer is made."""
    return [(type(m), *(m.__dict__.get(name) for name in NUMBERS)) for m in layer.modules()]


def _fits(nbytes: int) -> bool:
    """Whether a copy of so many bytes of weights leaves as much memory again free; where nobody can say, it does."""
    try:
        pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return True
    return 2 * nbytes < pages
