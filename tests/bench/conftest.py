"""Shared by the tests of the benchmarks: prompts as files, and tiny models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from letters import writer
from transformers import LlamaConfig, LlamaForCausalLM

from wager.bench import workloads


@pytest.fixture(scope="module")
def model() -> Any:
    return writer()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "prompts"
    folder.mkdir(parents=True)
    tasks = [*workloads.SPEC_BENCH, "writing"]
    records: dict[str, list[dict[str, Any]]] = {
        "spec_bench.jsonl": [{"category": c, "turns": [f"{c} {i}: say it, say it"]} for c in tasks for i in range(3)],
        "humaneval.jsonl": [{"prompt": f"def f{i}(x):"} for i in range(3)],
        "debug_bench.jsonl": [{"description": f"sum {i}", "buggy_code": "a - b"} for i in range(3)],
    }
    for name, rows in records.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "data"


@pytest.fixture
def tiny(smollm2: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A tiny Llama of SmolLM2's vocabulary in place of every model that is loaded."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152, hidden_size=32, intermediate_size=48, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.3, eos_token_id=2, pad_token_id=2,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    monkeypatch.setattr("wager.models.load", lambda *_, **__: (model, smollm2[1]))
    return model
