"""A suffix tree that counts every n-gram of some texts up to a depth: what suffix decoding drafts from."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from wager.core import Tree
from wager.drafters.suffix_node import Node, occurrences
from wager.drafters.token_tree import NOTHING, Continuation, grow

END = -1  # stands for what follows the last token of a text; no token is negative
PAGE = 1 << 32  # more tokens than a text has: positions count on from a multiple of this in every text


class Limits(NamedTuple):
    """How many tokens to draft at most for each length of match."""

    # For each longest match: the lengths of match, each with its limit; those that may bring most first, of equal ones
    # the longer.
    orders: list[list[tuple[int, int]]]


@cache
def limits(length: int, factor: float, depth: int) -> Limits:
    """So many tokens, at most ``factor`` for each token matched; match and draft are no longer than the depth."""
    within = [min(length, int(match * factor + 1e-6), depth - match) for match in range(depth + 1)]
    order = sorted(range(1, depth), key=lambda match: (-within[match], -match))
    return Limits([[(match, within[match]) for match in order if match <= longest] for longest in range(depth)])


@dataclass(slots=True, eq=False)
class Document:
    """A text in a suffix tree, which may grow."""

    number: int
    tokens: list[int] = field(default_factory=list)
    # Nodes of the text's suffixes of 1, 2, … tokens, as far as they occur elsewhere too.
    active: list[Node] = field(default_factory=list)
    version: int = 0  # of the tree that these are up to date with


class SuffixTree:
    """Counts of all n-grams of up to ``depth`` tokens, of texts that grow one after the other or side by side.

    An n-gram that occurred once costs one number; only what repeats is spelled out. A token costs one step for each
    suffix of the text that occurred before: few in prose, ``depth`` in a text that only repeats itself.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.texts: dict[int, list[int]] = {}  # by number; a position is PAGE times the number, and the place in it
        self._roots: dict[int, Node | int] = {}  # the n-grams of one token; see Node for the numbers
        self._opened = 0
        self._version = 0  # goes up whenever a text grows
        self._removed = False  # whether any text was

    def open(self) -> Document:
        """A new text, still empty."""
        document = Document(self._opened)
        self.texts[document.number] = document.tokens
        self._opened += 1
        return document

    def extend(self, document: Document, tokens: Sequence[int]) -> None:
        """The text goes on."""
        self._catch_up(document)
        text, depth, roots = document.tokens, self.depth, self._roots
        first = document.number * PAGE
        active = document.active
        for token in tokens:
            position = first + len(text)
            text.append(token)
            grown: list[Node] = []
            root = roots.get(token)
            if root is None:
                roots[token] = position
            elif isinstance(root, int):
                roots[token] = root = Node(2, self._after(root), root + 1)
                grown.append(root)
            else:
                root.count += 1
                grown.append(root)
            for node in active:
                child = node.child if node.token == token else node.children.get(token) if node.children else None
                if child is None:
                    node.add(token, position)
                    continue
                if isinstance(child, int):
                    following = self._after(child) if len(grown) + 1 < depth else END
                    child = Node(2, following, child + 1)
                    node.put(token, child)
                else:
                    child.count += 1
                if node.order is not None:
                    node.lift(token, child.count - 1)
                grown.append(child)
            if len(grown) == depth:
                grown.pop()
            active = grown
        document.active = active
        self._version += 1
        document.version = self._version

    def _after(self, position: int) -> int:
        """The token after a position; END where its text has none yet, or never will."""
        number, at = divmod(position + 1, PAGE)
        text = self.texts[number]
        return text[at] if at < len(text) else END

    def _catch_up(self, document: Document) -> None:
        """Other texts have grown: more of this one's suffixes may occur elsewhere now."""
        if document.version == self._version:
            return
        document.version = self._version
        active, text = document.active, document.tokens
        for match in range(len(active) + 1, min(self.depth, len(text) + 1)):
            place = self._find(text[-match:])
            if not isinstance(place, Node):
                break
            active.append(place)

    def remove(self, document: Document) -> None:
        """Take a text out."""
        text, roots = self.texts.pop(document.number), self._roots
        self._removed = True
        for start in range(len(text)):
            ngram = text[start : start + self.depth]
            node = roots[ngram[0]]
            if isinstance(node, int) or node.count == 1:
                del roots[ngram[0]]
                continue
            node.count -= 1
            for token in ngram[1:]:
                child = node.get(token)
                assert child is not None, "a text that was never counted cannot be removed"
                if isinstance(child, int) or child.count == 1:
                    node.drop(token)
                    break
                node.lower(token, child.count)
                child.count -= 1
                node = child

    def best(
        self, document: Document, context: Sequence[int], limits: Limits, least: float, above: float = 0.0
    ) -> Continuation:
        """The chain with the highest score, if higher than ``above``; of equal ones that of the longest match.

        ``context`` ends with the text, at most ``depth`` tokens; none is drafted whose survival is below ``least``.
        """
        if limits.orders[-1][0][1] <= above:
            return NOTHING
        places = self._places(document, context)
        best, chosen, counts = above, 0, [1]
        before, times = 0, 0  # the match looked at before, and how often it occurs
        for match, most in limits.orders[len(places)]:
            if most <= best and (most < best or not chosen):
                break
            place = places[match - 1]
            if isinstance(place, Node):
                if match < before and place.count == times and not self._removed:
                    continue  # it occurs only where the longer one does: what follows is the same
                before, times, child = match, place.count, place.child
                if most * (1 if isinstance(child, int) else 0 if child is None else child.count) < best * times:
                    continue  # survival falls along the path: no score is higher than this
            path = self._counts(place, most, least)
            score = sum(path, -path[0]) / path[0]
            if score > best or (score == best and match > chosen > 0):
                best, chosen, counts = score, match, path
        if not chosen:
            return NOTHING
        tokens = self._tokens(places[chosen - 1], len(counts) - 1)
        return Continuation(tokens, [count / counts[0] for count in counts[1:]], best, chosen)

    def tree(
        self, document: Document, context: Sequence[int], limits: Limits, least: float, shape: Tree
    ) -> Continuation:
        """The tree of continuations that promises most tokens, of equal ones that of the longest match."""
        # A match's own limit bounds its depth, the shape its nodes; otherwise as ``best``.
        places = self._places(document, context)
        found, least = NOTHING, least * (1 - 1e-9)  # shares multiply up with rounding
        for match, most in limits.orders[len(places)]:
            if (most, match) > (found.score, found.match):  # else none can be better
                tree = grow(places[match - 1], self._children, most, shape, least, match)
                found = max(found, tree, key=lambda one: (one.score, one.match))
        return found

    def _places(self, document: Document, context: Sequence[int]) -> Sequence[Node | int]:
        """Where the context's suffixes of 1, 2, … tokens are, as far as they occur elsewhere; never the whole of it."""
        self._catch_up(document)
        active, live = document.active, len(document.tokens)
        if len(active) >= len(context):
            return active[: len(context) - 1]
        if not len(active) == live < self.depth - 1:
            return active
        places: list[Node | int] = [*active]
        for match in range(live + 1, len(context)):  # these reach back before the text
            place = self._find(list(context[-match:]))
            if place is None:
                break
            places.append(place)
        return places

    def _children(self, place: Node | int, most: int) -> list[tuple[int, float, Node | int]]:
        """The likeliest tokens after an n-gram, the share of each, and the n-gram with it."""
        if isinstance(place, int):
            token = self._after(place)
            return [] if token == END else [(token, 1.0, place + 1)]
        return [(token, occurrences(child) / place.count, child) for token, child in place.likeliest(most)]

    def _counts(self, place: Node | int, most: int, least: float) -> list[int]:
        """How often the n-gram occurs, and how often with each further token of the likeliest path."""
        if isinstance(place, int):
            return [1] * (1 + len(self._run(place + 1, most)))
        whole = place.count
        counts = [whole]
        for left in range(most, 0, -1):
            child = place.child
            if child is None:
                break
            if isinstance(child, int):
                if 1 / whole >= least:
                    counts += [1] * (1 + len(self._run(child + 1, left - 1)))
                break
            if child.count / whole < least:
                break
            counts.append(child.count)
            place = child
        return counts

    def _tokens(self, place: Node | int, count: int) -> list[int]:
        """So many tokens of the likeliest path."""
        tokens: list[int] = []
        while isinstance(place, Node) and len(tokens) < count:
            assert place.child is not None
            tokens.append(place.token)
            place = place.child
        return tokens + self._run(place + 1, count - len(tokens)) if isinstance(place, int) else tokens

    def _find(self, ngram: list[int]) -> Node | int | None:
        """The n-gram's node, or its last token's position where it occurred once."""
        place = self._roots.get(ngram[0])
        for taken, token in enumerate(ngram[1:], start=1):
            if place is None:
                return None
            if isinstance(place, int):
                rest = len(ngram) - taken
                return place + rest if self._run(place + 1, rest) == ngram[taken:] else None
            place = place.get(token)
        return place

    def _run(self, position: int, most: int) -> list[int]:
        """The text from a position on, up to its end."""
        number, start = divmod(position, PAGE)
        return self.texts[number][start : start + most]
