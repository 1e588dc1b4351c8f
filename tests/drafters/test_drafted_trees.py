"""The trees that suffix matching, retrieval and several drafters together draft."""

import random
from pathlib import Path

import pytest
from small import Following, paths
from test_drafters import store

from wager.core import Tree
from wager.drafters import Draft, Drafter, registry
from wager.drafters.base import DraftSampler
from wager.drafters.retrieval import Retrieval
from wager.drafters.suffix import Suffix
from wager.drafters.together import Together


def check_shape(draft: Draft, length: int, shape: Tree) -> None:
    if draft.tokens:
        assert len(draft.tokens) == len(draft.parents) <= shape.nodes
        assert max(map(len, paths(draft))) <= length
        assert len(set(paths(draft))) == len(draft.tokens), "siblings differ"
        assert max(draft.parents.count(at) for at in draft.parents) <= shape.breadth
        assert all(-1 <= parent < at for at, parent in enumerate(draft.parents))
        assert len(draft.hint.confidence) == len(draft.tokens)


def test_a_suffix_tree_holds_what_followed_wherever_it_branches() -> None:
    drafter = Suffix()
    drafter.begin([1, 2, 3, 4, 9, 1, 2, 3, 5, 8, 1, 2, 3, 4, 7, 1, 2, 3])
    draft = drafter.propose_tree(3, Tree(2, 6))
    assert {(4,), (5,)} <= set(paths(draft))
    assert draft.hint.match == 3
    # 1, 2, 3 stands there four times, the last at the end; 4 follows twice and 5 once
    assert dict(zip(draft.tokens, draft.hint.confidence, strict=True))[4] == pytest.approx(0.5)
    assert set(paths(drafter.propose_tree(3, Tree(1, 6)))) < {(4,), (4, 9), (4, 7), (4, 9, 1), (4, 7, 1)}
    drafter.begin([1, 2])
    assert drafter.propose_tree(3, Tree(2, 6)).tokens == []


def test_a_suffix_tree_of_one_branch_is_the_chain() -> None:
    rng = random.Random(4)
    drafter = Suffix()
    drafter.begin([rng.randrange(5) for _ in range(60)])
    same = 0
    for _ in range(60):
        drafter.extend([rng.randrange(5)])
        chain, tree = drafter.propose(6), drafter.propose_tree(6, Tree(1, 6))
        check_shape(tree, 6, Tree(1, 6))
        assert tree.hint.match == chain.hint.match or sum(chain.hint.confidence) > 0
        same += chain.tokens == tree.tokens
    assert same > 50  # but for ties decided by rounding


@pytest.mark.parametrize("kind", ["suffix", "retrieval"])
def test_trees_keep_to_their_shape(kind: str, tmp_path: Path) -> None:
    rng = random.Random(6)
    text, other = ([rng.randrange(4) for _ in range(200)] for _ in range(2))
    drafter: Drafter = Suffix() if kind != "retrieval" else Retrieval(store([other], tmp_path / "s"))
    drafter.begin(text[:50])
    most = 0
    for at in range(50, 200):
        drafter.extend(text[at : at + 1])
        length, shape = rng.randrange(1, 7), Tree(rng.randrange(1, 5), rng.randrange(1, 20))
        draft = drafter.propose_tree(length, shape)
        check_shape(draft, length, shape)
        most = max(most, len(draft.tokens))
    assert most > 8


def test_a_retrieval_tree_holds_the_most_frequent_continuations(tmp_path: Path) -> None:
    texts = [[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3, 5], [1, 2, 6, 7], [9, 2, 8, 8]]
    drafter = Retrieval(store(texts, tmp_path / "s"))
    drafter.begin([1, 2])
    assert {(3,), (3, 5)} < set(paths(drafter.propose_tree(2, Tree(2, 3)))) <= {(3,), (3, 5), (6,), (3, 4)}
    whole = drafter.propose_tree(2, Tree(3, 9))
    assert set(paths(whole)) == {(3,), (3, 4), (3, 5), (6,), (6, 7)}
    share = dict(zip(map(str, zip(whole.tokens, whole.parents or [], strict=True)), whole.hint.confidence, strict=True))
    assert share["(3, -1)"] == pytest.approx(0.75)
    assert set(paths(drafter.propose_tree(2, Tree(1, 9)))) == {(3,), (3, 5)}
    assert drafter.propose_tree(1, Tree(1, 1)).tokens == drafter.propose(1).tokens
    drafter.begin([8, 8])
    assert drafter.propose_tree(2, Tree(3, 9)).tokens == []


class Says(Following):
    """Proposes what it is told."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = list(tokens)

    def propose(self, length: int, sample: DraftSampler | None = None) -> Draft:
        return Draft(self.tokens[:length])


def test_chains_are_joined_where_they_agree_and_everyone_hears_the_text() -> None:
    together = Together([Says(1, 2, 3), Says(1, 2, 4), Says(5)])
    draft = together.propose_tree(3, Tree(1, 9))
    assert draft.tokens == [1, 2, 3, 4, 5]
    assert draft.parents == [-1, 0, 1, 1, -1]
    assert together.propose_tree(2, Tree(1, 9)).tokens == [1, 2, 5]
    assert together.propose_tree(3, Tree(1, 2)).tokens == [1, 2]
    together.begin([1, 2])
    together.extend([3])
    assert [member.text for member in together.drafters] == [[1, 2, 3]] * 3


@pytest.mark.parametrize(("spec", "complaint"), [("together", "SPEC"), ("together=suffix", "at least two")])
def test_one_alone_is_refused(spec: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        registry.build(spec)
