"""Suffix decoding: the likeliest continuation in this request's text and in the outputs of those before it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from wager.core import Hint
from wager.drafters.base import Draft, Drafter, Sampler
from wager.drafters.trie import Path, Plan, Trie

ENGINES = ("auto", "arctic", "own")


class _Engine(Protocol):
    """Where the counts are kept."""

    def begin(self, prompt: Sequence[int]) -> None: ...
    def extend(self, tokens: Sequence[int]) -> None: ...
    def end(self, *, keep: bool) -> None: ...
    def forget_oldest(self) -> None: ...
    def best(self, context: list[int], length: int) -> Path: ...


class Suffix(Drafter):
    """Follows the most frequent continuation of the match that promises most tokens, in this text and past outputs."""

    # SuffixDecoding (Oliaro et al. 2025). Every match length is tried, in a tree of the request's own text and in one
    # of all outputs remembered; a draft's score is the sum of its tokens' empirical survival probabilities.

    def __init__(
        self,
        *,
        depth: int = 24,
        factor: float = 1.0,
        least: float = 0.1,
        remember: int = 50_000,
        engine: str = "auto",
        name: str = "suffix",
    ) -> None:
        if depth < 2:
            raise ValueError(f"a suffix tree needs a depth of at least 2 tokens, not {depth}")
        if not factor > 0 or not 0 <= least <= 1:
            raise ValueError(f"factor is above 0 and least lies in [0, 1], not {factor} and {least}")
        if remember < 0:
            raise ValueError(f"remember is a number of tokens, 0 for none, not {remember}")
        if engine not in ENGINES:
            raise ValueError(f"unknown suffix engine {engine!r}; choose from {', '.join(ENGINES)}")
        self.name = name
        self.depth = depth  # tokens of match and draft together: at factor 1, half of it is the longest draft
        self.remember = remember  # tokens of past outputs; the oldest are forgotten first
        self._cache = _arctic_cache() if engine != "own" else None
        if engine == "arctic" and self._cache is None:
            raise ValueError("suffix engine 'arctic' needs the package arctic-inference; install it or take 'own'")
        self._counting = (depth, factor, least, remember)
        self.forget()

    def forget(self) -> None:
        self._tail: list[int] = []  # the last tokens of the text, at most depth
        self._outputs: deque[int] = deque()  # lengths of the outputs remembered
        self._remembered = 0
        self._output = -1  # tokens of the request's own output; -1: no request yet
        self._engine: _Engine = _Own(*self._counting) if self._cache is None else _Arctic(self._cache, *self._counting)

    @property
    def engine(self) -> str:
        """Which engine counts: ``arctic`` or ``own``."""
        return "own" if isinstance(self._engine, _Own) else "arctic"

    @property
    def remembered(self) -> int:
        """Tokens of past outputs it drafts from."""
        return self._remembered

    def begin(self, prompt: Sequence[int]) -> None:
        if self._output >= 0:
            keep = self._output > 0 and self.remember > 0
            self._engine.end(keep=keep)
            if keep:
                self._outputs.append(self._output)
                self._remembered += self._output
            while self._remembered > self.remember:
                self._engine.forget_oldest()
                self._remembered -= self._outputs.popleft()
        self._output = 0
        self._tail = list(prompt[-self.depth :])
        self._engine.begin(prompt)

    def extend(self, tokens: Sequence[int]) -> None:
        self._output += len(tokens)
        self._tail = [*self._tail, *tokens][-self.depth :]
        self._engine.extend(tokens)

    def propose(self, length: int, sample: Sampler | None = None) -> Draft:
        if length < 1 or len(self._tail) < 2:
            return Draft()
        tokens, survival, _, match = self._engine.best(self._tail, length)
        if not tokens:
            return Draft()
        # survival multiplies up along the draft; a hint holds the probability of each token given those before it
        before = 1.0
        confidence = []
        for alive in survival:
            confidence.append(1.0 if alive >= before else alive / before)
            before = alive
        return Draft(tokens, Hint(match, tuple(confidence)))


def _arctic_cache() -> Any:
    """arctic-inference's tree cache, or None where that package is not installed."""
    try:
        return import_module("arctic_inference.suffix_decoding").SuffixDecodingCache
    except ImportError:
        return None


class _Arctic:
    """arctic-inference's suffix trees."""

    def __init__(self, cache: Any, depth: int, factor: float, least: float, remember: int) -> None:
        # without a limit of its own: Suffix forgets by tokens, which bounds memory where requests would not
        self._cache = cache(max_tree_depth=depth, max_cached_requests=-1 if remember else 0)
        self._factor, self._least = factor, least
        self._request = 0
        self._kept: deque[int] = deque()  # requests whose output is remembered

    def begin(self, prompt: Sequence[int]) -> None:
        self._cache.start_request(self._request, np.array(prompt, dtype=np.int32))

    def extend(self, tokens: Sequence[int]) -> None:
        self._cache.add_active_response(self._request, list(tokens))

    def end(self, *, keep: bool) -> None:
        self._cache.stop_request(self._request)
        if keep:
            self._kept.append(self._request)
        elif self._request in self._cache.cached_requests:
            self._cache.evict_cached_response(self._request)
        self._request += 1

    def forget_oldest(self) -> None:
        self._cache.evict_cached_response(self._kept.popleft())

    def best(self, context: list[int], length: int) -> Path:
        draft = self._cache.speculate(
            self._request,
            context,
            max_spec_tokens=length,
            max_spec_factor=self._factor,
            min_token_prob=self._least,
        )
        return Path(draft.token_ids, draft.probs, draft.score, draft.match_len)


class _Own:
    """The same counts and choices in Python."""

    def __init__(self, depth: int, factor: float, least: float, remember: int) -> None:
        self._depth = depth
        self._least = float(np.float32(least))
        # most tokens drafted by length of match, rounded as arctic-inference does
        self._by_match = [int(float(np.float32(match) * np.float32(factor)) + 1e-6) for match in range(depth + 1)]
        self._plans: dict[int, Plan] = {}  # by length asked for
        self._text = Trie(depth)
        self._outputs = Trie(depth) if remember else None

    def begin(self, prompt: Sequence[int]) -> None:
        self._text = Trie(self._depth)
        self._text.extend(prompt)

    def extend(self, tokens: Sequence[int]) -> None:
        self._text.extend(tokens)
        if self._outputs is not None:
            self._outputs.extend(tokens)

    def end(self, *, keep: bool) -> None:
        if self._outputs is not None and keep:
            self._outputs.close()

    def forget_oldest(self) -> None:
        if self._outputs is not None:
            self._outputs.forget_oldest()

    def best(self, context: list[int], length: int) -> Path:
        plan = self._plans.get(length)
        if plan is None:
            plan = self._plans[length] = Plan.of([min(length, most) for most in self._by_match], self._depth)
        path = self._text.best(context, plan, self._least)
        if self._outputs is None:
            return path
        other = self._outputs.best(context, plan, self._least, beat=path.score)
        return other if other.tokens else path
