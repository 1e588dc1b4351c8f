"""The CUDA kernels where there is no CUDA: in Triton's interpreter, which has to be chosen before Triton is loaded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cuda_setup import attended

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.mark.skipif(INTERPRETED, reason="starts itself over in the interpreter")
def test_kernels_agree_with_torch_in_the_interpreter() -> None:
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-n", "0", str(Path(__file__))]
    ran = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.skipif(not INTERPRETED, reason="runs in the interpreter, which the test above starts")
@pytest.mark.parametrize(("width", "start", "tree"), [(5, 3, False), (9, 20, True), (70, 13, False)])
def test_attention_of_chains_trees_and_prompts(width: int, start: int, tree: bool) -> None:
    for ours, theirs in attended(width, start, tree, (4, 2, 16, 160), torch.device("cpu"), torch.float32):
        assert torch.allclose(ours, theirs, atol=1e-5)
