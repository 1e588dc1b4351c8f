"""Every family of decoder-only models writes its own text, whatever is drafted."""

import copy
from typing import Any

import pytest
import torch
from decoders import PROMPT, Grafted, Told, check, ours, plain
from families import ALL, FAST, OWN, STATE, STEP, Family, tiny_family

import wager
from wager.models import select
from wager.models.hf_runner import HFRunner
from wager.models.llama_runner import LlamaRunner
from wager.models.llama_shape import FAMILIES, Differences
from wager.models.select import runner
from wager.models.state_runner import StateRunner
from wager.models.step_runner import StepRunner

RUNNERS = {FAST: LlamaRunner, OWN: HFRunner, STATE: StateRunner, STEP: StepRunner}
DRAFTED = [family for family in ALL if family.forward != STEP]
TOKENS = {"max_new_tokens": 36}


@pytest.mark.parametrize("family", DRAFTED, ids=str)
def test_text_of_every_family_is_its_own(family: Family) -> None:
    model = tiny_family(family)
    target = runner(model)
    assert type(target) is RUNNERS[family.forward]
    assert target.trees == family.trees
    expected = plain(model, **TOKENS)
    assert len(set(expected)) > 4, "a text that repeats itself shows little"
    text = [*PROMPT, *expected]
    how: dict[str, Any] = {"policy": "round-robin", "lengths": (2, 5), "trees": ["3x9"] if family.trees else ()}
    decoder = wager.Decoder(model, drafters=[Told([text]), Grafted(text)], **how)
    played = []
    for _ in range(2):
        answer = decoder.generate(PROMPT, do_sample=False, **TOKENS)
        check(model, PROMPT, answer.tokens, expected)
        played += answer.rounds
    for tree in {False, family.trees}:
        rounds = [r for r in played if (r.arm.tree is not None) is tree]
        assert sum(r.accepted for r in rounds)
        assert sum(r.drafted - r.accepted for r in rounds)
    sampled = {"do_sample": True, "temperature": 0.7, "seed": 3, "max_new_tokens": 12}
    drafted = ours(decoder, **sampled)
    assert drafted == ours(wager.Decoder(model, drafters="off"), **sampled), "a seed has one text"


@pytest.mark.parametrize("family", [family for family in ALL if family.forward == STEP], ids=str)
def test_a_family_that_verifies_no_drafts_says_so_at_once_and_decodes_plainly(family: Family) -> None:
    model = tiny_family(family)
    with pytest.raises(ValueError, match=f"{type(model).__name__} .*; drafters='off' decodes") as caught:
        wager.Decoder(model)
    assert len(str(caught.value).splitlines()) == 1
    expected = plain(model, **TOKENS)
    assert len(set(expected)) > 4
    decoder = wager.Decoder(model, drafters="off")
    assert type(decoder.target) is StepRunner
    for prompt in (PROMPT, PROMPT):
        assert ours(decoder, prompt, **TOKENS) == expected


@pytest.mark.parametrize(
    ("family", "wrong"),
    [
        ("gemma3_text", Differences()),
        ("llama", Differences(gemma=True)),
        ("glm4", Differences()),
        ("phi3", Differences(interleaved=True)),
    ],
)
def test_a_fast_forward_that_differs_is_not_used(
    family: str, wrong: Differences, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_family(next(one for one in ALL if one.name == family))
    assert type(runner(model)) is LlamaRunner
    changed = copy.deepcopy(model)
    monkeypatch.setitem(FAMILIES, type(model).__name__, wrong)
    assert type(runner(changed)) is HFRunner
    assert "standard deviations from its own" in caplog.text


def test_half_precision_runs_fast_where_it_may() -> None:
    names = {family.name: family for family in ALL}
    for name, kind in (("phi3", LlamaRunner), ("glm", LlamaRunner), ("qwen3_moe", LlamaRunner), ("gemma", HFRunner)):
        assert type(runner(tiny_family(names[name]).to(torch.bfloat16))) is kind


def test_the_check_of_a_family_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[type[HFRunner]] = []
    check = select._takes_back
    monkeypatch.setattr(select, "_takes_back", lambda kind, model: (tried.append(kind), check(kind, model))[1])
    monkeypatch.setattr(select, "_OWN", {})
    hybrid, plain_one = (next(one for one in ALL if one.name == name) for name in ("lfm2", "gpt2"))
    for family, kinds in ((hybrid, [HFRunner, StateRunner]), (plain_one, [HFRunner])):
        for seed in (0, 1):
            runner(tiny_family(family, seed))
        assert tried == kinds
        tried.clear()
