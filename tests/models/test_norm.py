"""The norm of Llama-shaped models is torch's, whatever it is computed by."""

import pytest
import torch

from wager.models import norm


def differs(dtype: torch.dtype) -> bool:
    torch.manual_seed(0)
    weight = torch.rand(64, dtype=dtype) + 0.5
    for scale in (0.0, 1e-3, 1.0, 100.0):
        x = scale * torch.randn(3, 5, 64, dtype=dtype)
        expected = torch.nn.functional.rms_norm(x, (64,), weight, 1e-5)
        if not torch.allclose(norm.rms_norm(x, weight, 1e-5), expected, rtol=2e-6, atol=0.0):
            return True
    return False


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_it_is_torchs_norm(dtype: torch.dtype) -> None:
    assert not differs(dtype)


def test_a_lost_epsilon_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norm, "_number", lambda value: torch.tensor(0.0))
    assert differs(torch.float32)


def test_what_inference_mode_left_behind_can_be_used_outside_of_it() -> None:
    norm._number.cache_clear()
    weight = torch.ones(8, requires_grad=True)
    with torch.inference_mode():
        norm.rms_norm(torch.ones(2, 8), weight, 1e-6)
    norm.rms_norm(torch.ones(2, 8), weight, 1e-6).sum().backward()
    assert weight.grad is not None


@pytest.mark.parametrize("default", ["device", "dtype"])
def test_what_was_first_computed_under_other_defaults_of_torch_is_right_later(default: str) -> None:
    norm._number.cache_clear()
    x, weight = torch.rand(2, 8), torch.ones(8)
    if default == "device":
        with torch.device("meta"):
            norm.rms_norm(x, weight, 0.1)
    else:
        torch.set_default_dtype(torch.bfloat16)
        try:
            norm.rms_norm(x, weight, 0.1)
        finally:
            torch.set_default_dtype(torch.float32)
    found = norm.rms_norm(x, weight, 0.1)
    assert torch.allclose(found, torch.nn.functional.rms_norm(x, (8,), weight, 0.1), rtol=2e-6, atol=0.0)
