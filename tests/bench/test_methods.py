"""Methods: how they are written, what they are made of, and that warming up teaches nothing."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from letters import Letters
from transformers import GPT2Config, GPT2LMHeadModel

import wager
from wager.bench import methods as made
from wager.bench.draft_models import has_assistant, truncated
from wager.bench.routing import Classifier, Routed
from wager.core import OFF, Arm, Request, TraceWriter
from wager.core.trace import read as read_trace
from wager.policies.base import Policy

pytestmark = pytest.mark.usefixtures("one_thread")


def test_methods_are_read_as_they_are_written() -> None:
    text = "suffix:4, auto,kl-ucb:reward=goodput,seed=1,transformers-lookup,suffix:3@2x6,off,transformers,auto"
    with pytest.raises(ValueError, match="no parameter 'seed'"):
        made.parse_methods(text)
    assert [(m.name, m.kind) for m in made.parse_methods(text.replace(",seed=1", ""))] == [
        ("transformers", "plain"),
        ("suffix:4", "arm"),
        ("auto", "policy"),
        ("kl-ucb:reward=goodput", "policy"),
        ("transformers prompt lookup", "peer"),
        ("suffix:3@2x6", "arm"),
        ("off", "off"),
    ]
    two = made.parse_methods("fixed:drafter=suffix,length=4")
    assert two[1].name == "fixed:drafter=suffix,length=4"


def test_a_head_is_played_only_where_it_lies_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, played in (({}, False), ({"eagle:ofa": object()}, True), ({"eagle:chat": object()}, False)):
        monkeypatch.setattr("wager.drafters.shipped.available", lambda target, there=there: there)
        names = [method.name for method in made.default_methods(made.QUICK, "a-model")]
        assert ("eagle:ofa:3" in names) is played
        assert {"suffix:4", "auto"} <= set(names)


def test_a_default_run_leaves_out_assisted_generation_where_no_draft_model_can_be_had(model: Any) -> None:
    other = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_embd=16, n_layer=4, n_head=2))
    assert (has_assistant(model), has_assistant(other)) == (True, False)


def test_a_classifier_tells_domains_apart() -> None:
    torch.manual_seed(0)
    embed = torch.randn(100, 16)
    embed[:50, :4] += 2  # tokens of one domain have something in common
    prompts = [("low", [i, i + 1, i + 2]) for i in range(40)] + [("high", [50 + i, 51 + i]) for i in range(40)]
    tell = Classifier(embed, prompts)
    assert sum(tell(ids) == domain for domain, ids in prompts) > 70
    routed = Routed([OFF, Arm("eagle:ofa", 4), Arm("eagle:low", 4)])
    routed.take("low")
    assert routed.arm.drafter == "eagle:low"
    routed.take("high")
    assert routed.arm.drafter == "eagle:ofa"


def test_only_what_can_be_cut_to_a_draft_model_is(tiny: Any) -> None:
    assert len(truncated(tiny, 2).model.layers) == 2
    with pytest.raises(ValueError, match="between 1 and 5"):
        truncated(tiny, 6)
    with pytest.raises(ValueError, match="not GPT2LMHeadModel"):
        truncated(GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=20)), 1)


@pytest.mark.parametrize("name", ["auto", "ucbspec", "exp3spec", "prompt-router", "suffix:3"])
def test_warming_up_teaches_nothing(name: str, model: Any) -> None:
    """The same rounds are played afterwards as without it, and the policy's state is that of a new one."""
    arms = ["off", "suffix:3", "prompt-lookup:2"]
    target = made.Target(model, Letters(), reset="never")
    warm, cold = (made.parse_method(name).make(target, arms) for _ in range(2))
    assert warm.decoder is not None
    assert cold.decoder is not None
    assert warm.warm_up("cpu", 24) == 24
    if warm.decoder._calibration is not None:  # what rounds cost is no part of what texts teach
        cold.decoder.policy.calibrate(warm.decoder._calibration)
    assert warm.decoder.policy.state_dict() == cold.decoder.policy.state_dict()
    assert warm.latest is None
    ids = torch.tensor([[7, 8, 9, 7, 8, 9, 7, 8]])
    played = [[(str(r.arm), r.drafted, r.accepted) for r in each.run(ids, 24).rounds] for each in (warm, cold)]
    if name != "auto":  # whose choices depend on seconds
        assert played[0] == played[1]
    if name == "ucbspec":
        warm.run(torch.arange(5, 69)[None], 24)
        assert warm.decoder.policy.state_dict() != cold.decoder.policy.state_dict(), "it would have learned from it"


def test_policies_start_anew_with_every_text_where_their_paper_does_so(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept from text to text, MetaSD's beta of 0.01 plays one arm for good and never looks at the others again."""
    arms = ["off", "suffix:3", "prompt-lookup:2"]
    texts = [torch.tensor([[7, 8, 9, 7, 8, 9, 7, seed]]) for seed in range(8, 12)]

    def tried(name: str, reset: str) -> list[int]:
        """Arms played in the first rounds of every text."""
        generator = made.parse_method(name).make(made.Target(model, Letters(), reset=reset), arms)
        return [len({str(r.arm) for r in generator.run(ids, 24).rounds[:3]}) for ids in texts]

    for name in ("meta-ucb", "ucbspec", "halving"):
        assert tried(name, "paper") == tried(name, "text") == [3, 3, 3, 3], name
        assert tried(name, "never")[0] == 3, name
    assert set(tried("meta-ucb", "never")[1:]) == {1}
    assert tried("analytical", "text") == [3, 3, 3, 3]
    # Later choices depend on seconds: count how often it starts anew instead.
    forget = Policy.forget
    for reset, anew in {"paper": 0, "never": 0, "text": len(texts)}.items():
        with monkeypatch.context() as patched:
            begun: list[Policy] = []
            patched.setattr(Policy, "forget", lambda policy, begun=begun: (begun.append(policy), forget(policy))[1])
            tried("analytical", reset)
        assert len(begun) == anew, reset


def test_a_policy_that_plans_ahead_is_told_of_one_text_where_each_starts_it_anew(model: Any) -> None:
    target = made.Target(model, Letters(), tokens=100_000, answer=64)
    budgets = [
        made.parse_method("petc:c=5").make(replace(target, reset=reset), ["off", "suffix:3"]).decoder.policy.budget  # type: ignore[union-attr]
        for reset in ("paper", "never")
    ]
    assert budgets == [math.ceil(5 * math.log(64)), math.ceil(5 * math.log(100_000))]


def test_a_rehearsal_neither_teaches_nor_traces_and_keeps_what_was_learned(model: Any, tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "trace.jsonl", {}) as trace:
        decoder = wager.Decoder(model, drafters="suffix", policy="exp3spec", lengths=(3,), trace=trace)
        decoder.generate([7, 8, 9, 7, 8], max_new_tokens=24)
        learned = decoder.policy.state_dict()
        with decoder.rehearsal():
            decoder.generate(list(range(5, 30)), max_new_tokens=24)
            assert decoder.policy.state_dict() != learned
        assert decoder.policy.state_dict() == learned
    assert sum(isinstance(record, Request) for record in read_trace(tmp_path / "trace.jsonl")) == 1


def test_q_learning_practises_before_it_is_measured_and_its_drafters_forget_that(model: Any) -> None:
    target = made.Target(model, Letters())
    ours, other = (made.parse_method(name).make(target, ["off", "suffix:3"]) for name in ("qlearning", "ucbspec"))
    assert (ours.trials, other.trials) == (25, 0)
    ours.trials = 3
    prompt = torch.tensor([[7, 8, 9, 7, 8, 9, 7, 8]])
    fresh = ours.decoder.policy.state_dict()  # type: ignore[union-attr]
    ours.practise([prompt], 12)
    assert ours.decoder.policy.state_dict() != fresh  # type: ignore[union-attr]
    assert (
        ours.decoder.drafters["suffix"].memory
        == made.parse_method("suffix:3").make(target, []).decoder.drafters["suffix"].memory
    )  # type: ignore[union-attr]


@pytest.mark.parametrize("spec", ["petc:c=3", "halving", "discounted-ucb", "sliding-ucb"])
def test_metasds_policies_run_on_a_model_and_commit(model: Any, spec: str) -> None:
    arms = ["suffix:3", "prompt-lookup:2", "suffix:2"]
    target = made.Target(model, Letters(), answer=60)
    generator, plain = (made.parse_method(name).make(target, arms) for name in (spec, "off"))
    ids = torch.tensor([[7, 8, 9, 7, 8, 9, 7, 8]])
    answer = generator.run(ids, 60)
    assert answer.tokens == plain.run(ids, 60).tokens
    assert len({str(r.arm) for r in answer.rounds}) == 4  # all were tried, off among them
    if spec.startswith("petc"):
        policy = generator.decoder.policy  # type: ignore[union-attr]
        assert policy.budget == math.ceil(3 * math.log(60))
        late = [str(r.arm) for r in answer.rounds[policy.budget :]]
        assert len(set(late)) == 1  # explored, then committed
