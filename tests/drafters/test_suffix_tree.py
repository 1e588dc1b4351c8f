"""The suffix tree, which spells out only what repeats, against one that counts every n-gram."""

import random

import pytest
from reference.suffix_tree import EagerTree
from test_shared_drafters import text

from wager.core import Tree
from wager.drafters.suffix_node import Node
from wager.drafters.suffix_tree import Document, SuffixTree, limits
from wager.drafters.token_tree import Continuation


def check(seed: int) -> int:
    """Texts that grow, end and are removed in disorder; how many tokens were drafted."""
    rng = random.Random(seed)
    depth, length, factor = rng.choice([2, 3, 6, 12, 24]), rng.randrange(1, 9), rng.choice([0.7, 1.0, 2.5])
    least, top, side_by_side = rng.choice([0.0, 0.1, 0.3]), rng.choice([1, 2, 4, 30]), rng.choice([1, 1, 3])
    bounds = limits(length, factor, depth)
    tree, reference = SuffixTree(depth), EagerTree(depth, length, factor, least)
    running: list[tuple[Document, list[int], list[int]]] = []  # with what stands before the text, and a copy of it
    past: list[tuple[Document, list[int]]] = []
    drafted = 0
    for _ in range(60):
        if len(running) < side_by_side:
            running.append((tree.open(), text(rng, 0, top, rng.randrange(20)), []))
        document, prompt, tokens = at = rng.choice(running)
        new = text(rng, 0, top, rng.choice([0, 1, 3, 20]))
        context = [*prompt, *tokens][-depth:]
        if len(context) > 1 and rng.random() < 0.8:
            above = rng.choice([0.0, 0.0, 0.5, 1.0])
            chain = tree.best(document, context, bounds, least, above)
            assert chain == reference.best(tokens, context, above)
            drafted += len(chain.tokens)
            new = [*chain.tokens[: rng.randrange(8)], *new[:2]] if rng.random() < 0.7 else new
        if len(context) > 1 and rng.random() < 0.3:
            shape = Tree(rng.randrange(1, 5), rng.randrange(1, 20))
            found = tree.tree(document, context, bounds, least, shape)
            assert _draft(found) == _draft(reference.tree(tokens, context, shape))
        tree.extend(document, new)
        reference.extend(tokens, new)
        if rng.random() < 0.1:
            running.remove(at)
            document.active = []
            past.append((document, tokens))
        if past and rng.random() < 0.1:
            document, tokens = past.pop(0)
            tree.remove(document)
            reference.remove(tokens)
    return drafted


def _draft(found: Continuation) -> Continuation | None:
    return found if found.tokens else None


@pytest.mark.parametrize("part", range(4))
def test_the_tree_drafts_what_one_that_counts_every_ngram_drafts(part: int) -> None:
    assert sum(check(seed) for seed in range(part * 100, part * 100 + 100)) > 1000


def behind(self: Node, token: int, count: int) -> None:
    if self.order is not None:
        self._take(self.order, token, count)
        self.order.setdefault(count - 1, {})[token] = None
        self.top = max(self.order)
        self._elect()


def careless(self: SuffixTree, document: Document) -> None:
    document.version = self._version


@pytest.mark.parametrize(("where", "name", "bug"), [(SuffixTree, "_catch_up", careless), (Node, "lower", behind)])
def test_a_tree_that_forgot_what_others_wrote_or_in_which_order_they_went_would_be_noticed(
    where: type, name: str, bug: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, bug)
    with pytest.raises(AssertionError):  # noqa: PT012 - by one of them
        for seed in range(400):
            check(seed)
