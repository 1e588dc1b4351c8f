"""Sampling with trees is exact: whatever tree is drafted the target's own distribution comes out; bugs are noticed.

First the rule alone: trees drawn without replacement and trees chosen for certain, and the joint distribution of what
is emitted. Then the engine: every token of a long text must be a draw from a row that is known.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
import torch
from chances import VOCABULARY, Chances, Text, due, spread
from fit import FITS, misfit
from small import text_of

from wager.decoding.acceptance import accept_sampled, accept_tree_greedy, accept_tree_sampled

DEPTH = 2
SAMPLES = 1_000  # with which every planted bug is at least 6 standard deviations off
Answers = dict[tuple[Text, int], int]  # how often which path was kept, and which token followed it
Rule = Callable[[torch.Tensor, Sequence[int], Sequence[int], torch.Tensor | None, int], Answers]


TARGET, CUT = Chances(1), Chances(2, zeros=2)
CASES: dict[str, tuple[Chances, Chances | None]] = {  # target and drafter; None: chosen for certain
    "near": (TARGET, Chances(5, near=TARGET)),
    "far": (TARGET, Chances(3)),
    "drafter with zeros": (TARGET, Chances(4, zeros=1)),
    "target with zeros": (CUT, Chances(3)),
    "the target itself": (TARGET, TARGET),
    "certain": (TARGET, None),
    "certain, target with zeros": (CUT, None),
}
TREES: dict[str, list[int]] = {  # parents
    "wide": [-1, -1, -1],
    "two and two": [-1, -1, 0, 0, 1, 1],
    "uneven": [-1, 0, -1, -1, 2, 0],  # children of one token are not side by side
}


def drawn(parents: Sequence[int], drafter: Chances | None, rng: np.random.Generator) -> tuple[Text, list[np.ndarray]]:
    """A tree's tokens, siblings one after the other without replacement, and what each was drawn from to begin with."""
    tokens: list[int] = []
    rows: list[np.ndarray] = []
    for at, parent in enumerate(parents):
        before = [tokens[i] for i in range(at) if parents[i] == parent]
        if drafter is None:
            tokens.append((at + 2 * len(before) + max(parent, 0)) % VOCABULARY)
            while tokens[-1] in before:
                tokens[-1] = (tokens[-1] + 1) % VOCABULARY
            continue
        q = drafter.after(text_of(tokens, parents, parent))
        left = q.copy()
        left[before] = 0
        tokens.append(int(np.searchsorted(left.cumsum(), rng.random() * left.sum(), "right")))
        rows.append(q)
    return tuple(tokens), rows


@cache
def many(case: str, parents: Text, samples: int) -> Counter[Text]:
    """So many trees, by their tokens."""
    drafter, rng = CASES[case][1], np.random.default_rng(1)
    if drafter is None:
        return Counter({drawn(parents, None, rng)[0]: samples})
    return Counter(drawn(parents, drafter, rng)[0] for _ in range(samples))


def emitted(rule: Rule, case: str, parents: Sequence[int], samples: int, seed: int = 0) -> np.ndarray:
    """Counts of the first ``DEPTH + 1`` tokens: one round, the rest plainly decoded."""
    target, drafter = CASES[case]
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    draws = many(case, tuple(parents), samples)
    whole = np.zeros((VOCABULARY,) * (DEPTH + 1))
    for tokens, times in draws.items():
        nodes = [text_of(tokens, parents, at) for at in range(-1, len(tokens))]
        p = torch.tensor(np.stack([target.after(text) for text in nodes]), dtype=torch.float32)
        q = None
        if drafter is not None:
            above = [text_of(tokens, parents, parent) for parent in parents]
            q = torch.tensor(np.stack([drafter.after(text) for text in above]), dtype=torch.float32)
        for (path, following), count in rule(p, tokens, parents, q, times).items():
            assert [parents[at] for at in path] == [-1, *path][: len(path)], "a path goes from parent to child"
            texts = {(*(tokens[at] for at in path), following): count}
            while len(next(iter(texts))) <= DEPTH:
                texts = spread(texts, target, rng)
            for text, often in texts.items():
                whole[text[: DEPTH + 1]] += often
    return whole


def ours(p: torch.Tensor, tokens: Sequence[int], parents: Sequence[int], q: torch.Tensor | None, times: int) -> Answers:
    """The rule itself, asked so many times."""
    answers = (accept_tree_sampled(p, tokens, parents, q) for _ in range(times))
    return Counter((tuple(path), following) for path, following in answers)


def off(rule: Rule, case: str, tree: str, samples: int = SAMPLES) -> float:
    """How far what a rule emits is from the target's own distribution; below FITS it cannot be told apart."""
    return misfit(emitted(rule, case, TREES[tree], samples), samples * due(CASES[case][0], DEPTH + 1))


@pytest.mark.parametrize("case", CASES)
def test_what_is_emitted_has_the_targets_joint_distribution(case: str) -> None:
    tree = {"near": "two and two", "drafter with zeros": "wide", "the target itself": "wide"}.get(case, "uneven")
    assert off(ours, case, tree) < FITS


@pytest.mark.parametrize("case", ["far", "certain"])
def test_a_chain_is_kept_as_often_as_the_rule_for_chains_keeps_it(case: str) -> None:
    target, drafter = CASES[case]
    parents = [-1, 0, 1]
    tokens, rows = drawn(parents, drafter, np.random.default_rng(1))
    p = torch.tensor(np.stack([target.after(tokens[:i]) for i in range(4)]), dtype=torch.float32)
    q = torch.tensor(np.stack(rows), dtype=torch.float32) if rows else None
    generator = torch.Generator().manual_seed(0)
    chain, tree = np.zeros((4, VOCABULARY)), np.zeros((4, VOCABULARY))
    for _ in range(SAMPLES):
        path, following = accept_tree_sampled(p, tokens, parents, q, generator)
        tree[len(path), following] += 1
        chain[accept_sampled(p, tokens, q, generator)] += 1
    both = chain + tree
    assert misfit(np.stack((chain, tree)), np.stack((both, both)) / 2, groups=int((both > 0).sum())) < FITS


def test_more_children_are_kept_more_often() -> None:
    """What several candidates are for; and of all tokens there are, one is always kept."""
    target, drafter = CASES["far"]
    kept = []
    rng = np.random.default_rng(2)
    torch.manual_seed(2)
    p = torch.tensor(np.stack([target.after(())] * (VOCABULARY + 1)), dtype=torch.float32)
    for count in range(1, VOCABULARY + 1):
        parents = [-1] * count
        hits = 0
        for _ in range(200):
            tokens, rows = drawn(parents, drafter, rng)
            q = torch.tensor(np.stack(rows), dtype=torch.float32)
            hits += bool(accept_tree_sampled(p[: count + 1], tokens, parents, q)[0])
        kept.append(hits)
    assert kept[0] < kept[2] < kept[3]
    assert kept[3] >= 199  # but for rounding
    assert all(accept_tree_sampled(p, range(VOCABULARY), [-1] * VOCABULARY, None)[0] for _ in range(200))


def test_extremes_are_decided_without_luck() -> None:
    p = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    sure = torch.eye(3)
    for q in (None, sure[[0, 1, 2]]):
        answers = {
            (tuple(path), following)
            for path, following in (accept_tree_sampled(p, [0, 1, 2], [-1, -1, 1], q) for _ in range(100))
        }
        assert answers == {((1, 2), 1)}
    assert {accept_tree_sampled(p[:1], [], [], None)[1] for _ in range(20)} == {1}
    # a third child of a drafter that had but two to draw: taken for certain, and never an error
    q = torch.tensor([[0.5, 0.5, 0.0]] * 3)
    even = torch.full((4, 3), 1 / 3)
    torch.manual_seed(0)
    found: Counter[int] = Counter()
    for tokens in ([0, 1, 2], [1, 0, 2]):  # each drawn as often
        for path, following in (accept_tree_sampled(even, tokens, [-1, -1, -1], q) for _ in range(300)):
            found[tokens[path[0]] if path else following] += 1
    assert misfit([found[token] for token in range(3)], [200] * 3) < FITS


def test_rows_that_leave_out_earlier_siblings_are_the_same() -> None:
    """Drafters may tell what a sibling was drawn from before or after the others were taken out."""
    p = torch.softmax(torch.randn(4, 6, generator=torch.Generator().manual_seed(1)), -1)
    q = torch.softmax(torch.randn(6, generator=torch.Generator().manual_seed(2)), -1)
    before = torch.stack([q, q, q])
    after = before.clone()
    after[1, 4] = after[2, 4] = after[2, 1] = 0
    after /= after.sum(-1, keepdim=True)
    answers = []
    for rows in (before, after):
        generator = torch.Generator().manual_seed(3)
        answers.append([accept_tree_sampled(p, [4, 1, 3], [-1] * 3, rows, generator) for _ in range(300)])
    assert answers[0] == answers[1]


def test_greedy_follows_the_targets_choices_down_the_tree() -> None:
    tokens, parents = [5, 6, 7, 7, 8, 9], [-1, -1, 0, 1, 1, 3]
    choices = {(): 6, (6,): 7, (6, 7): 9, (6, 7, 9): 1}

    def after(text: Text) -> int:
        return choices.get(text, 0)

    rows = [after(text_of(tokens, parents, at)) for at in range(-1, len(tokens))]
    assert accept_tree_greedy(rows, tokens, parents) == [1, 3, 5]
    assert accept_tree_greedy([4, *rows[1:]], tokens, parents) == []
    assert accept_tree_greedy([5, 7, *rows[2:]], tokens, parents) == [0, 2]
    assert accept_tree_greedy([3], [], []) == []


def normal(p: np.ndarray) -> np.ndarray:
    return p / p.sum() if p.sum() > 0 else p


def spelled_out(
    residual: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda p, q: normal(np.maximum(p - q, 0)),
    against: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda first, p: p,
    rest: Callable[[np.ndarray, int], np.ndarray] = lambda q, token: normal(np.where(np.arange(len(q)) == token, 0, q)),
    row_of: Callable[[int], int] = lambda at: at + 1,
    last: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda first, p: p,
) -> Rule:
    """The rule as the probability of each answer; so often asked, it answers each as often as that makes it."""
    rng = np.random.default_rng(7)

    def rule(
        p: torch.Tensor, tokens: Sequence[int], parents: Sequence[int], q: torch.Tensor | None, times: int
    ) -> Answers:
        rows = p.double().numpy()
        chances: dict[tuple[Text, int], float] = {}

        def walk(path: Text, reached: float) -> None:
            at = path[-1] if path else -1
            first = now = normal(rows[row_of(at)])
            own, refused = None, -1
            for child in [i for i, parent in enumerate(parents) if parent == at]:
                token = tokens[child]
                if q is None:
                    own = np.eye(len(now))[token]
                else:
                    own = normal(q[child].double().numpy()) if own is None else rest(own, refused)
                kept = min(1.0, against(first, now)[token] / own[token]) if own[token] else 1.0
                if reached * kept:
                    walk((*path, child), reached * kept)
                reached *= 1 - kept
                now, refused = residual(now, own), token
            left = last(first, now)
            spare = max(0.0, 1 - left.sum())  # what a residual that is not normalised lacks goes to the last token
            for token, chance in enumerate(normal(left + spare * np.eye(len(left))[-1])):
                chances[path, token] = reached * chance

        walk((), 1.0)
        counts = rng.multinomial(times, normal(np.array(list(chances.values()))))
        return {answer: int(count) for answer, count in zip(chances, counts, strict=True) if count}

    return rule


MUTANTS: dict[str, Rule] = {
    "the residual is not normalised": spelled_out(residual=lambda p, q: np.maximum(p - q, 0)),
    "the second child is tested against the original p": spelled_out(against=lambda first, p: first),
    "after the last child it draws from the original p": spelled_out(last=lambda first, p: first),
    "q is not updated without replacement": spelled_out(rest=lambda q, token: q),
    "a refused child leaves p as it was": spelled_out(residual=lambda p, q: p),
    "the residual is |p - q|": spelled_out(residual=lambda p, q: normal(np.abs(p - q))),
    "a node's children are judged by the node before": spelled_out(row_of=lambda at: max(0, at)),
}
HARMLESS = {"q is not updated without replacement"}  # where q is certain


@pytest.mark.parametrize("case", CASES)
def test_the_rule_spelled_out_is_exact_too(case: str) -> None:
    """So what the planted bugs are caught by is the bug, not the spelling."""
    assert off(spelled_out(), case, "two and two") < FITS


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_rule_is_noticed(mutant: str) -> None:
    """Where the rule itself has to pass, with as many samples."""
    assert max(off(MUTANTS[mutant], case, "uneven") for case in ("far", "target with zeros")) > FITS
    if mutant not in HARMLESS:
        assert off(MUTANTS[mutant], "certain", "uneven") > FITS
