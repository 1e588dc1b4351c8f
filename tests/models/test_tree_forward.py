"""One forward over a tree of tokens: logits, the path that is kept, features."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from decoders import NEAR, PROMPT, RUNNERS, VOCABULARY, WINDOWED, begun, far, tiny, tokens_of
from small import path_to, tree_of

from wager.models.attention import NARROW
from wager.models.hf_runner import HFRunner
from wager.models.llama_runner import LlamaRunner
from wager.models.runner import Runner, ancestry
from wager.models.select import runner
from wager.models.tree_mask import tree_inputs


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


@pytest.mark.parametrize(("family", "kind"), RUNNERS + WINDOWED)
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


@pytest.mark.parametrize("kind", [LlamaRunner, HFRunner])
def test_half_precision_stays_as_close_as_it_can(kind: type[Runner]) -> None:
    model = tiny().to(torch.bfloat16)
    made, alone = begun(kind, model), begun(kind, model)
    assert made.trees
    for width in (9, NARROW + 3):
        assert off_paths(made, alone, random.Random(1), width) < 0.3  # of the largest of thousands
        made.keep([])


@pytest.mark.parametrize("kind", [LlamaRunner, HFRunner])
def test_the_last_logits_alone_can_be_asked_for(kind: type[Runner]) -> None:
    few, whole = (begun(kind, tiny()).forward([1, 2, 3, 4], keep, [-1, 0, 0, 1]) for keep in (2, 4))
    assert few.shape == (2, VOCABULARY)
    assert far(few, whole[2:]) < NEAR


@pytest.mark.parametrize("bug", ["siblings are seen", "positions are slots"])
@pytest.mark.parametrize("kind", [LlamaRunner, HFRunner])
def test_a_wrong_mask_or_position_is_noticed(kind: type[Runner], bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(parents: Sequence[int]) -> tuple[list[int], list[int]]:
        depths, words = ancestry(parents)
        chain = ancestry(range(-1, len(parents) - 1))
        return (depths, chain[1]) if bug.startswith("siblings") else (chain[0], words)

    module = {LlamaRunner: "llama_runner", HFRunner: "tree_mask"}[kind]
    monkeypatch.setattr(f"wager.models.{module}.ancestry", wrong)
    model = tiny()
    assert off_paths(begun(kind, model), begun(kind, model), random.Random(1), 9) > 100 * NEAR


@pytest.mark.parametrize("family", ["mistral, window", "gemma2", "llama4_text"])
def test_a_window_too_wide_is_noticed(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(family)
    made, alone = begun(HFRunner, model), begun(HFRunner, model)
    for one in (made, alone):
        one.prefill(tokens_of(random.Random(2), 21))
    monkeypatch.setattr("wager.models.tree_mask._within", lambda unseen, *_: unseen)
    assert off_paths(made, alone, random.Random(1), 9) > 100 * NEAR


def test_what_is_no_tree_is_refused() -> None:
    for parents, says in (([-1] * 65, "at most 64"), ([0], "not 0"), ([-1, -2], "not -2"), ([-1, 2, 1], "not 2")):
        with pytest.raises(ValueError, match=says):
            ancestry(parents)
    with pytest.raises(ValueError, match="at most 64"):
        begun(LlamaRunner, tiny()).forward([1] * 65, 65, [-1] * 65)


def test_models_without_positions_or_masks_verify_no_trees() -> None:
    assert not runner(tiny("bloom")).trees
    model = tiny()
    assert HFRunner(model).trees
    model.set_attn_implementation("flex_attention")
    assert not HFRunner(model).trees


def test_a_model_that_ignores_the_positions_of_a_tree_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def deaf(*args: Any) -> dict[str, Any]:
        return {"attention_mask": tree_inputs(*args)["attention_mask"]}

    monkeypatch.setattr("wager.models.hf_runner.tree_inputs", deaf)
    assert not HFRunner(tiny()).trees


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


@pytest.mark.parametrize(("family", "kind"), RUNNERS + WINDOWED)
def test_a_kept_path_goes_on_like_a_text_read_afresh(family: str, kind: type[Runner]) -> None:
    model = tiny(family)
    for seed in range(3):
        assert off_kept(begun(kind, model), begun(kind, model), random.Random(seed)) < NEAR


@pytest.mark.parametrize("kind", [LlamaRunner, HFRunner])
def test_a_wrong_slot_kept_is_noticed(kind: type[Runner], monkeypatch: pytest.MonkeyPatch) -> None:
    move = kind._move
    monkeypatch.setattr(kind, "_move", lambda self, places, to: move(self, [at - 1 for at in places], to))
    model = tiny()
    assert off_kept(begun(kind, model), begun(kind, model), random.Random(0)) > 100 * NEAR
    monkeypatch.setattr(kind, "_move", lambda self, places, to: None)
    assert off_kept(begun(kind, model), begun(kind, model), random.Random(0)) > 100 * NEAR


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
    unwatched = begun(kind, model)
    unwatched.prefill(text)
    assert torch.equal(made.forward(PROMPT, 5), unwatched.forward(PROMPT, 5)), "watching changes no logits"
    made.crop(100)
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


def test_features_of_what_was_read_before_are_zeros() -> None:
    for kind in (LlamaRunner, HFRunner):
        made = begun(kind, tiny())
        made.prefill(PROMPT)
        made.watch()
        made.forward([1, 2], 1)
        assert not made.features[: len(PROMPT)].any()
        assert made.features[len(PROMPT) : made.length].any(-1).all()


def test_a_head_that_is_not_applied_to_the_last_state_is_refused() -> None:
    with pytest.raises(ValueError, match="Gemma2ForCausalLM does not show the features"):
        begun(HFRunner, tiny("gemma2")).watch()  # it caps its logits
