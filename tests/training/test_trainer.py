"""Batches, checkpoints and resuming; prompts and plans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from training_setup import head, plan_text, some_texts, tiny

from wager.training import build, config, prompts
from wager.training.batches import batches, split
from wager.training.learners import SmallLearner, Target
from wager.training.trainer import Trainer


def test_no_prompt_is_both_learned_from_and_judged_by() -> None:
    train, held = split(some_texts())
    assert held
    assert not {t.key for t in train} & {t.key for t in held}


def test_batches_go_on_where_they_were_left() -> None:
    texts = some_texts()
    whole = batches(texts, 400)
    first = [next(whole) for _ in range(30)]
    rest = batches(texts, 400, start=12)
    for seen in first[12:]:
        again = next(rest)
        assert torch.equal(seen.tokens, again.tokens)
        assert torch.equal(seen.prompts, again.prompts)


@pytest.mark.parametrize("kind", ["eagle", "draft"])
def test_a_killed_training_ends_like_one_that_was_not(kind: str, tmp_path: Path) -> None:
    drafter = replace(head(2), name=f"{kind}-x", kind=kind, hidden=16, heads=2, layers=1, intermediate=32)
    texts, target = some_texts(), Target(tiny())

    def run(folder: Path, steps: int) -> dict[str, torch.Tensor]:
        made, _ = build.learner(drafter, target)
        running = Trainer(made, drafter, texts, folder, torch.device("cpu"))
        if steps:

            class KilledError(Exception):
                pass

            def kill(progress: Any, look: Any) -> None:
                if progress.step == steps:
                    raise KilledError

            with pytest.raises(KilledError):
                running.run(shown=kill)
            return {}
        running.run()
        return {k: v.clone() for k, v in running.learner.module.state_dict().items()}

    whole = run(tmp_path / "whole", 0)
    run(tmp_path / "killed", 5)  # two steps after the checkpoint at 3
    resumed = run(tmp_path / "killed", 0)
    assert whole.keys() == resumed.keys()
    assert all(torch.allclose(whole[k], resumed[k], atol=1e-6) for k in whole)
    assert not list((tmp_path / "killed").glob("*.tmp"))


def test_training_stops_when_acceptance_does_not_rise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = replace(head(1), steps=100, evaluate=1, patience=2, rate=1e-12)
    made, _ = build.learner(drafter, Target(tiny()))
    running = Trainer(made, drafter, some_texts(), tmp_path, torch.device("cpu"))
    running.run()
    assert running.progress.step == 3  # the first look is the best, and two more do not beat it


def test_other_settings_do_not_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    drafter, target = head(1), Target(tiny())
    Trainer(build.learner(drafter, target)[0], drafter, some_texts(), tmp_path, torch.device("cpu")).run()
    other = replace(drafter, rate=0.5)
    with pytest.raises(ValueError, match="made with other settings"):
        Trainer(build.learner(other, target)[0], other, some_texts(), tmp_path, torch.device("cpu"))
    (tmp_path / "checkpoint.pt").write_bytes(b"no checkpoint")
    with pytest.raises(ValueError, match="is no checkpoint"):
        Trainer(build.learner(drafter, target)[0], drafter, some_texts(), tmp_path, torch.device("cpu"))


def test_the_small_model_starts_from_the_targets_embedding() -> None:
    drafter = replace(head(), name="draft-x", kind="draft", hidden=16, heads=2, layers=1)
    made, _ = build.learner(drafter, Target(tiny()))
    assert isinstance(made, SmallLearner)
    ours = made.module.get_input_embeddings().weight.float()
    theirs = made.target.embed.float() - made.target.embed.float().mean(0)
    seen = torch.corrcoef(torch.stack(((ours @ ours.T).flatten(), (theirs @ theirs.T).flatten())))[0, 1]
    assert seen > 0.8  # tokens that were alike still are


def test_every_recipe_makes_prompts(tmp_path: Path, corpora: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(plan_text())
    plan = config.read(path)
    found = prompts.read(plan, corpora)
    assert {p.domain for p in found} == set(plan.domains)
    assert all(p.messages[-1]["role"] == "user" and p.messages[-1]["content"] for p in found)
    assert found == prompts.read(plan, corpora)
    said = "\n".join(p.messages[-1]["content"] for p in found)
    for piece in ("Translate German to English: Satz", "Great Harbour", "How many x?", "Customer: hello"):
        assert piece in said


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('kind = "eagle"', 'kind = "hawk"', "unknown kind 'hawk'"),
        ('name = "eagle-code"', 'name = "code"', "is called eagle-SOMETHING"),
        ('name = "eagle-code"', 'name = "eagle-ofa"', "stands twice"),
        ('start = "eagle-ofa"', 'start = "eagle-x"', "no eagle drafter above it"),
        ('domains = ["code", "wiki"]', 'domains = ["cod"]', "unknown domain 'cod'"),
        ("frequent = 20", "frequents = 20", "unknown key 'frequents'"),
        ("steps = 4", 'steps = "4"', "steps is a int"),
        ("unroll = 2", "unroll = 0", "at least 1"),
        ("share = [1.0, 0.5]", "share = [1.0]", "as many shares"),
        ("[answers]", "[answer]", "unknown key 'answer'"),
        ("[answers]", "[answers", "is not TOML"),
    ],
)
def test_a_bad_plan_is_refused_in_a_sentence(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    path = tmp_path / "plan.toml"
    assert old in plan_text()
    path.write_text(plan_text().replace(old, new, 1 if "eagle-code" not in old else -1))
    with pytest.raises(ValueError, match=complaint) as error:
        config.read(path)
    assert "\n" not in str(error.value).strip() or "TOML" in complaint


def test_the_plan_of_the_shipped_drafters_is_sound() -> None:
    plan = config.read(Path(__file__).parents[2] / "training" / "smollm2-135m.toml")
    assert {"eagle-ofa", "eagle-code", "draft-ofa"} <= plan.drafters.keys()
    assert all(source.kind in prompts.RECIPES for sources in plan.domains.values() for source in sources)
