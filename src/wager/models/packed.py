"""Matrix products on the CPU that stay fast when a few tokens are verified at once.

A BLAS reads the weights once for one token, on its matrix-vector path, and falls off it for two to sixteen. oneDNN's
kernels over weights laid out beforehand do not. Which of the two is faster differs by machine and width, so it is
measured once. The packed copies take as much memory as the weights they copy.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

WIDTHS = (2, 4, 8, 16, 64)  # at which both ways are timed; a width in between goes by the next larger one
PATIENCE = 2.0  # seconds; on a machine too busy to be measured, fewer repetitions have to do
Product = Callable[[torch.Tensor], torch.Tensor]
Product2 = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # with something to add to the product


def available() -> bool:
    """Whether this build of torch has the packed kernels."""
    built = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(built) and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


def pack(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Product:
    """The product with one weight (outputs, inputs), laid out for a handful of tokens."""
    laid_out, multiply = _laid_out(weight), torch.ops.mkldnn._linear_pointwise
    return lambda x: multiply(x, laid_out, bias, "none", [], "")


def pack_added(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Product2:
    """The same, with a second tensor added to the product."""
    laid_out, multiply = _laid_out(weight), torch.ops.mkldnn._linear_pointwise.binary
    return lambda x, more: multiply(x, more, laid_out, bias, "add")


def pack_gated(
    gate: torch.Tensor, up: torch.Tensor, gate_bias: torch.Tensor | None, up_bias: torch.Tensor | None
) -> Product:
    """silu of one product times another, without a step in between."""
    gate_laid_out, up_laid_out = _laid_out(gate), _laid_out(up)
    opened, multiplied = torch.ops.mkldnn._linear_pointwise, torch.ops.mkldnn._linear_pointwise.binary
    return lambda x: multiplied(x, opened(x, gate_laid_out, gate_bias, "swish", [], ""), up_laid_out, up_bias, "mul")


def _laid_out(weight: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 8)
    return made


def faster(plain: Callable[[int], object], packed: Callable[[int], object]) -> list[bool]:
    """For every width, whether the packed way takes less time than the plain one; each is called with a width."""
    answer: dict[int, bool] = {}
    began = time.perf_counter()
    for width in WIDTHS:
        best = [float("inf"), float("inf")]
        for repeat in range(6):  # interleaved; the first also warms up
            if repeat > 1 and time.perf_counter() - began > PATIENCE:
                break
            for which, way in enumerate((plain, packed)):
                start = time.perf_counter()
                way(width)
                best[which] = min(best[which], time.perf_counter() - start)
        answer[width] = best[1] < 0.95 * best[0]  # a tie goes to the plain path
    return [width > 1 and answer[next(w for w in WIDTHS if w >= width)] for width in range(WIDTHS[-1] + 1)]
