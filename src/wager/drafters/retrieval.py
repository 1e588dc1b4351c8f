"""Retrieval: what followed in a corpus where it read like the end of the text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from wager.core import Hint, Tree
from wager.core.require import require
from wager.drafters.base import Draft, Drafter, DraftSampler
from wager.drafters.datastore import DEPTH, Datastore
from wager.drafters.token_tree import grow

# Continuations with how often each occurs, the nearest token last, and where in them the next token stands.
_Place = tuple[dict[bytes, int], int]


class Retrieval(Drafter):
    """Follows the most frequent continuation of the text's last tokens in a datastore."""

    # REST (He et al. 2023): the longest match of the text's end, its continuations counted along their tree. Where it
    # goes on nowhere, as at the end of a document, the next shorter one is taken. A drafted tree merges continuations.

    trees: ClassVar[bool] = True
    servable: ClassVar[bool] = True
    datastore: Datastore

    def __init__(
        self, datastore: Datastore | Path | str, *, shortest: int = 2, look: int = 32, name: str = "retrieval"
    ) -> None:
        require(1 <= shortest <= DEPTH, f"the shortest match has 1 to {DEPTH} tokens, not {shortest}")
        require(look >= 1, f"retrieval looks at 1 occurrence or more, not {look}")
        self.name, self.shortest = name, shortest
        self.datastore = datastore if isinstance(datastore, Datastore) else Datastore.open(datastore)
        self.look = look  # occurrences counted; of more, so many spread evenly over them
        self._tail: list[int] = []  # the last tokens of the text, at most DEPTH, all in the vocabulary

    def share(self) -> Retrieval:
        return Retrieval(self.datastore, shortest=self.shortest, look=self.look, name=self.name)

    def fit(self, vocabulary: int) -> None:
        held = self.datastore.header.vocabulary
        sizes = f"the datastore holds tokens of a vocabulary of {held:,} and the target has {vocabulary:,}"
        require(held <= vocabulary, f"{sizes}; build one with the target's tokenizer")

    def begin(self, prompt: Sequence[int]) -> None:
        self._tail = []
        self.extend(prompt[-DEPTH:])

    def extend(self, tokens: Sequence[int]) -> None:
        tail = [*self._tail, *tokens][-DEPTH:]
        if tail and max(tail) >= self.datastore.header.vocabulary:
            # such a token, added to the vocabulary later, is nowhere in the corpus: no match reaches across it
            last = max(i for i, token in enumerate(tail) if token >= self.datastore.header.vocabulary)
            tail = tail[last + 1 :]
        self._tail = tail

    def propose(self, length: int, sample: DraftSampler | None = None) -> Draft:
        for match, place in self._matches(length):
            tokens: list[int] = []
            confidence: list[float] = []
            while len(tokens) < length and (nearest := self._next(place, 1)):
                ((token, share, place),) = nearest
                tokens.append(token)
                confidence.append(share)
            if tokens:
                return Draft(tokens, Hint(match, tuple(confidence)))
        return Draft()

    def propose_tree(self, length: int, shape: Tree, sample: DraftSampler | None = None) -> Draft:
        for match, place in self._matches(length):
            found = grow(place, self._next, length, shape, 0.0, match)
            if found.tokens:
                return found.draft()
        return Draft()

    def _matches(self, length: int) -> Iterator[tuple[int, _Place]]:
        """Matches of the text's end, the longest first, and how each goes on."""
        store = self.datastore
        if length < 1 or len(self._tail) < self.shortest:
            return
        key = store.key(self._tail)
        at, match = store.find(key)
        while match >= self.shortest:
            low, high = store.span(key[: match * store.header.width], at)
            found, look = high - low, self.look
            places = range(low, high) if found <= look else [low + found * i // look for i in range(look)]
            yield match, (Counter(store.after(places, length)), (length - 1) * store.header.width)
            match -= 1

    def _next(self, place: _Place, most: int) -> list[tuple[int, float, _Place]]:
        """The most frequent tokens of continuations at a place, the share of each, and the continuations with it."""
        (going, start), width = place, self.datastore.header.width
        by: dict[bytes, dict[bytes, int]] = {}
        for text, times in going.items():
            by.setdefault(text[start : start + width], {})[text] = times
        total = sum(going.values())
        by.pop(b"\xff" * width, None)
        counts = sorted((-sum(texts.values()), token) for token, texts in by.items())[:most]
        return [(int.from_bytes(token, "big"), -n / total, (by[token], start - width)) for n, token in counts]
