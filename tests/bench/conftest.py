"""Shared by the tests of the benchmarks: prompts as files, and tiny models."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from chat_server import Server, serving
from letters import SIZE, Letters, writer
from small import SHAPE
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
def tiny(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A tiny Llama of six layers in place of every model that is loaded."""
    torch.manual_seed(0)
    shape = {**SHAPE, "num_hidden_layers": 6}
    made = LlamaForCausalLM(LlamaConfig(vocab_size=SIZE, max_position_embeddings=512, **shape)).eval()
    monkeypatch.setattr("wager.models.load", lambda *_, **__: (made, Letters()))
    return made


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "load.csv"
    rows = ((0, 44), (5, 9), (10.5, 3), (11, 200), (30, 16))
    stamps = [f"2023-11-16 18:00:{seconds:010.7f},374,{tokens}\r\n" for seconds, tokens in rows]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\r\n" + "".join(stamps))
    return path
