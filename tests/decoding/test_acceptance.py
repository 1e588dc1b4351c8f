"""Acceptance is exact: whoever drafts, the target's own distribution comes out; and a wrong rule is noticed."""

from collections import Counter
from collections.abc import Callable, Sequence
from unittest import mock

import numpy as np
import pytest
import torch
from chances import VOCABULARY, Chances, Text, due, spread
from fit import FITS, misfit

from wager.decoding.acceptance import accept_greedy, accept_sampled, overlap

Rule = Callable[[torch.Tensor, Sequence[int], torch.Tensor | None], tuple[int, int]]

SAMPLES = 200_000
LENGTHS = (1, 2, 3, 4)


TARGET, CUT_TARGET = Chances(1), Chances(2, zeros=2)  # the second as after top-k
CASES: dict[str, tuple[Chances, Chances | Text]] = {  # target and drafter; a text: proposed for certain
    "near": (TARGET, Chances(5, near=TARGET, share=0.8)),
    "far": (TARGET, Chances(3)),
    "drafter with zeros": (TARGET, Chances(4, zeros=2)),
    "both with zeros": (CUT_TARGET, Chances(4, zeros=2)),
    "the target itself": (TARGET, TARGET),
    "certain": (TARGET, (2, 1, 3, 0)),
    "certain and likely": (TARGET, (int(TARGET.after(()).argmax()), 0, 1, 2)),
    "certain, target with zeros": (CUT_TARGET, (3, 0, 1, 2)),
}


def many(rule: Rule, p: torch.Tensor, draft: Text, q: torch.Tensor | None, times: int) -> Counter[tuple[int, int]]:
    """What a rule answers, asked so many times over: vectorised, each time with random numbers of its own."""
    # ``tolist`` is the one step that cannot be vectorised: as the identity it leaves both numbers in their tensor.
    # ``clamp_`` can be, but slowly.
    one = mock.patch.object(torch.Tensor, "tolist", lambda self: self)
    two = mock.patch.object(torch.Tensor, "clamp_", torch.Tensor.clamp)
    with one, two:
        kept, following = torch.vmap(lambda _: rule(p, draft, q), randomness="different")(torch.zeros(times))
    return Counter(zip(kept.tolist(), following.tolist(), strict=True))


def emitted(rule: Rule, target: Chances, drafter: Chances | Text, length: int, samples: int, seed: int) -> np.ndarray:
    """Counts of the first ``length + 1`` tokens, (vocabulary,) * (length + 1): one round, the rest plainly decoded.

    Every draft there can be gets its share of the samples, drawn from the drafter; then the rule decides. A round that
    emits fewer tokens is filled up from the target, so that the joint distribution has to be the target's own.
    """
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    shares: dict[Text, int] = {(): samples}
    for _ in range(length):
        shares = spread(shares, drafter, rng) if isinstance(drafter, Chances) else shares
    if not isinstance(drafter, Chances):
        shares = {drafter[:length]: samples}
    texts: Counter[Text] = Counter()
    for draft, times in shares.items():
        p = along(target, draft, length + 1)
        q = along(drafter, draft, length) if isinstance(drafter, Chances) and length else None
        for (kept, following), count in many(rule, p, draft, q, times).items():
            texts[*draft[:kept], following] += count
    whole = np.zeros((VOCABULARY,) * (length + 1))
    for size in range(1, length + 2):
        some = {text: count for text, count in texts.items() if len(text) == size}
        if size <= length:
            texts.update(spread(some, target, rng))
        else:
            for text, count in some.items():
                whole[text] = count
    return whole


def along(chances: Chances, draft: Text, rows: int) -> torch.Tensor:
    """The distributions at the first positions of a draft, (rows, vocabulary)."""
    return torch.tensor(np.stack([chances.after(draft[:i]) for i in range(rows)]), dtype=torch.float32)


def off(rule: Rule, case: str, length: int, samples: int = SAMPLES, seed: int = 0) -> float:
    """How far what a rule emits is from the target's own distribution; below FITS it cannot be told apart."""
    target, drafter = CASES[case]
    return misfit(emitted(rule, target, drafter, length, samples, seed), samples * due(target, length + 1))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("case", CASES)
def test_what_is_emitted_has_the_targets_joint_distribution(case: str, length: int) -> None:
    assert off(accept_sampled, case, length) < FITS


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("length", [0, 2])
def test_the_rule_asked_one_by_one_answers_as_often_as_it_should(case: str, length: int) -> None:
    """Not vectorised, and against the probability of each answer: so many tokens kept, and this one after them."""
    target, drafter = CASES[case]
    draft: Text = ()
    for at in range(length):
        draft += (int(drafter.after(draft).argmax()) if isinstance(drafter, Chances) else drafter[at],)
    p = along(target, draft, length + 1)
    q = along(drafter, draft, length) if isinstance(drafter, Chances) and length else None
    generator = torch.Generator().manual_seed(0)
    answers = Counter(accept_sampled(p, draft, q, generator) for _ in range(5_000))
    chances = np.zeros((length + 1, VOCABULARY))
    reached = 1.0
    for at in range(length):
        own = certain(draft)[at] if q is None else q[at]
        kept = min(1.0, float(p[at, draft[at]] / own[draft[at]]))
        rest = (p[at] - own).clamp(min=0)
        chances[at] = reached * (1 - kept) * (rest / rest.sum().clamp(min=1e-9)).numpy()
        reached *= kept
    chances[length] = reached * p[length].numpy()
    seen = np.zeros_like(chances)
    for answer, times in answers.items():
        seen[answer] = times
    assert misfit(seen, 5_000 * chances) < FITS


def test_a_seeded_generator_repeats_itself() -> None:
    p, q = torch.softmax(torch.randn(5, 50), -1), torch.softmax(torch.randn(4, 50), -1)
    for draft, given in (((1, 2, 3, 4), q), ((1, 2, 3, 4), None), ((), None)):
        twice = [
            [accept_sampled(p, draft, given, generator) for _ in range(50)]
            for generator in (torch.Generator().manual_seed(3), torch.Generator().manual_seed(3))
        ]
        assert twice[0] == twice[1]


def test_extremes_are_decided_without_luck() -> None:
    one = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert {accept_sampled(one, [1], None) for _ in range(200)} == {(1, 2)}  # certain of what is certain
    assert {accept_sampled(one, [0], None) for _ in range(200)} == {(0, 1)}  # certain of what cannot be
    assert {accept_sampled(one, [0], torch.tensor([[1.0, 0.0, 0.0]])) for _ in range(200)} == {(0, 1)}
    # Where rounding leaves p(x) just below 1 and nothing beside it, a refused token is drawn again, never an error.
    almost = torch.tensor([[0.0, 0.5, 0.0], [0.0, 0.0, 1.0]])
    assert {accept_sampled(almost, [1], None) for _ in range(200)} == {(1, 2), (0, 1)}


def test_greedy_keeps_a_draft_up_to_the_first_difference() -> None:
    assert accept_greedy([1, 2, 3, 4], [1, 2, 3]) == 3
    assert accept_greedy([1, 2, 3, 4], [1, 9, 3]) == 1
    assert accept_greedy([1, 2, 3, 4], [9, 2, 3]) == 0
    assert accept_greedy([7], []) == 0


def test_overlap_is_one_less_total_variation() -> None:
    p, q = torch.softmax(torch.randn(4, 9), -1), torch.softmax(torch.randn(3, 9), -1)
    expected = 1 - (p[:3] - q).abs().sum(-1) / 2
    assert overlap(p, [0, 1, 2], q) == pytest.approx(expected.tolist(), abs=1e-6)
    assert overlap(p, [0, 5, 2], None) == pytest.approx([float(p[0, 0]), float(p[1, 5]), float(p[2, 2])])
    assert overlap(p, [], None) == ()


# Planted bugs: the rule spelled out once more, with one part of it wrong. The same check has to notice each.


def certain(draft: Sequence[int]) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(draft), VOCABULARY).float()


def keep(p: torch.Tensor, q: torch.Tensor, draft: Sequence[int]) -> torch.Tensor:
    rows = torch.arange(len(draft))
    return p[rows, list(draft)] / q[rows, list(draft)]


def follow(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Weights of the token that follows, one row for each number of tokens kept."""
    return torch.cat(((p[:-1] - q).clamp(min=0), p[-1:]))


def count(kept: torch.Tensor) -> torch.Tensor:
    return kept.cumprod(0).sum()


def spelled_out(keep: Callable = keep, follow: Callable = follow, count: Callable = count) -> Rule:
    def rule(p: torch.Tensor, draft: Sequence[int], q: torch.Tensor | None) -> tuple[int, int]:
        full = certain(draft) if q is None else q
        accepted = count(torch.rand(len(draft)) < keep(p, full, draft))
        weights = follow(p, full)
        weights = torch.where(weights.sum(-1, keepdim=True) > 0, weights, p)
        following = torch.multinomial(weights.index_select(0, accepted[None])[0], 1)
        both = torch.stack((accepted, following[0])).tolist()
        return both[0], both[1]

    return rule


def leftover_to_the_last(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """The residual not divided by its sum: what is missing falls to the last token, as in a cumulative sum."""
    weights = follow(p, q)
    missing = 1 - weights.sum(-1)
    return torch.cat((weights[:, :-1], (weights[:, -1] + missing)[:, None]), dim=1)


def without_rotation(p: torch.Tensor, q: torch.Tensor, by: int) -> torch.Tensor:
    return torch.cat(((p[:-1] - q).clamp(min=0).roll(by, 0), p[-1:]))


MUTANTS: dict[str, Rule] = {
    "after a rejection it draws from p": spelled_out(follow=lambda p, q: p),
    "the residual is that of the position before": spelled_out(follow=lambda p, q: without_rotation(p, q, 1)),
    "the residual is that of the position after": spelled_out(follow=lambda p, q: without_rotation(p, q, -1)),
    "the residual takes p of the next row": spelled_out(
        follow=lambda p, q: torch.cat(((p[1:] - q).clamp(min=0), p[-1:]))
    ),
    "the residual takes q of the next row": spelled_out(
        follow=lambda p, q: torch.cat(((p[:-1] - q.roll(-1, 0)).clamp(min=0), p[-1:]))
    ),
    "the residual is |p - q|": spelled_out(follow=lambda p, q: torch.cat(((p[:-1] - q).abs(), p[-1:]))),
    "the residual is not normalised": spelled_out(follow=leftover_to_the_last),
    "the token after the whole draft comes from the row before": spelled_out(
        follow=lambda p, q: torch.cat(((p[:-1] - q).clamp(min=0), p[-2:-1]))
    ),
    "q is ignored after a rejection": lambda p, draft, q: spelled_out(follow=lambda p, q: follow(p, certain(draft)))(
        p, draft, q
    ),
    "everything is kept": spelled_out(keep=lambda p, q, draft: torch.full((len(draft),), 2.0)),
    "p instead of p / q decides": spelled_out(keep=lambda p, q, draft: keep(p, torch.ones_like(q), draft)),
    "q / p instead of p / q decides": spelled_out(keep=lambda p, q, draft: 1 / keep(p, q, draft)),
    "the draft is judged one row late": spelled_out(keep=lambda p, q, draft: keep(p[1:], q, draft)),
    "tokens after a rejection count": spelled_out(count=lambda kept: kept.long().sum()),
}
DRAWN = ("near", "far", "drafter with zeros", "both with zeros")
CERTAIN = ("certain", "certain and likely", "certain, target with zeros")
HARMLESS = {"q is ignored after a rejection", "p instead of p / q decides"}  # where q is 1 at the drafted token


@pytest.mark.parametrize("case", CASES)
def test_the_rule_spelled_out_is_exact_too(case: str) -> None:
    """So what the planted bugs are caught by is the bug, not the spelling."""
    assert off(spelled_out(), case, 3) < FITS


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_rule_is_noticed(mutant: str) -> None:
    """In every case where the drafter draws; and with certain drafters, unless the bug is none there."""
    missed = [case for case in DRAWN if off(MUTANTS[mutant], case, 2, 50_000) < FITS]
    assert missed == []
    if mutant not in HARMLESS:
        assert max(off(MUTANTS[mutant], case, 2, 50_000) for case in CERTAIN) > FITS
