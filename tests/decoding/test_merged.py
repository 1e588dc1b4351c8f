"""A proposal merged into another drafter's draft: one verification, the text the target's own, the further one kept."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from decoders import PROMPT, VOCABULARY, Grafted, Told, check, plain, tiny

import wager
from wager.core import OFF, Arm, Context, Round, Signal, TraceWriter, Tree
from wager.core import trace as traces
from wager.core.batch import Batch
from wager.decoding import rounds as played
from wager.decoding.rounds import with_merged
from wager.drafters import Draft
from wager.policies import Policy

CHAINS = [Arm(name, n) for name in ("told", "other") for n in (2, 5)]
TREES = [Arm("grafted", 4, Tree(3, 12)), Arm("grafted", 2, Tree(2, 3))]
ARMS = (OFF, *CHAINS, *TREES)


class Merging(Policy):
    """Any arm, with any proposal of another drafter merged into it."""

    needs = frozenset({Signal.HINTS, Signal.OTHERS})

    def choose(self, context: Context) -> Arm:
        arm = self.arms[int(self.rng.choice(self.available(context.arms)))]
        others = [name for name, hint in context.hints.items() if hint.size and name != arm.drafter]
        if not context.merges or not arm.length or not others or self.rng.random() < 0.2:
            return arm
        return Arm(arm.drafter, arm.length, arm.tree, Arm(str(self.rng.choice(others)), int(self.rng.integers(1, 8))))


class Other(Told):
    name = "other"


def decoder(model: Any, prompt: Sequence[int] = PROMPT, expected: Sequence[int] = (), **how: Any) -> wager.Decoder:
    text = [*prompt, *(expected or plain(model, prompt))]
    drafters = [Told([text], 4), Other([text], 7), Grafted(text)]
    for drafter in drafters[:2]:
        propose = drafter.propose

        def hinted(length: int, sample: Any = None, propose: Any = propose) -> Draft:
            draft = propose(length, sample)
            draft.hint = wager.core.Hint(3, size=len(draft.tokens))
            return draft

        drafter.propose = hinted  # type: ignore[method-assign]
    drafters[2].cheap = False  # type: ignore[misc]
    return wager.Decoder(model, drafters=drafters, arms=ARMS, policy=Merging(ARMS, seed=3), **how)


def merged(rounds: Sequence[Round]) -> list[Round]:
    return [r for r in rounds if r.arm.merged is not None]


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2", "mistral, window"])
def test_the_text_is_the_targets_own_and_the_further_draft_is_kept(family: str) -> None:
    model = tiny(family)
    made, expected, rounds = decoder(model), plain(model), list[Round]()
    for _ in range(4):
        answer = made.generate(PROMPT, max_new_tokens=60, do_sample=False)
        check(model, PROMPT, answer.tokens, expected)
        assert sum(r.emitted for r in answer.rounds) == 59
        rounds += answer.rounds
    found = merged(rounds)
    assert sum(r.own < r.accepted for r in found) > 10, "what was merged was right further than the draft"
    assert sum(r.own == r.accepted for r in found) > 10
    assert sum(r.accepted == r.others[r.arm.merged.drafter] for r in found if r.arm.merged and r.own < r.accepted) > 5
    assert {r.arm.tree is None for r in found} == {True, False}


@pytest.mark.parametrize("sampling", ["shared-noise", "residual"])
def test_sampled_texts_with_shared_noise_are_those_without_drafts_and_the_residual_rule_merges_nothing(
    sampling: str,
) -> None:
    model = tiny()
    off = wager.Decoder(model, policy="off")
    for seed in range(4):
        settings = {"max_new_tokens": 60, "do_sample": True, "temperature": 1.3, "seed": seed}
        expected = off.generate(PROMPT, **settings).tokens
        answer = decoder(model, expected=expected, sampling=sampling).generate(PROMPT, **settings)
        if sampling == "residual":  # what was drawn for a draft would count as certain
            assert not merged(answer.rounds)
        else:
            assert any(r.own < r.accepted for r in merged(answer.rounds))
            assert answer.tokens == expected


def test_whose_the_tokens_were_is_told() -> None:
    model = tiny()
    sources = [step for _ in range(3) for step in decoder(model).generate(PROMPT, max_new_tokens=60).steps]
    won = [step for step in sources if step.round and step.round.arm.merged and step.round.own < step.round.accepted]
    assert won
    for step in won:
        assert step.round is not None
        assert step.round.arm.merged is not None
        own, name = step.round.own, step.round.arm.merged.drafter
        emitted = [step.round.arm.drafter] * own + [name] * (step.round.accepted - own) + ["bonus"]
        assert list(step.sources) == emitted[: len(step.tokens)]


def test_a_trace_holds_merged_rounds(tmp_path: Any) -> None:
    with TraceWriter(tmp_path / "trace.jsonl") as trace:
        rounds = decoder(tiny(), trace=trace).generate(PROMPT, max_new_tokens=60).rounds
    assert merged(rounds)
    assert [r for r in traces.read(tmp_path / "trace.jsonl") if isinstance(r, Round)] == rounds


@pytest.mark.parametrize("bug", ["hangs on the wrong token", "takes the draft's own tokens alone"])
def test_a_bug_in_merging_is_noticed(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = with_merged

    def wrong(draft: Draft, chain: Sequence[int]) -> Draft:
        made = right(draft, chain)
        if made.parents is None or len(made.tokens) == len(draft.tokens):
            return made
        if bug == "hangs on the wrong token":
            made.parents = [-1 if at >= len(draft.tokens) else parent for at, parent in enumerate(made.parents)]
            return made
        return draft

    monkeypatch.setattr(played, "with_merged", wrong)
    model = tiny()
    made, expected = decoder(model), plain(model)
    answers = [made.generate(PROMPT, max_new_tokens=60, do_sample=False) for _ in range(4)]
    reached = sum(r.accepted == r.others[r.arm.merged.drafter] > 1 for a in answers for r in merged(a.rounds)
                  if r.arm.merged and r.own < r.accepted)  # fmt: skip
    assert reached < 5 or any(answer.tokens != expected for answer in answers)


def test_a_merged_tree_has_every_path_of_both_and_the_drafts_own_tokens_first() -> None:
    rng = random.Random(0)
    for _ in range(300):
        if rng.random() < 0.5:
            draft = Draft([rng.randrange(3) for _ in range(rng.randrange(1, 5))])
        else:
            grafted = Grafted([rng.randrange(VOCABULARY) for _ in range(9)], seed=rng.randrange(99))
            grafted.begin([])
            draft = grafted.propose_tree(4, Tree(3, 9))
        chain = [rng.randrange(3) for _ in range(rng.randrange(1, 6))]
        made = with_merged(draft, chain)
        assert made.tokens[: len(draft.tokens)] == draft.tokens
        assert paths(made) == paths(draft) | {tuple(chain[:n]) for n in range(1, len(chain) + 1)}
        assert len(paths(made)) == len(made.tokens), "no path is verified twice"


def test_a_merged_tree_has_no_more_tokens_than_one_forward_verifies_and_no_probabilities() -> None:
    long = with_merged(Draft(list(range(60))), [99] * 10)
    assert len(long.tokens) == 63
    assert long.tokens[60:] == [99] * 3
    whole = Draft([1, 2, 3], probs=torch.ones(3, 4) / 4)
    for chain in ([1, 2], [1, 3]):  # nothing new in it, and something
        assert with_merged(whole, chain).probs is None
    assert len(with_merged(Draft(list(range(70))), [99]).tokens) == 70, "a chain is verified however long"


def two_requests() -> Batch:
    of_both = np.full((2, 2), 3)
    return Batch(np.arange(2), np.ones(2, np.bool_), of_both, of_both, np.full((2, 2, 3), 0.5), np.full(2, 3))


class Stubborn(Merging):
    """Merges whether it is offered or not."""

    def choose(self, context: Context) -> Arm:
        return Arm("told", 2, None, Arm("other", 2))


def test_what_cannot_be_merged_is_refused_with_one_sentence() -> None:
    text = [*PROMPT, *plain(tiny())]
    how: dict[str, Any] = {"drafters": [Told([text]), Other([text])], "arms": [OFF, *CHAINS]}
    refused = wager.Decoder(tiny(), policy=Stubborn([OFF, *CHAINS]), sampling="residual", **how)
    with pytest.raises(ValueError, match=r"no draft can be merged into another here; play told:2, not told:2\+other:2"):
        refused.generate(PROMPT, do_sample=True, seed=1, max_new_tokens=8)
    with pytest.raises(ValueError, match="no draft can be merged"):
        Stubborn([OFF, *CHAINS]).choose_batch(two_requests())
    with pytest.raises(ValueError, match="the policy's choice of every round: name arm told:2"):
        wager.Decoder(tiny(), drafters=how["drafters"], arms=["told:2+other:2"])


def paths(draft: Draft) -> set[tuple[int, ...]]:
    parents = draft.parents if draft.parents is not None else list(range(-1, len(draft.tokens) - 1))
    found: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return set(found)
