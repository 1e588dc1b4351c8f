"""Matrix products on the CPU that are fast for one token and stay so when a few are verified at once.

A BLAS reads the weights once for one token, on its matrix-vector path, and leaves it for two to sixteen. oneDNN's
kernels over weights packed beforehand do not, and on some processors they are faster for one token too. Every operation
of a layer can be run in up to three ways: ``plain``, ``packed``, and ``fused``, where the activation or the residual is
computed inside the packed kernel. ``calibration`` chooses among them by operation and width. A packed copy takes as
much memory as the weight it copies.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import gelu, linear, silu

from wager.core.switch import switched_off
from wager.models.compat_torch import has_packed_linear, pack_weight, packed_linear, packed_linear_binary

PLAIN, PACKED, FUSED = "plain", "packed", "fused"
SWITCH = "WAGER_PACKED_WEIGHTS"  # environment variable: "off" saves the memory of packed copies
ONEDNN = {"silu": ("swish", ""), "gelu_pytorch_tanh": ("gelu", "tanh")}  # its names of activations
SMALLEST = 1 << 16  # numbers; in a smaller weight the call itself takes longer than the product

Product = Callable[[torch.Tensor], torch.Tensor]
AddedProduct = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # with the residual, which is added


def usable(weight: torch.Tensor) -> bool:
    """Whether products with this weight may be packed: a large float32 one on a CPU, and not switched off."""
    large = weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= SMALLEST
    return large and not switched_off(SWITCH) and has_packed_linear()


class Weight:
    """A weight (outputs, inputs) and its bias, or several side by side, which packed, on first use, are one."""

    def __init__(self, *parts: tuple[torch.Tensor, torch.Tensor | None]) -> None:
        self.parts = parts
        self._packed: torch.Tensor | None = None
        self._bias: torch.Tensor | None = None

    @classmethod
    def of(cls, *modules: torch.nn.Linear) -> Weight:
        """Of these modules."""
        return cls(*((module.weight.detach(), module.bias) for module in modules))

    def halves(self) -> tuple[Weight, Weight]:
        """The first half of its outputs and the second."""
        (weight, bias), *_ = self.parts
        half = len(weight) // 2
        first, second = (None, None) if bias is None else (bias[:half], bias[half:])
        return Weight((weight[:half], first)), Weight((weight[half:], second))

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs) of all parts together."""
        return sum(len(weight) for weight, _ in self.parts), int(self.parts[0][0].shape[1])

    def sample(self, numbers: int) -> Weight:
        """Some rows of each part: at most so many numbers together."""
        rows = max(1, numbers // (self.shape[1] * len(self.parts)))
        return Weight(*((weight[:rows], None if bias is None else bias[:rows]) for weight, bias in self.parts))

    def every(self, step: int) -> Weight:
        """Every ``step``-th output."""
        return Weight(*((weight[::step], None if bias is None else bias[::step]) for weight, bias in self.parts))

    def packed(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The packed copy and the bias."""
        if self._packed is None:
            weights, biases = zip(*self.parts, strict=True)
            if any(bias is not None for bias in biases):
                self._bias = torch.cat([w.new_zeros(len(w)) if bias is None else bias for w, bias in self.parts])
            self._packed = pack_weight(weights[0] if len(weights) == 1 else torch.cat(weights))
        return self._packed, self._bias

    def unpack(self) -> None:
        """Give back the memory of the packed copy."""
        self._packed = self._bias = None

    @property
    def nbytes(self) -> int:
        """Of the packed copy; 0 without one."""
        return 0 if self._packed is None else sum(weight.nbytes for weight, _ in self.parts)


def product(by: Weight, way: str = PLAIN) -> Product:
    """x to its product with the weight."""
    if way != PLAIN:
        packed, bias = by.packed()
        return lambda x: packed_linear(x, packed, bias)
    if len(by.parts) == 1:
        (weight, own), *_ = by.parts
        return lambda x: linear(x, weight, own)
    return lambda x: torch.cat([linear(x, weight, bias) for weight, bias in by.parts], dim=-1)


def added(by: Weight, way: str = PLAIN) -> AddedProduct:
    """x and a residual to the residual plus the product with the weight."""
    if way == FUSED:
        packed, bias = by.packed()
        return lambda x, residual: packed_linear_binary(x, residual, packed, bias, "add")
    multiply = product(by, way)
    return lambda x, residual: multiply(x).add_(residual)


def gated(gate: Weight, up: Weight, way: str = PLAIN, act: str = "silu") -> Product:
    """x to act(gate(x)) * up(x)."""
    if way == FUSED:
        (packed_gate, gate_bias), (packed_up, up_bias) = gate.packed(), up.packed()
        return lambda x: packed_linear_binary(
            x, packed_linear(x, packed_gate, gate_bias, *ONEDNN[act]), packed_up, up_bias, "mul"
        )
    by_gate, by_up = product(gate, way), product(up, way)
    if act == "silu":
        return lambda x: silu(by_gate(x), inplace=True).mul_(by_up(x))
    return lambda x: gelu(by_gate(x), approximate="tanh").mul_(by_up(x))
