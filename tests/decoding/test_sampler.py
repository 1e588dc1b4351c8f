"""Sampling with shared noise: a seed has one text, whoever drafts it, and that text is a draw from the target's."""

import copy
import gc
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import heads
import numpy as np
import pytest
import torch
from draws import Draws
from fit import FITS, misfit

import wager
from wager.core import Tree
from wager.decoding.loop import Loop
from wager.decoding.sampler import Greedy, GumbelSampler
from wager.drafters import Draft
from wager.drafters.draft_model import DraftModel
from wager.drafters.prompt_lookup import PromptLookup
from wager.drafters.suffix import Suffix
from wager.drafters.together import Together
from wager.eagle.cuda_graphs import CUDAGraphHead
from wager.eagle.drafter import Eagle

CPU = torch.device("cpu")
VOCABULARY = 6
CHAINS = ["off", "eagle:1", "eagle:4", "draft-model:3", "suffix:3", "prompt-lookup:2", "together:4"]
ARMS = [*CHAINS, "eagle:3@3x8", "suffix:4@2x6", "together:3@2x6"]
PROMPT = [*heads.PROMPT, *heads.PROMPT]


def noise(seed: int | None = 1, vocabulary: int = VOCABULARY) -> GumbelSampler:
    return GumbelSampler(vocabulary, CPU, seed)


def test_a_position_has_one_noise_however_it_is_asked_for() -> None:
    whole = noise().gumbel(0, 200).clone()
    bit = noise()
    for at in range(0, 190, 3):
        for ahead in (2, 0, 7):
            assert torch.equal(bit.gumbel(at + ahead, 3), whole[at + ahead : at + ahead + 3])
        bit.chain(torch.zeros(2, VOCABULARY), Draft([0]), at)
    assert len(bit.rows) < 100, "what the text has passed is not kept"
    assert torch.equal(bit.gumbel(190, 10), whole[190:])


def test_seeds_tell_texts_apart_and_without_one_torch_decides() -> None:
    assert not torch.equal(noise(1).gumbel(0, 4), noise(2).gumbel(0, 4))
    assert not torch.equal(noise(-1).gumbel(0, 4), noise(1).gumbel(0, 4))
    torch.manual_seed(5)
    first, second = noise(None).gumbel(0, 4), noise(None).gumbel(0, 4)
    torch.manual_seed(5)
    assert torch.equal(noise(None).gumbel(0, 4), first)
    assert not torch.equal(first, second)


SCORES = torch.tensor([1.0, 0.2, -1.0, -float("inf"), 2.0, 0.9])


def chosen(sampler: GumbelSampler, count: int) -> np.ndarray:
    """One token after the other from the same scores."""
    return np.array([sampler.chain(SCORES[None], Draft(), at)[1] for at in range(count)])


def off(tokens: np.ndarray) -> float:
    """How far pairs of neighbours are from two independent draws."""
    p = torch.softmax(SCORES.double(), -1).numpy()
    seen = np.zeros((VOCABULARY, VOCABULARY))
    np.add.at(seen, (tokens[0::2], tokens[1::2]), 1)
    return misfit(seen, len(tokens) // 2 * np.outer(p, p))


def test_what_is_chosen_is_an_independent_draw_at_every_position() -> None:
    assert off(chosen(noise(3), 20_000)) < FITS


class Forgetful(GumbelSampler):
    """Gives two neighbours the same noise."""

    def chain(self, scores: torch.Tensor, draft: Draft, at: int) -> tuple[int, int]:
        return super().chain(scores, draft, at // 2 * 2)


class Uniform(GumbelSampler):
    """Adds numbers of another kind."""

    def _make(self, rows: torch.Tensor) -> None:
        super()._make(rows)
        rows.exp_().neg_().exp_().mul_(3)


@pytest.mark.parametrize("bug", [Forgetful, Uniform])
def test_other_noise_is_noticed(bug: type[GumbelSampler]) -> None:
    assert off(chosen(bug(VOCABULARY, CPU, 3), 4_000)) > FITS


@pytest.fixture(scope="module")
def model() -> Any:
    return heads.tiny()


@pytest.fixture(scope="module")
def folder(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return heads.save(tmp_path_factory.mktemp("head"), model)


def decoder(model: Any, folder: Path, policy: str = "random", arms: Sequence[str] = ARMS) -> wager.Decoder:
    together = Together([Eagle(folder), DraftModel(heads.tiny(1))])
    drafters = [Eagle(folder), DraftModel(heads.tiny(1)), Suffix(), PromptLookup(shortest=1), together]
    return wager.Decoder(model, drafters=drafters, policy=policy, arms=list(arms), seed=3)


def written(made: wager.Decoder, seed: int, **given: Any) -> tuple[list[int], int]:
    answer = made.generate(PROMPT, max_new_tokens=60, do_sample=True, seed=seed, **{"top_k": 0, **given})
    return answer.tokens, sum(r.accepted for r in answer.rounds)


SETTINGS: dict[str, dict[str, Any]] = {
    "hot": {"temperature": 1.3},
    "cool": {"temperature": 0.4},
    "top-p": {"top_p": 0.8, "top_k": 8},
    "looks back": {"repetition_penalty": 1.4, "no_repeat_ngram_size": 3},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_seed_has_one_text_whoever_drafts(model: Any, folder: Path, name: str) -> None:
    alone, played = decoder(model, folder, "off", ["off"]), decoder(model, folder)
    kept = 0
    for seed in range(2):
        due, _ = written(alone, seed, **SETTINGS[name])
        tokens, accepted = written(played, seed, **SETTINGS[name])
        assert tokens == due
        kept += accepted
    assert kept > 5, "drafts are on trial"


class ByNode(GumbelSampler):
    """Looks up the noise of a tree by node and not by depth."""

    def tree(self, scores: torch.Tensor, draft: Draft, parents: Sequence[int], at: int) -> tuple[list[int], int]:
        return Greedy.tree(self, scores + self.gumbel(at, len(scores)), draft, parents, at)


class FromTheStart(Loop):
    """Counts positions from the round's first."""

    @property
    def position(self) -> int:
        return 0


@pytest.mark.parametrize("bug", ["by node", "every round anew"])
def test_noise_of_a_wrong_position_shows(model: Any, folder: Path, bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    due = [written(decoder(model, folder, "off", ["off"]), seed)[0] for seed in range(2)]
    if bug == "by node":
        monkeypatch.setattr("wager.decoding.decoder.GumbelSampler", ByNode)
    else:
        monkeypatch.setattr("wager.decoding.decoder.Loop", FromTheStart)
    played = decoder(model, folder)
    assert [written(played, seed)[0] for seed in range(2)] != due


def test_drafters_that_know_the_noise_have_more_accepted(model: Any, folder: Path) -> None:
    """The same model drafts for itself: with the noise it is always right, without it as often as luck has it."""

    def share(sampling: str, certain: bool) -> float:
        class Unlucky(DraftModel):
            def propose(self, length: int, sample: Any = None) -> Draft:
                return super().propose(length, None if certain else sample)

        how = {"policy": "fixed:drafter=draft-model,length=4", "arms": ["draft-model:4"], "sampling": sampling}
        made = wager.Decoder(model, drafters=[Unlucky(model)], **how)
        rounds = made.generate(PROMPT, max_new_tokens=120, do_sample=True, top_k=0, seed=0).rounds
        return sum(r.accepted for r in rounds) / sum(r.drafted for r in rounds)

    assert share("shared-noise", certain=False) > 0.99
    assert share("residual", certain=False) > 0.99
    assert share("shared-noise", certain=True) < 0.8


@pytest.mark.parametrize("frequent", [(), (3, 17, 4, 9, 20, 1)])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_a_head_drafts_with_the_noise(tmp_path: Path, model: Any, frequent: Sequence[int], temperature: float) -> None:
    """Its chains are those it would draw token by token, and its trees hold them."""
    head = heads.save(tmp_path, model, frequent=frequent)
    arms = ["off", "eagle:4", "eagle:4@3x9"]
    made = wager.Decoder(model, drafters=[Eagle(head)], policy="off", arms=arms)
    made.generate(PROMPT, max_new_tokens=1, do_sample=False)
    eagle = made.drafters["eagle"]
    more = heads.TEXT[:20]
    eagle.begin(more)
    made.target.begin()
    made.target.prefill(more[:-1])
    for seed in range(8):
        choosing = noise(seed, heads.VOCABULARY)

        def draw(text: Sequence[int], logits: torch.Tensor, at: GumbelSampler = choosing) -> tuple[int, torch.Tensor]:
            return at.draw(logits / temperature, len(text) - len(more))

        sampler = Draws(draw, choosing.gumbel(0, 8).clone(), temperature)
        drawn = eagle.propose(4, sampler).tokens
        gumbel = eagle._gumbel(sampler, 4)
        assert eagle.head.chain(eagle._catch_up(eagle._target), 4, gumbel).tokens.tolist() == drawn
        eagle.head.crop(len(more) - 1)
        grown = eagle.propose_tree(4, Tree(3, 12), sampler)
        first = grown.parents.index(-1)
        assert grown.tokens[first] == drawn[0], "what is likeliest with the noise comes first"


def test_captured_drafts_with_noise_are_all_prepared_by_the_first(tmp_path: Path, model: Any) -> None:
    target = wager.Decoder(model, drafters="off", policy="off").target
    graphs = CUDAGraphHead(heads.save(tmp_path, model))
    graphs.follow(target)
    target.watch()
    graphs.warm([(2, 0), (4, 0), (3, 2)])
    assert not any(key[0] == "sampled" for key in graphs.replays)
    target.begin()
    target.prefill(heads.TEXT[:20])
    out = graphs.read(heads.TEXT[1:21], target.features[:20], 0)
    gumbel = graphs.gumbel(noise(1, heads.VOCABULARY).gumbel(0, 4), 0.7)
    once = graphs.chain(out, 4, gumbel).tokens.tolist()
    assert {("sampled", 2, 0), ("sampled", 4, 0), ("sampled", 3, 2)} <= graphs.replays.keys()
    graphs.crop(20)
    assert graphs.chain(out, 4, gumbel).tokens.tolist() == once, "preparing changed nothing"


def test_an_output_head_may_have_fewer_tokens_than_the_embedding(model: Any, folder: Path) -> None:
    wide = copy.deepcopy(model)
    table = torch.nn.Embedding(heads.VOCABULARY + 8, model.config.hidden_size)
    table.weight.data[: heads.VOCABULARY] = model.get_input_embeddings().weight.data
    wide.set_input_embeddings(table)
    made = wager.Decoder(wide, drafters=[Suffix(), DraftModel(heads.tiny(1))], policy="random", seed=3)
    for seed in range(3):
        assert written(made, seed)[0] == written(decoder(model, folder, "off", ["off"]), seed)[0]


def test_noise_is_of_single_precision_whatever_torchs_default_is() -> None:
    due = noise().gumbel(0, 3).clone()
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(noise().gumbel(0, 3), due)
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_noise_of_one_position_alone_needs_little_room() -> None:
    many = noise()
    assert torch.equal(many.only(900), noise().gumbel(0, 901)[900])
    assert len(many.rows) <= 64
    with pytest.raises(AssertionError, match="the text has passed this position"):
        many.gumbel(3, 1)


def test_a_finished_text_lets_its_noise_go(model: Any, folder: Path) -> None:
    made = decoder(model, folder)
    written(made, 1)
    held = weakref.ref(made.loop)
    gc.disable()
    try:
        written(made, 2)
        assert held() is None
    finally:
        gc.enable()


def test_a_drafter_that_draws_with_part_of_the_text_is_told(model: Any) -> None:
    class Forgetting(DraftModel):
        def propose(self, length: int, sample: Any = None) -> Draft:
            sample(self.text[-1:], torch.zeros(heads.VOCABULARY))
            return Draft()

    made = wager.Decoder(model, drafters=[Forgetting(heads.tiny(1))], policy="fixed:drafter=draft-model,length=4")
    with pytest.raises(ValueError, match="draws with the whole text before the token"):
        written(made, 1)
