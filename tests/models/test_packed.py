"""Packed products: the same numbers as the plain ones, and used only where they can be and are faster."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import linear, silu
from transformers import LlamaConfig, LlamaForCausalLM

from wager.models import calibration, packed
from wager.models.compat_torch import has_packed_linear
from wager.models.hf_runner import HFRunner
from wager.models.llama_runner import LlamaRunner
from wager.models.llama_weights import llama_weights, sample_of
from wager.models.packed import FUSED, PACKED, PLAIN
from wager.models.select import runner

pytestmark = pytest.mark.skipif(not has_packed_linear(), reason="this build of torch has no packed kernels")


def model(layers: int = 2, **more: bool) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=136, hidden_size=64, intermediate_size=96, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, **more,
    )  # fmt: skip
    made = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if name.endswith("bias"):
                weight.normal_()
    return made


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAGER_CACHE", str(tmp_path))
    monkeypatch.setattr(packed, "SMALLEST", 0)


def chosen(monkeypatch: pytest.MonkeyPatch, **ways: str) -> None:
    """Every operation that has such a way is run in it at all widths."""

    def measure(operations: calibration.Operations, *_: object) -> tuple[calibration.Plan, bool]:
        wanted = {name: ways.get(name, PACKED) for name in operations}
        return {name: [way] * len(calibration.WIDTHS) for name, way in wanted.items()}, False

    monkeypatch.setattr(calibration, "measure", measure)


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 17, 70])
@pytest.mark.parametrize("way", [PACKED, FUSED])
def test_packed_products_are_the_plain_ones(width: int, way: str) -> None:
    x, residual = torch.randn(width, 64), torch.randn(width, 96)
    weight, bias, other = torch.randn(96, 64), torch.randn(96), torch.randn(96, 64)
    biased, bare = packed.Weight((weight, bias)), packed.Weight((other, None))
    assert torch.allclose(packed.product(bare, PACKED)(x), linear(x, other), atol=1e-4)
    assert torch.allclose(packed.product(biased, PACKED)(x), linear(x, weight, bias), atol=1e-4)
    assert torch.allclose(packed.added(biased, way)(x, residual), linear(x, weight, bias) + residual, atol=1e-4)
    expected = silu(linear(x, weight, bias)) * linear(x, other)
    assert torch.allclose(packed.gated(biased, bare, way)(x), expected, atol=1e-3)
    several = packed.Weight((weight, bias), (other, None))
    both = torch.cat((linear(x, weight, bias), linear(x, other)), dim=-1)
    for joined_way in (PLAIN, PACKED):
        assert torch.allclose(packed.product(several, joined_way)(x), both, atol=1e-4)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("way", [PACKED, FUSED])
def test_packed_weights_give_the_models_logits(biased: bool, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen(monkeypatch, gated=way, out=way, down=way)
    target = model(attention_bias=biased, mlp_bias=biased)
    ours, plain = LlamaRunner(target), HFRunner(target)
    ours.pack()
    for each in (ours, plain):
        each.begin()
    for width in (40, 1, 5, 3):
        tokens = torch.randint(0, 128, (width,)).tolist()
        assert torch.allclose(ours.forward(tokens, width), plain.forward(tokens, width), atol=1e-4)
    assert all(layer.gate.nbytes and layer.qkv.nbytes for layer in ours.weights.layers)
    assert ours.weights.lm_head.nbytes == target.lm_head.weight.nbytes


def test_weights_are_packed_when_asked_for_and_as_far_as_the_plan_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen(monkeypatch, gated=PLAIN)
    made = LlamaRunner(model())
    made.begin()
    made.prefill(list(range(70)))
    made.forward([1, 2, 3], 3)
    weights = made.weights
    assert not any(weight.nbytes for layer in weights.layers for weight in layer.weights)
    assert not weights.lm_head.nbytes
    made.pack()
    assert all(layer.qkv.nbytes and layer.out.nbytes and layer.down.nbytes for layer in weights.layers)
    assert weights.lm_head.nbytes
    assert not any(layer.gate.nbytes or layer.up.nbytes for layer in weights.layers), "plain ones take no copy"
    monkeypatch.setattr(packed, "pack_weight", broken)
    made.pack()
    assert weights.plan, "once is enough"


def test_one_token_takes_packed_products_too_where_these_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen(monkeypatch)
    made, called = LlamaRunner(model()), list[int]()
    made.begin()
    made.forward([1], 1)  # plain products of one token are made, and must not stay
    made.pack()
    original = packed.packed_linear
    monkeypatch.setattr(packed, "packed_linear", lambda x, *how: (called.append(len(x)), original(x, *how))[1])
    made.forward([2], 1)
    assert called
    assert set(called) == {1}


def test_packing_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen(monkeypatch)
    monkeypatch.setenv(packed.SWITCH, "off")
    weights = LlamaRunner(model()).weights
    weights.pack()
    assert not weights.plan
    assert not any(layer.qkv.nbytes for layer in weights.layers)


def broken(*_: object) -> None:
    raise RuntimeError("no such primitive")


def test_kernels_that_fail_leave_plain_products(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(packed, "pack_weight", broken)
    weights, later = llama_weights(model()), llama_weights(model())
    with monkeypatch.context() as patch:
        chosen(patch)
        later.pack()
    assert "could not be packed" in caplog.text, "where they were timed before"
    assert not later.plan
    caplog.clear()
    weights.pack()
    assert "no such primitive" in caplog.text, "while the ways are timed"
    assert {way for ways in weights.plan.values() for way in ways} == {PLAIN}


@pytest.mark.parametrize("wrong", ["scaled", "no residual", "no activation", "lm_head", "not a number"])
@pytest.mark.parametrize("width", [2, 8, 64])
def test_packed_kernels_that_give_other_products_are_not_used(
    wrong: str, width: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    chosen(monkeypatch, gated=FUSED, out=FUSED, down=FUSED)
    target = model()
    single, both = packed.packed_linear, packed.packed_linear_binary

    def linear_(x: torch.Tensor, weight: torch.Tensor, bias: Any, *activation: str) -> torch.Tensor:
        if wrong == "no activation" and len(x) == width:
            activation = ()
        made = single(x, weight, bias, *activation)
        hit = len(x) == width and (wrong == "scaled" or (wrong == "lm_head" and made.shape[1] == 136))
        return made * 1.01 if hit else made * float("nan") if wrong == "not a number" else made

    def binary(x: torch.Tensor, other: torch.Tensor, weight: torch.Tensor, bias: Any, operation: str) -> torch.Tensor:
        if wrong == "no residual" and len(x) == width and operation == "add":
            other = torch.zeros_like(other)
        return both(x, other, weight, bias, operation)

    monkeypatch.setattr(packed, "packed_linear", linear_)
    monkeypatch.setattr(packed, "packed_linear_binary", binary)
    made = LlamaRunner(target)
    made.pack()
    if (wrong, width) == ("lm_head", 64):
        assert made.weights.plan, "the output head is compared at the widths that drafts have"
        return
    assert "are not used" in caplog.text
    assert not made.weights.plan
    weights = [made.weights.lm_head, *(weight for layer in made.weights.layers for weight in layer.weights)]
    assert not any(weight.nbytes for weight in weights), "and take no memory"
    plain = HFRunner(target)
    for each in (made, plain):
        each.begin()
    tokens = list(range(width))
    assert torch.allclose(made.forward(tokens, width), plain.forward(tokens, width), atol=1e-4)


def test_layers_that_are_zero_throughout_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen(monkeypatch)
    target = model()
    torch.nn.init.zeros_(target.model.layers[1].self_attn.o_proj.weight)
    weights = LlamaRunner(target).weights
    weights.pack()
    assert weights.plan


def test_a_large_model_is_compared_by_a_few_of_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    target = model(layers=6)
    assert sample_of(target) is None, "a small one is compared whole"
    monkeypatch.setattr("wager.models.llama_weights.LARGE", 0)
    some = sample_of(target)
    assert [layer.self_attn.layer_idx for layer in some.model.layers] == [0, 3, 5]
    assert len(target.model.layers) == 6
    ran: Counter[int] = Counter()
    attention = type(target.model.layers[0].self_attn)
    forward = attention.forward

    def counting(self: Any, *args: Any, **more: Any) -> Any:
        ran[self.layer_idx] += 1
        return forward(self, *args, **more)

    monkeypatch.setattr(attention, "forward", counting)
    assert type(runner(target)) is LlamaRunner
    assert ran.keys() == {0, 3, 5}
    target.model.layers[4].self_attn.scaling *= 2
    assert sample_of(target) is None, "layers that differ are all compared"
    assert type(runner(target)) is HFRunner
