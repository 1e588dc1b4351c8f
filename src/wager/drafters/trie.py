"""Every short piece of some texts with how often it occurs: what suffix decoding drafts from."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from wager.core import Tree
from wager.drafters.branches import NO_BRANCHES, Branches, better, grow, hopeless
from wager.drafters.trie_node import Node

END = -1  # stands for what follows the last token of a text; no token is negative
PAGE = 1 << 32  # more tokens than a text has: positions count on from a multiple of this in every text
SLACK = 1 + 1e-5  # relative; more than rounding to single precision can change a score


class Path(NamedTuple):
    """The likeliest continuation of a match."""

    tokens: list[int]
    survival: list[float]  # probability that the continuation goes this way up to and with each token
    score: float  # their sum: the expected number of right tokens
    match: int  # tokens of context matched


NOWHERE = Path([], [], 0.0, 0)


class Plan(NamedTuple):
    """How many tokens to draft at most for each length of match."""

    limits: list[int]  # by length of match
    order: list[int]  # lengths of match: those that may bring most first, of equal ones the longer

    @classmethod
    def of(cls, limits: Sequence[int], depth: int) -> Plan:
        """The plan with these limits; match and draft together are no longer than the depth."""
        within = [min(limit, depth - match) for match, limit in enumerate(limits)]
        return cls(within, sorted(range(1, depth), key=lambda match: (-within[match], -match)))


class Document:
    """A text in a trie, which grows until it is closed."""

    __slots__ = ("active", "number", "tokens", "version")

    def __init__(self, number: int) -> None:
        self.number = number
        self.tokens: list[int] = []
        # nodes of the text's suffixes of 1, 2, … tokens, as far as they occur elsewhere too
        self.active: list[Node] = []
        self.version = 0  # of the trie that these are up to date with

    def close(self) -> None:
        """The text is over, and only counted from now on."""
        self.active = []


class Trie:
    """Counts of all pieces of up to ``depth`` tokens, of texts that grow one after the other or side by side.

    A piece that occurred once costs one number; only what repeats is spelled out. A token costs one step for each
    suffix of the text that occurred before: few in prose, ``depth`` in a text that only repeats itself.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._roots: dict[int, Node | int] = {}  # the pieces of one token; see Node for the numbers
        self._texts: dict[int, list[int]] = {}  # by number; a position is PAGE times the number, and the place in it
        self._opened = 0
        self._version = 0  # goes up whenever a text grows
        self._single = array("f", [0.0])  # rounds to single precision, in which arctic-inference scores

    def open(self) -> Document:
        """A new text, still empty."""
        document = Document(self._opened)
        self._texts[document.number] = document.tokens
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
                child = node.child if node.token == token else node.others.get(token) if node.others else None
                if child is None:
                    node.add(token, position)
                elif isinstance(child, int):
                    following = self._after(child) if len(grown) + 1 < depth else END
                    child = Node(2, following, child + 1)
                    node.put(token, child)
                    if node.order is not None:
                        node.lift(token, 1)
                    grown.append(child)
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
        text = self._texts[number]
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

    def forget(self, document: Document) -> None:
        """Take a text out."""
        text, roots = self._texts.pop(document.number), self._roots
        for start in range(len(text)):
            piece = text[start : start + self.depth]
            child = roots[piece[0]]
            if isinstance(child, int) or child.count == 1:
                del roots[piece[0]]
                continue
            child.count -= 1
            for token in piece[1:]:
                node = child
                below = node.child if node.token == token else node.others[token] if node.others else None
                assert below is not None, "a text that was never counted cannot be forgotten"
                if isinstance(below, int) or below.count == 1:
                    node.drop(token)
                    break
                node.lower(token, below.count)
                below.count -= 1
                child = below

    def best(self, document: Document, context: Sequence[int], plan: Plan, least: float, beat: float = 0.0) -> Path:
        """The continuation with the highest score, if above ``beat``; of equal ones that of the longest match.

        ``context`` ends with the text and is at most ``depth`` long; no token is drafted whose survival is below
        ``least``.
        """
        self._catch_up(document)
        active, limits, live = document.active, plan.limits, len(document.tokens)
        known = min(len(active), len(context) - 1)  # the whole context is no match, as in arctic-inference
        found = NOWHERE
        if len(active) == live < self.depth - 1:  # longer matches reach back before the text
            found = self._beyond(live, context, plan, least, beat)
        best, chosen = max(found.score, beat), 0
        scores: dict[tuple[int, ...], float] = {}
        for match in plan.order:
            most = limits[match]
            if most * SLACK < best:
                break
            if match > known:
                continue
            node = active[match - 1]
            # Survival is a count over the first one and falls along the path: this bounds the score, but for rounding,
            # and the sum of counts is the score, but for rounding.
            first = node.child
            if first is None or most * (1 if isinstance(first, int) else first.count) * SLACK < best * node.count:
                continue
            counts = self._counts(node, most, least)
            if sum(counts, -counts[0]) * SLACK < best * counts[0]:
                continue
            score = scores.get(key := tuple(counts))  # periodic text gives the same counts for many matches
            if score is None:
                score = scores[key] = self._score(counts, least)
            if score > best or (score == best and match > (chosen or found.match) > 0):
                best, chosen = score, match
        return self._follow(active[chosen - 1], chosen, limits[chosen], least) if chosen else found

    def tree(self, document: Document, context: Sequence[int], plan: Plan, least: float, shape: Tree) -> Branches:
        """The tree of continuations that promises most tokens, of equal ones that of the longest match.

        A match's own limit bounds its depth, the shape its nodes; otherwise as ``best``.
        """
        self._catch_up(document)
        active, live = document.active, len(document.tokens)
        found = NO_BRANCHES
        for match in plan.order:
            most = plan.limits[match]
            if match >= len(context) or hopeless(most, match, found):
                continue
            place: Node | int | None = None
            if match <= len(active):
                place = active[match - 1]
            elif len(active) == live < match:  # it reaches back before the text
                place = self._find(list(context[-match:]))
            if place is not None:
                found = better(found, grow(place, self._children, most, shape, least / SLACK, match))
        return found

    def _children(self, place: Node | int, most: int) -> list[tuple[int, float, Node | int]]:
        """The likeliest tokens after a piece, the share of each, and the piece with it."""
        if isinstance(place, int):
            token = self._after(place)
            return [] if token == END else [(token, 1.0, place + 1)]
        whole = place.count
        return [
            (token, (1 if isinstance(child, int) else child.count) / whole, child)
            for token, child in place.likeliest(most)
        ]

    def _counts(self, node: Node, most: int, least: float) -> list[int]:
        """How often the node's piece occurs, and how often with each further token of the likeliest path."""
        counts = [node.count]
        floor = node.count * least / SLACK
        for left in range(most, 0, -1):
            child = node.child
            if child is None:
                break
            if isinstance(child, int):
                if floor <= 1:
                    counts += [1] * (1 + len(self._run(child + 1, left - 1)))
                break
            if child.count < floor:
                break
            counts.append(child.count)
            node = child
        return counts

    def _score(self, counts: list[int], least: float) -> float:
        """The sum of survivals along these counts, rounded to single precision as often as arctic-inference does."""
        single = self._single
        alive, score, whole = 1.0, 0.0, counts[0]
        for count in counts[1:]:
            if count != whole:
                single[0] = count / whole
                single[0] = alive * single[0]
                alive, whole = single[0], count
                if alive < least:
                    break
            single[0] = score + alive
            score = single[0]
        return score

    def _beyond(self, live: int, context: Sequence[int], plan: Plan, least: float, beat: float) -> Path:
        """The best continuation of a match longer than the text of so many tokens, found from the root."""
        found = NOWHERE
        for match in range(live + 1, len(context)):
            place = self._find(list(context[-match:]))
            if place is None:
                break
            if isinstance(place, int):
                tokens = self._run(place + 1, plan.limits[match])
                path = Path(tokens, [1.0] * len(tokens), float(len(tokens)), match)
            else:
                path = self._follow(place, match, plan.limits[match], least)
            if path.score > beat and path.score >= found.score:
                found = path
        return found

    def _find(self, piece: list[int]) -> Node | int | None:
        """The piece's node, or its last token's position where it occurred once."""
        place = self._roots.get(piece[0])
        for taken, token in enumerate(piece[1:], start=1):
            if place is None:
                return None
            if isinstance(place, int):
                rest = len(piece) - taken
                return place + rest if self._run(place + 1, rest) == piece[taken:] else None
            place = place.get(token)
        return place

    def _run(self, position: int, most: int) -> list[int]:
        """The text from a position on, up to its end."""
        number, start = divmod(position, PAGE)
        return self._texts[number][start : start + most]

    def _follow(self, node: Node, match: int, most: int, least: float) -> Path:
        """From child to likeliest child; NOWHERE where there is none."""
        single = self._single
        tokens: list[int] = []
        survival: list[float] = []
        alive, score = 1.0, 0.0
        while len(tokens) < most:
            child = node.child
            if child is None:
                break
            count = 1 if isinstance(child, int) else child.count
            if count != node.count:
                single[0] = count / node.count
                single[0] = alive * single[0]
                alive = single[0]
                if alive < least:
                    break
            tokens.append(node.token)
            survival.append(alive)
            single[0] = score + alive
            score = single[0]
            if isinstance(child, int):  # the only occurrence: what follows there, for certain
                run = self._run(child + 1, most - len(tokens))
                tokens += run
                for _ in run:
                    survival.append(alive)
                    single[0] = score + alive
                    score = single[0]
                break
            node = child
        return Path(tokens, survival, score, match) if tokens else NOWHERE
