"""A tiny target and head whose rounds stay on the device; without CUDA in Triton's interpreter."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_setup import TorchKernels
from cuda_setup import tiny as tiny_on_cuda
from heads import config, tiny, weights

import wager
from wager.core import Arm
from wager.decoding import decoder as decoding
from wager.eagle import checkpoint, cuda_graphs
from wager.eagle.drafter import Eagle
from wager.policies import Policy
from wager.policies.plain import fixed

CUDA = torch.cuda.is_available()


def run_in_interpreter(file: str) -> None:
    """Run the tests of a file in a process of their own, with Triton's interpreter in place of a GPU."""
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-n", "0", file]
    ran = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout


def save_alike(folder: Path, model: Any) -> Path:
    """Save a head that is often right: target and head both go mainly by the last token's embedding."""
    shape = {"head_dim": 16}
    made = weights(model, 1, **shape)
    hidden = model.config.hidden_size
    made["fc.weight"] = torch.cat((torch.eye(hidden), torch.zeros(hidden, hidden)), 1) + 0.02 * made["fc.weight"]
    with torch.no_grad():
        for name, tensor in (*made.items(), *model.named_parameters()):
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                tensor.mul_(0.02)
    checkpoint.write(folder, config(model, **shape), made, {"target": "tiny"}, ())
    return folder


class Setup:
    """A target and a head by the graphs' bodies; on CUDA captured, elsewhere their layers' kernels are torch's."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.model = tiny_on_cuda(num_hidden_layers=2, vocab_size=64) if CUDA else tiny(head_dim=16)
        self.folder = save_alike(folder, self.model)
        self.owners: list[Any] = []
        if not CUDA:
            from wager.models import kernels

            monkeypatch.setattr(decoding, "runner", self.captured)
            monkeypatch.setattr(cuda_graphs, "FUSED_ON", ("cpu",))
            for name in ("norm", "gate", "attention"):
                monkeypatch.setattr(kernels, name, getattr(TorchKernels(lambda: self.owners), name))

    def captured(self, model: Any) -> Any:
        from wager.models.cuda_graph_runner import CUDAGraphRunner
        from wager.models.llama_weights import outline

        made = CUDAGraphRunner(model)
        made.outline = outline(model)
        self.owners.append(made)
        return made

    def decoder(
        self, arms: Sequence[str], *, host: bool = False, policy: Policy | None = None
    ) -> tuple[wager.Decoder, list[int]]:
        """It, and the number of its rounds on the device; ``host``: every draft is read back and verified by itself."""
        eagle = Eagle(self.folder)
        if not CUDA:
            eagle.head = cuda_graphs.CUDAGraphHead(eagle.head.file)
            self.owners.append(eagle.head)
        counted = [0]
        play = eagle.play

        def counting(*given: Any) -> Any:
            made = None if host else play(*given)
            counted[0] += made is not None
            return made

        eagle.play = counting  # type: ignore[method-assign]
        drafters: list[Any] = [eagle, "suffix"] if any("suffix" in arm for arm in arms) else [eagle]
        chosen = fixed(Arm.parse(arms[0])) if len(arms) == 1 else "random"
        return wager.Decoder(self.model, drafters=drafters, policy=policy or chosen, arms=arms), counted

    def alone(self) -> wager.Decoder:
        return wager.Decoder(self.model, drafters="off", policy="off")


def settings(sampled: bool, count: int = 30) -> dict[str, Any]:
    how = {"do_sample": True, "temperature": 0.6, "top_k": 8, "seed": 4} if sampled else {"do_sample": False}
    return {"max_new_tokens": count, **how}
