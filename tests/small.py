"""Small things that several tests are made of: a model's shape, random trees."""

import random
from collections.abc import Sequence
from typing import Any

from wager.drafters import Draft, Drafter, DraftSampler

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
SPECIAL = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
# Of a model so random that its choices vary, and so small that it costs nothing.
SHAPE: dict[str, Any] = {**SIZES, "num_key_value_heads": 2, "initializer_range": 0.3, **SPECIAL}


class Following(Drafter):
    """Knows the text so far, and proposes nothing."""

    def begin(self, prompt: Sequence[int]) -> None:
        self.text = list(prompt)

    def extend(self, tokens: Sequence[int]) -> None:
        self.text += tokens

    def propose(self, length: int, sample: DraftSampler | None = None) -> Draft:
        return Draft()


def tree_of(rng: random.Random, width: int) -> list[int]:
    """Random parents: now a bush, now nearly a chain."""
    deep = rng.random()
    return [-1, *(at if rng.random() < deep else rng.randrange(-1, at + 1) for at in range(width - 1))]


def text_of(tokens: Sequence[int], parents: Sequence[int], at: int) -> tuple[int, ...]:
    """The tokens from the root to this one; none for -1."""
    text: tuple[int, ...] = ()
    while at >= 0:
        text, at = (tokens[at], *text), parents[at]
    return text


def paths(draft: Draft) -> list[tuple[int, ...]]:
    """A tree's tokens, each with those before it."""
    assert all(-1 <= parent < at for at, parent in enumerate(draft.parents)), "parents come first"
    return [text_of(draft.tokens, draft.parents, at) for at in range(len(draft.tokens))]


def path_to(parents: Sequence[int], at: int) -> list[int]:
    """The nodes from the root to this one."""
    path = [at]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path
