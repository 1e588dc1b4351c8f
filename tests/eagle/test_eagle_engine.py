"""EAGLE heads through the engine: greedy text, sampled distributions, what rounds report."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from draws import Draws, sampler
from eagle_setup import following, reading
from fit import FITS, misfit
from heads import PROMPT, TEXT, plain, save, tiny
from identity import first_difference_is_a_tie
from transformers import MaxLengthCriteria

import wager
from wager.core import Arm, Signal
from wager.decoding.arms import build_arms
from wager.decoding.features import Prompts
from wager.decoding.loop import Loop
from wager.decoding.prepare import Prepared, Processors
from wager.decoding.sampler import RESIDUAL, SHARED, Greedy
from wager.drafters import Draft, Drafter
from wager.drafters.draft_model import DraftModel
from wager.drafters.together import Together
from wager.eagle.drafter import Eagle
from wager.models.runner import Runner
from wager.models.select import runner
from wager.policies import build


@pytest.mark.parametrize("window", [0, 5])
def test_greedy_text_is_the_targets_own_with_several_heads_at_once(tmp_path: Path, window: int) -> None:
    model = tiny(vocab_size=8, num_hidden_layers=1)
    heads = [Eagle(save(tmp_path / f"{n}", model, n), f"eagle:{n}", window=window) for n in (1, 2)]
    cut = Eagle(save(tmp_path / "cut", model, 3, frequent=[1, 5, 6, 2]), "eagle:cut", window=window)
    arms = [f"eagle:{n}:{length}" for n in ("1", "2", "cut") for length in (1, 4, "2@2x3", "3@3x9")]
    decoder = wager.Decoder(model, drafters=[*heads, cut, "prompt-lookup"], policy="random", arms=arms)
    kept = 0
    for start in range(4):
        prompt = [token % 8 for token in TEXT[start : start + 9 + start]]
        made = decoder.generate(prompt, max_new_tokens=60, do_sample=False)
        assert first_difference_is_a_tie(model, prompt, made.tokens, plain(model, prompt), 1e-3)
        kept += sum(played.accepted for played in made.rounds)
    assert kept > 10


def distributed(target: Runner, model: Any, drafter: Drafter, arms: Sequence[str], texts: int, rule: str) -> float:
    """How far the first three tokens of sampled texts are from the model's own joint distribution."""
    vocabulary, prompt = model.config.vocab_size, [0, 1, 2, 1, 0]
    played = build_arms(list(arms), {drafter.name: drafter}, (1,))
    loop = Loop(
        target, {drafter.name: drafter}, build("random", played, seed=1), played, frozenset(), Prompts().features
    )
    drafter.follow(target)
    seen = np.zeros((vocabulary,) * 3)
    with torch.inference_mode():
        for _ in range(texts):
            target.begin()
            request = Prepared(torch.tensor([prompt]), Processors([]), [MaxLengthCriteria(len(prompt) + 6)], None)
            for _step in loop.run(request, sampler(rule, vocabulary)):
                if len(loop.text) >= len(prompt) + 3:
                    break
            seen[tuple(loop.text[len(prompt) : len(prompt) + 3])] += 1
        due = np.zeros_like(seen)
        for first in range(vocabulary):
            for second in range(vocabulary):
                text = torch.tensor([[*prompt, first, second]])
                p = torch.softmax(model(input_ids=text).logits[0, len(prompt) - 1 :].double(), -1).numpy()
                due[first, second] = texts * p[0, first] * p[1, second] * p[2]
    return misfit(seen, due)


SMALL: dict[str, Any] = {"vocab_size": 4, "num_hidden_layers": 1, "hidden_size": 16, "initializer_range": 0.5}


CHAINS, TREES = ("eagle:1", "eagle:3"), ("eagle:2@2x4", "eagle:3@3x9")
TEXTS = 300  # with which a wrong q is 7 standard deviations off


@pytest.mark.parametrize(
    ("rule", "frequent", "arms"),  # every two of them together
    [(RESIDUAL, (), CHAINS), (SHARED, (), TREES), (SHARED, (1, 3), CHAINS), (RESIDUAL, (1, 3), TREES)],
)
def test_sampled_texts_are_the_targets(
    tmp_path: Path, rule: str, frequent: tuple[int, ...], arms: tuple[str, ...]
) -> None:
    torch.manual_seed(3)
    model = tiny(**SMALL)
    torch.manual_seed(4)
    assert distributed(runner(model), model, Eagle(save(tmp_path, model, frequent=frequent)), arms, TEXTS, rule) < FITS


class Checked(Loop):
    """Works out every overlap again, one position after the other."""

    compared = 0

    def _draft(self, arm: Arm, room: int, proposals: Any) -> Draft:
        self.at_draft = list(self.text)
        return super()._draft(arm, room, proposals)

    def _overlap(self, scores: torch.Tensor, draft: Draft, accepted: Sequence[int]) -> tuple[float, ...]:
        found = super()._overlap(scores, draft, accepted)
        tokens: list[int] = []  # of the accepted path, and on by the first token after each
        last = -1
        for value in found:
            below = [at for at, parent in enumerate(draft.parents or range(-1, 99)) if parent == last]
            at = next((i for i in below if i in accepted), below[0])
            text = torch.tensor([self.at_draft + tokens])
            q = torch.softmax(self.processors(text, draft.logits[at : at + 1]), -1)
            p = torch.softmax(scores[last + 1], -1)
            assert value == pytest.approx(float(torch.minimum(p, q[0]).sum()), abs=1e-5)
            assert 0.0 < value < 1.0
            tokens.append(draft.tokens[at])
            last = at
            self.compared += 1
        assert draft.parents is None or last not in draft.parents  # to the end of a branch
        return found


@pytest.mark.parametrize("settings", [{}, {"repetition_penalty": 1.5}, {"repetition_penalty": 1.5, "min_length": 30}])
@pytest.mark.parametrize("kind", ["eagle", "cut", "draft-model"])
def test_greedy_rounds_tell_the_overlap_of_both(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    model = tiny(eos_token_id=3)
    drafter: Drafter = DraftModel(tiny(1))
    if kind != "draft-model":
        drafter = Eagle(save(tmp_path, model, frequent=[1, 5, 6, 2, 9] if kind == "cut" else ()), kind)
    shapes = ["1", "4"] if kind == "draft-model" else ["1", "4", "4@3x9"]
    arms = build_arms([f"{drafter.name}:{shape}" for shape in shapes], {drafter.name: drafter}, (1,))
    target = runner(model)
    drafter.follow(target)
    needs = frozenset({Signal.OVERLAP})
    loop = Checked(target, {drafter.name: drafter}, build("random", arms), arms, needs, Prompts().features)
    prepared = wager.Decoder(model, drafters="off", policy="off").prepare(PROMPT, {"max_new_tokens": 25, **settings})
    target.begin()
    request = replace(prepared, criteria=[MaxLengthCriteria(len(PROMPT) + 25)])
    for step in loop.run(request, Greedy()):
        if step.round is not None and step.round.arm.tree is None:
            assert len(step.round.overlap) == step.round.drafted
    assert loop.compared > 10


@pytest.mark.parametrize("kind", ["eagle", "cut", "draft-model"])
def test_logits_of_a_greedy_draft_are_what_it_would_have_drawn_from(tmp_path: Path, kind: str) -> None:
    model = tiny()
    target = reading(model)
    if kind == "draft-model":
        drafter: Drafter = DraftModel(tiny(1))
        drafter.begin(TEXT)
    else:
        drafter = following(save(tmp_path, model, frequent=[1, 5, 6, 2, 9] if kind == "cut" else ()), target)
    draft = drafter.propose(5)
    assert draft.probs is None
    told = torch.softmax(draft.logits, -1)
    if kind == "draft-model":
        drafter.begin(TEXT)
    drawn = drafter.propose(5, Draws(lambda _, logits: (int(logits.argmax()), torch.softmax(logits, -1))))
    assert drawn.logits is None
    assert drawn.tokens == draft.tokens
    torch.testing.assert_close(told, drawn.probs, rtol=1e-4, atol=1e-5)
    short = draft.cut(2).logits
    torch.testing.assert_close(torch.softmax(short, -1), told[:2])


def test_a_decoder_warms_every_drafter_for_its_own_arms() -> None:
    warmed: dict[str, list[str]] = {}

    class Warmed(DraftModel):
        def warm(self, arms: Iterable[Arm]) -> None:
            warmed[self.name] = [str(arm) for arm in arms]

    model = tiny()
    one, other, third = (Warmed(tiny(n), f"m:{n}") for n in (1, 2, 3))
    together = Together([other, third])
    arms = ["m:1:2", "m:1:4", "together:3", "together:5@2x8"]
    wager.Decoder(model, drafters=[one, together], policy="random", arms=arms)
    assert warmed == {"m:1": ["m:1:2", "m:1:4"], "m:2": ["m:2:3", "m:2:5"], "m:3": ["m:3:3", "m:3:5"]}


class TellsAnother(Eagle):
    """Says it drew from another distribution than it did."""

    def _draw(self, out: torch.Tensor, length: int, sample: Any) -> tuple[list[int], torch.Tensor]:
        tokens, probs = super()._draw(out, length, sample)
        return tokens, probs.flip(-1)


def test_a_wrong_q_is_noticed(tmp_path: Path) -> None:
    model = tiny(**SMALL)
    torch.manual_seed(4)
    drafter = TellsAnother(save(tmp_path, model))
    assert distributed(runner(model), model, drafter, CHAINS, TEXTS, RESIDUAL) > FITS
