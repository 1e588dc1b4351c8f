"""The CUDA kernels where there is no CUDA: in Triton's interpreter, which has to be chosen before Triton is loaded."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small import tree_of
from torch.nn.functional import scaled_dot_product_attention

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.mark.skipif(INTERPRETED, reason="starts itself over in the interpreter")
def test_kernels_agree_with_torch_in_the_interpreter() -> None:
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-n", "0", str(Path(__file__))]
    ran = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.skipif(not INTERPRETED, reason="runs in the interpreter, which the test above starts")
@pytest.mark.parametrize(
    ("width", "start", "tree"),
    [(5, 3, False), (9, 20, True), (70, 13, False)],
)
def test_attention_of_chains_trees_and_prompts(width: int, start: int, tree: bool) -> None:
    from wager.models import kernels
    from wager.models.runner import ancestry, seen

    torch.manual_seed(0)
    heads, groups, head, capacity = 4, 2, 16, 160
    depths, words = list(range(width)), [0] * width
    own = torch.ones(width, width, dtype=torch.bool).tril()
    if tree:
        depths, words = ancestry(tree_of(random.Random(width), width))
        own = seen(words, torch.device("cpu"))
    at = torch.tensor(depths) + start
    cache = torch.randn(2, 2, groups, capacity, head)
    wanted = cache.clone()
    q, k, v = torch.randn(width, heads, head), torch.randn(width, groups, head), torch.randn(width, groups, head)
    angle = torch.randn(capacity, head // 2)
    cos, sin = (torch.cat((f(angle),) * 2, -1) for f in (torch.cos, torch.sin))
    negated = sin.clone()
    negated[:, : head // 2].neg_()

    def rotated(x: torch.Tensor) -> torch.Tensor:
        return x * cos[at, None] + torch.cat((-x[..., head // 2 :], x[..., : head // 2]), -1) * sin[at, None]

    turned = rotated(q)
    wanted[1, 0, :, start : start + width] = rotated(k).transpose(0, 1)
    wanted[1, 1, :, start : start + width] = v.transpose(0, 1)
    given = [cache.data_ptr(), cos.data_ptr(), negated.data_ptr(), capacity, start, int(tree), *[0] * width]
    where = torch.tensor([*given, *depths, *words] if tree else given)
    scratch = torch.empty(groups, kernels.SPLITS, kernels.rows_for(heads // groups * width), head + 2)
    got = kernels.attention(q, k, v, where, 1, scratch)
    assert torch.allclose(cache, wanted, atol=1e-5)
    keys, values = (wanted[1, i, :, : start + width].repeat_interleave(heads // groups, 0) for i in (0, 1))
    mask = torch.cat((torch.ones(width, start, dtype=torch.bool), own), 1)
    mixed = scaled_dot_product_attention(turned.transpose(0, 1), keys, values, attn_mask=mask)
    assert torch.allclose(got, mixed.transpose(0, 1).reshape(width, -1), atol=1e-5)
