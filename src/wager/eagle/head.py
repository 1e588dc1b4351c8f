"""An EAGLE head: one decoder layer that goes on from the target's own features.

Entry p joins the target's feature at token p with token p + 1, and gives what the head takes for the feature at p + 1:

    x = fc(embed(token), feature);  r = x + attention(x);  out = r + mlp(rmsnorm(r))

The target's output head makes logits of token p + 2 from it, and with the token chosen it is the next entry's feature.
The arithmetic is vLLM's, so a head is the same drafter there and here. EAGLE-3 heads are in ``eagle3_head``.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import embedding, silu

from wager.core.require import require
from wager.eagle.checkpoint import EMBED, Checkpoint, read
from wager.eagle.pruned_lm_head import PrunedLMHead, pruned_lm_head
from wager.eagle.tree import Chain, DraftTree, GumbelNoise, choose, grow
from wager.models import compat_transformers
from wager.models.attention import attend, mask, rope_tables, rotate
from wager.models.calibration import CalibratedProduct, of_products
from wager.models.fingerprint import agree, fingerprint
from wager.models.llama_shape import head_size
from wager.models.norm import rms_norm
from wager.models.packed import Weight
from wager.models.runner import CHUNK, Runner

SINKS = 4  # first entries that a bounded cache keeps: attention rests on them (StreamingLLM)

Shape = tuple[int, int]  # of a draft: its depth, and its breadth as a tree; 0: a chain


class Head:
    """One head over a cache of its own entries.

    ``length`` counts the entries of the text; what is drafted is put after them, and ``crop`` takes it out again. With
    a ``window`` the cache holds the first few and at least the last so many entries.
    """

    captures = False  # whether drafts are replayed from graphs, so that a whole chain costs little more than a token
    fused = False  # whether kernels are used
    by: Mapping[str, CalibratedProduct]  # its products by name
    last = torch.empty(0)  # (1, hidden), of captured readings: the last entry's output

    q_norm: Tensor | None = None  # (head size,) of a norm of every query
    k_norm: Tensor | None = None

    def __init__(self, head: str | Path | Checkpoint, *, window: int = 0) -> None:
        require(window >= 0, f"a window has 1 entry or more, or is 0 for all of them, not {window}")
        self.file = head if isinstance(head, Checkpoint) else read(head)
        self.window = window
        config = self.file.config
        self.hidden, self.vocabulary, self.eps = config.hidden_size, config.vocab_size, config.rms_norm_eps
        self.heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.size = head_size(config)
        self.scale = self.size**-0.5
        self.pruned: PrunedLMHead | None = None  # the target's output head for frequent tokens
        self.embed = torch.empty(0)  # (vocabulary, hidden), the target's or its own
        self.cache = torch.empty(0)  # (2 kv heads, capacity, head size), keys then values
        self.cos = self.sin = torch.empty(0)  # (positions, 1, head size)
        self.outs = torch.empty(0)  # (width, hidden), of the entries read last, CHUNK at most; a buffer
        self.target: Runner | None = None
        self.shown = 0  # address of the target's embedding
        self.begin()

    @property
    def given(self) -> int:
        """Numbers in what it reads of the target at a token."""
        return int(self.hidden)

    def follow(self, target: Runner) -> None:
        """Draft for this target from now on; ValueError where the head was made for another."""
        embed = target.embed.detach()
        if target is self.target and embed.data_ptr() == self.shown:
            return
        self.check(target)
        self._watch(target)
        if self.target is None or (self.embed.dtype, self.embed.device) != (embed.dtype, embed.device):
            self._place(embed.device, embed.dtype)
        self.target, self.embed, self.shown = target, self._embedding(embed), embed.data_ptr()
        self.pruned = self._output(target)
        self.begin()

    def _watch(self, target: Runner) -> None:
        target.watch()

    def _embedding(self, embed: Tensor) -> Tensor:
        """Its own embedding, or the target's where it has none or the same."""
        own = self.file.tensors.get(EMBED)
        if own is None:
            return embed
        own = own.to(embed.device, embed.dtype)
        if own.shape == embed.shape and torch.equal(own, embed):
            self.file.tensors[EMBED] = embed  # so that it is in memory once
            return embed
        return own

    def _output(self, target: Runner) -> PrunedLMHead | None:
        """An LM head for the tokens it drafts; None: the target's, for all."""
        # On a GPU the whole output head costs some microseconds, and pruning it some of the accepted tokens.
        frequent = None if self.embed.is_cuda else self.file.frequent
        return None if frequent is None else pruned_lm_head(target, frequent)

    def warm(self, shapes: Iterable[Shape]) -> None:
        """Prepare drafts of these shapes; nothing is to be done here."""

    def check(self, target: Runner) -> None:
        """Refuse a target that the head was not made for."""
        where = f"the head in {self.file.folder}"
        for what, ours, theirs in self._sizes(target):
            if ours != theirs:
                raise ValueError(f"{where} has {what} {ours:,} and the target {theirs:,}; take one made for it")
        mark, model = self.file.notes.get("target_fingerprint"), getattr(target, "model", None)
        if mark and model is not None and not agree(mark, fingerprint(model)):
            name = self.file.notes.get("target") or "another model"
            raise ValueError(f"{where} was trained for {name}, and the target has other weights; take one made for it")

    def _sizes(self, target: Runner) -> Sequence[tuple[str, int, int]]:
        """In what the head and the target have to agree, of what size it is here and of what size there."""
        return (
            ("hidden size", self.hidden, target.hidden),
            ("embeddings of size", self.hidden, target.embed.shape[1]),
            ("a vocabulary of", self.vocabulary, target.vocabulary),
        )

    def _place(self, device: torch.device, dtype: torch.dtype) -> None:
        """The weights as the forward takes them."""
        tensors = self.file.tensors

        def of(*names: str) -> Tensor:
            parts = [tensors[f"{name}.weight"].to(device, dtype) for name in names]
            return torch.cat(parts) if len(parts) > 1 else parts[0].contiguous()

        def bias(*names: str) -> Tensor | None:
            if not any(f"{name}.bias" in tensors for name in names):
                return None
            rows = [torch.zeros(len(tensors[f"{name}.weight"])) for name in names]
            found = [tensors.get(f"{name}.bias", row) for name, row in zip(names, rows, strict=True)]
            return torch.cat(found).to(device, dtype)

        attention = [f"layers.0.self_attn.{name}_proj" for name in "qkv"]
        self.fc, self.fc_bias = of("fc"), bias("fc")
        self.qkv, self.qkv_bias = of(*attention), bias(*attention)
        self.out, self.out_bias = of("layers.0.self_attn.o_proj"), bias("layers.0.self_attn.o_proj")
        self.gate_up = of("layers.0.mlp.gate_proj", "layers.0.mlp.up_proj")
        self.down = of("layers.0.mlp.down_proj")
        self.norm = of("layers.0.post_attention_layernorm")
        weights = {"fc": (self.fc, self.fc_bias), "qkv": (self.qkv, self.qkv_bias), "out": (self.out, self.out_bias)}
        weights |= {"gate_up": (self.gate_up, None), "down": (self.down, None)}
        made = of_products({f"head {name}": Weight(weight) for name, weight in weights.items()})
        self.by = dict(zip(weights, made.values(), strict=True))
        self.nothing = torch.zeros((1, 1, 1), device=device, dtype=dtype)
        self.capacity = self.positions = 0

    def begin(self) -> None:
        """A new text: no entries."""
        self.length = 0  # entries of the text, or of the text and a chain
        self.gone = 0  # entries after the first few that the cache does not hold
        self.slots = 0  # entries in the cache

    def crop(self, length: int) -> None:
        """Take out every entry after the first ``length``, all of a tree's among them."""
        assert not self.gone or length >= self.gone + SINKS, "what was let go does not come back"
        self.length, self.slots = length, length - self.gone

    def spans(self, end: int) -> list[tuple[int, int]]:
        """Which entries are to be read, from and to, so that those up to ``end`` are known."""
        if not self.window or end - self.length <= self.window:
            return [(self.length, end)] if end > self.length else []
        first = [(self.length, SINKS)] if self.length < SINKS else []
        return [*first, (max(SINKS, end - self.window), end)]

    def _reserve(self, width: int, positions: int) -> None:
        """Room for so many entries more, and rotary tables that far; growing copies the cache, once per doubling."""
        if self.slots + width > self.capacity:
            capacity = max(256, 1 << (self.slots + width - 1).bit_length())
            shape = (2 * self.num_kv_heads, capacity, self.size)
            grown = torch.zeros(shape, dtype=self.fc.dtype, device=self.fc.device)
            if self.slots:
                grown[:, : self.slots] = self.cache[:, : self.slots]
            self.cache, self.capacity = grown, capacity
        if positions > self.positions:
            self.positions = max(256, 1 << (positions - 1).bit_length())
            rotary = compat_transformers.llama_rotary(self.file.config, self.fc.device)
            self.cos, self.sin = rope_tables(rotary, self.positions, self.fc)

    def _let_go(self) -> None:
        """Forget entries between the first few and the window, once there are as many of them as the window has."""
        kept = SINKS + self.window
        if not self.window or self.slots < kept + self.window:
            return
        self.cache[:, SINKS:kept] = self.cache[:, self.slots - self.window : self.slots].clone()
        self.gone += self.slots - kept
        self.slots = kept

    def features_of(self, target: Runner, start: int, end: int) -> Tensor:
        """What it reads of the target at these tokens, (tokens, given)."""
        return target.features[start:end]

    def entering(self, features: Tensor) -> Tensor:
        """Of what was read of the target, (width, given), the features of entries, (width, hidden)."""
        return features

    @torch.inference_mode()
    def read(self, tokens: Sequence[int], features: Tensor, start: int) -> Tensor:
        """Entries of the text from ``start`` on, tokens and what was read of the target; the last one's output."""
        if start > self.length:  # the entries between are left out
            self.slots = min(self.slots, SINKS)
            self.gone, self.length = start - self.slots, start
        ids = torch.tensor(tokens, device=self.fc.device)
        for at in range(0, len(tokens), CHUNK):
            out = self.forward(ids[at : at + CHUNK], self.entering(features[at : at + CHUNK]))
            self._let_go()
        self.outs = out
        return out[-1:]

    @torch.inference_mode()
    def forward(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Entries one after the other: (width,) tokens and (width, hidden) features to (width, hidden) outputs."""
        width, start, slots = len(tokens), self.length, self.slots
        self._reserve(width, start + width)
        rope = self.cos[start : start + width], self.sin[start : start + width]
        self.length, self.slots = start + width, slots + width
        unseen = mask(self.fc, width, slots)
        return self._layer(tokens, features, slice(slots, self.slots), self.slots, rope, unseen)

    @torch.inference_mode()
    def branch(self, tokens: Tensor, features: Tensor, depth: int, seen: Tensor) -> Tensor:
        """Nodes of a tree at one depth, 1 or more, after the text's entries and those of the tree's earlier depths.

        ``seen``, (width, tree entries and width), says which of the tree's entries each sees: its ancestors and itself.
        """
        width, position = len(tokens), self.length - 1 + depth
        self._reserve(width, position + 1)
        rope = self.cos[position : position + 1], self.sin[position : position + 1]
        start, self.slots = self.slots, self.slots + width
        unseen = mask(self.fc, width, self.slots - seen.shape[1], seen)
        return self._layer(tokens, features, slice(start, self.slots), self.slots, rope, unseen)

    def logits(self, out: Tensor) -> Tensor:
        """Logits of the tokens after entries, (width, vocabulary), or (width, pruned) of the frequent ones alone."""
        if self.pruned is not None:
            return self.pruned(out)
        assert self.target is not None
        return self.target.project(out)

    def named(self, columns: Tensor) -> Tensor:
        """The tokens that columns of the logits stand for."""
        return columns if self.pruned is None else self.pruned.ids[columns]

    def spread(self, logits: Tensor) -> Tensor:
        """Logits (..., columns) over the whole vocabulary; a token that is not drafted has no chance."""
        if self.pruned is None:
            return logits
        # Not minus infinity: a processor that forbids all frequent tokens still has to leave a distribution.
        whole = logits.new_full((*logits.shape[:-1], self.vocabulary), -1e4)
        return whole.index_copy_(-1, self.pruned.ids, logits)

    def gumbel(self, noise: Tensor, temperature: float) -> GumbelNoise:
        """Noise over the whole vocabulary, (levels, vocabulary), as drafting takes it."""
        rows = noise if self.pruned is None else noise[:, self.pruned.ids]
        return GumbelNoise(rows, rows.new_full((), temperature))

    def likeliest(
        self, out: Tensor, count: int, level: int = 0, gumbel: GumbelNoise | None = None
    ) -> tuple[Tensor, Tensor]:
        """The likeliest tokens, with noise by perturbed scores: log-probabilities and columns, (width, count) each."""
        logits = self.logits(out)
        return self._top(logits if gumbel is None else gumbel.perturb(logits, level), count)

    def _top(self, scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
        top = torch.log_softmax(scores.float(), -1).topk(count)
        return top.values, top.indices

    def best(self, paths: Tensor, tokens: Tensor, breadth: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of a level's nodes, (breadth * breadth,), as many as the breadth, those with the likeliest paths."""
        # Where they are among all, after which of the level before, their tokens, and how likely their paths are.
        top = paths.topk(breadth)
        return top.indices, top.indices // breadth, tokens[top.indices], top.values

    @torch.inference_mode()
    def chain(self, out: Tensor, length: int, gumbel: GumbelNoise | None = None) -> Chain:
        """The likeliest token after an entry, perturbed if noise is given, the likeliest after it, …; not read back."""
        tokens: list[Tensor] = []
        logits: list[Tensor] = []
        for at in range(length):
            logits.append(self.logits(out))
            scores = logits[-1] if gumbel is None else gumbel.perturb(logits[-1], at)
            tokens.append(self.named(scores.argmax(-1)))
            if at + 1 < length:
                out = self.forward(tokens[-1], out)
        return Chain(torch.cat(tokens), logits)

    def tree(self, out: Tensor, depth: int, breadth: int, nodes: int, gumbel: GumbelNoise | None = None) -> DraftTree:
        """A tree of tokens after an entry (see ``tree``), read back at once."""
        breadth = self._breadth(breadth)
        grown = grow(self, out, depth, breadth, gumbel)
        return choose(grown.packed().cpu().numpy(), depth, depth, breadth, nodes)._replace(outs=grown.outs)

    def _breadth(self, wanted: int) -> int:
        """No broader than there are tokens to draft."""
        return min(wanted, self.vocabulary if self.pruned is None else len(self.pruned.ids))

    def _layer(
        self,
        tokens: Tensor,  # (width,)
        features: Tensor,  # (width, hidden)
        at: slice | Tensor,  # slots of the new entries
        end: int,  # slots that are looked at
        rope: tuple[Tensor, Tensor],  # (width or 1, 1, head size) each
        unseen: Tensor | None,  # (width, end), added to the scores; None: everything is seen
    ) -> Tensor:
        x = self.by["fc"](torch.cat((embedding(tokens, self.embed), features), dim=-1))
        return self._mlp(self._attention(x, at, end, rope, unseen).add_(x))

    def _attention(
        self, x: Tensor, at: slice | Tensor, end: int, rope: tuple[Tensor, Tensor], unseen: Tensor | None
    ) -> Tensor:
        heads, num_kv_heads = self.heads, self.num_kv_heads
        qkv = self.by["qkv"](x).view(len(x), -1, self.size)  # (width, heads + 2 kv heads, head size)
        if self.q_norm is not None and self.k_norm is not None:
            q, k, v = torch.split(qkv, [heads, num_kv_heads, num_kv_heads], dim=1)
            q = rms_norm(q, self.q_norm, self.eps)
            qkv = torch.cat((q, rms_norm(k, self.k_norm, self.eps), v), dim=1)
        rotated = rotate(qkv[:, : heads + num_kv_heads], *rope)
        fresh = torch.cat((rotated[:, heads:], qkv[:, heads + num_kv_heads :]), dim=1).transpose(0, 1)
        if isinstance(at, slice):
            self.cache[:, at] = fresh
        else:
            self.cache.index_copy_(1, at, fresh)
        keys, values = self.cache[:num_kv_heads, :end], self.cache[num_kv_heads:, :end]  # (kv heads, end, head size)
        mixed = attend(rotated[:, :heads].transpose(0, 1), keys, values, unseen, self.scale)
        return self.by["out"](mixed)

    def _mlp(self, r: Tensor) -> Tensor:
        gate, up = self.by["gate_up"](rms_norm(r, self.norm, self.eps)).chunk(2, dim=-1)
        return self.by["down"](silu(gate).mul_(up)).add_(r)

    @property
    def memory(self) -> int:
        """Bytes of its weights and its cache; a pruned LM head counts, though heads with the same tokens share it."""
        if self.target is None:
            return sum(tensor.nbytes for tensor in self.file.tensors.values())
        held = [self.fc, self.qkv, self.out, self.gate_up, self.down, self.norm, self.cache, self.cos, self.sin]
        copies = sum(product.nbytes for product in self.by.values())
        own = self.embed.nbytes if self.embed.data_ptr() != self.shown else 0
        return sum(tensor.nbytes for tensor in held) + copies + own + (0 if self.pruned is None else self.pruned.memory)
