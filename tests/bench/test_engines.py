"""The benchmarks of the engine: their arithmetic on made-up answers, and each command on a tiny model."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import Wager, one_sentence

pytestmark = pytest.mark.usefixtures("one_thread")


def test_any_arms_can_be_compared(data: Path, tmp_path: Path, tiny: Any, cli: Wager) -> None:
    domains, made = ("qa", "suffix"), tmp_path / "arms.json"
    for domain in domains:
        (tmp_path / f"{domain}.jsonl").write_text(json.dumps({"question": f"{domain}: say it"}) + "\n")
    plan = [f'[[domain.{domain}]]\nfile = "{domain}.jsonl"\nkind = "questions"\n' for domain in domains]
    (tmp_path / "plan.toml").write_text("".join(plan))
    short = ("--task", "qa", "--prompts", "2", "--max-tokens", "12")
    words = ("bench", "generate", "--data", data, *short, "--json", made)
    arms = "prompt-lookup:4,suffix:2,suffix:3@2x6"
    routing = ("--router", "plan.toml", "--corpora", ".")
    assert cli(*words, "--arms", arms, "-p", "random", "--shuffle", *routing).code == 0
    result = json.loads(made.read_text())
    assert [m["method"] for m in result["methods"]] == [
        "transformers", "off", *arms.split(","), "router", "random",
    ]  # fmt: skip
    assert result["differences"]["unexplained"] == 0
    assert result["methods"][-1]["arms"]
    sampling = ("--arms", "suffix:2", "-p", "random", "--no-plain", "--temperature", "0.7")
    assert cli(*words, *sampling, "--repeats", "2").code == 0
    twice = json.loads(made.read_text())
    assert (twice["repeats"], twice["differences"]) == (2, {"answers": 8, "texts": 0})
    assert cli(*words, *sampling).code == 0
    sampled = json.loads(made.read_text())
    assert sampled["methods"][0]["method"] == "off"
    assert twice["methods"][0]["tokens"] == 2 * sampled["methods"][0]["tokens"]
    assert sampled["differences"] == {"answers": 4, "texts": 0}
    made.write_text(json.dumps({**sampled, "differences": {"answers": 4, "texts": 1}}))
    assert cli("report", made, "-o", "page.html").code == 0
    assert "3 of 4" in (tmp_path / "page.html").read_text()
    residual = ("--arms", "suffix:2", "--no-plain", "--temperature", "0.7", "--sampling", "residual")
    assert cli(*words, *residual).code == 0
    assert json.loads(made.read_text())["differences"] is None
    one_sentence(cli(*words, "--temperature", "0.7"), "--temperature needs --arms")
    for idle in (("--alone", "suffix:4"), ("--drafter", "suffix"), ("--no-plain",), ("--router", "plan.toml")):
        one_sentence(cli(*words, *idle), f"{idle[0]} does nothing without --arms")
    one_sentence(cli(*words, "--arms", "suffix:2", "--lengths", "3"), "--lengths does nothing beside --arms")
    one_sentence(cli(*words, "--arms", "suffix:2", "--sampling", "lucky"), "not 'lucky'")
    one_sentence(cli(*words, "--arms", "suffix"), "is not an arm")


def test_a_method_that_is_named_twice_is_run_once(data: Path, tmp_path: Path, tiny: Any, cli: Wager) -> None:
    short = ("--data", data, "--task", "qa", "--prompts", "2", "--max-tokens", "8", "--json", "made.json")
    arms = ("--arms", "off,suffix:2,suffix:2", "--alone", "suffix:2,suffix:4", "-p", "random", "-p", "random")
    assert cli("bench", "generate", *short, *arms).code == 0
    result = json.loads((tmp_path / "made.json").read_text())
    assert [m["method"] for m in result["methods"]] == ["transformers", "off", "suffix:2", "suffix:4", "random"]
    assert result["differences"]["answers"] == 8


def test_every_command_measures_and_writes_what_it_printed(data: Path, tiny: Any, tmp_path: Path, cli: Wager) -> None:
    short, results, printed = ("--data", data, "--prompts", "1", "--max-tokens", "8"), {}, ""
    for words in (
        ("lab", "engine", "--context", "20", "--repeats", "2", "--tokens", "6"),
        ("bench", "generate", *short, "--task", "qa", "--task", "rag", "--draft-layers", "2"),
        ("lab", "identity", *short),
        ("lab", "memory", "--requests", "20"),
    ):
        done = cli(*words, "--json", "made.json")
        assert done.code == 0, done.err
        results[words[1]], printed = json.loads((tmp_path / "made.json").read_text()), printed + done.out
    assert [row["width"] for row in results["engine"]["widths"]][:2] == [1, 2]
    assert results["generate"]["differences"]["unexplained"] == 0
    assert {"transformers", "off", "suffix:8", "transformers assisted"} <= {
        m["method"] for m in results["generate"]["methods"]
    }
    assert results["identity"]["texts"] == 24
    assert results["identity"]["differ"] == 0
    assert len(results["memory"]["mebibytes"]) == 20
    assert "24 texts" in printed
    assert "growth from request 20 to 20" in printed


def test_a_wrong_text_ends_the_identity_check_with_1(
    data: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch, cli: Wager
) -> None:
    monkeypatch.setattr("wager.decoding.sampler.accept_greedy", lambda choices, draft: len(draft))  # keeps every draft
    done = cli("lab", "identity", "--data", data, "--prompts", "1", "--max-tokens", "12")
    assert (done.code, " 0 differ" in done.out) == (1, False)


@pytest.mark.parametrize("command", [("bench", "generate"), ("lab", "identity")])
def test_missing_data_is_one_sentence(command: tuple[str, ...], tmp_path: Path, cli: Wager) -> None:
    one_sentence(cli(*command), "pass --data DIR or set WAGER_DATA")
    one_sentence(cli(*command, "--data", tmp_path), "one JSON record a line")


@pytest.mark.parametrize("command", [("bench", "generate", "--task", "qa"), ("lab", "identity")])
def test_answers_that_the_model_cannot_hold_are_refused(
    command: tuple[str, ...], data: Path, tiny: Any, cli: Wager
) -> None:
    """There transformers would go on, and wager would not: texts and seconds could not be compared."""
    one_sentence(cli(*command, "--data", data, "--max-tokens", "600"), "holds 512 tokens: too few for answers of 600")
