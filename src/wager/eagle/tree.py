"""A tree of drafts that grows where the head is sure (EAGLE-2, Li et al. 2024).

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


def grown_nodes(depth: int, breadth: int) -> int:
    """Nodes a tree grows to before some are chosen."""
    return breadth + (depth - 1) * breadth**2


@torch.inference_mode()
def grow(
    head: Head, out: torch.Tensor, depth: int, breadth: int, gumbel: GumbelNoise | None = None
) -> tuple[torch.Tensor, ...]:
    """Everything that grows after the entry with this output, level by level, in float64; nothing is read back.

    First the nodes' tokens, then their log-probabilities, then of every level that is expanded, but for the first, the
    nodes that are: as many as the breadth, counted within the level. After this tensor come the outputs that each
    level's nodes were chosen by. The tree's entries are left in the head's cache, behind its length. With Gumbel noise,
    log-probabilities are of the perturbed scores.
    """
    logp, columns = head.likeliest(out, breadth, 0, gumbel)
    tokens, sure, expanded = [head.named(columns[0])], [logp[0]], []
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
        if level + 1 < depth:
            index, parent, chosen, scores = head.best(scores, logp, tokens[-1])
            expanded.append(index)
            features, before = made[parent], seen[parent]
    whole, sures = torch.cat((*tokens, *expanded)), torch.cat(sure)
    count = len(sures)
    grown = torch.empty(len(whole) + count, dtype=torch.float64, device=out.device)
    grown[:count] = whole[:count]
    grown[count : 2 * count] = sures
    grown[2 * count :] = whole[count:]
    return grown, *outs


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
