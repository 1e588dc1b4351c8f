"""Exact acceptance: what is kept of a draft, so that the text is the target's own.

Greedy: a drafted token stands while it is the target's own choice. Sampling (Leviathan et al. 2023, Chen et al. 2023):

    keep token x, drawn from q, with probability min(1, p(x) / q(x));
    at the first that is not kept, draw from the residual max(0, p - q), normalised;
    if all are kept, draw one more from p.

A drafter that proposes x for certain has q(x) = 1: x is kept with probability p(x), and the residual is p without x.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def accept_greedy(choices: Sequence[int], draft: Sequence[int]) -> int:
    """How many drafted tokens are the target's own choices, ``choices`` holding one for each position and one after."""
    for at, token in enumerate(draft):
        if choices[at] != token:
            return at
    return len(draft)


def accept_sampled(
    p: torch.Tensor,  # (drafted + 1, vocabulary), the target's distribution at each position and after the last
    draft: Sequence[int],
    q: torch.Tensor | None,  # (drafted, vocabulary), the drafter's; None: it proposed each token for certain
    generator: torch.Generator | None = None,
) -> tuple[int, int]:
    """How many drafted tokens are kept, and the token that follows them."""
    count = len(draft)
    if not count:
        return 0, int(torch.multinomial(p[0], 1, generator=generator))
    drafted = torch.tensor(draft, device=p.device)
    rows = torch.arange(count, device=p.device)
    kept_with = p[rows, drafted] if q is None else p[rows, drafted] / q[rows, drafted]
    kept = torch.rand(count, device=p.device, generator=generator) < kept_with
    accepted = kept.cumprod(0).sum()  # stays on the device: one transfer a round, at the end
    at = p.index_select(0, accepted[None])[0]
    edge = accepted.clamp(max=count - 1)
    if q is None:
        taken = torch.zeros_like(at).index_put_((drafted[edge],), at[drafted[edge]])
    else:
        taken = q.index_select(0, edge[None])[0]
    residual = (at - taken).clamp_(min=0)
    # After the last drafted token there is no residual; nor is there one where rounding left nothing of it.
    residual = torch.where((accepted < count) & (residual.sum() > 0), residual, at)
    following = torch.multinomial(residual, 1, generator=generator)
    both = torch.stack((accepted, following[0])).tolist()
    return both[0], both[1]


def overlap(p: torch.Tensor, draft: Sequence[int], q: torch.Tensor | None) -> tuple[float, ...]:
    """1 - TV(p, q) at each drafted position: the sum of min(p, q); for a token proposed for certain, p(token)."""
    count = len(draft)
    if not count:
        return ()
    if q is None:
        shared = p[torch.arange(count, device=p.device), torch.tensor(draft, device=p.device)]
    else:
        shared = torch.minimum(p[:count], q).sum(-1)
    return tuple(shared.clamp(0, 1).tolist())
