"""Whole texts decoded with trees, and the arms that trees make."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from decoders import NEAR, PROMPT, VOCABULARY, Grafted, begun, far, ours, plain, tiny

import wager
from wager.core import OFF, Arm, Round, TraceWriter, Tree
from wager.core import trace as traces
from wager.decoding import decoder as decoding
from wager.decoding.arms import build_arms
from wager.decoding.loop import Loop
from wager.drafters import Draft, Drafter, DraftSampler
from wager.drafters.draft_model import DraftModel
from wager.drafters.prompt_lookup import PromptLookup
from wager.drafters.suffix import Suffix
from wager.models.hf_runner import HFRunner
from wager.models.llama_runner import LlamaRunner
from wager.models.runner import Runner


def grafted(model: Any, expected: Sequence[int], prompt: Sequence[int] = PROMPT, **how: Any) -> wager.Decoder:
    drafter = Grafted([*prompt, *expected])
    how = {"policy": "random", "lengths": (2, 4, 6), "trees": ["3x9", Tree(4, 24)], **how}
    return wager.Decoder(model, drafters=[drafter], **how)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_greedy_text_with_trees_is_the_models_own(family: str) -> None:
    model = tiny(family)
    expected = plain(model)
    decoder = grafted(model, expected)
    assert isinstance(decoder.target, HFRunner if family == "gpt2" else LlamaRunner)
    kept = refused = 0
    for _ in range(4):
        answer = decoder.generate(PROMPT, max_new_tokens=60, do_sample=False)
        assert answer.tokens == expected
        trees = [r for r in answer.rounds if r.arm.tree is not None]
        kept += sum(r.accepted for r in trees)
        refused += sum(r.drafted - r.accepted for r in trees)
        assert all(not r.overlap for r in trees)
    assert kept > 40
    assert refused > 40


@pytest.mark.parametrize("policy", ["auto", "ucbspec", "round-robin"])
def test_policies_play_trees_and_a_trace_holds_them(policy: str, tmp_path: Path) -> None:
    model = tiny()
    expected = plain(model)
    with TraceWriter(tmp_path / "trace.jsonl") as trace:
        decoder = grafted(model, expected, policy=policy, trace=trace)
        rounds = []
        for _ in range(3):
            answer = decoder.generate(PROMPT, max_new_tokens=60, do_sample=False)
            assert answer.tokens == expected
            rounds += answer.rounds
    kept = [record for record in traces.read(tmp_path / "trace.jsonl") if isinstance(record, Round)]
    assert kept == rounds
    if policy != "auto":
        assert any(r.arm.tree is not None and r.accepted for r in kept)


@pytest.mark.parametrize("bug", ["keeps another branch", "keeps nothing", "takes a later path"])
def test_a_bug_with_trees_changes_the_text(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    expected = plain(model)
    decoder = grafted(model, expected)
    if bug == "keeps another branch":
        keep = LlamaRunner.keep
        monkeypatch.setattr(LlamaRunner, "keep", lambda self, path: keep(self, range(len(path))))
    elif bug == "keeps nothing":
        monkeypatch.setattr(LlamaRunner, "keep", lambda self, path: self.crop(self.before + len(path)))
    else:
        from wager.decoding.acceptance import accept_tree_greedy

        def late(choices: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> list[int]:
            path = accept_tree_greedy(choices, tokens, parents)
            more = next((at for at, parent in enumerate(parents) if path and parent == path[-1]), None)
            return path if more is None else [*path, more]

        monkeypatch.setattr("wager.decoding.sampler.accept_tree_greedy", late)
    assert any(ours(decoder) != expected for _ in range(3))


def test_processors_see_each_nodes_own_path() -> None:
    model = tiny()
    for settings in (
        {"repetition_penalty": 1.5},
        {"no_repeat_ngram_size": 2},
        {"suppress_tokens": [8], "repetition_penalty": 1.2, "no_repeat_ngram_size": 3},
        {"min_new_tokens": 20, "eos_token_id": [8, 48]},
    ):
        expected = plain(model, **settings)
        decoder = grafted(model, expected)
        kept = 0
        for _ in range(2):
            answer = decoder.generate(PROMPT, max_new_tokens=60, do_sample=False, **settings)
            assert answer.tokens == expected
            kept += sum(r.accepted for r in answer.rounds if r.arm.tree is not None)
        assert kept > 8


def test_processors_shown_siblings_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class InOrder(Loop):
        """Shows every position of a tree all tokens before it, as in a chain."""

        def _tree_scores(self, logits: torch.Tensor, tokens: Sequence[int], parents: Sequence[int]) -> torch.Tensor:
            return self.processors(self._with_draft(tokens), logits)

    monkeypatch.setattr(decoding, "Loop", InOrder)
    model = tiny()
    settings: dict[str, Any] = {"repetition_penalty": 3.0}
    decoder = grafted(model, plain(model, **settings))
    assert any(ours(decoder, **settings) != plain(model, **settings) for _ in range(3))


def test_a_text_ends_inside_a_tree_as_it_should() -> None:
    model = tiny()
    text = plain(model)
    for end in (text[3], text[10], text[30]):
        expected = plain(model, eos_token_id=end)
        decoder = grafted(model, text)
        for _ in range(3):
            answer = decoder.generate(PROMPT, max_new_tokens=60, do_sample=False, eos_token_id=end)
            assert answer.tokens == expected
            assert answer.finish == "eos"
            # what goes on from here must find the text, and nothing of the tree
            known = decoder.target.length
            assert known == len(PROMPT) + len(expected) - 1
            fresh = begun(LlamaRunner, model)
            assert far(decoder.target.forward([5], 1), fresh.forward([*PROMPT, *expected[:-1], 5], 1)) < NEAR
    for limit in (1, 2, 5, 13):
        assert ours(grafted(model, text), max_new_tokens=limit) == text[:limit]


def test_the_context_limit_holds_with_trees() -> None:
    model = tiny("gpt2")
    model.config.n_positions = 40  # as its table of positions says to a runner
    text = plain(model)
    answer = grafted(model, text).generate(PROMPT, max_new_tokens=60, do_sample=False)
    assert answer.finish == "context"
    assert answer.tokens == text[:30]


def test_tokens_the_target_lacks_take_their_branch_with_them() -> None:
    class Overreaching(Grafted):
        def propose_tree(self, length: int, shape: Tree, sample: DraftSampler | None = None) -> Draft:
            draft = super().propose_tree(length, shape)
            # in front: a token there is not, and one after it; behind: a sibling twice
            tokens = [VOCABULARY, 1, *draft.tokens, draft.tokens[0]]
            parents = [-1, 0, *(at + 2 if at >= 0 else -1 for at in draft.parents), -1]
            return Draft(tokens, parents=parents)

    model = tiny()
    expected = plain(model)
    drafter = Overreaching([*PROMPT, *expected])
    decoder = wager.Decoder(model, drafters=[drafter], arms=["grafted:4@3x12"], policy="round-robin")
    answer = decoder.generate(PROMPT, max_new_tokens=60, do_sample=False)
    assert answer.tokens == expected
    assert max(r.drafted for r in answer.rounds) <= 12
    assert sum(r.accepted for r in answer.rounds) > 10


def test_the_drop_in_plays_trees_over_padding_and_a_cache_of_the_callers() -> None:
    model = tiny()
    ids = torch.tensor([[0, 0, 0, *PROMPT]])
    settings: dict[str, Any] = {"attention_mask": (ids > 0).long(), "max_new_tokens": 40, "do_sample": False}
    expected = model.generate(ids, **settings)[0].tolist()
    decoder = wager.Decoder(model, drafters=[Grafted(expected)], policy="random", lengths=(4,), trees=("4x12",))
    for _ in range(3):
        got = model.generate(ids, custom_generate=wager.generate, decoder=decoder, **settings)
        assert got[0].tolist() == expected


def test_arms_are_made_for_every_drafter_of_trees_and_every_length_that_fits() -> None:
    drafters: dict[str, Drafter] = {"suffix": Suffix(), "prompt-lookup": PromptLookup()}
    arms = build_arms(None, drafters, (4, 1, 16), ["4x8", Tree(2, 63), "4x8"])
    assert arms[0] == OFF
    trees = ["suffix:1@4x8", "suffix:4@4x8", "suffix:1@2x63", "suffix:4@2x63", "suffix:16@2x63"]
    assert [str(arm) for arm in arms if arm.tree] == trees
    assert sum(arm.tree is None for arm in arms) == 7
    assert build_arms(None, drafters, (1, 2)) == build_arms(None, drafters, (1, 2), "")[:5]
    assert build_arms(None, drafters, (2,), "2x4, 3x9")[-1] == Arm("suffix", 2, Tree(3, 9))
    assert build_arms(["suffix:2@2x4"], drafters, ())[1:] == (Arm("suffix", 2, Tree(2, 4)),)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"trees": ["4by8"]}, "'4by8' is not the shape of a tree; write BREADTHxNODES"),
        ({"trees": ["0x8"]}, "breadth and nodes of at least 1"),
        ({"trees": ["4x64"]}, "at most 63 nodes, not 64"),
        ({"trees": ["4x2"], "lengths": (3, 4)}, "at most 2 deep"),
        ({"trees": ["4x8"], "drafters": "prompt-lookup"}, "no drafter here drafts trees; there are prompt-lookup"),
        ({"trees": ["4x8"], "drafters": "off"}, "no drafter here drafts trees; there are none"),
        ({"arms": ["prompt-lookup:2@2x4"]}, "drafter 'prompt-lookup' drafts chains only"),
        ({"arms": ["suffix:2@2x90"]}, "at most 63 nodes"),
        ({"arms": ["suffix:2"], "trees": ["2x4"]}, "arms are named one by one"),
    ],
)
def test_trees_that_cannot_be_are_refused_in_one_sentence(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        wager.Decoder(tiny(), **given)


def test_a_target_that_verifies_chains_only_is_told_so() -> None:
    with pytest.raises(ValueError, match="verifies chains only, so arm suffix:1@2x4 cannot be played"):
        wager.Decoder(tiny("bloom"), drafters="suffix", lengths=(1, 2), trees=["2x4"])
    with pytest.raises(ValueError, match="'draft-model' drafts chains only"):
        DraftModel(tiny()).propose_tree(2, Tree(2, 4))


def test_drafters_follow_the_target_that_is_decoded_with() -> None:
    followed: list[Runner] = []

    class Following(Grafted):
        def follow(self, target: Runner) -> None:
            target.watch()
            followed.append(target)

    model = tiny()
    decoder = wager.Decoder(model, drafters=[Following()], policy="random", lengths=(2,), trees=["2x4"])
    ours(decoder)
    assert set(followed) == {decoder.target}
    with torch.no_grad():
        text = torch.tensor([[*PROMPT, *plain(model)]])
        theirs = model(text, output_hidden_states=True).hidden_states[-1][0]
    assert far(decoder.target.features[: decoder.target.length], theirs[: decoder.target.length]) < NEAR
    model.lm_head.register_forward_hook(lambda *_: None)
    ours(decoder)
    assert isinstance(followed[-1], HFRunner)
    assert decoder.target is followed[-1]


def test_every_width_a_tree_can_have_is_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    warmed: list[int] = []
    monkeypatch.setattr(LlamaRunner, "warm", lambda self, widths: warmed.extend(widths))
    wager.Decoder(tiny(), drafters="suffix", lengths=(2, 3), trees=["4x20"])
    assert warmed == list(range(1, 22))
