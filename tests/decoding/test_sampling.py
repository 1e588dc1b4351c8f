"""Sampling follows the target's own distribution through the whole engine, and planted bugs are noticed.

Two checks. Of long texts by a target that looks two tokens back, every token is a draw from a known row: some 120,000
of them for each drafter. Of short texts by a target that looks at everything, under every processor, the first four
tokens together must have the joint distribution that transformers' own processors give, applied prefix by prefix.
Every run takes a twentieth of the samples; HYPOTHESIS_PROFILE=thorough takes them all.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import sampled
import torch
from decoders import CropsTooLittle
from draws import sampler
from fit import FITS, misfit
from sampled import PROCESSORS, PROMPT, VOCABULARY, Table, Text, drafter, engine, off, off_together, rows_due, rows_seen
from small import Following, text_of
from transformers import LlamaForCausalLM, MaxLengthCriteria
from transformers.utils import logging

import wager
from wager.core import OFF, Arm, Signal, Tree
from wager.decoding.features import Prompts
from wager.decoding.loop import Loop
from wager.decoding.prepare import Prepared, Processors
from wager.decoding.sampler import RESIDUAL, SHARED, RoundSampler
from wager.drafters import Draft, DraftSampler
from wager.drafters.draft_model import DraftModel
from wager.drafters.prompt_lookup import PromptLookup
from wager.drafters.retrieval import Retrieval
from wager.drafters.suffix import Suffix
from wager.policies import build

# 6,000 and 500 on every run: no fewer than what the planted bugs are noticed with
TOKENS, TEXTS = (int(n * sampled.SHARE) for n in (120_000, 10_000))


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        *((kind, RESIDUAL) for kind in sampled.KINDS),
        ("suffix", SHARED),
        ("near draft model", SHARED),
        ("oracle", SHARED),
    ],
)
def test_every_token_of_long_texts_is_a_draw_from_its_row(kind: str, rule: str, store: Path) -> None:
    torch.manual_seed(1)
    target = Table(5)
    processors = Processors([])
    loop = engine(target, [drafter(kind, target, store)])
    seen, kept = rows_seen(loop, target, processors, TOKENS, rule)
    assert seen.sum() >= TOKENS - 400
    assert off(seen, rows_due(target, processors, seen)) < FITS
    whole = sum(n for (name, short), n in kept.items() if name != "off" and short == 0)
    rounds = sum(n for (name, _), n in kept.items() if name != "off")
    if kind == "oracle":
        assert whole / rounds > 0.999  # p / q is 1 but for rounding, and the noise is the same
    else:
        assert (0 if kind == "wrong" else 0.02) < whole / rounds < 0.95  # both ways out of a round are on trial


def test_texts_of_all_drafters_in_turn_and_all_that_is_measured_stay_exact(store: Path) -> None:
    """Measuring hints, others and overlap for a trace changes nothing."""
    torch.manual_seed(2)
    target, processors = Table(5), sampled.settings(temperature=0.9)
    kinds = ("prompt-lookup", "suffix", "retrieval", "draft-model", "wrong")
    loop = engine(target, [drafter(kind, target, store) for kind in kinds], needs=Signal)
    seen, _ = rows_seen(loop, target, processors, int(40_000 * sampled.SHARE))
    assert off(seen, rows_due(target, processors, seen)) < FITS


@pytest.mark.parametrize("name", PROCESSORS)
def test_first_tokens_have_the_joint_distribution_under_each_processor(name: str, store: Path) -> None:
    assert off_together(PROCESSORS[name], store, Loop, TEXTS) < FITS


@pytest.mark.parametrize("name", ["temperature", "several"])
def test_first_tokens_have_the_joint_distribution_by_the_residual_rule_too(name: str, store: Path) -> None:
    assert off_together(PROCESSORS[name], store, Loop, TEXTS, rule=RESIDUAL) < FITS


REAL_PROMPT = [0, 1, 2, 3, 0, 1, 2, 4, 0, 1]


class Random(Following):
    """Proposes anything, for certain."""

    name = "random"

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def propose(self, length: int, sample: DraftSampler | None = None) -> Draft:
        return Draft(self.rng.integers(0, VOCABULARY, length).tolist())


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return sampled.tiny(11, layers=2)


@pytest.mark.parametrize(
    ("drafter", "name"),
    [
        (lambda store: PromptLookup(shortest=1), "several"),
        (lambda store: Suffix(), "top-p"),
        (lambda store: Retrieval(store, shortest=1), "repetition penalty"),
        (lambda store: DraftModel(sampled.tiny(12)), "several"),
        (lambda store: Random(), "no repeated n-gram"),
    ],
    ids=["prompt-lookup", "suffix", "retrieval", "draft-model", "random"],
)
def test_a_decoder_samples_as_transformers_does(drafter: Any, name: str, model: LlamaForCausalLM, store: Path) -> None:
    """The exact distribution is worked out by ``model.generate`` itself: its processed scores after every prefix."""
    logging.set_verbosity_error()
    given = {"do_sample": True, "top_k": 0, **PROCESSORS[name]}

    def after(text: Text) -> np.ndarray:
        asked = {"max_new_tokens": 1, "output_scores": True, "return_dict_in_generate": True}
        ids = torch.tensor([[*REAL_PROMPT, *text]])  # with a mask: without one, transformers takes every 0 for padding
        scores = model.generate(ids, attention_mask=torch.ones_like(ids), **asked, **given).scores[0]
        return torch.softmax(scores, -1)[0].double().numpy()

    torch.manual_seed(5)
    decoder = wager.Decoder(model, drafters=[drafter(store)], policy="random", lengths=sampled.LENGTHS)
    texts, tokens = int(4_000 * sampled.SHARE), 3
    seen = np.zeros((VOCABULARY,) * tokens)
    drafted = kept = 0
    for _ in range(texts):
        answer = decoder.generate(REAL_PROMPT, max_new_tokens=tokens + 1, **given)
        seen[tuple(answer.tokens[:tokens])] += 1
        drafted += sum(r.drafted for r in answer.rounds)
        kept += sum(r.accepted for r in answer.rounds)
    assert misfit(seen, texts * sampled.joint(after, tokens)) < FITS
    assert 0 < kept < drafted


class CertainOfDraws(Loop):
    """Keeps a drawn token by p / q, but takes what is left as if it had been certain."""

    def _accept(self, logits: torch.Tensor, draft: Draft) -> tuple[int, int, torch.Tensor]:
        accepted, following, scores = super()._accept(logits, draft)
        if draft.probs is not None and accepted < len(draft.tokens):
            p = torch.softmax(scores, -1)[accepted].clone()
            p[draft.tokens[accepted]] = 0
            following = int(torch.multinomial(p, 1))
        return accepted, following, scores


class DrawsUnprocessed(Loop):
    """Draws drafts without the processors and says they were drawn with them."""

    def _draft(self, arm: Arm, room: int, proposals: Mapping[str, Draft]) -> Draft:
        sound = RoundSampler.__call__

        def unprocessed(sample: Any, text: Sequence[int], logits: torch.Tensor) -> tuple[int, torch.Tensor]:
            _, q = sound(sample, text, logits)
            return int(torch.multinomial(torch.softmax(logits, -1), 1)), q

        with patch.object(RoundSampler, "__call__", unprocessed):
            return super()._draft(arm, room, proposals)


class ArgmaxBonus(Loop):
    """Takes the likeliest token after a draft that was kept whole."""

    def _accept(self, logits: torch.Tensor, draft: Draft) -> tuple[int, int, torch.Tensor]:
        accepted, following, scores = super()._accept(logits, draft)
        if draft.tokens and accepted == len(draft.tokens):
            following = int(scores[-1].argmax())
        return accepted, following, scores


class AsksTwice(Loop):
    """Gives a draft a second chance where nothing of it was kept."""

    def _accept(self, logits: torch.Tensor, draft: Draft) -> tuple[int, int, torch.Tensor]:
        first = super()._accept(logits, draft)
        return first if first[0] or not draft.tokens else super()._accept(logits, draft)


@pytest.mark.parametrize(
    ("bug", "kind", "temperature"),
    [
        (CertainOfDraws, "draft-model", 1.0),
        (DrawsUnprocessed, "draft-model", 0.5),
        (ArgmaxBonus, "near draft model", 1.0),
        (AsksTwice, "draft-model", 1.0),
    ],
)
def test_a_bug_in_the_loop_shows_in_long_texts(bug: type[Loop], kind: str, temperature: float, store: Path) -> None:
    """With fewer samples than sound code has to pass with: each is at least 6 standard deviations off."""
    target, processors = Table(5), sampled.settings(temperature=temperature)
    torch.manual_seed(4)
    seen, _ = rows_seen(engine(target, [drafter(kind, target, store)], bug), target, processors, 5_000)
    assert off(seen, rows_due(target, processors, seen)) > FITS


def test_a_crop_off_by_one_is_noticed_in_short_texts(store: Path) -> None:
    assert off_together({}, store, CropsTooLittle, 500) > FITS


class OneTokenLate(Processors):
    """Shows every position the text without its last token."""

    def __call__(self, ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        return super().__call__(ids[:, :-1], logits)


class OneTextForAll(Processors):
    """Shows every drafted position the same text, that of the first."""

    def __call__(self, ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        before = ids[:, : ids.shape[1] - len(logits) + 1]
        return torch.cat([super(OneTextForAll, self).__call__(before, row[None]) for row in logits])


@pytest.mark.parametrize(
    ("bug", "name"),
    [(OneTokenLate, "custom"), (OneTokenLate, "no repeated n-gram"), (OneTextForAll, "no repeated n-gram")],
)
def test_processors_shown_the_wrong_text_are_noticed(bug: type[Processors], name: str, store: Path) -> None:
    given = PROCESSORS[name]
    wrong = bug([processor for processor, _ in sampled.settings(**given).steps])
    assert off_together(given, store, Loop, 400, wrong) > FITS


class Bush(Following):
    """A tree of a fixed shape: drawn from a table like the target's, without replacement, or chosen for certain."""

    name = "bush"
    cheap = False
    trees = True
    parents = (-1, -1, 0, 0, 1, 3)

    def __init__(self, target: Table, certain: bool) -> None:
        self.target, self.certain = target, certain
        noise = torch.randn(target.rows.shape, generator=torch.Generator().manual_seed(9))
        self.q = torch.softmax(target.rows + 1.2 * noise, -1)
        self.known = self.q.double().numpy()
        self.rng = np.random.default_rng(5)

    def propose_tree(self, length: int, shape: Tree, sample: DraftSampler | None = None) -> Draft:
        tokens: list[int] = []
        rows: list[int] = []
        for at, parent in enumerate(self.parents):
            rows.append(self.target.row([*self.text[-2:], *text_of(tokens, self.parents, parent)]))
            q = self.known[rows[-1]].copy()
            q[[tokens[i] for i in range(at) if self.parents[i] == parent]] = 0
            luck = q.argmax() if self.certain else np.searchsorted(q.cumsum(), self.rng.random() * q.sum(), "right")
            tokens.append(int(luck))
        return Draft(tokens, probs=None if self.certain else self.q[rows], parents=list(self.parents))


TREE_TOKENS = 2_000


def off_rows(target: Table, certain: bool, loop: type[Loop] = Loop) -> float:
    """How far the tokens of a long text are from draws of their rows."""
    arms = (OFF, Arm("bush", 3, Tree(2, 6)))
    policy = build("fixed:drafter=bush,length=3,tree=2x6", arms, seed=1)
    played = loop(target, {"bush": Bush(target, certain)}, policy, arms, frozenset(), Prompts().features)
    torch.manual_seed(1)
    lengths: Counter[int] = Counter()
    with torch.inference_mode():
        request = Prepared(torch.tensor([PROMPT]), Processors([]), [MaxLengthCriteria(TREE_TOKENS)], None)
        for step in played.run(request, sampler(RESIDUAL, VOCABULARY)):
            lengths[step.round.accepted if step.round else 0] += 1
    assert min(lengths[n] for n in range(4)) > TREE_TOKENS / 200, "every length of path occurs"
    text = np.array(played.text[len(PROMPT) - 2 :])
    seen = np.zeros((VOCABULARY,) * 3)
    np.add.at(seen, (text[:-2], text[1:-1], text[2:]), 1)
    return off(seen, rows_due(target, Processors([]), seen))


@pytest.mark.parametrize("certain", [True, False])
def test_every_token_of_a_text_with_trees_is_a_draw_from_its_row(certain: bool) -> None:
    assert off_rows(Table(3), certain) < FITS


class SeesSiblings(Table):
    """Every token sees all of the tree before it, as if it were a chain."""

    def forward(self, tokens: Sequence[int], keep: int, parents: Sequence[int] | None = None) -> torch.Tensor:
        return super().forward(tokens, keep)


class KeepsTheFirst(Table):
    """Keeps as many tokens as it should, but those that came first."""

    def _move(self, places: list[int], to: int) -> None:
        pass


class GoesOnElsewhere(Loop):
    """Takes the token that follows from a row of the tree's that has nothing to do with the path."""

    def _verify_tree(self, draft: Draft, parents: list[int]) -> tuple[list[int], int, torch.Tensor]:
        path, following, scores = super()._verify_tree(draft, parents)
        if path:
            following = int(torch.multinomial(torch.softmax(scores[path[-1]], -1), 1))
        return path, following, scores


@pytest.mark.parametrize("bug", [SeesSiblings, KeepsTheFirst, GoesOnElsewhere])
@pytest.mark.parametrize("certain", [True, False])
def test_a_bug_with_trees_is_noticed(bug: type[Table] | type[Loop], certain: bool) -> None:
    target, loop = (Table(3), bug) if issubclass(bug, Loop) else (bug(3), Loop)
    assert off_rows(target, certain, loop) > 2 * FITS
