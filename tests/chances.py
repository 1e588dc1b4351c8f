"""Distributions of the next token after every text, made up from a seed, and what a sound sample of them holds."""

from __future__ import annotations

from itertools import product

import numpy as np

VOCABULARY = 4
Text = tuple[int, ...]


class Chances:
    """A distribution of the next token after every text; ``zeros`` tokens are impossible, ``near`` mixes another in."""

    def __init__(self, seed: int, zeros: int = 0, near: Chances | None = None, share: float = 0.7) -> None:
        self.seed, self.zeros, self.near, self.share = seed, zeros, near, share
        self.known: dict[Text, np.ndarray] = {}

    def after(self, text: Text) -> np.ndarray:
        if text not in self.known:
            rng = np.random.default_rng([self.seed, *text])
            p = np.exp(1.2 * rng.standard_normal(VOCABULARY))
            p[rng.permutation(VOCABULARY)[: self.zeros]] = 0
            p = p / p.sum()
            if self.near is not None:
                p = (1 - self.share) * p + self.share * self.near.after(text)
            self.known[text] = p
        return self.known[text]


def spread(texts: dict[Text, int], chances: Chances, rng: np.random.Generator) -> dict[Text, int]:
    """Each text one token longer, drawn as often as the text occurs."""
    longer: dict[Text, int] = {}
    for text, count in texts.items():
        drawn = rng.multinomial(count, chances.after(text))
        longer |= {(*text, token): int(often) for token, often in enumerate(drawn) if often}
    return longer


def due(target: Chances, tokens: int) -> np.ndarray:
    """The target's own joint distribution of its first tokens."""
    joint = np.ones((VOCABULARY,) * tokens)
    for text in product(range(VOCABULARY), repeat=tokens):
        joint[text] = np.prod([target.after(text[:i])[text[i]] for i in range(tokens)])
    return joint
