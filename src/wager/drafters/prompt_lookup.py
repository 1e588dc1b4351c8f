"""Prompt lookup: what followed the last time the text ended like this."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import ClassVar

from wager.core import Hint
from wager.drafters.base import NO_DRAFT, Draft, Drafter, DraftSampler

LINKS = 16  # occurrences that are compared one by one
LONG = 4096  # tokens of a prompt in which some n-gram surely occurs more often: its tables are made at once


class PromptLookup(Drafter):
    """Copies what followed the most recent earlier occurrence of the text's last tokens."""

    # Saxena (2023). One table, from each of the shortest n-grams to the position after its latest occurrence, and a
    # chain from there to the earlier ones, where longer n-grams are compared. Where that would be long there is a table
    # for each longer size, too. The n-gram that ends the text enters a table only with the token that follows: so a
    # lookup never finds the text's own end.

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
        self._text: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}
        self._earlier: dict[int, int] = {}  # position -> the one before it after the same n-gram
        self._longer: dict[int, dict[tuple[int, ...], int]] = {}  # size -> table, up to a place in the text:
        self._noted: dict[int, int] = {}
        self.extend(prompt)
        if len(prompt) > LONG:
            for size in self.sizes[:-1]:
                self._table(size)

    def extend(self, tokens: Sequence[int]) -> None:
        text, after, earlier, size = self._text, self._after, self._earlier, self.sizes[-1]
        begin = max(0, len(text) - size)
        text += tokens
        position = begin + size
        for ngram in zip(*[text[begin + i : -1 - (size - 1 - i)] for i in range(size)], strict=False):
            if (known := after.get(ngram)) is not None:
                earlier[position] = known
            after[ngram] = position
            position += 1
        for longer in self._longer:
            self._table(longer)

    def propose(self, length: int, sample: DraftSampler | None = None) -> Draft:
        text, size = self._text, self.sizes[-1]
        if length < 1 or len(text) < size:
            return NO_DRAFT
        start = self._after.get(tuple(text[-size:]))
        if start is None:
            return NO_DRAFT
        longest = self.sizes[0]
        if size < longest:
            start, size = self._longest(start)
        copied = text[start : start + length]
        if len(copied) < length:  # past the text's end come those just proposed: it goes on in its period
            copied = (copied * (length // len(copied) + 1))[:length]
        return Draft(copied, Hint(self._match(start, size), size=length))

    def _longest(self, start: int) -> tuple[int, int]:
        """Where the longest of the n-grams that end the text last occurred, and its size."""
        text, longest, shortest = self._text, self.sizes[0], self.sizes[-1]
        best, found = start, shortest
        at = start
        for _ in range(LINKS):
            size = shortest
            while size < longest and size < at and text[at - 1 - size] == text[-1 - size]:
                size += 1
            if size > found:
                best, found = at, size
            before = self._earlier.get(at)
            if size == longest or before is None:
                return best, found
            at = before
        for size in self.sizes[:-1]:
            after = self._table(size)
            if (known := after.get(tuple(text[-size:]))) is not None:
                return known, size
        return start, shortest

    def _table(self, size: int) -> dict[tuple[int, ...], int]:
        """From each n-gram of this size to the position after its latest occurrence; made when it is first needed."""
        text, after, begin = self._text, self._longer.setdefault(size, {}), self._noted.get(size, 0)
        end = max(begin, len(text) - size)
        grams = zip(*(text[begin + i : end + i] for i in range(size)), strict=True)
        after.update(zip(grams, count(begin + size)))
        self._noted[size] = end
        return after

    def _match(self, start: int, size: int) -> int:
        """How many tokens before the position agree with those that end the text."""
        text, end = self._text, len(self._text)
        limit = min(start, self.match_cap)
        while size < limit and text[start - 1 - size] == text[end - 1 - size]:
            size += 1
        return size
