"""The benchmarks of the engine: their arithmetic on made-up answers, and each command on a tiny model."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from wager.cli import main

pytestmark = pytest.mark.usefixtures("one_thread")


def run(*words: str, command: str = "bench") -> int:
    """Run a command of wager; those that measure wager itself are under lab."""
    if command == "bench" and words[0] in ("engine", "identity", "memory"):
        command = "lab"
    sys.argv = ["wager", command, *words]
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


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
    short = ("--task", "qa", "--prompts", "2", "--max-tokens", "12")
    words = ("generate", "--data", str(data), *short, "--json", str(made))
    arms = "prompt-lookup:4,suffix:2,suffix:3@2x6"
    routing = ("--router", str(plan), "--corpora", str(corpora))
    assert run(*words, "--arms", arms, "-p", "random", "--shuffle", *routing) == 0
    result = json.loads(made.read_text())
    assert [m["method"] for m in result["methods"]] == [
        "transformers", "off", *arms.split(","), "router", "random",
    ]  # fmt: skip
    assert result["differences"]["unexplained"] == 0
    assert result["methods"][-1]["arms"]
    assert run(*words, "--arms", "suffix:2", "-p", "random", "--no-plain", "--temperature", "0.7") == 0
    sampled = json.loads(made.read_text())
    assert sampled["methods"][0]["method"] == "off"
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
    assert {"transformers", "off", "suffix:8", "transformers assisted"} <= {
        m["method"] for m in results["generate"]["methods"]
    }
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
    assert run("identity", "--data", str(data), "--prompts", "1", "--max-tokens", "12") == 1
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
