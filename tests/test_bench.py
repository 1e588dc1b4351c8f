"""The benchmarks of the engine: their arithmetic on made-up answers, and each command on a tiny model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from wager.bench import peers, workloads
from wager.bench.peers import PLAIN, Answer, Method
from wager.bench.routing import Classifier, Routed
from wager.cli import main
from wager.core import OFF, Arm, Round

pytestmark = pytest.mark.usefixtures("one_thread")


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


def run(*words: str, command: str = "bench") -> int:
    sys.argv = ["wager", command, *words]
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


def test_ratios_and_mat_are_those_of_the_answers() -> None:
    plain = Method(PLAIN, lambda ids, count: Answer([], 0, 0), [Answer([1] * 10, 2.0, 10), Answer([1] * 10, 4.0, 10)])
    fast = Method("fast", plain.run, [Answer([1] * 10, 1.0, 4), Answer([2] * 10, 1.0, 4)])
    rows = peers.summarize([plain, fast], ["qa", "rag"])
    assert rows[0]["ratio"] == rows[0]["mat"] == 1.0
    assert rows[1]["ratio"] == 3.0  # 6 seconds against 2
    assert rows[1]["median_ratio"] == 3.0
    assert rows[1]["mat"] == 3.0  # 9 tokens after the first in 3 rounds
    assert rows[1]["different_texts"] == 1
    assert [rows[1]["tasks"][task]["ratio"] for task in ("qa", "rag")] == [2.0, 4.0]


def test_a_stall_does_not_change_the_steady_ratio() -> None:
    def answers(drafted: int, accepted: int, stall: float) -> list[Answer]:
        arm = Arm("suffix", drafted) if drafted else OFF
        seconds = 0.010 + 0.001 * drafted
        rounds = [
            Round(arm, drafted, accepted, accepted + 1, verify_seconds=stall if n == 3 else seconds) for n in range(9)
        ]
        return [Answer([1] * (1 + 9 * (accepted + 1)), 1.0, 10, rounds, 0.0)]

    def ratios(stall: float) -> dict[str, float]:
        off = Method(peers.OURS, lambda ids, count: Answer([], 0, 0), answers(0, 0, 0.010))
        return peers.steady([off, Method("drafts", off.run, answers(4, 1, stall))])

    assert ratios(5.0) == ratios(0.014) == {peers.OURS: 1.0, "drafts": pytest.approx(2 * 10 / 14, abs=1e-4)}


def test_any_arms_can_be_compared(
    data: Path, tmp_path: Path, tiny: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    corpora = tmp_path / "corpora"
    corpora.mkdir()
    plan = tmp_path / "plan.toml"
    plan.write_text("")
    for domain in ("qa", "suffix"):
        (corpora / f"{domain}.jsonl").write_text(json.dumps({"question": f"{domain}: say it"}) + "\n")
        plan.write_text(f'{plan.read_text()}[[domain.{domain}]]\nfile = "{domain}.jsonl"\nkind = "questions"\n')
    made = tmp_path / "arms.json"
    words = [
        "generate",
        "--data",
        str(data),
        "--task",
        "qa",
        "--prompts",
        "2",
        "--max-tokens",
        "12",
        "--json",
        str(made),
    ]
    arms = "prompt-lookup:4,suffix:2,suffix:3@2x6"
    routing = ("--router", str(plan), "--corpora", str(corpora))
    assert run(*words, "--arms", arms, "-p", "random", "--shuffle", *routing) == 0
    result = json.loads(made.read_text())
    assert [m["method"] for m in result["methods"]] == [
        "transformers", "wager off", *(f"wager {arm}" for arm in arms.split(",")), "wager router", "wager random",
    ]  # fmt: skip
    assert result["differences"]["unexplained"] == 0
    assert result["methods"][-1]["arms"]
    assert run(*words, "--arms", "suffix:2", "-p", "random", "--no-plain", "--temperature", "0.7") == 0
    sampled = json.loads(made.read_text())
    assert sampled["methods"][0]["method"] == "wager off"
    assert sampled["differences"] == {"answers": 4, "texts": 0}
    made.write_text(json.dumps({**sampled, "differences": {"answers": 4, "texts": 1}}))
    page = tmp_path / "page.html"
    assert run(str(made), "-o", str(page), command="report") == 0
    assert "3 of 4" in page.read_text()
    assert run(*words, "--temperature", "0.7") == 2
    assert "--temperature needs --arms" in capsys.readouterr().err
    assert run(*words, "--arms", "suffix:2", "--no-plain", "--temperature", "0.7", "--sampling", "residual") == 0
    assert json.loads(made.read_text())["differences"] is None
    assert run(*words, "--arms", "suffix:2", "--sampling", "lucky") == 2
    assert run(*words, "--arms", "suffix") == 2
    assert "is not an arm" in capsys.readouterr().err


def test_a_classifier_tells_domains_apart() -> None:
    torch.manual_seed(0)
    embed = torch.randn(100, 16)
    embed[:50, :4] += 2  # tokens of one domain have something in common
    prompts = [("low", [i, i + 1, i + 2]) for i in range(40)] + [("high", [50 + i, 51 + i]) for i in range(40)]
    tell = Classifier(embed, prompts)
    assert sum(tell(ids) == domain for domain, ids in prompts) > 70
    routed = Routed([OFF, Arm("eagle:ofa", 4), Arm("eagle:low", 4)])
    routed.take("low")
    assert routed.arm.drafter == "eagle:low"
    routed.take("high")
    assert routed.arm.drafter == "eagle:ofa"


def test_a_seed_picks_the_same_prompts_of_every_task(data: Path) -> None:
    first, again, other = (workloads.prompts(data, count=2, seed=seed) for seed in (0, 0, 5))
    assert first == again != other
    assert [p.task for p in first] == [task for task in workloads.TASKS for _ in range(2)]


def test_two_tasks_can_be_one_prompt(data: Path) -> None:
    (one, _) = workloads.prompts(data, tasks=["math_then_code"], count=2)
    assert one.task == "math_then_code"
    assert one.text.index("math_reasoning") < one.text.index("def f")


def test_every_command_measures_and_writes_what_it_printed(
    data: Path, tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {name: tmp_path / f"{name}.json" for name in ("engine", "generate", "identity", "memory")}
    short = ("--data", str(data), "--prompts", "1", "--max-tokens", "8")
    assert run("engine", "--context", "20", "--repeats", "2", "--tokens", "6", "--json", str(made["engine"])) == 0
    assert run("generate", *short, "--draft-layers", "2", "--json", str(made["generate"])) == 0
    assert run("identity", *short, "--json", str(made["identity"])) == 0
    assert run("memory", "--requests", "20", "--json", str(made["memory"])) == 0
    results = {name: json.loads(path.read_text()) for name, path in made.items()}
    assert [row["width"] for row in results["engine"]["widths"]][:2] == [1, 2]
    assert results["generate"]["differences"]["unexplained"] == 0
    assert {"transformers", "wager off", "wager suffix:8"} <= {m["method"] for m in results["generate"]["methods"]}
    assert results["identity"]["texts"] == 24
    assert results["identity"]["differ"] == 0
    assert len(results["memory"]["mebibytes"]) == 20
    printed = capsys.readouterr().out
    assert "24 texts" in printed
    assert "growth from request 20 to 20" in printed


def test_a_wrong_text_ends_the_identity_check_with_1(
    data: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("wager.decoding.sampler.accept_greedy", lambda choices, draft: len(draft))  # keeps every draft
    assert run("identity", "--data", str(data), "--prompts", "1", "--max-tokens", "24") == 1
    assert " 0 differ" not in capsys.readouterr().out


@pytest.mark.parametrize("command", ["generate", "identity"])
def test_missing_data_is_one_sentence(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WAGER_DATA", raising=False)
    assert run(command) == 2
    assert "pass --data DIR or set WAGER_DATA" in capsys.readouterr().err
    assert run(command, "--data", str(tmp_path)) == 2
    assert "one JSON record a line" in capsys.readouterr().err


def test_only_what_can_be_cut_to_a_draft_model_is(tiny: Any) -> None:
    assert len(peers.truncated(tiny, 2).model.layers) == 2
    with pytest.raises(ValueError, match="between 1 and 5"):
        peers.truncated(tiny, 6)
    with pytest.raises(ValueError, match="not GPT2LMHeadModel"):
        peers.truncated(GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=20)), 1)
