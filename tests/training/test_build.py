"""What is trained goes where it belongs: cards and other files are kept, and weights keep the tokens they draft."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_setup import head, plan_text, some_texts, tiny

from wager.cli.app import app
from wager.training import build, config
from wager.training.answers import Text
from wager.training.card import note_acceptance
from wager.training.config import Answers, Drafter, Plan
from wager.training.learners import Target

PLAN = Plan("target", Answers(), {"a": ()}, {})
ABOUT = {"target": "target", "target_fingerprint": "x"}
EAGLE3 = replace(head(2), name="eagle3-x", kind="eagle3", frequent=10)


def made(drafter: Drafter, texts: list[Text], folder: Path) -> tuple[Any, Any]:
    return build.trainer(PLAN, drafter, Target(tiny(layers=7)), texts, folder / "work")


def other_texts(texts: list[Text]) -> list[Text]:
    """Later answers, in which other tokens are frequent."""
    rng = np.random.default_rng(1)
    drawn = [np.concatenate([text.tokens[:6], rng.integers(0, 10, 40).astype(np.int32)]) for text in texts]
    return [replace(text, tokens=one, key=text.key + 1000) for text, one in zip(texts, drawn, strict=True)]


def test_a_drafter_that_is_there_keeps_its_card(tmp_path: Path) -> None:
    folder, texts = tmp_path / "drafters" / "eagle-x", some_texts()
    running, export = made(head(2), texts, tmp_path)
    running.run()
    export(folder, ABOUT)
    note_acceptance(folder, {"qa": {"acceptance": [0.5]}})
    (folder / "README.md").write_text("# eagle-x\n")
    again, export = made(head(2), texts, tmp_path)
    again.run()  # nothing is left to do
    export(folder, ABOUT)
    assert (folder / "README.md").is_file()
    assert json.loads((folder / "config.json").read_text())["wager"]["acceptance"] == {"qa": [0.5]}
    another, export = made(replace(head(2), seed=1), texts, tmp_path / "other")
    another.run()
    export(folder, ABOUT)  # other weights
    assert not (folder / "README.md").exists()
    assert "acceptance" not in json.loads((folder / "config.json").read_text())["wager"]


def test_a_folder_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    plan, folder = tmp_path / "plan.toml", tmp_path / "out" / "draft-ofa"
    plan.write_text(plan_text())
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="draft-ofa exists and holds no drafter"):
        app(["train", "drafters", str(plan), "--out", str(folder.parent)])
    assert (folder / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("drafter", [EAGLE3, replace(head(2), frequent=10)])
def test_a_resumed_head_drafts_the_tokens_it_was_begun_with(tmp_path: Path, drafter: Drafter) -> None:
    texts = some_texts()
    running, _ = made(drafter, texts, tmp_path)
    running.run()
    later, _ = made(replace(drafter, steps=9), texts + other_texts(texts), tmp_path)
    assert later.learner.columns.tolist() == running.learner.columns.tolist()
    fresh, _ = made(drafter, texts + other_texts(texts), tmp_path / "fresh")
    assert fresh.learner.columns.tolist() != running.learner.columns.tolist()


def test_an_eagle3_head_that_starts_from_another_drafts_its_tokens(tmp_path: Path) -> None:
    texts = some_texts()
    running, _ = made(EAGLE3, texts, tmp_path)
    running.run()
    own = replace(EAGLE3, name="eagle3-y", start="eagle3-x")
    later, _ = made(own, texts + other_texts(texts), tmp_path)
    assert later.learner.columns.tolist() == running.learner.columns.tolist()
    assert torch.equal(later.learner.module.lm_head.weight, running.best["lm_head.weight"])


@pytest.mark.parametrize(("kind", "key", "value"), [("eagle3", "frequent", 5), ("draft", "layers", 2)])
def test_a_start_of_another_size_is_refused(tmp_path: Path, kind: str, key: str, value: int) -> None:
    plan = tmp_path / "plan.toml"
    more = f'[[drafter]]\nname = "{kind}-more"\nkind = "{kind}"\nstart = "{kind}-ofa"\n{key} = {value}\n'
    plan.write_text(plan_text() + more + ("" if kind == "eagle3" else "hidden = 16\nheads = 2\n"))
    with pytest.raises(ValueError, match=f"starts from '{kind}-ofa'; give both the same {key}"):
        config.read(plan)


@pytest.mark.parametrize("drafter", [EAGLE3, head(2), Drafter("draft-x", "draft", hidden=16, heads=2, layers=1)])
def test_answers_of_one_token_are_too_few(tmp_path: Path, drafter: Drafter) -> None:
    short = [replace(text, tokens=text.tokens[: text.prompt + 1]) for text in some_texts()]
    with pytest.raises(ValueError, match="answers are too few"):
        made(drafter, short, tmp_path)
