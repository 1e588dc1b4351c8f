"""Targets that `wager train` can or cannot train for: told before anything is computed."""

from pathlib import Path
from typing import Any

import pytest
from families import ALL, tiny_family
from training_setup import WORDS, plan_text
from typer.testing import CliRunner

from wager.cli import app as cli
from wager.training import answers

FAMILIES = {family.name: family for family in ALL}


def save(folder: Path, family: str, template: bool = True, **more: Any) -> Path:
    """A tiny target of a family, with a tokenizer of letters that has no end of text."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    letters = Tokenizer(WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="a"))
    letters.pre_tokenizer = Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, unk_token="a")
    if template:
        tokenizer.chat_template = "{% for m in messages %}{{ m.content[:40] }}{% endfor %}"
    tiny_family(FAMILIES[family], **more).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def run(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, [str(a) for a in arguments], catch_exceptions=True)


def commands(tmp_path: Path, corpora: Path, target: Path) -> list[tuple[object, ...]]:
    plan = tmp_path / "plan.toml"
    plan.write_text(plan_text(steps=2).replace("TARGET", str(target)))
    told = ("--answers", tmp_path / "answers", "--device", "cpu")
    learn = (
        "train",
        "drafters",
        plan,
        "eagle-ofa",
        "draft-ofa",
        "--out",
        tmp_path / "out",
        "--work",
        tmp_path / "work",
    )
    return [("train", "answers", plan, "--data", corpora, *told), (*learn, *told)]


def test_a_target_without_an_end_of_text_is_trained_for(tmp_path: Path, corpora: Path) -> None:
    target = save(tmp_path / "target", "llama", vocab_size=len(WORDS))
    for command in commands(tmp_path, corpora, target):
        done = run(*command)
        assert done.exit_code == 0, (done.output, done.exception)
    assert {len(text.tokens) - text.prompt for text in answers.texts(tmp_path / "answers")} == {8}
    assert {folder.name for folder in (tmp_path / "out").iterdir()} == {"eagle-ofa", "draft-ofa"}


@pytest.mark.parametrize(
    ("family", "more", "says"),
    [
        ("llama", {"template": False}, "has no chat template, by which prompts"),
        ("gemma3_text", {}, "drafter 'eagle-ofa', a head, cannot be trained for .*: its layers rotate by different"),
        ("gemma2", {}, "drafters cannot be trained for .* .gemma2.: it caps its logits"),
        ("granite", {"logits_scaling": 2.0}, "it scales its logits"),
        ("gpt2", {}, "its configuration has no rms_norm_eps"),
        ("mamba2", {}, "drafters cannot be trained for .* .mamba2.: its configuration has no"),
    ],
)
def test_a_target_that_cannot_be_trained_for_is_told_first(
    tmp_path: Path, corpora: Path, family: str, more: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = save(tmp_path / "target", family, **more)
    monkeypatch.setattr("wager.models.load_model", lambda *_, **__: pytest.fail("weights were loaded"))
    for command in commands(tmp_path, corpora, target):
        done = run(*command)
        assert isinstance(done.exception, ValueError), (done.output, done.exception)
        with pytest.raises(ValueError, match=says):
            raise done.exception
        assert len(str(done.exception).splitlines()) == 1
    assert not (tmp_path / "answers").exists()


def test_a_draft_model_larger_than_its_target_is_told_first(tmp_path: Path, corpora: Path) -> None:
    target = save(tmp_path / "target", "llama", vocab_size=len(WORDS))
    answer, _ = commands(tmp_path, corpora, target)
    plan = tmp_path / "plan.toml"
    plan.write_text(plan.read_text() + '\n[[drafter]]\nname = "draft-large"\nkind = "draft"\n')
    done = run(*answer)
    said = "drafter 'draft-large' has a hidden size of 96, the target 32; set hidden to no more than the target's"
    assert str(done.exception) == said
