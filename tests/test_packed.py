"""Packed products: the same numbers as the plain ones, and used only where they can be and are faster."""

from __future__ import annotations

import logging
import time

import pytest
import torch
from torch.nn.functional import linear, silu
from transformers import LlamaConfig, LlamaForCausalLM

from wager.models import packed
from wager.models.eager import Eager
from wager.models.lean import Lean
from wager.models.shaped import shaped

pytestmark = pytest.mark.skipif(not packed.available(), reason="this build of torch has no packed kernels")


def model(**more: bool) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, **more,
    )  # fmt: skip
    made = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if name.endswith("bias"):
                weight.normal_()
    return made


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 17, 70])
def test_packed_products_are_the_plain_ones(width: int) -> None:
    x, more = torch.randn(width, 64), torch.randn(width, 96)
    weight, bias, other = torch.randn(96, 64), torch.randn(96), torch.randn(96, 64)
    assert torch.allclose(packed.pack(weight)(x), linear(x, weight), atol=1e-4)
    assert torch.allclose(packed.pack(weight, bias)(x), linear(x, weight, bias), atol=1e-4)
    assert torch.allclose(packed.pack_added(weight, bias)(x, more), linear(x, weight, bias) + more, atol=1e-4)
    gated = packed.pack_gated(weight, other, bias, None)
    assert torch.allclose(gated(x), silu(linear(x, weight, bias)) * linear(x, other), atol=1e-3)


@pytest.mark.parametrize("biased", [False, True])
def test_a_forward_over_packed_weights_gives_the_models_logits(biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "faster", lambda plain, other: [True] * (packed.WIDTHS[-1] + 1))
    target = model(attention_bias=biased, mlp_bias=biased)
    lean, plain = Lean(target), Eager(target)
    assert lean.weights.layers[0].packed is not None
    assert lean.weights.packed_head is not None
    for runner in (lean, plain):
        runner.begin()
    for width in (40, 1, 5, 3):
        tokens = torch.randint(0, 128, (width,)).tolist()
        assert torch.allclose(lean.forward(tokens, width), plain.forward(tokens, width), atol=1e-4)


def test_the_faster_way_is_taken_at_each_width_and_never_for_one_token() -> None:
    def slow_from(limit: int, width: int) -> None:
        time.sleep(0.004 if width >= limit else 0.001)

    chosen = packed.faster(lambda width: slow_from(8, width), lambda width: slow_from(100, 0) or time.sleep(0.001))
    assert chosen[:2] == [False, False]
    assert not chosen[2]
    assert not chosen[4]
    assert all(chosen[5:])


def test_kernels_that_fail_leave_the_plain_products(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no such primitive")

    monkeypatch.setattr(packed, "pack_gated", broken)
    with caplog.at_level(logging.WARNING, logger="wager"):
        weights = shaped(model())
    assert "no such primitive" in caplog.text
    assert not any(weights.use_packed)
    assert all(layer.packed is None for layer in weights.layers)
