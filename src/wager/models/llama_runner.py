"""The forward of Llama-shaped models with nothing in it but the arithmetic.

With one stream, transformers spends a good part of its time on small operations and Python. This is the same arithmetic
over the model's own weights: a preallocated cache that is cropped by setting a number, rotary tables made once, one
product for query, key and value. It runs on the CPU here; ``cuda_graph_runner`` captures it on CUDA.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.functional import embedding

from wager.models import rope
from wager.models.attention import attend, mask, rotate, within
from wager.models.llama_shape import FAMILIES, head_size
from wager.models.llama_weights import Layer, LlamaWeights, llama_weights
from wager.models.norm import rms_norm
from wager.models.runner import Runner, ancestry, check_layers, seen


class View(NamedTuple):
    """What layers of one kind see and how they rotate, in one forward."""

    cos: torch.Tensor  # (width, heads + 2 kv heads, head)
    sin: torch.Tensor
    partners: torch.Tensor | None  # (head,), as ``rotate`` takes them
    first: int  # the first token that any of the new ones sees
    unseen: torch.Tensor | None  # (width, tokens from the first on), added to the scores


class LlamaRunner(Runner):
    """Runs a Llama-shaped model on the CPU over a preallocated cache."""

    trees = True

    def __init__(self, model: Any, weights: LlamaWeights | None = None) -> None:
        super().__init__(model)
        config = model.config
        self.model = model
        self.dtype: torch.dtype = model.dtype
        self.eps = config.rms_norm_eps
        self.heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head = head_size(config)
        # Scaling queries beforehand is exact in any dtype if it is by a power of two.
        scale = float(model.model.layers[0].self_attn.scaling)
        self.interleaved = FAMILIES[type(model).__name__].interleaved
        self.ahead = scale if math.log2(scale).is_integer() or model.dtype == torch.float32 else 1.0
        self.after = scale / self.ahead
        self.outline: object = None  # of the model when it was found fit for this
        self.capacity = 0
        self.cache = torch.empty(0)  # (layers, 2 kv heads, capacity, head), keys then values
        self.weights = weights or llama_weights(model)

    def restart(self) -> None:
        self.length = 0

    def begin(self) -> None:
        self.length = 0
        weights = llama_weights(self.model)
        if weights is not self.weights:
            self.weights = weights
            self.device, self.dtype, self.capacity = weights.device, weights.dtype, 0

    def crop(self, length: int) -> None:
        self.length = length

    def pack(self) -> None:
        if not self.weights.packed:
            self.weights.pack()

    def _reserve(self, tokens: int) -> None:
        """Room for so many tokens; growing copies the cache, at most once per doubling."""
        if tokens <= self.capacity:
            return
        capacity = max(256, 1 << (tokens - 1).bit_length())
        shape = (len(self.weights.layers), 2 * self.num_kv_heads, capacity, self.head)
        grown = torch.empty(shape, dtype=self.dtype, device=self.device)
        if self.length:
            grown[:, :, : self.length] = self.cache[:, :, : self.length]
        self.cache = grown
        self._rope_tables(capacity)
        self._widen(capacity, self.dtype)
        self.capacity = capacity  # last: where memory runs out in between, the next text tries again

    def _rope_tables(self, capacity: int) -> None:
        """Rotary tables for so many tokens."""
        rotary, how = self.model.model.rotary_emb, (self.head, self.interleaved)
        kinds = dict.fromkeys(kind for kind, _ in self.weights.kinds)
        self.tables = {kind: rope.tables(rotary, kind, capacity, self.embed, *how) for kind in kinds}
        self.partners = {kind: rope.partners(rotary, kind, self.embed, *how) for kind in kinds}
        self.cos, self.sin = next(iter(self.tables.values()))

    def _move(self, places: list[int], to: int) -> None:
        end, at = to + len(places), torch.tensor(places, device=self.device)
        self.cache[:, :, to:end] = self.cache.index_select(2, at)
        self._move_watched(at, to)

    @torch.inference_mode()
    def watch(self, layers: Sequence[int] = ()) -> None:
        new = set(layers) - self.states.keys()
        check_layers(new, len(self.weights.layers))
        if not new and (layers or self.watched):
            return
        self.watched = self.watched or not layers
        self.states |= {layer: torch.empty(0) for layer in sorted(new)}
        self._widen(self.capacity, self.dtype)

    @property
    def ways(self) -> dict[str, list[str]]:
        return self.weights.plan

    @property
    def embed(self) -> torch.Tensor:
        return self.weights.embed

    @torch.inference_mode()
    def project(self, x: torch.Tensor) -> torch.Tensor:
        return self.weights.logits(x)

    @torch.inference_mode()
    def forward(self, tokens: Sequence[int], keep: int, parents: Sequence[int] | None = None) -> torch.Tensor:
        width, start = len(tokens), self.length
        end = start + width
        self._reserve(end)
        weights = self.weights
        views = self._views(width, parents)
        x = embedding(torch.tensor(tokens, device=self.device), weights.embed)
        x = x if weights.scale == 1.0 else x * weights.scale
        layers = zip(weights.layers, weights.products(width), self.cache, strict=True)
        for index, (layer, by, cache) in enumerate(layers):
            if index in self.states:
                self.states[index][start:end] = x
            qkv = by.qkv(rms_norm(x, layer.before, self.eps))
            x = by.out(self._attend(qkv, layer, cache, views[layer.kind, layer.window]), x)
            x = by.down(by.gated(rms_norm(x, layer.after, self.eps)), x)
        self.before, self.length = start, end
        if len(weights.layers) in self.states:
            self.states[len(weights.layers)][start:end] = x
        x = rms_norm(x if self.watched else x[-keep:], weights.final, self.eps)
        if self.watched:
            self.features[start:end] = x
        return weights.logits(x[-keep:])

    def _views(self, width: int, parents: Sequence[int] | None) -> dict[tuple[str, int], View]:
        """What each kind of layer needs for so many tokens after those in the cache."""
        start, end = self.length, self.length + width
        at: Any = slice(start, end)
        if parents is None:
            unseen = mask(self.cos, width, start)
        else:
            depths, words = ancestry(parents)
            at = torch.tensor(depths, device=self.device) + start
            unseen = mask(self.cos, width, start, seen(words, self.device))
        ropes = {kind: self._rope(*(table[at] for table in pair)) for kind, pair in self.tables.items()}
        views: dict[tuple[str, int], View] = {}
        for kind, window in self.weights.kinds:
            first, masked = max(0, start - window + 1) if window else 0, unseen
            if window and end > window:
                positions = torch.arange(first, end, device=self.device)
                if parents is not None:
                    positions[-width:] = at
                masked = within(unseen, positions, width, window)
            views[kind, window] = View(*ropes[kind], self.partners[kind], first, masked)
        return views

    def _rope(self, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The rotation of every head, (width, heads + 2 kv heads, head), so that one step serves a whole layer."""
        # Queries are scaled by it too, and values stand still.
        queries, keys = (-1, self.heads, -1), (-1, self.num_kv_heads, -1)
        tables = (cos, torch.ones_like(cos)), (sin, torch.zeros_like(sin))
        whole = [((by * self.ahead).expand(queries), by.expand(keys), still.expand(keys)) for by, still in tables]
        return torch.cat(whole[0], dim=1), torch.cat(whole[1], dim=1)

    def _attend(
        self,
        qkv: torch.Tensor,  # (width, (heads + 2 kv heads) * head)
        layer: Layer,
        cache: torch.Tensor,  # (2 kv heads, capacity, head), keys then values
        view: View,
    ) -> torch.Tensor:
        width, start, end = len(qkv), self.length, self.length + len(qkv)
        heads, num_kv_heads, head = self.heads, self.num_kv_heads, self.head
        qkv = qkv.view(width, heads + 2 * num_kv_heads, head)
        if layer.q_norm is not None and layer.k_norm is not None:
            q_normed = rms_norm(qkv[:, :heads], layer.q_norm, self.eps)
            k_normed = rms_norm(qkv[:, heads : heads + num_kv_heads], layer.k_norm, self.eps)
            qkv = torch.cat((q_normed, k_normed, qkv[:, heads + num_kv_heads :]), dim=1)
        qkv = rotate(qkv, view.cos, view.sin, view.partners)
        cache[:, start:end] = qkv[:, heads:].transpose(0, 1)
        seen = cache[:, view.first : end]
        keys, values = seen[:num_kv_heads], seen[num_kv_heads:]  # (num_kv_heads, tokens, head)
        return attend(qkv[:, :heads].transpose(0, 1), keys, values, view.unseen, self.after)
