"""The norm of Llama-shaped models, in few operations on a CPU."""

from functools import cache

import torch
from torch.nn import functional


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """(…, n) divided by the root of its mean square over the last dimension, times the weight, (n,)."""
    if x.dtype != torch.float32 or x.device.type != "cpu":
        return functional.rms_norm(x, weight.shape, weight, eps)
    # torch has no kernel for it here: it runs seven operations, and between large products each takes microseconds
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return (x * torch.addcmul(_number(eps), norm, norm, value=1.0 / x.shape[-1]).rsqrt_()).mul_(weight)


@cache
def _number(value: float) -> torch.Tensor:
    """As a tensor that may be used inside of inference mode and outside, whatever torch's defaults are by then."""
    with torch.inference_mode(False):
        return torch.tensor(value, dtype=torch.float32, device="cpu")
