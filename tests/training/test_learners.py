"""The loss and the unrolled head against slow references, and with bugs planted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from training_setup import head, tiny

from wager.training import build, learners
from wager.training.batches import Batch
from wager.training.evaluate import Judged
from wager.training.learners import EagleLearner, Target, soft_cross_entropy


def test_the_loss_and_its_gradient_are_those_of_cross_entropy() -> None:
    torch.manual_seed(0)
    logits, wanted = torch.randn(7, 11, requires_grad=True), torch.softmax(torch.randn(7, 11), -1)
    again = logits.detach().clone().requires_grad_()
    soft_cross_entropy(logits, wanted).mul(3).backward()
    torch.nn.functional.cross_entropy(again, wanted).mul(3).backward()
    assert torch.allclose(logits.grad, again.grad, atol=1e-6)
    assert torch.allclose(soft_cross_entropy(logits, wanted), torch.nn.functional.cross_entropy(again, wanted))


def drafted_slowly(
    learner: EagleLearner, tokens: torch.Tensor, features: torch.Tensor, first: int
) -> list[torch.Tensor]:
    """What the head makes of a draft that begins at entry ``first``, one entry after the other over a list of keys."""
    model, module = learner.target.model, learner.module
    layer: Any = module.layers[0]
    keys: list[torch.Tensor] = []
    values: list[torch.Tensor] = []

    def turned(x: torch.Tensor, at: int) -> torch.Tensor:
        cos, sin = (t[0, 0] for t in model.model.rotary_emb(x, torch.tensor([[at]])))
        low, high = x.chunk(2, -1)
        return x * cos + torch.cat((-high, low), -1) * sin

    def entry(at: int, feature: torch.Tensor) -> torch.Tensor:
        x = module.fc(torch.cat((model.model.embed_tokens.weight[tokens[at + 1]], feature)))
        by = layer.self_attn
        q = turned(by["q_proj"](x).view(layer.heads, layer.head), at)
        keys.append(turned(by["k_proj"](x).view(layer.num_kv_heads, layer.head), at))
        values.append(by["v_proj"](x).view(layer.num_kv_heads, layer.head))
        mixed = []
        for i in range(layer.heads):
            group = i // (layer.heads // layer.num_kv_heads)
            weights = torch.softmax(torch.stack([k[group] for k in keys]) @ q[i] * layer.head**-0.5, 0)
            mixed.append(weights @ torch.stack([v[group] for v in values]))
        x = x + by["o_proj"](torch.cat(mixed))
        y = layer.post_attention_layernorm(x)
        out: torch.Tensor = x + layer.mlp["down_proj"](
            torch.nn.functional.silu(layer.mlp["gate_proj"](y)) * layer.mlp["up_proj"](y)
        )
        return out

    for at in range(first + 1):
        out = entry(at, features[at])
    drafts = [out]
    for step in range(1, learner.drafter.unroll):
        drafts.append(entry(first + step, drafts[-1]))
    return drafts


def apart(learner: EagleLearner, batch: Batch) -> float:
    """How far the unrolled training forward is from drafting one token at a time."""
    features = learner.target.features(batch)
    made = list(learner._steps(batch, features))
    worst = 0.0
    for row, first in ((0, 4), (0, 9), (1, 7)):
        for step, slow in enumerate(drafted_slowly(learner, batch.tokens[row], features[row], first)):
            worst = max(worst, float((slow - made[step][row, first + step]).abs().max() / slow.abs().max()))
    return worst


@pytest.fixture
def learner() -> EagleLearner:
    made, _ = build.learner(head(), Target(tiny()))
    assert isinstance(made, EagleLearner)
    return made


@pytest.fixture
def batch() -> Batch:
    tokens = torch.randint(0, 64, (2, 20), generator=torch.Generator().manual_seed(1))
    return Batch(tokens, torch.tensor([4, 6]), torch.tensor([20, 18]))


def test_a_head_cut_to_some_tokens_learns_and_drafts_only_those(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(tiny())
    features = target.features(batch)
    columns = (features[:, 1:] @ target.head.T).argmax(-1).unique()[::3]  # some of the target's own choices
    made, _ = build.learner(head(), target, columns=columns)
    whole, _ = build.learner(head(), target)
    assert isinstance(made, EagleLearner)
    assert isinstance(whole, EagleLearner)
    # The loss, row by row, of distributions over the columns alone.
    judged = batch.continued()[:, 1:]
    wanted = torch.softmax((features[:, 1:][judged] @ target.head.T)[:, columns], -1)
    total = weights = 0.0
    for step, out in enumerate(made._steps(batch, features)):
        logits = (out[judged] @ target.head.T)[:, columns]
        apart_from = torch.nn.functional.smooth_l1_loss(out[judged], features[:, 1:][judged])
        weight = made.drafter.decay**step
        crossed = -(wanted * torch.log_softmax(logits, -1)).sum(-1).mean()
        total = total + weight * (crossed + made.drafter.feature * apart_from)
        weights += weight
    assert torch.allclose(made.loss(batch), total / weights, atol=1e-5)
    assert not torch.allclose(made.loss(batch), whole.loss(batch), atol=1e-3)
    # Drafts that are as good as can be are right wherever the target's choice is one they may name, by its id.
    choices = (features[:, 1:][judged] @ target.head.T).argmax(-1)
    monkeypatch.setattr(made, "_steps", lambda batch, features: iter([features[:, 1:]]))
    assert 0 < int(torch.isin(choices, columns).sum()) < len(choices)
    assert torch.equal(made.accepted(batch)[:, 1:][judged] > 0, torch.isin(choices, columns))


@torch.no_grad()
def test_training_sees_what_drafting_sees(learner: EagleLearner, batch: Batch) -> None:
    assert apart(learner, batch) < 1e-4


@torch.no_grad()
@pytest.mark.parametrize("bug", ["feature not moved", "sees true entries of its own draft", "keys of the wrong step"])
def test_planted_bugs_in_the_unrolled_head_show(
    learner: EagleLearner, batch: Batch, bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    back = learners.back
    if bug == "feature not moved":
        monkeypatch.setattr(learners, "back", lambda x, by: x if x.dim() == 3 else back(x, by))
    elif bug == "keys of the wrong step":
        monkeypatch.setattr(learners, "back", lambda x, by: back(x, by) if x.dim() == 3 else back(x, by + 1))
    else:
        tril = torch.Tensor.tril
        monkeypatch.setattr(torch.Tensor, "tril", lambda x, by=0: tril(x, 0))
    assert apart(learner, batch) > 1e-2


@torch.no_grad()
def test_accepted_counts_the_targets_own_choices(learner: EagleLearner) -> None:
    """Against drafting by hand: each draft token by token, its argmax beside the target's own."""
    model = learner.target.model
    prompt = torch.arange(5, 11)[None]
    text = model.generate(prompt, max_new_tokens=14, do_sample=False, pad_token_id=0, eos_token_id=None)
    whole = Batch(text, torch.tensor([6]), torch.tensor([20]))
    features = learner.target.features(whole)
    got = learner.accepted(whole)[0].tolist()
    assert got[:6] == [-1] * 6
    assert got[-1] == -1
    for last in (6, 9, 13):
        drafts = drafted_slowly(learner, text[0], features[0], last - 1)
        right = 0
        for step, out in enumerate(drafts):
            if last + step > 18 or int((model.lm_head.weight @ out).argmax()) != int(text[0, last + step + 1]):
                break
            right += 1
        assert got[last] == right


def test_a_text_is_walked_as_decoding_would() -> None:
    walked = Judged(2)
    walked.add([-1, -1, 1, 0, 3, 0, 0, -1])
    assert (walked.rounds, walked.tokens) == (2, 5)  # from token 2: 1 + 1, then from token 4: 2 + 1
    assert walked.acceptance == [1.0, 0.5]
