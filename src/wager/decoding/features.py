"""What a policy may know of a prompt before the first round: numbers."""

import math
from collections import Counter
from collections.abc import Sequence

from wager.core import PromptFeatures


class Prompts:
    """Turns prompts into features; how rare a token is follows from the prompts seen so far."""

    def __init__(self) -> None:
        self.count = 0
        self.holding: Counter[int] = Counter()  # token -> prompts that held it; bounded by the vocabulary

    def features(self, prompt: Sequence[int], perplexity: float) -> PromptFeatures:
        """Length, perplexity and TF-IDF (on-the-fly adaptation, section 5); the prompt then counts as seen.

        The TF-IDF score is the mean over the prompt's tokens of the smoothed inverse document frequency
        ln((1 + prompts) / (1 + prompts holding the token)) + 1: one number, high for a prompt unlike those before.
        """
        held = Counter(prompt)
        seen = 1 + self.count
        rarity = sum(times * (math.log(seen / (1 + self.holding[token])) + 1) for token, times in held.items())
        self.count += 1
        self.holding.update(held.keys())
        return PromptFeatures(len(prompt), max(1.0, perplexity), (rarity / len(prompt),))
