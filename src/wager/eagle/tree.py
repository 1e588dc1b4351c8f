"""Drafts of a head: chains, and a tree that grows where the head is sure (EAGLE-2, Li et al. 2024).

Grow: of the newest nodes those with the likeliest paths are expanded, each by its likeliest tokens. Choose: of all
nodes the likeliest paths stay. A path is never likelier than what it goes on from, so what stays is a tree. The device
grows, and hands everything back in one tensor; the host chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from wager.eagle.head import Head


class GumbelNoise(NamedTuple):
    """The noise a sampled target will add, where it is known: it takes the largest of logits / temperature + rows."""

    rows: torch.Tensor  # (levels, vocabulary) or (levels, pruned vocabulary)
    temperature: torch.Tensor  # ()

    def perturb(self, logits: torch.Tensor, level: int) -> torch.Tensor:
        """Scores by which tokens so many levels after an entry are chosen, in float32."""
        return logits.float() / self.temperature + self.rows[level]


class Chain(NamedTuple):
    """A drafted chain; both may be overwritten by the next."""

    tokens: torch.Tensor  # (length,)
    logits: Sequence[torch.Tensor]  # before any noise, (1, vocabulary) or (1, pruned vocabulary)


class DraftTree(NamedTuple):
    """A drafted tree, parents before their children; all as long as it has nodes."""

    tokens: list[int]
    parents: list[int]  # index of the token before each; -1: the text's last
    confidence: list[float]  # the head's probability of each, given those before it and the noise, if any
    origins: list[int]  # the row of ``outs`` whose token each is
    outs: Sequence[torch.Tensor] = ()  # the head's outputs, (1, hidden), then (breadth, hidden) for every further level

    def outputs(self, at: Sequence[int]) -> torch.Tensor:
        """The head's outputs that these nodes were chosen by, (nodes, hidden); to be taken before the next draft."""
        return torch.cat(tuple(self.outs))[[self.origins[i] for i in at]]


class Grown(NamedTuple):
    """All nodes that grew, level by level, on the device."""

    tokens: torch.Tensor  # (nodes,)
    sure: torch.Tensor  # (nodes,), log-probabilities, with Gumbel noise of the perturbed scores
    paths: torch.Tensor  # (nodes,), those of the paths to them, summed from the first node on
    expanded: torch.Tensor  # of every level that is expanded, but for the first, the nodes that are, counted within it
    outs: tuple[torch.Tensor, ...]  # the outputs that each level's nodes were chosen by

    def packed(self) -> torch.Tensor:
        """All that ``choose`` goes by in one tensor, in float64: tokens, log-probabilities, expanded nodes."""
        return torch.cat([part.double() for part in (self.tokens, self.sure, self.expanded)])


def grown_nodes(depth: int, breadth: int) -> int:
    """Nodes a tree grows to before some are chosen."""
    return breadth + (depth - 1) * breadth**2


@torch.inference_mode()
def grow(head: Head, out: torch.Tensor, depth: int, breadth: int, gumbel: GumbelNoise | None = None) -> Grown:
    """Everything that grows after the entry with this output, level by level; nothing is read back.

    The tree's entries are left in the head's cache, behind its length.
    """
    logp, columns = head.likeliest(out, breadth, 0, gumbel)
    tokens, sure, paths, expanded = [head.named(columns[0])], [logp[0]], [logp[0]], [columns[0, :0]]
    # The nodes to be expanded: the feature they go on from, which entries they see.
    chosen, scores = tokens[0], logp[0]
    features = out.expand(breadth, -1)
    outs = [out]
    own = torch.eye(breadth, dtype=torch.bool, device=out.device)
    before = own[:, :0]
    for level in range(1, depth):
        seen = torch.cat((before, own), dim=1)
        made = head.branch(chosen, features, level, seen)
        outs.append(made)
        logp, columns = head.likeliest(made, breadth, level, gumbel)  # (breadth, breadth)
        tokens.append(head.named(columns).flatten())
        sure.append(logp.flatten())
        paths.append((scores[:, None] + logp).flatten())
        if level + 1 < depth:
            index, parent, chosen, scores = head.best(paths[-1], tokens[-1], breadth)
            expanded.append(index)
            features, before = made[parent], seen[parent]
    return Grown(torch.cat(tokens), torch.cat(sure), torch.cat(paths), torch.cat(expanded), tuple(outs))


def choose(grown: np.ndarray[Any, Any], grew: int, depth: int, breadth: int, nodes: int) -> DraftTree:
    """At most ``nodes`` tokens, at most ``depth`` deep, of what grew ``grew`` deep: the likeliest paths."""
    all_nodes, count = grown_nodes(grew, breadth), grown_nodes(depth, breadth)
    tokens = grown[:count].astype(np.int64)
    sure = grown[all_nodes : all_nodes + count]
    parents = np.full(count, -1)
    paths = sure.astype(np.float32)  # as the device added them
    for level in range(1, depth):
        first, leaves = grown_nodes(level, breadth), np.arange(breadth)
        if level > 1:
            at = 2 * all_nodes + (level - 2) * breadth
            leaves = grown_nodes(level - 1, breadth) + grown[at : at + breadth].astype(np.int64)
        above = np.repeat(leaves, breadth)
        parents[first : first + len(above)] = above
        paths[first : first + len(above)] += paths[above]
    # Stable: of two paths as likely, the one that the other goes on from stands first, and stays.
    stay = np.sort(np.argsort(-paths, kind="stable")[:nodes])
    place = np.full(count + 1, -1)  # the last one for a parent of -1
    place[stay] = np.arange(len(stay))
    origins = np.where(stay < breadth, 0, 1 + (stay - breadth) // breadth)  # ``breadth`` nodes of each output
    sures = np.exp(sure[stay]).tolist()
    return DraftTree(tokens[stay].tolist(), place[parents[stay]].tolist(), sures, origins.tolist())


def grown_of(made: Sequence[torch.Tensor]) -> Grown:
    """A tree as its graph gives it, without the words of its entries."""
    tokens, sure, paths, expanded = made[:4]
    return Grown(tokens, sure, paths, expanded, tuple(made[5:]))
