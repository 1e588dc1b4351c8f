"""A tree of drafts that grows where the head is sure (EAGLE-2, Li et al. 2024).

Grow: of the newest nodes those with the likeliest paths are expanded, each by its likeliest tokens. Choose: of all
nodes the likeliest paths stay. A path is never likelier than what it goes on from, so what stays is a tree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from wager.models.head import Head


class Branches(NamedTuple):
    """A drafted tree, parents before their children; all (nodes,)."""

    tokens: torch.Tensor
    parents: torch.Tensor  # index of the token before each; -1: the text's last
    confidence: torch.Tensor  # the head's probability of each, given those before it


@torch.inference_mode()
def branches(head: Head, out: torch.Tensor, depth: int, breadth: int, nodes: int) -> Branches:
    """At most ``nodes`` tokens after the entry with this output, at most ``depth`` deep; nothing is read back.

    The tree's entries are left in the head's cache, behind its length.
    """
    logp = torch.log_softmax(head.logits(out).float(), -1)
    breadth = min(breadth, logp.shape[-1])
    top = logp.topk(breadth)
    tokens, sure = [head.named(top.indices[0])], [top.values[0]]
    parents, paths = [torch.full_like(tokens[0], -1)], [top.values[0]]
    # The nodes to be expanded: where they stand among all, the feature they go on from, which entries they see.
    leaves = torch.arange(breadth, device=out.device)
    features = out.expand(breadth, -1)
    own = torch.eye(breadth, dtype=torch.bool, device=out.device)
    before = own[:, :0]
    chosen, scores = tokens[0], paths[0]
    for level in range(1, depth):
        seen = torch.cat((before, own), dim=1)
        made = head.branch(chosen, features, level, seen)
        top = torch.log_softmax(head.logits(made).float(), -1).topk(breadth)  # (breadth, breadth)
        first = breadth + (level - 1) * breadth**2
        tokens.append(head.named(top.indices).flatten())
        sure.append(top.values.flatten())
        parents.append(leaves[:, None].expand(-1, breadth).flatten())
        paths.append((scores[:, None] + top.values).flatten())
        best = paths[-1].topk(breadth)
        parent = best.indices // breadth
        leaves, features, before = first + best.indices, made[parent], seen[parent]
        chosen, scores = tokens[-1][best.indices], best.values
    every, above = torch.cat(tokens), torch.cat(parents)
    # Stable: of two paths as likely, the one that the other goes on from stands first, and stays.
    stay = torch.cat(paths).sort(descending=True, stable=True).indices[:nodes].sort().values
    place = torch.full_like(every, -1).index_copy_(0, stay, torch.arange(len(stay), device=out.device))
    above = above[stay]
    above = torch.where(above < 0, above, place[above])
    return Branches(every[stay], above, torch.cat(sure)[stay].exp())
