"""`wager lab first-token` and `overhead`: the same measure for plain transformers and wager, a table and a file."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from wager.bench import first_token, shapes
from wager.bench.first_token import FIRST, LATER, PLAIN, summary

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny model that knows two words."""
    words = Tokenizer(models.WordLevel({"?": 0, "sea": 1}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?").save_pretrained(tmp_path / "model")
    config = LlamaConfig(vocab_size=16, max_position_embeddings=128, bos_token_id=None, eos_token_id=None, **SIZES)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.usefixtures("cli")
def test_what_a_process_runs_prints_its_seconds_and_the_same_text(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WAGER_CACHE", str(folder.parent / "cache"))
    found = {}
    for kind in ("plain", "wager"):
        monkeypatch.setattr(sys, "argv", ["-c", kind, str(folder), "the sea and the sea", "5"])
        capsys.readouterr()
        exec(compile(first_token.SCRIPT, kind, "exec"), {})
        found[kind] = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert found["plain"]["tokens"] == found["wager"]["tokens"]
    assert len(found["plain"]["tokens"]) == 5
    for one in found.values():
        assert 0 < one["first"][0] < one["all"][0], "the first token comes before the last"
        assert 0 < one["first"][1] <= one["all"][1]


def ran(first: float, text: float, kept: list[str]) -> dict[str, Any]:
    return {"first": [first, first / 2], "all": [text, text / 2], "tokens": [1, 2], "kept": kept}


def test_every_turn_is_compared_with_its_own_plain_process() -> None:
    turns = [(5.0, 6.0, 5.5), (9.0, 10.5, 9.5), (5.0, 7.0, 5.1)]  # the machine is busy in the second
    found = [
        pair for own in turns for pair in zip((PLAIN, FIRST, LATER), (ran(s, s + 1, []) for s in own), strict=True)
    ]
    rows = {row["kind"]: row for row in summary(found)}
    assert rows[FIRST]["first_token_seconds"] == {"median": 7.0, "least": 6.0, "most": 10.5, "over_plain": 1.5}
    assert rows[FIRST]["first_token_cpu_seconds"]["over_plain"] == 0.75
    assert rows[LATER]["text_seconds"]["over_plain"] == 0.5
    assert rows[PLAIN]["first_token_seconds"]["over_plain"] == 0.0


def test_processes_alternate_and_the_later_one_finds_what_the_first_kept(
    cli: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[str, Path]] = []

    def process(kind: str, model: str, tokens: int, spare: Path, cache: Path) -> dict[str, Any]:
        started.append((kind, cache))
        return ran({PLAIN: 4.0, FIRST: 7.0, LATER: 5.0}[kind], 8.0, ["packed.json", "rounds.json"])

    monkeypatch.setattr(first_token, "_process", process)
    done = cli("lab", "first-token", "--model", str(folder), "--repeats", "2", "--json", "f.json")
    assert done.code == 0, done.err
    assert [kind for kind, _ in started] == [PLAIN, FIRST, *[PLAIN, FIRST, LATER] * 2], "the first two warm up"
    caches = [cache for kind, cache in started if kind != PLAIN]
    assert caches[1] == caches[2] != caches[3] == caches[4]
    assert "+3.00" in done.out
    assert "all texts identical" in done.out
    content = json.loads((tmp_path / "f.json").read_text())
    assert [row["first_token_seconds"]["over_plain"] for row in content["rows"]] == [0.0, 3.0, 1.0]
    assert content["commit"]


def test_a_process_that_fails_is_told_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_token, "SCRIPT", "raise SystemExit('no such model')")
    with pytest.raises(ValueError, match="plain transformers ended with code 1: no such model"):
        next(first_token.measured("nowhere", 1, 4))


def test_overhead_prints_a_row_a_family_and_writes_it(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(shapes.FAMILIES, "gpt_neox", SIZES)
    how = ("--families", "gpt_neox", "--tokens", "4", "--repeats", "2", "--json", "o.json")
    done = cli("lab", "overhead", *how)
    assert done.code == 0, done.err
    assert "gpt_neox" in done.out
    row = json.loads((tmp_path / "o.json").read_text())["families"][0]
    assert row["runner"] == "HFRunner"
    assert row["off_to_plain"]["median"] > 0
    assert set(row["outside_cpu_seconds_per_token"]) == {"transformers", "off"}
    assert cli("lab", "overhead", "--families", "llama").code == 2
