"""Small models of several families, a drafter that knows the text, runners and decoders made of them."""

import copy
import random
from collections.abc import Sequence
from typing import Any

import small
import torch
from identity import first_difference, first_difference_is_a_tie
from transformers import AutoConfig, AutoModelForCausalLM

import wager
from wager.core import Tree
from wager.decoding.loop import Loop
from wager.drafters import Draft, DraftSampler
from wager.drafters.draft_model import DraftModel
from wager.drafters.prompt_lookup import PromptLookup
from wager.drafters.suffix import Suffix
from wager.models.hf_runner import HFRunner
from wager.models.llama_runner import LlamaRunner
from wager.models.runner import Runner

Pair = tuple[Any, Any]  # model and tokenizer
TOLERANCE = 1e-3  # standard deviations of float32 logits
NEAR = 2e-4  # largest difference of two ways to the same float32 logits, in their standard deviations
VOCABULARY = 64
PROMPT = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2]
LEARNING = ("ucbspec", "exp3spec", "meta-ucb:reward=bd", "nightjar", "thompson", "ucbspec:reward=goodput")
POLICIES = ("random", "off", "round-robin", "analytical", "fsm", "prompt-router", *LEARNING)

SHAPE = {**small.SHAPE, "vocab_size": VOCABULARY, "head_dim": 8, "max_position_embeddings": 512}
ODD: dict[str, Any] = {"vocab_size": VOCABULARY, "initializer_range": 0.3, "bos_token_id": None, "eos_token_id": None}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": SHAPE,
    "qwen2": {name: value for name, value in SHAPE.items() if name != "head_dim"},
    "qwen3": SHAPE,
    "mistral": {**SHAPE, "sliding_window": None},
    "mistral, window": {**SHAPE, "sliding_window": 12},
    "gemma2": {**SHAPE, "sliding_window": 12},
    "llama4_text": {
        **SHAPE,
        "attention_chunk_size": 16,
        "num_local_experts": 2,
        "intermediate_size_mlp": 48,
        "attn_temperature_tuning": False,
    },
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512, **ODD},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4, **ODD},
}
RUNNERS: list[tuple[str, type[Runner]]] = [
    *((family, LlamaRunner) for family in ("llama", "qwen2", "qwen3")),
    *((family, HFRunner) for family in ("llama", "qwen3", "gpt2")),
]
WINDOWED: list[tuple[str, type[Runner]]] = [  # whose trees reach beyond what some of their layers see
    ("mistral, window", LlamaRunner),
    *((family, HFRunner) for family in ("mistral, window", "gemma2", "llama4_text")),
]


def tiny(family: str = "llama", seed: int = 0, **shape: Any) -> Any:
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family.partition(",")[0], **{**FAMILIES[family], **shape})
    return AutoModelForCausalLM.from_config(config).eval()


def begun(kind: type[Runner], model: Any) -> Runner:
    made: Runner = kind(model)
    made.begin()
    return made


def tokens_of(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(VOCABULARY) for _ in range(count)]


def far(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.std())


def alike(model: Any, noise: float = 0.1) -> Any:
    """Another model that often agrees with this one: a draft model."""
    torch.manual_seed(9)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight += noise * weight.std().nan_to_num() * torch.randn_like(weight)
    return other


class Told(small.Following):
    """Knows how the text goes on, but for every few tokens: drafts are kept whole, in part and not at all."""

    name = "told"

    def __init__(self, texts: Sequence[Sequence[int]] = (), wrong_every: int = 5) -> None:
        self.texts, self.wrong_every = [list(text) for text in texts], wrong_every

    def propose(self, length: int, sample: DraftSampler | None = None) -> Draft:
        here = len(self.text)
        for text in self.texts:
            if text[:here] == self.text:
                ahead = text[here : here + length]
                return Draft([t if (here + i) % self.wrong_every else (t + 1) % 7 for i, t in enumerate(ahead)])
        return Draft()


class Grafted(small.Following):
    """Knows how the text goes on, and hides it in a tree: whole or in part, among wrong branches, in any order."""

    name = "grafted"
    trees = True

    def __init__(self, text: Sequence[int] = (), seed: int = 0) -> None:
        self.known, self.rng = list(text), random.Random(seed)

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
    ids = torch.tensor([prompt])  # with a mask: without one, transformers takes every 0 for padding
    return model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0, len(prompt) :].tolist()


def ours(decoder: wager.Decoder, prompt: Sequence[int] = PROMPT, **settings: Any) -> list[int]:
    return decoder.generate(prompt, **{"max_new_tokens": 60, "do_sample": False, **settings}).tokens


def informed(model: Any, prompt: Sequence[int] = PROMPT, policy: Any = "random", **how: Any) -> wager.Decoder:
    """A decoder with drafts of every kind for this prompt."""
    told = Told([[*prompt, *plain(model, prompt)]])
    drafters = how.pop("drafters", None) or [told, PromptLookup(), Suffix(), DraftModel(alike(model))]
    return wager.Decoder(model, how.pop("tokenizer", None), drafters=drafters, policy=policy, **how)


def check(model: Any, prompt: Sequence[int], tokens: Sequence[int], expected: Sequence[int]) -> None:
    assert first_difference_is_a_tie(model, prompt, tokens, expected, TOLERANCE), (
        f"parted after {first_difference(tokens, expected)} tokens, and not at a tie"
    )


class CropsTooLittle(Loop):
    """Leaves one token of a refused draft in the cache."""

    def _round(self) -> Any:
        crop = self.target.crop
        self.target.crop = lambda length: crop(length + 1)  # type: ignore[method-assign]
        try:
            return super()._round()
        finally:
            del self.target.crop
