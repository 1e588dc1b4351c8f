"""Suffix decoding: the likeliest continuation in this request's text and in the outputs of those before it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import ClassVar
from weakref import finalize

from wager.core import Tree
from wager.core.require import require
from wager.drafters.base import Draft, Drafter, DraftSampler
from wager.drafters.suffix_tree import Document, SuffixTree, limits
from wager.drafters.token_tree import NOTHING, Continuation


@dataclass(slots=True, eq=False)
class _Running:
    """A text that is being written, in both trees."""

    own: SuffixTree  # of this text alone
    text: Document  # in that one, the prompt included
    output: Document  # in the tree of all outputs; empty where none are cached


class _Outputs:
    """Past outputs and running texts of all drafters that share them; it knows none of the drafters."""

    def __init__(self, depth: int, cached: int) -> None:
        self.depth, self.max_cached_tokens = depth, cached
        self.tree = SuffixTree(depth)
        self.cached_tokens = 0
        self.abandoned: list[_Running] = []  # whose drafters are gone
        self._past: deque[Document] = deque()  # in the order they ended
        self._running = 0

    def begin(self, prompt: Sequence[int]) -> _Running:
        """A text to extend."""
        self.end_abandoned()
        self._running += 1
        own = SuffixTree(self.depth)
        running = _Running(own, own.open(), self.tree.open())
        own.extend(running.text, prompt)
        return running

    def extend(self, running: _Running, tokens: Sequence[int]) -> None:
        running.own.extend(running.text, tokens)
        if self.max_cached_tokens:
            self.tree.extend(running.output, tokens)

    def end(self, running: _Running) -> None:
        """Keep a text's output, and of all outputs no more than the most cached tokens: the oldest go first."""
        self._running -= 1
        output = running.output
        output.active = []  # only counted from now on
        self._past.append(output)
        self.cached_tokens += len(output.tokens)
        if not output.tokens:
            self._remove(self._past.pop())
        while self.cached_tokens > self.max_cached_tokens:
            self._remove(self._past.popleft())

    def end_abandoned(self) -> None:
        """End the texts whose drafters are gone."""
        while self.abandoned:
            self.end(self.abandoned.pop(0))

    def clear(self) -> None:
        """Remove all past outputs."""
        self.end_abandoned()
        if not self._running:
            self.tree = SuffixTree(self.depth)  # quicker than one by one
            self._past.clear()
            self.cached_tokens = 0
        while self._past:
            self._remove(self._past.popleft())

    def _remove(self, output: Document) -> None:
        self.tree.remove(output)
        self.cached_tokens -= len(output.tokens)


class Suffix(Drafter):
    """Follows the most frequent continuation of the match that promises most tokens, in this text and past outputs."""

    # SuffixDecoding (Oliaro et al. 2025). Every match length is tried, in a tree of the request's own text and in one
    # of all outputs cached; a draft's score is the sum of its tokens' empirical survival probabilities.

    trees: ClassVar[bool] = True
    servable: ClassVar[bool] = True

    def __init__(
        self,
        *,
        max_tree_depth: int = 24,
        max_spec_factor: float = 1.0,
        min_token_prob: float = 0.1,
        max_cached_tokens: int = 50_000,
        name: str = "suffix",
    ) -> None:
        require(max_tree_depth >= 2, f"a suffix tree needs a depth of at least 2 tokens, not {max_tree_depth}")
        require(max_spec_factor > 0, f"max_spec_factor is above 0, not {max_spec_factor}")
        require(0 <= min_token_prob <= 1, f"min_token_prob lies in [0, 1], not at {min_token_prob}")
        require(max_cached_tokens >= 0, f"max_cached_tokens is 0 (none) or more, not {max_cached_tokens}")
        self.name = name
        # tokens of match and draft together: at a factor of 1, half of it is the longest draft
        self.max_tree_depth = max_tree_depth
        self.max_spec_factor = max_spec_factor  # most drafted tokens for each token matched
        self.min_token_prob = min_token_prob  # least empirical probability of a drafted token
        self.max_cached_tokens = max_cached_tokens  # of past outputs
        self._outputs = _Outputs(max_tree_depth, max_cached_tokens)
        self._tail: list[int] = []  # the last tokens of the text, at most the depth
        self._running: _Running | None = None

    def share(self) -> Suffix:
        # Each drafts from what the others write, too, while they write it.
        other = copy(self)
        other._tail, other._running = [], None
        return other

    def forget(self) -> None:
        self.end()
        self._outputs.clear()

    @property
    def cached_tokens(self) -> int:
        """Tokens of past outputs it drafts from."""
        return self._outputs.cached_tokens

    def begin(self, prompt: Sequence[int]) -> None:
        self.end()
        self._tail = list(prompt[-self.max_tree_depth :])
        self._running = running = self._outputs.begin(prompt)
        # Only noted there, for it may happen at any time, in the middle of counting too.
        self._gone = finalize(self, self._outputs.abandoned.append, running)
        self._gone.atexit = False

    def end(self) -> None:
        if self._running is not None:
            self._gone.detach()
            self._outputs.end(self._running)
            self._running, self._tail = None, []

    def extend(self, tokens: Sequence[int]) -> None:
        if self._running is None:
            raise ValueError(f"drafter {self.name!r} has no text to extend; begin one first")
        self._tail = [*self._tail, *tokens][-self.max_tree_depth :]
        self._outputs.extend(self._running, tokens)

    def propose(self, length: int, sample: DraftSampler | None = None) -> Draft:
        return self._continuation(length).draft()

    def propose_tree(self, length: int, shape: Tree, sample: DraftSampler | None = None) -> Draft:
        return self._continuation(length, shape).draft()

    def _continuation(self, length: int, shape: Tree | None = None) -> Continuation:
        """The better of the best continuations in the two trees; of equal ones that of the text itself."""
        running, tail, least = self._running, self._tail, self.min_token_prob
        if length < 1 or len(tail) < 2 or running is None:
            return NOTHING
        most, outputs = limits(length, self.max_spec_factor, self.max_tree_depth), self._outputs.tree
        if shape is None:
            own = running.own.best(running.text, tail, most, least)
            other = outputs.best(running.output, tail, most, least, above=own.score)
        else:
            own = running.own.tree(running.text, tail, most, least, shape)
            other = outputs.tree(running.output, tail, most, least, shape)
        return other if other.score > own.score else own
