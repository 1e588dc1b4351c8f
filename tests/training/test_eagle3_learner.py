"""Training of EAGLE-3 heads: it sees what drafting sees, and what it writes drafts what was trained."""

from pathlib import Path
from typing import Any

import pytest
import torch
from training_setup import some_texts, tiny

from wager.eagle import speculators
from wager.eagle.drafter import Eagle
from wager.eagle.eagle3_head import Eagle3Head
from wager.models.select import runner
from wager.training import build, learners
from wager.training.batches import Batch
from wager.training.config import Drafter
from wager.training.eagle3_learner import Eagle3Learner
from wager.training.learners import Target
from wager.training.trainer import Trainer

HEAD = Drafter("eagle3-x", "eagle3", unroll=4, steps=30, tokens=512, evaluate=15, rate=3e-3)
SOME = torch.arange(64)[::2]  # tokens it may draft


def written(folder: Path, columns: torch.Tensor | None) -> tuple[Any, Eagle3Learner]:
    """A target, and a head for it that stands in a folder in float32."""
    model = tiny(layers=7)
    made, config = build.learner(HEAD, Target(model), columns=columns)
    with torch.no_grad():
        for weight in made.module.parameters():
            weight.add_(0.05 * torch.randn(weight.shape))
    ids = [] if columns is None else columns.tolist()
    speculators.write(folder, config.to_dict(), made.module.state_dict(), {"depth": 7, "target": "tiny"}, ids)
    return model, made


def accepted(folder: Path, model: Any, text: list[int], last: int) -> int:
    """Of a draft by the head in the folder, when the text reaches to this token, how many tokens are the text's."""
    drafter, target = Eagle(folder), runner(model)
    drafter.follow(target)
    target.begin()
    target.prefill(text[:last])
    drafter.begin(text[:last])
    drafter.extend(text[last : last + 1])
    drafted = drafter.propose(HEAD.unroll).tokens
    right = 0
    while right < len(drafted) and last + 1 + right < len(text) and drafted[right] == text[last + 1 + right]:
        right += 1
    return right


@pytest.mark.parametrize("columns", [None, SOME])
def test_training_sees_what_drafting_sees(tmp_path: Path, columns: torch.Tensor | None) -> None:
    model, learner = written(tmp_path, columns)
    prompt = torch.arange(5, 11)[None]
    text = model.generate(prompt, max_new_tokens=24, do_sample=False, pad_token_id=0, eos_token_id=None)
    batch = Batch(text, torch.tensor([6]), torch.tensor([30]), torch.tensor([0]))
    got = learner.accepted(batch)[0].tolist()
    drafter, target = Eagle(tmp_path), runner(model)
    drafter.follow(target)
    head: Any = drafter.head
    assert isinstance(head, Eagle3Head)
    assert (head.pruned is None) == (columns is None)
    with torch.no_grad():
        _, read = learner._read(batch, None)
        trained = list(learner._steps(batch, read, torch.arange(29)[None]))
    target.begin()
    target.prefill(text[0].tolist()[:-1])
    states = head.features_of(target, 0, 29)
    torch.testing.assert_close(states, read[0, :29], rtol=1e-3, atol=1e-3)
    head.begin()
    out = head.read(text[0].tolist()[1:13], states[:12], 0)
    for step in range(HEAD.unroll):
        torch.testing.assert_close(out[0], trained[step][0, 11 + step], rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(
            head.logits(out), learner._logits(trained[step][0, 11 + step])[None], rtol=1e-3, atol=1e-3
        )
        out = head.forward(text[0, 13 + step : 14 + step], out)
    for last in range(6, 28, 4):
        assert got[last] == accepted(tmp_path, model, text[0].tolist(), last)


@pytest.mark.parametrize("bug", ["feature not moved", "keys of the wrong step"])
def test_bugs_in_the_unrolled_head_show(tmp_path: Path, bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    back = learners.back
    if bug == "feature not moved":
        monkeypatch.setattr(learners, "back", lambda x, by: x if x.dim() == 3 else back(x, by))
    else:
        monkeypatch.setattr(learners, "back", lambda x, by: back(x, by) if x.dim() == 3 else back(x, by + 1))
    with pytest.raises(AssertionError):
        test_training_sees_what_drafting_sees(tmp_path, SOME)


def test_a_few_steps_make_a_better_head(tmp_path: Path) -> None:
    target = Target(tiny(layers=7))
    made, _ = build.learner(HEAD, target, columns=SOME)
    trainer = Trainer(made, HEAD, some_texts(), tmp_path, torch.device("cpu"))
    tokens, index = torch.stack([torch.arange(20), torch.arange(20) * 3 % 64]), torch.arange(2)
    batch = Batch(tokens, torch.tensor([4, 6]), torch.tensor([20, 18]), index)
    before = float(made.loss(batch).detach())
    trainer.run()
    assert float(made.loss(batch).detach()) < 0.9 * before
    assert trainer.best.keys() >= {"fc.weight", "norm.weight", "lm_head.weight", "layers.0.hidden_norm.weight"}


def test_a_target_of_few_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="after three of its layers, and it has only 2; train one of the kind eagle"):
        build.learner(HEAD, Target(tiny()))
