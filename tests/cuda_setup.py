"""A tiny model on a CUDA device, and the attention kernel beside torch's own."""

import random
from collections.abc import Callable, Iterable
from typing import Any

import torch
from small import tree_of
from torch.nn.functional import scaled_dot_product_attention

Pair = tuple[torch.Tensor, torch.Tensor]


def attended(
    width: int, start: int, tree: bool, sizes: tuple[int, int, int, int], device: torch.device, dtype: torch.dtype
) -> tuple[Pair, Pair]:
    """The cache after the kernel and as it should be, and the outputs of both; sizes: heads, kv heads, head, capacity.

    A chain or a random tree of ``width`` tokens comes after ``start`` others, in the second of two layers.
    """
    from wager.models import kernels
    from wager.models.runner import ancestry, seen

    torch.manual_seed(0)
    like: dict[str, Any] = {"device": device, "dtype": dtype}
    heads, groups, head, capacity = sizes
    depths, words = list(range(width)), [0] * width
    own = torch.ones(width, width, dtype=torch.bool, device=device).tril()
    if tree:
        depths, words = ancestry(tree_of(random.Random(width), width))
        own = seen(words, device)
    at = torch.tensor(depths, device=device) + start
    cache = torch.randn(2, 2, groups, capacity, head, **like)
    wanted = cache.clone()
    q, k, v = (torch.randn(width, count, head, **like) for count in (heads, groups, groups))
    angle = torch.randn(capacity, head // 2, device=device)
    cos, sin = (torch.cat((f(angle),) * 2, -1).to(dtype) for f in (torch.cos, torch.sin))
    negated = sin.clone()
    negated[:, : head // 2].neg_()

    def rotated(x: torch.Tensor) -> torch.Tensor:
        return x * cos[at, None] + torch.cat((-x[..., head // 2 :], x[..., : head // 2]), -1) * sin[at, None]

    turned = rotated(q)
    wanted[1, 0, :, start : start + width] = rotated(k).transpose(0, 1)
    wanted[1, 1, :, start : start + width] = v.transpose(0, 1)
    given = [cache.data_ptr(), cos.data_ptr(), negated.data_ptr(), capacity, start, int(tree), *[0] * width]
    where = torch.tensor([*given, *depths, *words] if tree else given, device=device)
    got = kernels.attention(q, k, v, where, 1, {})
    keys, values = (wanted[1, i, :, : start + width].repeat_interleave(heads // groups, 0) for i in (0, 1))
    mask = torch.cat((torch.ones(width, start, dtype=torch.bool, device=device), own), 1)
    turned, keys, values = (x.float() for x in (turned.transpose(0, 1), keys, values))
    mixed = scaled_dot_product_attention(turned, keys, values, attn_mask=mask)
    return (cache, wanted), (got, mixed.transpose(0, 1).reshape(width, -1))


class TorchKernels:
    """What the kernels of a layer do, in torch, over the caches and tables of their owners: runners and heads."""

    def __init__(self, owners: Callable[[], Iterable[Any]]) -> None:
        self.owners = owners

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, delta: Any = None) -> torch.Tensor:
        if delta is not None:
            x.add_(delta)
        return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)

    def gate(self, gated: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(gated) * up

    def attention(self, q: Any, k: Any, v: Any, where: Any, layer: int, scratch: Any, earlier: int = 0) -> torch.Tensor:
        from wager.models.attention import attend, mask, rotate

        owner = next(owner for owner in self.owners() if owner.cache.data_ptr() == int(where[0]))
        assert where[1:4].tolist() == [owner.cos.data_ptr(), owner.sin.data_ptr(), owner.capacity]
        cache = (owner.cache[None] if owner.cache.dim() == 3 else owner.cache)[layer]  # (2 kv heads, capacity, head)
        width, start = len(q), int(where[4])
        at = torch.arange(width)
        depths, seen = at, torch.ones(width, width, dtype=torch.bool).tril()
        if int(where[5]):
            depths, words = where[6 + width : 6 + 2 * width], where[6 + 2 * width : 6 + 3 * width]
            seen = (words[:, None] >> torch.arange(earlier + width) & 1).bool()
        rope = owner.cos[start + depths], owner.sin[start + depths]
        q, k = rotate(q, *rope), rotate(k, *rope)
        cache[:, start + earlier + at] = torch.cat((k, v), 1).transpose(0, 1)
        end, kv = start + earlier + width, k.shape[1]
        unseen = mask(q, width, end - seen.shape[1], seen)
        return attend(q.transpose(0, 1), cache[:kv, :end], cache[kv:, :end], unseen, q.shape[-1] ** -0.5)


def tiny(kind: str = "Llama", *, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    shape = {"hidden_size": 192, "intermediate_size": 320, "num_hidden_layers": 3, "num_attention_heads": 6}
    sizes = {"num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512, "max_position_embeddings": 4096}
    config = getattr(transformers, f"{kind}Config")(**{**shape, **sizes, **more})
    return getattr(transformers, f"{kind}ForCausalLM")(config).to("cuda", dtype).eval()
