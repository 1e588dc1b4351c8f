"""Exact acceptance: what is kept of a draft, so that the text is the target's own.

Greedy: a drafted token stands while it is the target's own choice. Sampling (Leviathan et al. 2023, Chen et al. 2023):

    keep token x, drawn from q, with probability min(1, p(x) / q(x));
    at the first that is not kept, draw from the residual max(0, p - q), normalised;
    if all are kept, draw one more from p.

A drafter that proposes x for certain has q(x) = 1: x is kept with probability p(x), and the residual is p without x.

In a tree every token may be followed by several (Miao et al. 2023, Jeon et al. 2024: recursive rejection sampling
without replacement). They are tried in order, each by the rule above, and what one leaves is the p of the next:

    keep child x_i, drawn from q_i, with probability min(1, p_i(x_i) / q_i(x_i)), and go on below it;
    otherwise p_{i+1} = max(0, p_i - q_i), normalised, and q_{i+1} = q_i without x_i, normalised;
    after the last child, draw from what is left of p.
"""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

Tokens = Sequence[int]


def _uniform(count: int, device: torch.device, generator: Generator | None) -> Tensor:
    """Uniform numbers in [0, 1), whatever torch's default dtype: 16 bits are too few of them for rare tokens."""
    return torch.rand(count, dtype=torch.float32, device=device, generator=generator)


def accept_greedy(choices: Tokens, draft: Tokens) -> int:
    """How many drafted tokens are the target's own choices, ``choices`` holding one for each position and one after."""
    for at, token in enumerate(draft):
        if choices[at] != token:
            return at
    return len(draft)


def accept_sampled(
    p: Tensor,  # (drafted + 1, vocabulary), the target's distribution at each position and after the last
    draft: Tokens,
    q: Tensor | None,  # (drafted, vocabulary), the drafter's; None: it proposed each token for certain
    generator: Generator | None = None,
) -> tuple[int, int]:
    """How many drafted tokens are kept, and the token that follows them."""
    count = len(draft)
    if not count:
        return 0, int(torch.multinomial(p[0], 1, generator=generator))
    drafted = torch.tensor(draft, device=p.device)
    rows = torch.arange(count, device=p.device)
    kept_with = p[rows, drafted] if q is None else p[rows, drafted] / q[rows, drafted]
    kept = _uniform(count, p.device, generator) < kept_with
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


def accept_tree_greedy(choices: Tokens, tokens: Tokens, parents: Tokens) -> list[int]:
    """The path of the target's own choices through a tree, as indices of ``tokens``."""
    # ``choices`` holds the one after the text's last token, then the one after each of the tree's.
    path: list[int] = []
    last = -1
    for at, parent in enumerate(parents):  # parents come first, so one pass follows the path down
        if parent == last and tokens[at] == choices[last + 1]:
            path.append(at)
            last = at
    return path


def accept_tree_sampled(
    p: Tensor,  # (tokens + 1, vocabulary), the target's after the text's last token, and after each of the tree's
    tokens: Tokens,
    parents: Tokens,  # the index of the token before each, -1: the text's last; siblings differ
    q: Tensor | None,  # (tokens, vocabulary), what each was drawn from; None: each was proposed for certain
    generator: Generator | None = None,
) -> tuple[list[int], int]:
    """The path that is kept, as indices of ``tokens``, and the token that follows it.

    Siblings were drawn one after the other without replacement; their rows of ``q`` are what that began with.
    """
    below: list[list[int]] = [[] for _ in range(len(tokens) + 1)]  # by row of p: what comes next in the tree
    for at, parent in enumerate(parents):
        below[parent + 1].append(at)
    path: list[int] = []
    if q is None:
        return _accept_certain(p, tokens, parents, below, generator)
    while True:
        row = path[-1] + 1 if path else 0
        kept, following = _try(p[row], q, below[row], tokens, generator)
        if kept is None:
            return path, following
        path.append(kept)


def _accept_certain(
    p: Tensor, tokens: Tokens, parents: Tokens, below: Sequence[Tokens], generator: Generator | None
) -> tuple[list[int], int]:
    """As above, where q is one at each token: p only loses those refused, so one number a token decides."""
    # Two transfers, however deep the tree.
    path: list[int] = []
    if tokens:
        rows, drafted = torch.tensor((parents, tokens), device=p.device)
        uniforms = _uniform(len(tokens), p.device, generator)
        chances, uniform_of = torch.stack((p[rows + 1, drafted], uniforms.to(p.dtype))).tolist()
    row = 0
    while True:
        left = 1.0  # of p, not refused
        for at in below[row]:
            if uniform_of[at] * left < chances[at]:
                path.append(at)
                break
            left -= chances[at]
        else:
            break
        row = path[-1] + 1
    rest = p[row]
    if below[row]:
        rest = rest.index_fill(0, torch.tensor([tokens[at] for at in below[row]], device=p.device), 0)
        rest = torch.where(rest.sum() > 0, rest, p[row])  # rounding may have left nothing
    return path, int(torch.multinomial(rest, 1, generator=generator))


def _try(p: Tensor, q: Tensor, children: Tokens, tokens: Tokens, generator: Generator | None) -> tuple[int | None, int]:
    """Of a token's children the one that is kept, if one is, and the token that follows if none is; one transfer."""
    if not children:
        return None, int(torch.multinomial(p, 1, generator=generator))
    drafted = torch.tensor([tokens[at] for at in children], device=p.device)
    kept_with = []
    for tried, at in enumerate(children):
        token = drafted[tried : tried + 1]
        own = q[at].index_fill(0, drafted[:tried], 0)
        # A token that could not have been drawn was proposed for certain.
        certain = torch.zeros_like(own).index_fill_(0, token, 1)
        own = torch.where(own[token] > 0, own / own.sum(), certain)
        kept_with.append(p[token] / own[token])
        left = (p - own).clamp_(min=0)
        total = left.sum()
        p = torch.where(total > 0, left / total, p)  # where rounding left nothing, it was as good as kept
    following = torch.multinomial(p, 1, generator=generator)
    kept = _uniform(len(children), p.device, generator) < torch.cat(kept_with)
    *keeps, last = torch.cat((kept, following)).tolist()
    return next((at for at, keep in zip(children, keeps, strict=True) if keep), None), last


def overlap(p: Tensor, draft: Tokens, q: Tensor | None) -> tuple[float, ...]:
    """1 - TV(p, q) at each drafted position: the sum of min(p, q); for a token proposed for certain, p(token)."""
    count = len(draft)
    if not count:
        return ()
    if q is None:
        shared = p[torch.arange(count, device=p.device), torch.tensor(draft, device=p.device)]
    else:
        shared = torch.minimum(p[:count], q).sum(-1)
    return tuple(shared.clamp(0, 1).tolist())


def continued(path: Sequence[int], parents: Sequence[int]) -> list[int]:
    """The path through a tree, on to a leaf by the first token after each."""
    way = list(path)
    last = way[-1] if way else -1
    for at, parent in enumerate(parents):  # parents come first, so one pass follows the path down
        if at > last and parent == last:
            way.append(at)
            last = at
    return way
