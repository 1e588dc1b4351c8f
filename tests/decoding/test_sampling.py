"""Sampling follows the target's own distribution through the whole engine, and planted bugs are noticed.

Two checks. Of long texts by a target that looks two tokens back, every token is a draw from a known row: some 200,000
of them for each drafter. Of short texts by a target that looks at everything, under every processor, the first four
tokens together must have the joint distribution that transformers' own processors give, applied prefix by prefix.
Every run takes a twentieth of the samples; HYPOTHESIS_PROFILE=thorough takes them all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from fit import FITS, misfit
from sampled import (
    KINDS,
    LENGTHS,
    PROCESSORS,
    SHARE,
    VOCABULARY,
    Table,
    Text,
    drafter,
    engine,
    joint,
    off,
    off_together,
    rows_due,
    rows_seen,
    settings,
    tiny,
)
from small import Following
from transformers import LlamaForCausalLM
from transformers.utils import logging

import wager
from wager.core import Signal
from wager.decoding.loop import Loop
from wager.decoding.prepare import Processors
from wager.decoding.sampler import RESIDUAL, SHARED
from wager.drafters import Draft, Drafter, DraftSampler
from wager.drafters.draft_model import DraftModel
from wager.drafters.prompt_lookup import PromptLookup
from wager.drafters.retrieval import Retrieval
from wager.drafters.suffix import Suffix

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("kind", "rule"),
    [*((kind, RESIDUAL) for kind in KINDS), *((kind, SHARED) for kind in ("suffix", "near draft model", "oracle"))],
)
def test_every_token_of_long_texts_is_a_draw_from_its_row(kind: str, rule: str, store: Path) -> None:
    torch.manual_seed(1)
    target = Table(5)
    processors = Processors([])
    loop = engine(target, [drafter(kind, target, store)])
    seen, kept = rows_seen(loop, target, processors, int(200_000 * SHARE), rule)
    assert seen.sum() >= 200_000 * SHARE - 400
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
    target, processors = Table(5), settings(temperature=0.9)
    loop = engine(
        target,
        [drafter(kind, target, store) for kind in ("prompt-lookup", "suffix", "retrieval", "draft-model", "wrong")],
        needs=Signal,
    )
    seen, _ = rows_seen(loop, target, processors, int(40_000 * SHARE))
    assert off(seen, rows_due(target, processors, seen)) < FITS


@pytest.mark.parametrize("name", PROCESSORS)
def test_first_tokens_have_the_joint_distribution_under_each_processor(name: str, store: Path) -> None:
    assert off_together(PROCESSORS[name], store, Loop, int(12_000 * SHARE)) < FITS


@pytest.mark.parametrize("name", ["temperature", "custom", "several"])
def test_first_tokens_have_the_joint_distribution_by_the_residual_rule_too(name: str, store: Path) -> None:
    assert off_together(PROCESSORS[name], store, Loop, int(12_000 * SHARE), rule=RESIDUAL) < FITS


# -- the real thing: a transformers model through Decoder


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
    return tiny(11, layers=2)


def real_drafter(kind: str, store: Path) -> Drafter:
    made: dict[str, Callable[[], Drafter]] = {
        "prompt-lookup": lambda: PromptLookup(shortest=1),
        "suffix": lambda: Suffix(),
        "retrieval": lambda: Retrieval(store, shortest=1),
        "draft-model": lambda: DraftModel(tiny(12)),
        "random": Random,
    }
    return made[kind]()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("prompt-lookup", "several"),
        ("suffix", "top-p"),
        ("retrieval", "repetition penalty"),
        ("draft-model", "several"),
        ("random", "no repeated n-gram"),
    ],
)
def test_a_decoders_first_tokens_are_distributed_as_transformers_says(
    kind: str, name: str, model: LlamaForCausalLM, store: Path
) -> None:
    """The exact distribution is worked out by ``model.generate`` itself: its processed scores after every prefix."""
    logging.set_verbosity_error()
    given = {"do_sample": True, "top_k": 0, **PROCESSORS[name]}

    def after(text: Text) -> np.ndarray:
        asked = {"max_new_tokens": 1, "output_scores": True, "return_dict_in_generate": True}
        ids = torch.tensor([[*REAL_PROMPT, *text]])  # with a mask: without one, transformers takes every 0 for padding
        scores = model.generate(ids, attention_mask=torch.ones_like(ids), **asked, **given).scores[0]
        return torch.softmax(scores, -1)[0].double().numpy()

    torch.manual_seed(5)
    decoder = wager.Decoder(model, drafters=[real_drafter(kind, store)], policy="random", lengths=LENGTHS)
    texts, tokens = int(4_000 * SHARE), 3
    seen = np.zeros((VOCABULARY,) * tokens)
    drafted = kept = 0
    for _ in range(texts):
        answer = decoder.generate(REAL_PROMPT, max_new_tokens=tokens + 1, **given)
        seen[tuple(answer.tokens[:tokens])] += 1
        drafted += sum(r.drafted for r in answer.rounds)
        kept += sum(r.accepted for r in answer.rounds)
    assert misfit(seen, texts * joint(after, tokens)) < FITS
    assert 0 < kept < drafted
