"""Prompt lookup: what followed the last time the text ended like this."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count, pairwise
from typing import ClassVar

from wager.core import Hint
from wager.drafters.base import Draft, Drafter, DraftSampler


class PromptLookup(Drafter):
    """Copies what followed the most recent earlier occurrence of the text's last tokens."""

    # Saxena (2023). One table per size of n-gram, from the n-gram to the position after its latest occurrence. The
    # n-gram that ends the text enters it only with the token that follows: so a lookup never finds the text's own end.
    # A match says nothing of how often the text went on otherwise. So every token has a confidence: how often the text
    # has it after the one before it, over one more than the times that anything follows that one: many count more.

    servable: ClassVar[bool] = True

    def __init__(
        self, *, longest: int = 4, shortest: int = 2, match_cap: int = 32, name: str = "prompt-lookup"
    ) -> None:
        if not 1 <= shortest <= longest <= match_cap:
            given = f"{shortest}, {longest} and {match_cap}"
            raise ValueError(f"prompt lookup needs 1 <= shortest <= longest <= match_cap, not {given}")
        self.name = name
        self.sizes = tuple(range(longest, shortest - 1, -1))
        self.match_cap = match_cap  # tokens a match is followed backwards, for the hint
        self.end()

    def share(self) -> PromptLookup:
        return PromptLookup(longest=self.sizes[0], shortest=self.sizes[-1], match_cap=self.match_cap, name=self.name)

    def end(self) -> None:
        self.begin(())

    def begin(self, prompt: Sequence[int]) -> None:
        self._text = text = list(prompt)
        self._after: tuple[dict[tuple[int, ...], int], ...] = tuple({} for _ in self.sizes)
        for size, after in zip(self.sizes, self._after, strict=True):
            # later positions overwrite earlier ones; the last n-gram has nothing after it and stays out
            grams = zip(*(text[i : i + max(0, len(text) - size)] for i in range(size)), strict=True)
            after.update(zip(grams, count(size)))
        self._pairs = Counter(pairwise(text))  # of a token and the one after it
        self._followed = Counter(text[:-1])  # times that anything came after a token

    def extend(self, tokens: Sequence[int]) -> None:
        text, pairs, followed, longest = self._text, self._pairs, self._followed, self.sizes[0]
        for token in tokens:
            end = len(text)
            last = tuple(text[-longest:])
            for size, after in zip(self.sizes, self._after, strict=True):
                if end >= size:
                    after[last[-size:]] = end
            if end:
                before = last[-1]
                pair = before, token
                pairs[pair] = pairs.get(pair, 0) + 1
                followed[before] = followed.get(before, 0) + 1
            text.append(token)

    def propose(self, length: int, sample: DraftSampler | None = None) -> Draft:
        text = self._text
        if length < 1:
            return Draft()
        for size, after in zip(self.sizes, self._after, strict=True):
            start = after.get(tuple(text[-size:])) if len(text) >= size else None
            if start is not None:
                copied = text[start : start + length]
                if len(copied) < length:  # past the text's end come those just proposed: it goes on in its period
                    copied = (copied * (length // len(copied) + 1))[:length]
                return Draft(copied, Hint(self._match(start, size), self._confidence(copied)))
        return Draft()

    def _confidence(self, tokens: Sequence[int]) -> tuple[float, ...]:
        """How often each token followed the one before it, over one more than the times that anything did."""
        pairs, followed = self._pairs.get, self._followed.get  # what is missing need not be added
        before = (self._text[-1], *tokens[:-1])
        return tuple([pairs(pair, 0) / (followed(pair[0], 0) + 1) for pair in zip(before, tokens, strict=True)])

    def _match(self, start: int, size: int) -> int:
        """How many tokens before the position agree with those that end the text."""
        text, end = self._text, len(self._text)
        limit = min(start, self.match_cap)
        while size < limit and text[start - 1 - size] == text[end - 1 - size]:
            size += 1
        return size
