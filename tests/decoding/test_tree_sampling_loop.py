"""Sampling with trees through the whole loop follows the target's distribution, and planted bugs are noticed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from draws import sampler
from fit import FITS
from sampled import PROMPT, VOCABULARY, Table, off, rows_due
from small import Following, text_of

from wager.core import OFF, Arm, Tree
from wager.decoding.features import Prompts
from wager.decoding.loop import Loop, Request
from wager.decoding.prepare import Processors, Stopping
from wager.decoding.sampler import RESIDUAL
from wager.drafters import Draft, DraftSampler
from wager.policies import build

pytestmark = pytest.mark.usefixtures("one_thread")


class Bush(Following):
    """A tree of a fixed shape: drawn from a table like the target's, without replacement, or chosen for certain."""

    name = "bush"
    cheap = False
    trees = True
    parents = (-1, -1, 0, 0, 1, 3)

    def __init__(self, target: Table, certain: bool) -> None:
        self.target, self.certain = target, certain
        noise = torch.randn(target.rows.shape, generator=torch.Generator().manual_seed(9))
        self.q = torch.softmax(target.rows + 1.2 * noise, -1)
        self.known = self.q.double().numpy()
        self.rng = np.random.default_rng(5)

    def propose_tree(self, length: int, shape: Tree, sample: DraftSampler | None = None) -> Draft:
        assert sample is not None
        tokens: list[int] = []
        rows: list[int] = []
        for at, parent in enumerate(self.parents):
            rows.append(self.target.row([*self.text[-2:], *text_of(tokens, self.parents, parent)]))
            q = self.known[rows[-1]].copy()
            q[[tokens[i] for i in range(at) if self.parents[i] == parent]] = 0
            luck = q.argmax() if self.certain else np.searchsorted(q.cumsum(), self.rng.random() * q.sum(), "right")
            tokens.append(int(luck))
        return Draft(tokens, probs=None if self.certain else self.q[rows], parents=list(self.parents))


TOKENS = 2_000


def off_rows(target: Table, certain: bool, loop: type[Loop] = Loop) -> float:
    """How far the tokens of a long text are from draws of their rows."""
    arms = (OFF, Arm("bush", 3, Tree(2, 6)))
    policy = build("fixed:drafter=bush,length=3,tree=2x6", arms, seed=1)
    played = loop(target, {"bush": Bush(target, certain)}, policy, arms, frozenset(), Prompts().features)
    torch.manual_seed(1)
    lengths: Counter[int] = Counter()
    with torch.inference_mode():
        for step in played.run(Request(PROMPT, Processors([]), Stopping([], TOKENS), sampler(RESIDUAL, VOCABULARY))):
            lengths[step.accepted] += 1
    assert min(lengths[n] for n in range(4)) > TOKENS / 200, "every length of path occurs"
    text = np.array(played.text[len(PROMPT) - 2 :])
    seen = np.zeros((VOCABULARY,) * 3)
    np.add.at(seen, (text[:-2], text[1:-1], text[2:]), 1)
    return off(seen, rows_due(target, Processors([]), seen))


@pytest.mark.parametrize("certain", [True, False])
def test_every_token_of_a_long_text_is_a_draw_from_its_row(certain: bool) -> None:
    assert off_rows(Table(3), certain) < FITS


class SeesSiblings(Table):
    """Every token sees all of the tree before it, as if it were a chain."""

    def forward(self, tokens: Sequence[int], keep: int, parents: Sequence[int] | None = None) -> torch.Tensor:
        return super().forward(tokens, keep)


class KeepsTheFirst(Table):
    """Keeps as many tokens as it should, but those that came first."""

    def _move(self, places: list[int], to: int) -> None:
        pass


class GoesOnElsewhere(Loop):
    """Takes the token that follows from a row of the tree's that has nothing to do with the path."""

    def _verify_tree(self, draft: Draft, parents: list[int]) -> tuple[list[int], int, torch.Tensor]:
        path, following, scores = super()._verify_tree(draft, parents)
        if path:
            following = int(torch.multinomial(torch.softmax(scores[path[-1]], -1), 1))
        return path, following, scores


@pytest.mark.parametrize("bug", [SeesSiblings, KeepsTheFirst, GoesOnElsewhere])
@pytest.mark.parametrize("certain", [True, False])
def test_a_bug_in_the_engine_is_noticed(bug: type[Table] | type[Loop], certain: bool) -> None:
    target, loop = (Table(3), bug) if issubclass(bug, Loop) else (bug(3), Loop)
    assert off_rows(target, certain, loop) > 2 * FITS
