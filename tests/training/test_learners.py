"""The loss and the unrolled head against slow references; batches, checkpoints and resuming; prompts and plans."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from training_setup import head, plan_text, some_texts, tiny

from wager.training import build, config, features, learners, prompts
from wager.training.batches import Batch, batches, split
from wager.training.config import Drafter
from wager.training.evaluate import Judged, at_home
from wager.training.learners import EagleLearner, Target, soft_cross_entropy
from wager.training.trainer import Trainer


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
    entries, _ = batch.window(1)
    made = list(learner._steps(batch, features, entries))
    worst = 0.0
    for row, first in ((0, 4), (0, 9), (1, 7)):
        for step, slow in enumerate(drafted_slowly(learner, batch.tokens[row], features[row], first)):
            fast = made[step][row, entries[row].tolist().index(first + step)]
            worst = max(worst, float((slow - fast).abs().max() / slow.abs().max()))
    return worst


@pytest.fixture
def learner() -> EagleLearner:
    made, _ = build.learner(head(), Target(tiny()))
    return made


@pytest.fixture
def batch() -> Batch:
    tokens = torch.randint(0, 64, (2, 20), generator=torch.Generator().manual_seed(1))
    return Batch(tokens, torch.tensor([4, 6]), torch.tensor([20, 18]), torch.tensor([0, 1]))


def test_a_head_cut_to_some_tokens_learns_and_drafts_only_those(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(tiny())
    features = target.features(batch)
    columns = (features[:, 1:] @ target.head.T).argmax(-1).unique()[::3]  # some of the target's own choices
    made, _ = build.learner(head(), target, columns=columns)
    whole, _ = build.learner(head(), target)
    # The loss, row by row, of distributions over the columns alone.
    judged = batch.continued()[:, 1:]
    wanted = torch.softmax((features[:, 1:][judged] @ target.head.T)[:, columns], -1)
    total = weights = 0.0
    every = torch.arange(19).expand(2, -1)
    for step, out in enumerate(made._steps(batch, features, every)):
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
    monkeypatch.setattr(made, "_steps", lambda batch, features, entries: iter([learners._at(features[:, 1:], entries)]))
    assert 0 < int(torch.isin(choices, columns).sum()) < len(choices)
    assert torch.equal(made.accepted(batch)[:, 1:][judged] > 0, torch.isin(choices, columns))


@torch.no_grad()
def test_training_sees_what_drafting_sees(learner: EagleLearner, batch: Batch) -> None:
    assert apart(learner, batch) < 1e-4


@torch.no_grad()
@pytest.mark.parametrize("bug", ["feature not moved", "sees true entries of its own draft", "keys of the wrong step"])
def test_bugs_in_the_unrolled_head_show(
    learner: EagleLearner, batch: Batch, bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    back = learners.back
    if bug == "feature not moved":
        monkeypatch.setattr(learners, "back", lambda x, by: x if x.dim() == 3 else back(x, by))
    elif bug == "keys of the wrong step":
        monkeypatch.setattr(learners, "back", lambda x, by: back(x, by) if x.dim() == 3 else back(x, by + 1))
    else:
        layer: Any = learner.module.layers[0]
        whole = type(layer).forward

        def sees_more(layer: Any, x: Any, r: Any, rope: Any, true: Any, seen: torch.Tensor, own: Any) -> torch.Tensor:
            """As if the first step's mask held for all."""
            entries = seen[:, 0, 0].sum(-1, keepdim=True) - 1 + len(own)
            return whole(layer, x, r, rope, true, (torch.arange(seen.shape[-1]) <= entries)[:, None, None], own)

        monkeypatch.setattr(type(layer), "forward", sees_more)
    assert apart(learner, batch) > 1e-2


@torch.no_grad()
def test_accepted_counts_the_targets_own_choices(learner: EagleLearner) -> None:
    """Against drafting by hand: each draft token by token, its argmax beside the target's own."""
    model = learner.target.model
    prompt = torch.arange(5, 11)[None]
    text = model.generate(prompt, max_new_tokens=14, do_sample=False, pad_token_id=0, eos_token_id=None)
    whole = Batch(text, torch.tensor([6]), torch.tensor([20]), torch.tensor([0]))
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


def test_a_specialist_is_compared_with_the_other_specialists_at_home() -> None:
    def row(code: int, math: int) -> dict[str, dict[str, Any]]:
        tokens = {"code (held out)": code, "math (held out)": math}
        return {task: {"rounds": {"4": 10}, "tokens": {"4": count}} for task, count in tokens.items()}

    rows = {"eagle-code": row(30, 15), "eagle-math": row(20, 33), "eagle-ofa": row(25, 30), "draft-code": row(40, 40)}
    trained = {"eagle-code": ("code",), "eagle-math": ("math",), "eagle-ofa": ("code", "math"), "draft-code": ("code",)}
    found = {home["drafter"]: home for home in at_home(rows, trained)}
    assert found.keys() == {"eagle-code", "eagle-math"}
    assert (found["eagle-code"]["mat"], found["eagle-code"]["gain"]) == (3.0, 0.5)
    assert found["eagle-math"]["gain"] == 1.2
    assert found["eagle-code"]["others"] == {"eagle-math": 2.0, "eagle-ofa": 2.5}


def test_no_prompt_is_both_learned_from_and_judged_by() -> None:
    train, held = split(some_texts())
    assert held
    assert not {t.key for t in train} & {t.key for t in held}


@pytest.mark.parametrize("room", ["states", "features", "none"])
def test_features_kept_for_learners_are_what_they_would_read(room: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For heads of both kinds, which read different texts; one that finds no room computes them itself."""
    target, texts = Target(tiny(layers=7)), some_texts()
    monkeypatch.setattr(
        features, "fits", lambda target, texts, layers: {"states": 9, "features": 0, "none": -1}[room] >= len(layers)
    )
    eagle, _ = build.learner(head(), target)
    eagle3, _ = build.learner(Drafter("eagle3-x", "eagle3"), target)
    pairs = [(eagle, texts[::3]), (eagle3, texts[1:90])]
    for (learner, some), kept in zip(pairs, features.known(pairs), strict=True):
        for made in islice(batches(some, 400), 5):
            if room == "none" or (room == "features" and learner is eagle3):
                assert kept(made) is None
                continue
            inside = torch.arange(made.tokens.shape[1]) < made.lengths[:, None]
            assert torch.allclose(kept(made)[inside], target.features(made, learner.layers)[inside], atol=1e-4)
            assert torch.equal(learner.accepted(made, kept(made)), learner.accepted(made))
            assert torch.allclose(learner.loss(made, kept(made)), learner.loss(made), atol=1e-4)


def test_there_is_room_for_the_states_of_few_texts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    target, texts = Target(tiny()), some_texts()
    assert features.fits(target, texts, (2, 3, 4))
    monkeypatch.setattr(features, "CPU_SHARE", 1e-9)
    assert not features.fits(target, texts)


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
    assert not list((tmp_path / "killed").glob("*.part"))


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


@pytest.mark.parametrize("name", ["smollm2-135m", "specialists"])
def test_the_plans_of_the_shipped_drafters_are_sound(name: str) -> None:
    plan = config.read(Path(__file__).parents[2] / "training" / f"{name}.toml")
    assert {"eagle-code", "eagle-math"} <= plan.drafters.keys()
    assert all(source.kind in prompts.RECIPES for sources in plan.domains.values() for source in sources)


def test_specialists_are_trained_alike_from_scratch_and_on_one_domain_each() -> None:
    plan = config.read(Path(__file__).parents[2] / "training" / "specialists.toml")
    alike = {replace(drafter, name="", domains=(), kind="") for drafter in plan.drafters.values()}
    assert len(alike) == 1
    assert not alike.pop().start
    eagle = sorted(d.domains for d in plan.drafters.values() if d.kind == "eagle")
    assert eagle == [("*",), *((domain,) for domain in sorted(plan.domains))]
    assert [d.domains for d in plan.drafters.values() if d.kind != "eagle"] == [("*",)]  # an EAGLE-3 head on everything
