"""Matrix products on the CPU that stay fast when a few tokens are verified at once.

A BLAS reads the weights once for one token, on its matrix-vector path, and falls off it for two to sixteen. oneDNN's
kernels over weights laid out beforehand do not. Which of the two is faster differs by machine and width, so it is
measured once. The packed copies take as much memory as the weights they copy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch.nn.functional import linear

WIDTHS = (2, 4, 8, 16, 64)  # at which both ways are timed; a width in between goes by the next larger one
Product = Callable[[torch.Tensor], torch.Tensor]


def available() -> bool:
    """Whether this build of torch has the packed kernels."""
    built = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(built) and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


def pack(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Product:
    """The product with one weight (outputs, inputs), laid out for a handful of tokens."""
    laid_out = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 8)
    multiply = torch.ops.mkldnn._linear_pointwise

    def product(x: torch.Tensor) -> torch.Tensor:
        return multiply(x, laid_out, bias, "none", [], "")  # type: ignore[no-any-return]

    return product


def plain(weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None]) -> Product:
    """The same product as torch does it, several weights side by side."""
    if len(weights) == 1:
        weight, bias = weights[0], biases[0]
        return lambda x: linear(x, weight, bias)
    pairs = list(zip(weights, biases, strict=True))
    return lambda x: torch.cat([linear(x, weight, bias) for weight, bias in pairs], dim=-1)


def faster(
    plain: Sequence[Product],
    packed: Sequence[Product],
    inputs: Sequence[int],  # sizes of the products' inputs
    dtype: torch.dtype,
) -> list[bool]:
    """For every width, whether the packed products take less time than the plain ones."""
    answer: dict[int, bool] = {}
    for width in WIDTHS:
        data = {size: torch.randn(width, size, dtype=dtype) for size in set(inputs)}
        best = [float("inf"), float("inf")]
        for _ in range(6):  # interleaved; the first round also warms up
            for which, products in enumerate((plain, packed)):
                start = time.perf_counter()
                for product, size in zip(products, inputs, strict=True):
                    product(data[size])
                best[which] = min(best[which], time.perf_counter() - start)
        answer[width] = best[1] < 0.95 * best[0]  # a tie goes to the plain path
    return [width > 1 and answer[next(w for w in WIDTHS if w >= width)] for width in range(WIDTHS[-1] + 1)]
