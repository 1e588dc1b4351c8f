"""What a head drafts at every position of a finished text, all positions at once: chains and trees, for recordings.

Decoding drafts at one position, over a cache. Here the entries of the text are the cache of all positions: a draft
that begins after entry e sees those up to e and its own nodes. The arithmetic is the head's (``Head``, ``tree.grow``).
"""

import copy
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, silu

from wager.eagle.head import Head
from wager.models.attention import rotate


class Level(NamedTuple):
    """The nodes of one depth, (positions, nodes) each."""

    tokens: Tensor
    paths: Tensor  # log-probability of the path up to the node
    parents: Tensor  # within the level before; zeros in the first


class Nodes(NamedTuple):
    """Keys and values of the nodes on the path to each of (positions, nodes): (..., depth, kv heads, head size)."""

    keys: Tensor
    values: Tensor


class Everywhere:
    """A head over a text and its target's features; it drafts after each of the entries from ``first`` on."""

    @torch.inference_mode()
    def __init__(
        self, head: Head, text: Sequence[int], first: int, count: int, deepest: int, features: Tensor | None = None
    ) -> None:
        assert head.target is not None, "the head follows no target"
        self.head, self.first, self.end = head, first, first + count
        device = head.fc.device
        features = (head.target.features if features is None else features)[: self.end]
        self.at = torch.arange(first, self.end, device=device)  # the last entry of each position
        head._reserve(0, self.end + deepest)
        self.x = self._joined(torch.tensor(text[1 : self.end + 1], device=device), features)  # (entries, hidden)
        everywhere = torch.arange(self.end, device=device)
        self.true = self._keys(self.x[None], everywhere[None, :, None])  # (1, entries, kv heads, head size) each
        self.unseen = everywhere > self.at[:, None]  # (positions, entries)
        self.out = self._layer(self.x[first:, None], self.at[:, None], None)[:, 0]  # (positions, hidden)

    @torch.inference_mode()
    def grow(self, depth: int, breadth: int, noise: Tensor | None = None, temperature: float = 1.0) -> Iterator[Level]:
        """Trees as ``tree.grow`` grows them, level by level; of breadth 1: chains.

        ``noise``, (positions and depth, vocabulary), is what a sampled target adds: row p + s belongs to the token
        that draft step s makes at position p, and the head's logits are divided by ``temperature``.
        """
        breadth = self.head._breadth(breadth)
        positions = len(self.at)
        made, scores = self.out[:, None], torch.zeros(positions, 1, device=self.out.device)
        nodes: Nodes | None = None
        expanded = self.at[:, None]  # of the level before; set before it is looked at
        for level in range(depth):
            logp, columns = self._likeliest(made, level, breadth, noise, temperature)  # (positions, nodes, breadth)
            paths = (scores[..., None] + logp).flatten(1)
            tokens = self.head.named(columns).flatten(1)
            width = made.shape[1]
            above = torch.arange(width, device=paths.device).repeat_interleave(breadth).expand(positions, -1)
            # Nodes that were expanded stand within the level before at the places that were best.
            yield Level(tokens, paths, above if level < 2 else expanded.gather(1, above))
            if level + 1 == depth:
                return
            best = torch.arange(breadth, device=paths.device).expand(positions, -1)
            if level:
                best = paths.topk(breadth).indices
            expanded, parent = best, above.gather(1, best)
            scores = paths.gather(1, best)
            features = made.gather(1, parent[..., None].expand(-1, -1, made.shape[-1]))
            made, nodes = self._branch(tokens.gather(1, best), features, level + 1, nodes, parent)

    @torch.inference_mode()
    def agreed(self, coming: Tensor, noise: Tensor | None = None, temperature: float = 1.0) -> Tensor:
        """(positions,): leading tokens of each chain that are those coming, (positions, depth); -1 is none.

        As ``accepted_chain`` of ``grow``; a chain is drafted only as far as it agrees.
        """
        count = torch.zeros(len(coming), dtype=torch.long, device=coming.device)
        here, every = torch.arange(len(coming), device=coming.device), self
        made, nodes = self.out[:, None], None
        for level in range(coming.shape[1]):
            columns = every._likeliest(made, level, 1, noise, temperature)[1]
            tokens = self.head.named(columns).flatten(1)
            right = tokens[:, 0] == coming[here, level]
            here, tokens, made = here[right], tokens[right], made[right]
            count[here] += 1
            if level + 1 == coming.shape[1] or not len(here):
                break
            every = every._only(right)
            nodes = nodes if nodes is None else Nodes(nodes.keys[right], nodes.values[right])
            made, nodes = every._branch(tokens, made, level + 1, nodes, torch.zeros_like(tokens))
        return count

    def _only(self, stay: Tensor) -> "Everywhere":
        """The positions of these rows alone."""
        one = copy.copy(self)
        one.at, one.unseen = self.at[stay], self.unseen[stay]
        return one

    def _likeliest(
        self, made: Tensor, level: int, count: int, noise: Tensor | None, temperature: float
    ) -> tuple[Tensor, Tensor]:
        logits = self.head.logits(made.flatten(0, 1)).view(*made.shape[:2], -1)
        if noise is not None:
            rows = noise[self.at - self.first + level]
            rows = rows if self.head.pruned is None else rows[:, self.head.pruned.ids]
            logits = logits.float() / temperature + rows[:, None, : logits.shape[-1]]
        top = torch.log_softmax(logits.float(), -1).topk(count)
        return top.values, top.indices

    def first_logits(self) -> Tensor:
        """The logits of the first drafted token at every position, over the whole vocabulary."""
        return self.head.spread(self.head.logits(self.out))

    def _branch(
        self, tokens: Tensor, features: Tensor, level: int, before: Nodes | None, parent: Tensor
    ) -> tuple[Tensor, Nodes]:
        """Outputs of nodes at one level, and what their children see of them and their ancestors."""
        positions = self.at[:, None] + level
        x = self._joined(tokens, features)
        keys, values = (t[:, :, None] for t in self._keys(x, positions[..., None]))
        if before is not None:
            index = parent[..., None, None, None].expand(-1, -1, *before.keys.shape[2:])
            keys = torch.cat((before.keys.gather(1, index), keys), 2)
            values = torch.cat((before.values.gather(1, index), values), 2)
        nodes = Nodes(keys, values)
        return self._layer(x, positions, nodes), nodes

    def _joined(self, tokens: Tensor, features: Tensor) -> Tensor:
        return linear(torch.cat((embedding(tokens, self.head.embed), features), -1), self.head.fc)

    def _keys(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of (texts, entries) at (texts, entries, 1) positions."""
        head, split = self.head, self.head.heads * self.head.size
        qkv = linear(x, head.qkv[split:]).view(*x.shape[:2], 2 * head.num_kv_heads, head.size)
        keys, values = qkv.chunk(2, 2)
        return rotate(keys, *self._rope(positions)), values

    def _rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self.head.cos[positions[..., 0]], self.head.sin[positions[..., 0]]

    def _layer(self, x: Tensor, positions: Tensor, nodes: Nodes | None) -> Tensor:
        """(positions, nodes, hidden) of the head's layer, over the text's entries and the nodes' own paths."""
        head, kv = self.head, self.head.num_kv_heads
        q = linear(x, head.qkv[: head.heads * head.size]).view(*x.shape[:2], head.heads, head.size)
        q = rotate(q, *self._rope(positions[..., None].expand(-1, x.shape[1], -1)))
        q = q.view(*x.shape[:2], kv, -1, head.size)  # (positions, nodes, kv heads, heads of each, head size)
        keys, values = (t[0] for t in self.true)
        scores = torch.einsum("pnkgd,ekd->pnkge", q, keys).float() * head.scale
        scores = scores.masked_fill(self.unseen[:, None, None, None], float("-inf"))
        if nodes is not None:
            own = torch.einsum("pnkgd,pnskd->pnkgs", q, nodes.keys).float() * head.scale
            scores = torch.cat((scores, own), -1)
        weights = torch.softmax(scores, -1).to(x.dtype)
        mixed = torch.einsum("pnkge,ekd->pnkgd", weights[..., : self.end], values)
        if nodes is not None:
            mixed = mixed + torch.einsum("pnkgs,pnskd->pnkgd", weights[..., self.end :], nodes.values)
        r = linear(mixed.flatten(2), head.out) + x
        gate, up = linear(rms_norm(r, (head.hidden,), head.norm, head.eps), head.gate_up).chunk(2, -1)
        return linear(silu(gate) * up, head.down) + r


def accepted_chain(levels: Sequence[Level], coming: Tensor) -> Tensor:
    """(positions,): leading tokens of each chain that are those coming, (positions, depth); -1 is none."""
    drafted = torch.cat([level.tokens for level in levels], 1)
    return (drafted == coming[:, : drafted.shape[1]]).long().cumprod(1).sum(1)


def accepted_tree(levels: Sequence[Level], coming: Tensor, nodes: int) -> Tensor:
    """(positions,): tokens of the path that is accepted where of each tree so many of the likeliest nodes stay."""
    paths = torch.cat([level.paths for level in levels], 1)
    stay = torch.zeros_like(paths, dtype=torch.bool)
    # Stable: of two paths as likely, the one that the other goes on from stands first, and stays.
    stay.scatter_(1, paths.argsort(dim=1, descending=True, stable=True)[:, :nodes], True)
    count = torch.zeros(len(paths), dtype=torch.long, device=paths.device)
    right = torch.ones_like(levels[0].tokens[:, :1], dtype=torch.bool)  # nodes that the text goes on with
    at = 0
    for depth, level in enumerate(levels):
        width = level.tokens.shape[1]
        right = right.gather(1, level.parents) & (level.tokens == coming[:, depth, None])
        count += (right & stay[:, at : at + width]).any(1)
        at += width
    return count
