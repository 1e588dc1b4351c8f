"""Targets whose distribution is known, drafters for them, and how far sampled texts are off it."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from draws import sampler
from fit import misfit
from small import SPECIAL, Following, text_of
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessor, LogitsProcessorList, MaxLengthCriteria
from transformers.utils import logging

from wager.core import Hint, Signal
from wager.decoding.arms import build_arms
from wager.decoding.features import Prompts
from wager.decoding.loop import Loop
from wager.decoding.prepare import Prepared, Processors, prepared
from wager.decoding.sampler import RESIDUAL, SHARED
from wager.drafters import Draft, Drafter, DraftSampler
from wager.drafters import draft_model as draft_models
from wager.drafters.draft_model import DraftModel
from wager.drafters.prompt_lookup import PromptLookup
from wager.drafters.retrieval import Retrieval
from wager.drafters.suffix import Suffix
from wager.models.runner import Runner
from wager.policies import build

VOCABULARY = 6
LENGTHS = (1, 2, 3, 4)
PROMPT = [0, 1, 2, 0, 1, 2, 0, 1]  # tokens 3 to 5 are new to penalties
SHARE = 1.0 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 0.05
Text = tuple[int, ...]


class Table(Runner):
    """A model whose logits follow from the last two tokens, or from all since the prompt; it costs next to nothing."""

    trees = True

    def __init__(self, seed: int, scale: float = 1.5, *, all_of_it: bool = False) -> None:
        self.vocabulary, self.limit, self.device = VOCABULARY, 1 << 20, torch.device("cpu")
        self.length, self.fed = 0, [0]
        self.seed, self.all_of_it = seed, all_of_it
        generator = torch.Generator().manual_seed(seed)
        self.rows = scale * torch.randn(37 if all_of_it else VOCABULARY**2, VOCABULARY, generator=generator)

    def row(self, text: Sequence[int]) -> int:
        """Which row of logits comes after a text."""
        if self.all_of_it:
            return hash((self.seed, *text)) % len(self.rows)
        return text[-2] * VOCABULARY + text[-1]

    def forward(self, tokens: Sequence[int], keep: int, parents: Sequence[int] | None = None) -> torch.Tensor:
        self.before, tree = self.length, []
        if parents is not None:
            text = self.fed if self.all_of_it else self.fed[-2:]
            tree = [self.row([*text, *text_of(tokens, parents, at)]) for at in range(len(tokens))]
        self.fed += tokens
        self.length = len(self.fed) - 1
        end = len(self.fed)
        return self.rows[tree[-keep:] or [self.row(self.fed[: at + 1]) for at in range(end - keep, end)]]

    def _move(self, places: list[int], to: int) -> None:
        self.fed[to + 1 : to + 1 + len(places)] = [self.fed[at + 1] for at in places]

    def crop(self, length: int) -> None:
        del self.fed[length + 1 :]
        self.length = length


def tiny(seed: int, layers: int = 1) -> LlamaForCausalLM:
    """A real model with a small vocabulary, peaked enough that drafts are kept now and then."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": layers, "num_attention_heads": 2}
    more = {"num_key_value_heads": 1, "max_position_embeddings": 128, "initializer_range": 0.6}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **sizes, **more, **SPECIAL)).eval()


class Wrong(Following):
    """Proposes for certain what is least likely: everything has to be refused, and nothing may come of it."""

    name = "wrong"

    def __init__(self, target: Table) -> None:
        self.target = target

    def propose(self, length: int, sample: DraftSampler | None = None) -> Draft:
        tokens: list[int] = []
        for _ in range(length):
            logits = self.target.rows[self.target.row([0, *self.text, *tokens])]
            tokens.append(int(logits.argmin()))
        return Draft(tokens, Hint())


class Oracle(Wrong):
    """Draws from the target's own distribution: everything has to be kept."""

    name = "oracle"
    cheap = False

    def propose(self, length: int, sample: DraftSampler | None = None) -> Draft:
        tokens: list[int] = []
        rows = []
        for _ in range(length):
            token, q = sample([*self.text, *tokens], self.target.rows[self.target.row([0, *self.text, *tokens])])
            tokens.append(token)
            rows.append(q)
        return Draft(tokens, Hint(), torch.stack(rows))


def draft_model(runner: Runner) -> DraftModel:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draft_models, "runner", lambda model: model)
        return DraftModel(runner)


KINDS = ("prompt-lookup", "suffix", "retrieval", "draft-model", "near draft model", "wrong", "oracle")


def drafter(kind: str, target: Table, store: Path) -> Drafter:
    if kind == "prompt-lookup":
        return PromptLookup(shortest=1)
    if kind == "suffix":
        return Suffix()
    if kind == "retrieval":
        return Retrieval(store, shortest=1)
    if kind in ("draft-model", "near draft model"):
        other = Table(77, all_of_it=target.all_of_it)
        if kind.startswith("near"):
            other.rows = target.rows + 0.3 * other.rows
            other.seed = target.seed
        return draft_model(other)
    return Wrong(target) if kind == "wrong" else Oracle(target)


def request_of(processors: Processors, tokens: int) -> Prepared:
    return Prepared(torch.tensor([PROMPT]), processors, [MaxLengthCriteria(len(PROMPT) + tokens)], None)


def rows_seen(
    loop: Loop, target: Table, processors: Processors, tokens: int, rule: str = RESIDUAL, each: int = 400
) -> tuple[np.ndarray, Counter[tuple[str, int]]]:
    """How often each token followed each two, (vocabulary,) * 3, and how many tokens every drafter had kept."""
    seen = np.zeros((VOCABULARY,) * 3)
    kept: Counter[tuple[str, int]] = Counter()
    request = request_of(processors, each)
    with torch.inference_mode():
        for _ in range(tokens // each):
            target.begin()
            for step in loop.run(request, sampler(rule, VOCABULARY)):
                if step.round is not None:
                    kept[step.round.arm.drafter, step.round.accepted - step.round.drafted] += 1
            text = np.array(loop.text[len(PROMPT) - 2 :])
            np.add.at(seen, (text[:-2], text[1:-1], text[2:]), 1)
    return seen, kept


def rows_due(target: Table, processors: Processors, seen: np.ndarray) -> np.ndarray:
    """What a sound sample that met each two tokens as often would hold."""
    p = torch.softmax(processors(torch.empty((1, 0), dtype=torch.long), target.rows), -1)
    return seen.sum(-1, keepdims=True) * p.double().numpy().reshape(seen.shape)


def off(seen: np.ndarray, due: np.ndarray) -> float:
    return misfit(seen, due, groups=int((seen.sum(-1) > 0).sum()), least=0)


def engine(target: Table, drafters: Sequence[Drafter], loop: type[Loop] = Loop, needs: Iterable[Signal] = ()) -> Loop:
    """A loop whose drafter and length change at random every round."""
    named = {d.name: d for d in drafters}
    arms = build_arms(None, named, LENGTHS)
    return loop(target, named, build("random", arms, seed=1), arms, frozenset(needs), Prompts().features)


def settings(**given: Any) -> Processors:
    """transformers' processors for these settings."""
    logging.set_verbosity_error()
    request = tiny(0).generate(
        torch.tensor([PROMPT]), max_new_tokens=5, do_sample=True, custom_generate=prepared, **{"top_k": 0, **given}
    )
    return request.processors


class Alternating(LogitsProcessor):
    """Looks at the whole text: an even sum makes even tokens likelier."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        likelier = torch.arange(scores.shape[-1]) % 2 == input_ids.sum(-1, keepdim=True) % 2
        return torch.where(likelier, scores + 1.5, scores)


PROCESSORS: dict[str, dict[str, Any]] = {
    "none": {},
    "temperature": {"temperature": 0.6},
    "top-k": {"top_k": 3},
    "top-p": {"top_p": 0.7},
    "min-p": {"min_p": 0.2},
    "typical": {"typical_p": 0.8},
    "epsilon": {"epsilon_cutoff": 0.1},
    "repetition penalty": {"repetition_penalty": 3.0},
    "no repeated n-gram": {"no_repeat_ngram_size": 2},
    "custom": {"logits_processor": LogitsProcessorList([Alternating()])},
    "bad words": {"bad_words_ids": [[5], [2, 3], [1, 2, 0]]},
    "suppressed": {"suppress_tokens": [1, 4], "begin_suppress_tokens": [0]},
    "biased": {"sequence_bias": [[[2], -2.0], [[0, 1], 3.0]]},
    "forced end": {"forced_eos_token_id": 3},
}
REPEATS = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 4}
PROCESSORS["several"] = {"temperature": 0.8, "top_k": 5, "top_p": 0.9, **REPEATS, **PROCESSORS["custom"]}
FIRST = 4  # tokens looked at together


def joint(after: Callable[[Text], np.ndarray], tokens: int = FIRST) -> np.ndarray:
    """The distribution of the first tokens, from that of the next one after any of them."""
    whole = np.zeros((VOCABULARY,) * tokens)
    chances: dict[Text, float] = {(): 1.0}
    for _ in range(tokens):
        chances = {
            (*text, token): chance * p
            for text, chance in chances.items()
            for token, p in enumerate(after(text))
            if chance * p
        }
    for text, chance in chances.items():
        whole[text] = chance
    return whole


def first_tokens(loop: Loop, target: Table, processors: Processors, texts: int, rule: str) -> np.ndarray:
    seen = np.zeros((VOCABULARY,) * FIRST)
    request = request_of(processors, FIRST + 1)
    with torch.inference_mode():
        for _ in range(texts):
            target.begin()
            for _ in loop.run(request, sampler(rule, VOCABULARY)):
                pass
            seen[tuple(loop.text[len(PROMPT) : len(PROMPT) + FIRST])] += 1
    return seen


def one_by_one(target: Table, given: dict[str, Any]) -> Callable[[Text], np.ndarray]:
    """The next token's distribution as plain decoding has it: transformers' processors, one row and its own text."""
    steps = settings(**given).steps

    def after(text: Text) -> np.ndarray:
        ids = torch.tensor([[*PROMPT, *text]])
        scores = target.rows[[target.row([0, *PROMPT, *text])]].clone()
        for processor, _ in steps:
            scores = processor(ids, scores)
        return torch.softmax(scores, -1)[0].double().numpy()

    return after


def some_drafters(target: Table, store: Path) -> list[Drafter]:
    return [drafter(kind, target, store) for kind in ("prompt-lookup", "suffix", "near draft model", "wrong")]


def off_together(
    given: dict[str, Any], store: Path, loop: type[Loop], texts: int, processors: Any = None, rule: str = SHARED
) -> float:
    torch.manual_seed(3)
    target = Table(6, all_of_it=True)
    played = engine(target, some_drafters(target, store), loop)
    seen = first_tokens(played, target, processors or settings(**given), texts, rule)
    return misfit(seen, texts * joint(one_by_one(target, given)))
