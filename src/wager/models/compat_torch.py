"""Everything that reaches into private parts of torch: oneDNN's packed kernels, module tables, hooks."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


def has_packed_linear() -> bool:
    """Whether this build of torch has linear kernels over packed weights."""
    built = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(built) and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


def pack_weight(weight: Tensor) -> Tensor:
    """A copy of a weight (outputs, inputs) in the layout of oneDNN's kernels for a few tokens."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 8)
    return packed


def packed_linear(
    x: Tensor, packed: Tensor, bias: Tensor | None, activation: str = "none", algorithm: str = ""
) -> Tensor:
    """The product with a packed weight, with an activation of oneDNN's ("swish" is silu) applied to it."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, activation, [], algorithm)
    return product


def packed_linear_binary(x: Tensor, other: Tensor, packed: Tensor, bias: Tensor | None, operation: str) -> Tensor:
    """The product with a packed weight, combined with ``other`` by "add" or "mul"."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, packed, bias, operation)
    return product


def hooked_globally() -> bool:
    """Whether hooks run around every module there is."""
    module = torch.nn.modules.module
    return bool(module._global_forward_hooks or module._global_forward_pre_hooks)


def hooked(module: torch.nn.Module) -> bool:
    """Whether hooks of torch or accelerate run around this module."""
    held = module.__dict__
    return bool(held["_forward_hooks"] or held["_forward_pre_hooks"] or "_hf_hook" in held)


def modules(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Every module, in no particular order; ``named_modules`` takes milliseconds, this does not."""
    waiting = [model]
    while waiting:
        module = waiting.pop()
        yield module
        waiting.extend(child for child in module.__dict__["_modules"].values() if child is not None)


def traits(model: torch.nn.Module, numbers: Sequence[str]) -> list[object]:
    """Of every module its type, these numbers, whether it has hooks or a forward of its own, and where its tensors lie
    in which version."""
    found: list[object] = []
    add, waiting = found.append, [model]
    while waiting:  # hundreds of modules before every text: one loop without calls takes half as long
        module = waiting.pop()
        if module is None:
            continue
        held = module.__dict__
        add(type(module))
        if held["_forward_hooks"] or held["_forward_pre_hooks"] or "_hf_hook" in held:
            add("hooked")
        if "forward" in held:
            add("forward")  # not itself: it may hold the model
        for name in numbers:
            if name in held:
                add((name, held[name]))
        for tensors in (held["_parameters"], held["_buffers"]):
            for tensor in tensors.values():
                if tensor is not None:
                    add(tensor.data_ptr())
                    add(0 if tensor.is_inference() else tensor._version)  # which torch does not count there
        waiting += held["_modules"].values()
    return found


def with_children(module: Any, **children: torch.nn.Module) -> Any:
    """A shallow copy of a module that has these children in place of its own of the same names."""
    copied = module.__class__.__new__(module.__class__)
    copied.__dict__.update(module.__dict__)
    copied.__dict__["_modules"] = {**module.__dict__["_modules"], **children}
    return copied
