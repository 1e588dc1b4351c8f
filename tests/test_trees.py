"""Trees: one forward gives what each path alone gives, what is kept goes on as if read afresh, the text is the same.

The drafters' trees and the arms they make are here too; sampling is in ``test_tree_sampling``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import small
import torch
from small import path_to, tree_of
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import wager
from wager.core import OFF, Arm, Round, TraceWriter, Tree
from wager.core import trace as traces
from wager.decoding import decoder as decoding
from wager.decoding.arms import build_arms
from wager.decoding.loop import Loop
from wager.drafters import Draft, Drafter, DraftSampler, corpus
from wager.drafters.draft_model import DraftModel
from wager.drafters.prompt_lookup import PromptLookup
from wager.drafters.retrieval import Retrieval
from wager.drafters.suffix import Suffix
from wager.models.choose import runner
from wager.models.eager import Eager
from wager.models.lean import NARROW, Lean
from wager.models.runner import Runner, ancestry, seen

VOCABULARY = 64
PROMPT = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2]
NEAR = 2e-4  # largest difference of two ways to the same float32 logits, in their standard deviations
SHAPE = {**small.SHAPE, "vocab_size": VOCABULARY, "head_dim": 8, "max_position_embeddings": 512}
ODD: dict[str, Any] = {"vocab_size": VOCABULARY, "initializer_range": 0.3, "bos_token_id": None, "eos_token_id": None}
QWEN2 = {name: value for name, value in SHAPE.items() if name != "head_dim"}
FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**QWEN2)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=512, **ODD)),
    "mistral, window": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=12)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**SHAPE, sliding_window=12)),
    "bloom": lambda: BloomForCausalLM(BloomConfig(hidden_size=32, n_layer=2, n_head=4, **ODD)),
}
RUNNERS = [("llama", Lean), ("qwen2", Lean), ("qwen3", Lean), ("llama", Eager), ("qwen3", Eager), ("gpt2", Eager)]


pytestmark = pytest.mark.usefixtures("one_thread")


def tiny(family: str = "llama") -> Any:
    torch.manual_seed(0)
    return FAMILIES[family]().eval()


def begun(kind: type[Runner], model: Any) -> Runner:
    made: Runner = kind(model)
    made.begin()
    return made


def tokens_of(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(VOCABULARY) for _ in range(count)]


def far(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.std())


# -- one forward


def off_paths(made: Runner, alone: Runner, rng: random.Random, width: int) -> float:
    """How far a tree's logits are from those of its paths, each run alone, at their worst."""
    start, parents, tokens = made.length, tree_of(rng, width), tokens_of(rng, width)
    logits = made.forward(tokens, width, parents).clone()
    worst = 0.0
    for at in range(width):
        path = path_to(parents, at)
        worst = max(worst, far(logits[at], alone.forward([tokens[i] for i in path], 1)[0]))
        alone.crop(start)
    return worst


@pytest.mark.parametrize(("family", "kind"), RUNNERS)
def test_a_trees_logits_are_those_of_each_path_alone(family: str, kind: type[Runner]) -> None:
    model = tiny(family)
    made, alone = begun(kind, model), begun(kind, model)
    assert made.trees
    rng = random.Random(1)
    for width, more in ((2, 0), (5, 3), (9, 40), (NARROW, 1), (NARROW + 3, 7), (64, 200)):
        prefix = tokens_of(rng, more)
        if more:
            made.prefill(prefix)
            alone.prefill(prefix)
        assert off_paths(made, alone, rng, width) < NEAR
        made.keep([])
        assert made.length == alone.length


@pytest.mark.parametrize("kind", [Lean, Eager])
def test_half_precision_stays_as_close_as_it_can(kind: type[Runner]) -> None:
    model = tiny().to(torch.bfloat16)
    made, alone = begun(kind, model), begun(kind, model)
    assert made.trees
    for width in (9, NARROW + 3):
        assert off_paths(made, alone, random.Random(1), width) < 0.3  # of the largest of thousands
        made.keep([])


@pytest.mark.parametrize("kind", [Lean, Eager])
def test_a_chain_told_by_its_parents_is_the_same_chain(kind: type[Runner]) -> None:
    one, other = begun(kind, tiny()), begun(kind, tiny())
    for width in (1, 6, NARROW + 4):
        tokens = tokens_of(random.Random(width), width)
        assert far(one.forward(tokens, width, range(-1, width - 1)), other.forward(tokens, width)) < NEAR


def test_the_last_logits_alone_can_be_asked_for() -> None:
    for kind in (Lean, Eager):
        one, other = begun(kind, tiny()), begun(kind, tiny())
        few = one.forward([1, 2, 3, 4], 2, [-1, 0, 0, 1])
        assert few.shape == (2, VOCABULARY)
        assert far(few, other.forward([1, 2, 3, 4], 4, [-1, 0, 0, 1])[2:]) < NEAR


@pytest.mark.parametrize("bug", ["siblings are seen", "positions are slots"])
@pytest.mark.parametrize("kind", [Lean, Eager])
def test_a_wrong_mask_or_position_is_noticed(kind: type[Runner], bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(parents: Sequence[int]) -> tuple[list[int], list[int]]:
        depths, words = ancestry(parents)
        chain = ancestry(range(-1, len(parents) - 1))
        return (depths, chain[1]) if bug.startswith("siblings") else (chain[0], words)

    module = {Lean: "lean", Eager: "eager"}[kind]
    monkeypatch.setattr(f"wager.models.{module}.ancestry", wrong)
    model = tiny()
    assert off_paths(begun(kind, model), begun(kind, model), random.Random(1), 9) > 100 * NEAR


def test_ancestors_are_bits_up_to_the_last_of_a_word() -> None:
    rng = random.Random(3)
    for width in (1, 7, 63, 64):
        parents = tree_of(rng, width)
        depths, words = ancestry(parents)
        table = seen(words, torch.device("cpu"))
        for at in range(width):
            path = path_to(parents, at)
            assert depths[at] == len(path) - 1
            assert table[at].nonzero().flatten().tolist() == path


def test_what_is_no_tree_is_refused() -> None:
    for parents, says in (([-1] * 65, "at most 64"), ([0], "not 0"), ([-1, -2], "not -2"), ([-1, 2, 1], "not 2")):
        with pytest.raises(ValueError, match=says):
            ancestry(parents)
    with pytest.raises(ValueError, match="at most 64"):
        begun(Lean, tiny()).forward([1] * 65, 65, [-1] * 65)


def test_models_that_see_a_window_or_no_positions_verify_no_trees() -> None:
    for family in ("mistral, window", "gemma2", "bloom"):
        assert not runner(tiny(family)).trees
    model = tiny()
    assert Eager(model).trees
    model.set_attn_implementation("flex_attention")
    assert not Eager(model).trees


def test_a_model_that_ignores_the_positions_of_a_tree_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Eager._tree

    def deaf(self: Eager, parents: Sequence[int]) -> dict[str, torch.Tensor]:
        return {"attention_mask": whole(self, parents)["attention_mask"]}

    monkeypatch.setattr(Eager, "_tree", deaf)
    assert not Eager(tiny()).trees


# -- keeping


def off_kept(made: Runner, fresh: Runner, rng: random.Random, rounds: int = 6) -> float:
    """How far logits after several trees, of each a path kept, are from those of a fresh forward over the same text."""
    text = tokens_of(rng, 5)
    made.prefill(text)
    for _ in range(rounds):
        width = rng.randrange(2, 30)
        parents, tokens = tree_of(rng, width), tokens_of(rng, width)
        made.forward(tokens, width, parents)
        path = path_to(parents, rng.randrange(width))
        path = path[: rng.randrange(len(path) + 1)]
        made.keep(path)
        text += [tokens[at] for at in path]
        assert made.length == len(text)
    return far(made.forward([7, 8], 2), fresh.forward([*text, 7, 8], 2))


@pytest.mark.parametrize(("family", "kind"), RUNNERS)
def test_a_kept_path_goes_on_like_a_text_read_afresh(family: str, kind: type[Runner]) -> None:
    model = tiny(family)
    for seed in range(3):
        assert off_kept(begun(kind, model), begun(kind, model), random.Random(seed)) < NEAR


@pytest.mark.parametrize("kind", [Lean, Eager])
def test_a_wrong_slot_kept_is_noticed(kind: type[Runner], monkeypatch: pytest.MonkeyPatch) -> None:
    move = kind._move
    monkeypatch.setattr(kind, "_move", lambda self, places, to: move(self, [at - 1 for at in places], to))
    model = tiny()
    assert off_kept(begun(kind, model), begun(kind, model), random.Random(0)) > 100 * NEAR
    monkeypatch.setattr(kind, "_move", lambda self, places, to: None)
    assert off_kept(begun(kind, model), begun(kind, model), random.Random(0)) > 100 * NEAR


# -- features


@pytest.mark.parametrize(("family", "kind"), RUNNERS)
def test_features_are_what_the_head_is_applied_to_and_stay_with_their_tokens(family: str, kind: type[Runner]) -> None:
    model = tiny(family)
    made = begun(kind, model)
    assert made.features.numel() == 0
    made.watch()
    made.watch()
    rng = random.Random(5)
    text = tokens_of(rng, 100)
    made.prefill(text)
    for _ in range(20):  # past 256 tokens, so that the buffer grows
        width = rng.randrange(9, 30)
        parents, tokens = tree_of(rng, width), tokens_of(rng, width)
        logits = made.forward(tokens, width, parents)
        new = made.features[made.before : made.length]
        assert far(made.project(new), logits) < NEAR
        path = path_to(parents, rng.randrange(width))
        made.keep(path)
        text += [tokens[at] for at in path]
        chain = tokens_of(rng, 15)
        made.forward(chain, 1)
        made.crop(made.length - 5)
        text += chain[:10]
    assert made.length == len(text) > 256
    assert made.features.shape[1] == made.hidden == 32
    with torch.no_grad():
        theirs = model(torch.tensor([text]), output_hidden_states=True).hidden_states[-1][0]
    assert far(made.features[: len(text)], theirs) < NEAR
    assert made.embed is model.get_input_embeddings().weight


@pytest.mark.parametrize("kind", [Lean, Eager])
def test_watching_changes_no_logits(kind: type[Runner]) -> None:
    one, other = begun(kind, tiny()), begun(kind, tiny())
    one.watch()
    for width, keep in ((40, 1), (5, 5), (1, 1)):
        assert torch.equal(one.forward(PROMPT * 4 if width == 40 else PROMPT[:width], keep), other.forward(
            PROMPT * 4 if width == 40 else PROMPT[:width], keep
        ))  # fmt: skip


def test_features_of_what_was_read_before_are_zeros() -> None:
    for kind in (Lean, Eager):
        made = begun(kind, tiny())
        made.prefill(PROMPT)
        made.watch()
        made.forward([1, 2], 1)
        assert not made.features[: len(PROMPT)].any()
        assert made.features[len(PROMPT) : made.length].any(-1).all()


def test_a_head_that_is_not_applied_to_the_last_state_is_refused() -> None:
    with pytest.raises(ValueError, match="Gemma2ForCausalLM does not show the features"):
        begun(Eager, tiny("gemma2")).watch()  # it caps its logits


# -- whole texts


class Grafted(Drafter):
    """Knows how the text goes on, and hides it in a tree: whole or in part, among wrong branches, in any order."""

    name = "grafted"
    trees = True

    def __init__(self, text: Sequence[int] = (), seed: int = 0) -> None:
        self.known, self.rng = list(text), random.Random(seed)

    def begin(self, prompt: Sequence[int]) -> None:
        self.text = list(prompt)

    def extend(self, tokens: Sequence[int]) -> None:
        self.text += tokens

    def propose(self, length: int, sample: DraftSampler | None = None) -> Draft:
        return Draft(self.known[len(self.text) : len(self.text) + length])

    def propose_tree(self, length: int, shape: Tree, sample: DraftSampler | None = None) -> Draft:
        rng = self.rng
        right = self.known[len(self.text) : len(self.text) + rng.randrange(length + 1)]
        tokens: list[int] = []
        parents: list[int] = []
        depth = {-1: 0}
        last = -1  # of the right path so far
        while len(tokens) < rng.randrange(1, shape.nodes + 1):
            parent = rng.choice([last, *depth])
            children = [token for token, above in zip(tokens, parents, strict=True) if above == parent]
            if depth[parent] == length or len(children) == shape.breadth:
                continue
            token = rng.randrange(VOCABULARY)
            if parent == last and right and rng.random() < 0.7:
                token = right[0]
            if token in children:
                continue
            depth[len(tokens)] = depth[parent] + 1
            if parent == last and right and token == right[0]:
                last = len(tokens)
                right = right[1:]
            tokens.append(token)
            parents.append(parent)
        return Draft(tokens, parents=parents)


def plain(model: Any, prompt: Sequence[int] = PROMPT, **settings: Any) -> list[int]:
    settings = {"max_new_tokens": 60, "do_sample": False, **settings}
    ids = torch.tensor([prompt])
    return model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0, len(prompt) :].tolist()


def grafted(model: Any, expected: Sequence[int], prompt: Sequence[int] = PROMPT, **how: Any) -> wager.Decoder:
    drafter = Grafted([*prompt, *expected])
    how = {"policy": "random", "lengths": (2, 4, 6), "trees": ["3x9", Tree(4, 24)], **how}
    return wager.Decoder(model, drafters=[drafter], **how)


def ours(decoder: wager.Decoder, **settings: Any) -> list[int]:
    return decoder.generate(PROMPT, **{"max_new_tokens": 60, "do_sample": False, **settings}).tokens


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_greedy_text_with_trees_is_the_models_own(family: str) -> None:
    model = tiny(family)
    expected = plain(model)
    decoder = grafted(model, expected)
    assert isinstance(decoder.target, Eager if family == "gpt2" else Lean)
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
        keep = Lean.keep
        monkeypatch.setattr(Lean, "keep", lambda self, path: keep(self, range(len(path))))
    elif bug == "keeps nothing":
        monkeypatch.setattr(Lean, "keep", lambda self, path: self.crop(self.before + len(path)))
    else:
        from wager.decoding.acceptance import accept_tree_greedy

        def late(choices: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> list[int]:
            path = accept_tree_greedy(choices, tokens, parents)
            more = next((at for at, parent in enumerate(parents) if path and parent == path[-1]), None)
            return path if more is None else [*path, more]

        monkeypatch.setattr("wager.decoding.sampler.accept_tree_greedy", late)
    assert any(ours(decoder) != expected for _ in range(3))


LOOKING: list[dict[str, Any]] = [
    {"repetition_penalty": 1.5},
    {"no_repeat_ngram_size": 2},
    {"suppress_tokens": [8], "repetition_penalty": 1.2, "no_repeat_ngram_size": 3},
    {"min_new_tokens": 20, "eos_token_id": [8, 48]},
]


def test_processors_see_each_nodes_own_path() -> None:
    model = tiny()
    for settings in LOOKING:
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
            assert self.ids is not None
            return self.request.processors(self.ids.with_draft(tokens), logits)

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
            fresh = begun(Lean, model)
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
            assert draft.parents is not None
            # in front: a token there is not, and one after it; behind: a sibling twice
            tokens = [VOCABULARY, 1, *draft.tokens, draft.tokens[0]]
            parents = [-1, 0, *(at + 2 if at >= 0 else -1 for at in draft.parents), -1]
            return Draft(tokens, parents=parents)

    model = tiny()
    expected = plain(model)
    decoder = wager.Decoder(
        model, drafters=[Overreaching([*PROMPT, *expected])], arms=["grafted:4@3x12"], policy="round-robin"
    )
    answer = decoder.generate(PROMPT, max_new_tokens=60, do_sample=False)
    assert answer.tokens == expected
    assert max(r.drafted for r in answer.rounds) <= 12
    assert sum(r.accepted for r in answer.rounds) > 10


def test_sampling_with_trees_repeats_with_a_seed() -> None:
    model = tiny()
    decoder = grafted(model, plain(model), policy="fixed:drafter=grafted,length=4,tree=3x9", lengths=(4,))
    texts = []
    for _ in range(2):
        decoder.drafters["grafted"].rng = random.Random(1)  # type: ignore[attr-defined]
        texts.append(ours(decoder, do_sample=True, seed=3))
    assert texts[0] == texts[1] != ours(decoder, do_sample=True, seed=4)


def test_the_drop_in_plays_trees_over_padding_and_a_cache_of_the_callers() -> None:
    model = tiny()
    ids = torch.tensor([[0, 0, 0, *PROMPT]])
    mask = torch.ones_like(ids)
    mask[:, :3] = 0
    settings: dict[str, Any] = {"max_new_tokens": 40, "do_sample": False}
    expected = model.generate(ids, attention_mask=mask, **settings)[0].tolist()
    drafter = Grafted(expected)
    decoder = wager.Decoder(model, drafters=[drafter], policy="random", lengths=(4,), trees=("4x12",))

    def generate(*args: Any, **given: Any) -> Any:
        return wager.generate(*args, decoder=decoder, **given)

    for _ in range(3):
        got = model.generate(ids, attention_mask=mask, custom_generate=generate, **settings)
        assert got[0].tolist() == expected


# -- the drafters' trees


def paths(draft: Draft) -> set[tuple[int, ...]]:
    assert draft.parents is not None
    return {tuple(draft.tokens[i] for i in path_to(draft.parents, at)) for at in range(len(draft.tokens))}


def check_shape(draft: Draft, length: int, shape: Tree) -> None:
    if draft.tokens:
        assert draft.parents is not None
        assert len(draft.tokens) == len(draft.parents) <= shape.nodes
        assert max(map(len, paths(draft))) <= length
        assert len(paths(draft)) == len(draft.tokens), "siblings differ"
        assert max(draft.parents.count(at) for at in draft.parents) <= shape.breadth
        assert all(-1 <= parent < at for at, parent in enumerate(draft.parents))
        assert len(draft.hint.confidence) == len(draft.tokens)


def test_a_suffix_tree_holds_what_followed_wherever_it_branches() -> None:
    drafter = Suffix()
    drafter.begin([1, 2, 3, 4, 9, 1, 2, 3, 5, 8, 1, 2, 3, 4, 7, 1, 2, 3])
    draft = drafter.propose_tree(3, Tree(2, 6))
    assert {(4,), (5,)} <= paths(draft)
    assert draft.hint.match == 3
    # 1, 2, 3 stands there four times, the last at the end; 4 follows twice and 5 once
    assert dict(zip(draft.tokens, draft.hint.confidence, strict=True))[4] == pytest.approx(0.5)
    assert paths(drafter.propose_tree(3, Tree(1, 6))) < {(4,), (4, 9), (4, 7), (4, 9, 1), (4, 7, 1)}
    drafter.begin([1, 2])
    assert drafter.propose_tree(3, Tree(2, 6)).tokens == []


def test_a_suffix_tree_of_one_branch_is_the_chain() -> None:
    rng = random.Random(4)
    drafter = Suffix()
    drafter.begin([rng.randrange(5) for _ in range(60)])
    same = 0
    for _ in range(60):
        drafter.extend([rng.randrange(5)])
        chain, tree = drafter.propose(6), drafter.propose_tree(6, Tree(1, 6))
        check_shape(tree, 6, Tree(1, 6))
        assert tree.hint.match == chain.hint.match or sum(chain.hint.confidence) > 0
        same += chain.tokens == tree.tokens
    assert same > 50  # but for ties decided by rounding


@pytest.mark.parametrize("kind", ["suffix", "retrieval"])
def test_trees_keep_to_their_shape(kind: str, tmp_path: Path) -> None:
    rng = random.Random(6)
    text, other = ([rng.randrange(4) for _ in range(200)] for _ in range(2))
    drafter: Drafter = Suffix() if kind != "retrieval" else Retrieval(store([other], tmp_path / "s"))
    drafter.begin(text[:50])
    most = 0
    for at in range(50, 200):
        drafter.extend(text[at : at + 1])
        length, shape = rng.randrange(1, 7), Tree(rng.randrange(1, 5), rng.randrange(1, 20))
        draft = drafter.propose_tree(length, shape)
        check_shape(draft, length, shape)
        most = max(most, len(draft.tokens))
    assert most > 8


def store(documents: Sequence[Sequence[int]], path: Path) -> Path:
    corpus.build(map(repr, documents), lambda text: eval(text), path, vocabulary=VOCABULARY)
    return path


def test_a_retrieval_tree_holds_the_most_frequent_continuations(tmp_path: Path) -> None:
    texts = [[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3, 5], [1, 2, 6, 7], [9, 2, 8, 8]]
    drafter = Retrieval(store(texts, tmp_path / "s"))
    drafter.begin([1, 2])
    assert paths(drafter.propose_tree(2, Tree(2, 3))) == {(3,), (3, 5), (6,)} or paths(
        drafter.propose_tree(2, Tree(2, 3))
    ) == {(3,), (3, 5), (3, 4)}
    whole = drafter.propose_tree(2, Tree(3, 9))
    assert paths(whole) == {(3,), (3, 4), (3, 5), (6,), (6, 7)}
    share = dict(zip(map(str, zip(whole.tokens, whole.parents or [], strict=True)), whole.hint.confidence, strict=True))
    assert share["(3, -1)"] == pytest.approx(0.75)
    assert paths(drafter.propose_tree(2, Tree(1, 9))) == {(3,), (3, 5)}
    assert drafter.propose_tree(1, Tree(1, 1)).tokens == drafter.propose(1).tokens
    drafter.begin([8, 8])
    assert drafter.propose_tree(2, Tree(3, 9)).tokens == []


def test_greedy_text_with_suffix_and_retrieval_trees_is_the_models_own(tmp_path: Path) -> None:
    model = tiny()
    corpus_of = [plain(model, prompt) for prompt in ([1, 2, 9], [4, 1, 2], PROMPT[:7])]
    made = Retrieval(store(corpus_of, tmp_path / "s"), shortest=1)
    decoder = wager.Decoder(model, drafters=[Suffix(), made], policy="random", lengths=(2, 5), trees=["2x8", "4x30"])
    kept = 0
    for prompt in (PROMPT, PROMPT, [7], list(range(40)), [3, 4] * 15):
        answer = decoder.generate(prompt, max_new_tokens=60, do_sample=False)
        assert answer.tokens == plain(model, prompt)
        kept += sum(r.accepted for r in answer.rounds if r.arm.tree is not None)
    assert kept > 20


# -- arms


def test_arms_are_made_for_every_drafter_of_trees_and_every_length_that_fits() -> None:
    drafters: dict[str, Drafter] = {"suffix": Suffix(), "prompt-lookup": PromptLookup()}
    arms = build_arms(None, drafters, (4, 1, 16), ["4x8", Tree(2, 63), "4x8"])
    assert arms[0] == OFF
    assert [str(arm) for arm in arms if arm.tree] == [
        "suffix:1@4x8",
        "suffix:4@4x8",
        "suffix:1@2x63",
        "suffix:4@2x63",
        "suffix:16@2x63",
    ]
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
        wager.Decoder(tiny("mistral, window"), drafters="suffix", lengths=(1, 2), trees=["2x4"])
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
    assert isinstance(followed[-1], Eager)
    assert decoder.target is followed[-1]


def test_every_width_a_tree_can_have_is_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    warmed: list[int] = []
    monkeypatch.setattr(Lean, "warm", lambda self, widths: warmed.extend(widths))
    wager.Decoder(tiny(), drafters="suffix", lengths=(2, 3), trees=["4x20"])
    assert warmed == list(range(1, 22))
    assert all(b - a == 1 for a, b in pairwise(warmed))
