"""Several drafters drafting together: one tree of their chains, and the target's own text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from heads import PROMPT, plain, tiny

from wager import Decoder
from wager.core import Tree
from wager.drafters import Draft, Drafter, registry
from wager.drafters.base import DraftSampler
from wager.drafters.together import Together


class Says(Drafter):
    """Proposes what it is told."""

    def __init__(self, tokens: Sequence[int], name: str = "says") -> None:
        self.tokens, self.name = list(tokens), name
        self.heard: list[int] = []

    def begin(self, prompt: Sequence[int]) -> None:
        self.heard = list(prompt)

    def extend(self, tokens: Sequence[int]) -> None:
        self.heard += tokens

    def propose(self, length: int, sample: DraftSampler | None = None) -> Draft:
        return Draft(self.tokens[:length])


def test_chains_are_joined_where_they_agree() -> None:
    together = Together([Says([1, 2, 3]), Says([1, 2, 4]), Says([5])])
    draft = together.propose_tree(3, Tree(1, 9))
    assert draft.tokens == [1, 2, 3, 4, 5]
    assert draft.parents == [-1, 0, 1, 1, -1]
    assert together.propose_tree(2, Tree(1, 9)).tokens == [1, 2, 5]
    assert together.propose_tree(3, Tree(1, 2)).tokens == [1, 2]


def test_everyone_hears_the_text() -> None:
    members = [Says([1]), Says([2])]
    together = Together(members)
    together.begin([1, 2])
    together.extend([3])
    assert [member.heard for member in members] == [[1, 2, 3]] * 2


def test_the_text_is_the_targets_own() -> None:
    model = tiny()
    wanted = plain(model)
    decoder = Decoder(model, drafters=["together=suffix+prompt-lookup"], arms=["together:4@2x8"], policy="random")
    made = decoder.generate(PROMPT, max_new_tokens=len(wanted), do_sample=False, eos_token_id=None)
    assert made.tokens == wanted
    assert any(r.drafted for r in made.rounds)


@pytest.mark.parametrize(("spec", "complaint"), [("together", "SPEC"), ("together=suffix", "at least two")])
def test_one_alone_is_refused(spec: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        registry.build(spec)
