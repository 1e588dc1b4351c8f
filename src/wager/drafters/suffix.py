"""Suffix decoding: the likeliest continuation in this request's text and in the outputs of those before it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Protocol
from weakref import finalize

import numpy as np

from wager.core import Hint, Tree
from wager.drafters.base import Draft, Drafter, DraftSampler
from wager.drafters.branches import Branches
from wager.drafters.trie import Document, Path, Plan, Trie

ENGINES = ("auto", "arctic", "own")


class _Engine(Protocol):
    """Where the counts are kept, of many texts at once; ``begin`` tells by what a text is called from then on."""

    def begin(self, prompt: Sequence[int]) -> Any: ...
    def extend(self, text: Any, tokens: Sequence[int]) -> None: ...
    def end(self, text: Any) -> None: ...
    def forget(self, text: Any) -> None: ...
    def best(self, text: Any, context: list[int], length: int) -> Path: ...
    def tree(self, text: Any, context: list[int], length: int, shape: Tree) -> Branches: ...


@dataclass(slots=True, eq=False)
class _Running:
    """A text that is being written."""

    text: Any  # as the engine calls it
    output: int = 0  # tokens


class _Memory:
    """Past outputs and running texts of all drafters that share them; it knows none of the drafters."""

    def __init__(self, make: Callable[[], _Engine], remember: int) -> None:
        self._make = make
        self.engine = make()
        self.remember = remember
        self.remembered = 0  # tokens
        self.left: list[_Running] = []  # whose drafters are gone
        self._past: deque[_Running] = deque()  # in the order they ended
        self._running = 0

    def begin(self, prompt: Sequence[int]) -> _Running:
        """A text to extend."""
        self.clear()
        self._running += 1
        return _Running(self.engine.begin(prompt))

    def end(self, running: _Running) -> None:
        """Keep a text's output, and no more than to be remembered of all."""
        self._running -= 1
        self.engine.end(running.text)
        self._past.append(running)
        self.remembered += running.output
        if not (running.output and self.remember):
            self._forget(self._past.pop())
        while self.remembered > self.remember:
            self._forget(self._past.popleft())

    def clear(self) -> None:
        """End the texts whose drafters are gone."""
        while self.left:
            self.end(self.left.pop(0))

    def forget(self) -> None:
        """Forget all past outputs."""
        self.clear()
        if not self._running:
            self.engine = self._make()  # quicker than one by one
            self._past.clear()
            self.remembered = 0
        while self._past:
            self._forget(self._past.popleft())

    def _forget(self, past: _Running) -> None:
        self.engine.forget(past.text)
        self.remembered -= past.output


class Suffix(Drafter):
    """Follows the most frequent continuation of the match that promises most tokens, in this text and past outputs."""

    # SuffixDecoding (Oliaro et al. 2025). Every match length is tried, in a tree of the request's own text and in one
    # of all outputs remembered; a draft's score is the sum of its tokens' empirical survival probabilities. A drafted
    # tree holds the likeliest tokens wherever they branch.

    trees: ClassVar[bool] = True

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
        cache = _arctic_cache() if engine != "own" else None
        if engine == "arctic" and cache is None:
            raise ValueError("suffix engine 'arctic' needs the package arctic-inference; install it or take 'own'")
        counting = (depth, factor, least, remember)
        self._memory = _Memory(lambda: _Own(*counting) if cache is None else _Arctic(cache, *counting), remember)
        self._tail: list[int] = []  # the last tokens of the text, at most depth
        self._running: _Running | None = None

    def share(self) -> Suffix:
        # Each drafts from what the others write, too, while they write it: so does arctic-inference for many requests.
        other = copy(self)
        other._tail, other._running = [], None
        return other

    def forget(self) -> None:
        self.end()
        self._memory.forget()

    @property
    def _engine(self) -> _Engine:
        return self._memory.engine

    @property
    def engine(self) -> str:
        """Which engine counts: ``arctic`` or ``own``."""
        return "own" if isinstance(self._engine, _Own) else "arctic"

    @property
    def remembered(self) -> int:
        """Tokens of past outputs it drafts from."""
        return self._memory.remembered

    def begin(self, prompt: Sequence[int]) -> None:
        self.end()
        self._tail = list(prompt[-self.depth :])
        self._running = running = self._memory.begin(prompt)
        # Only noted there, for it may happen at any time, in the middle of counting too.
        self._gone = finalize(self, self._memory.left.append, running)
        self._gone.atexit = False

    def end(self) -> None:
        if self._running is not None:
            self._gone.detach()
            self._memory.end(self._running)
            self._running, self._tail = None, []

    def extend(self, tokens: Sequence[int]) -> None:
        if self._running is None:
            raise ValueError(f"drafter {self.name!r} has no text to extend; begin one first")
        self._running.output += len(tokens)
        self._tail = [*self._tail, *tokens][-self.depth :]
        self._engine.extend(self._running.text, tokens)

    def propose(self, length: int, sample: DraftSampler | None = None) -> Draft:
        if length < 1 or len(self._tail) < 2 or self._running is None:
            return Draft()
        tokens, survival, _, match = self._engine.best(self._running.text, self._tail, length)
        if not tokens:
            return Draft()
        # survival multiplies up along the draft; a hint holds the probability of each token given those before it
        before = 1.0
        confidence = []
        for alive in survival:
            confidence.append(1.0 if alive >= before else alive / before)
            before = alive
        return Draft(tokens, Hint(match, tuple(confidence)))

    def propose_tree(self, length: int, shape: Tree, sample: DraftSampler | None = None) -> Draft:
        if length < 1 or len(self._tail) < 2 or self._running is None:
            return Draft()
        return self._engine.tree(self._running.text, self._tail, length, shape).draft()


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
        self._begun = 0

    def begin(self, prompt: Sequence[int]) -> int:
        self._begun += 1
        self._cache.start_request(self._begun, np.array(prompt, dtype=np.int32))
        return self._begun

    def extend(self, text: int, tokens: Sequence[int]) -> None:
        self._cache.add_active_response(text, list(tokens))

    def end(self, text: int) -> None:
        self._cache.stop_request(text)

    def forget(self, text: int) -> None:
        if text in self._cache.cached_requests:  # none is where nothing is to be remembered
            self._cache.evict_cached_response(text)

    def best(self, text: int, context: list[int], length: int) -> Path:
        draft = self._cache.speculate(
            text,
            context,
            max_spec_tokens=length,
            max_spec_factor=self._factor,
            min_token_prob=self._least,
        )
        return Path(draft.token_ids, draft.probs, draft.score, draft.match_len)

    def tree(self, text: int, context: list[int], length: int, shape: Tree) -> Branches:
        # It knows no limit of depth or breadth, and chooses the match without: what lies beyond is left out afterwards,
        # so that a tree may be smaller here than the engine in Python makes it, and come from a shorter match.
        draft = self._cache.speculate(
            text,
            context,
            max_spec_tokens=shape.nodes,
            max_spec_factor=self._factor * shape.breadth,
            min_token_prob=self._least,
            use_tree_spec=True,
        )
        deepest = min(length, int(self._factor * draft.match_len + 1e-6))
        whole = Branches(draft.token_ids, draft.parents, draft.probs, draft.score, draft.match_len)
        return whole.within(deepest, shape.breadth)


class _Own:
    """The same counts and choices in Python."""

    def __init__(self, depth: int, factor: float, least: float, remember: int) -> None:
        self._depth = depth
        self._least = float(np.float32(least))
        # most tokens drafted by length of match, rounded as arctic-inference does
        self._by_match = [int(float(np.float32(match) * np.float32(factor)) + 1e-6) for match in range(depth + 1)]
        self._plans: dict[int, Plan] = {}  # by length asked for
        self._outputs = Trie(depth) if remember else None

    def begin(self, prompt: Sequence[int]) -> _Text:
        own = Trie(self._depth)
        text = _Text(own, own.open(), None if self._outputs is None else self._outputs.open())
        own.extend(text.whole, prompt)
        return text

    def extend(self, text: _Text, tokens: Sequence[int]) -> None:
        text.own.extend(text.whole, tokens)
        if self._outputs is not None and text.output is not None:
            self._outputs.extend(text.output, tokens)

    def end(self, text: _Text) -> None:
        del text.own, text.whole
        if text.output is not None:
            text.output.close()

    def forget(self, text: _Text) -> None:
        if self._outputs is not None and text.output is not None:
            self._outputs.forget(text.output)

    def _plan(self, length: int) -> Plan:
        plan = self._plans.get(length)
        if plan is None:
            plan = self._plans[length] = Plan.of([min(length, most) for most in self._by_match], self._depth)
        return plan

    def best(self, text: _Text, context: list[int], length: int) -> Path:
        plan = self._plan(length)
        path = text.own.best(text.whole, context, plan, self._least)
        if self._outputs is None or text.output is None:
            return path
        other = self._outputs.best(text.output, context, plan, self._least, beat=path.score)
        return other if other.tokens else path

    def tree(self, text: _Text, context: list[int], length: int, shape: Tree) -> Branches:
        plan = self._plan(length)
        own = text.own.tree(text.whole, context, plan, self._least, shape)
        if self._outputs is None or text.output is None:
            return own
        other = self._outputs.tree(text.output, context, plan, self._least, shape)
        return other if other.score > own.score else own


@dataclass(slots=True, eq=False)
class _Text:
    """A text in both trees."""

    own: Trie  # of it alone; gone once it has ended
    whole: Document  # in that one
    output: Document | None  # in the tree of all outputs, if there is one
