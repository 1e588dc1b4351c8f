"""A node of a suffix tree: an n-gram that occurs more than once, and what follows it."""

from __future__ import annotations


class Node:
    """How often an n-gram occurs (or did), and what follows it, the likeliest first.

    An n-gram that occurred once has no node: it is only the position of its last token, a number.
    """

    __slots__ = ("child", "children", "count", "order", "token", "top")

    def __init__(self, count: int, token: int, position: int) -> None:
        self.count = count
        self.token = token  # the token that follows most often; -1: none
        self.child: Node | int | None = position if token >= 0 else None  # and the n-gram with it
        self.children: dict[int, Node | int] | None = None  # all children; None while there is at most one
        # Children by count. Those of one count stand in the order in which they moved up (see ``lift``), of which the
        # first is drafted: 0.2 % more tokens are accepted than with the most recent or the oldest first.
        self.order: dict[int, dict[int, None]] | None = None
        self.top = 0  # the highest count in order

    def get(self, token: int) -> Node | int | None:
        """The n-gram with this token added."""
        return self.child if self.token == token else self.children.get(token) if self.children else None

    def likeliest(self, most: int) -> list[tuple[int, Node | int]]:
        """The tokens that follow most often, at most so many, and the n-gram with each."""
        if self.children is None or self.order is None:
            return [] if self.child is None else [(self.token, self.child)]
        found: list[tuple[int, Node | int]] = []
        for count in sorted(self.order, reverse=True):
            for token in self.order[count]:
                if len(found) == most:
                    return found
                found.append((token, self.children[token]))
        return found

    def put(self, token: int, child: Node) -> None:
        """The n-gram with this token added occurred again and has a node now."""
        if self.token == token:
            self.child = child
        if self.children is not None:
            self.children[token] = child

    def add(self, token: int, position: int) -> None:
        """A token followed for the first time: last among those seen once."""
        if self.child is None:
            self.token, self.child = token, position
            return
        if self.children is None or self.order is None:
            self.top = occurrences(self.child)
            self.children, self.order = {self.token: self.child}, {self.top: {self.token: None}}
        self.children[token] = position
        self.order.setdefault(1, {})[token] = None

    def lift(self, token: int, count: int) -> None:
        """A token that had followed so often followed once more."""
        # It joins the next higher count: in front where it was the first of its own count, otherwise at the back.
        order = self.order
        assert order is not None
        above, was_first = order.get(count + 1), next(iter(order[count])) == token
        self._take(order, token, count)
        if above is None or was_first:
            order[count + 1] = {token: None, **(above or {})}
        else:
            above[token] = None
        if count >= self.top - 1:
            self.top = max(self.top, count + 1)
            self._elect()

    def lower(self, token: int, count: int) -> None:
        """One of so many occurrences is removed: the token joins the next lower count, in front."""
        order = self.order
        if order is None:
            return
        self._take(order, token, count)
        order[count - 1] = {token: None, **order.get(count - 1, {})}
        if self.top not in order:
            self.top -= 1
        self._elect()

    def drop(self, token: int) -> None:
        """The only occurrence with this token is removed."""
        if self.children is None or self.order is None:
            self.token, self.child = -1, None
            return
        del self.children[token]
        self._take(self.order, token, 1)
        if len(self.children) == 1:
            ((self.token, self.child),) = self.children.items()
            self.children = self.order = None
        else:
            self._elect()

    @staticmethod
    def _take(order: dict[int, dict[int, None]], token: int, count: int) -> None:
        group = order[count]
        if len(group) > 1:
            del group[token]
        else:
            del order[count]

    def _elect(self) -> None:
        assert self.order is not None
        assert self.children is not None
        self.token = next(iter(self.order[self.top]))
        self.child = self.children[self.token]


def occurrences(place: Node | int | None) -> int:
    """How often an n-gram occurs."""
    return 1 if isinstance(place, int) else 0 if place is None else place.count
