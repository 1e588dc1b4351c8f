"""The proposer hook on a batch as vLLM keeps it: rows of tokens, requests that come, go and change places."""

from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
from proposing import CONTEXT, ROWS, Texts, make, run

from wager.core import Round
from wager.core.batch import BatchRound
from wager.drafters import Draft, drafter_agreement
from wager.drafters.prompt_lookup import PromptLookup
from wager.vllm.choosers import Decoding
from wager.vllm.proposer import BatchProposer
from wager.vllm.streams import Stream


def test_a_policy_for_the_step_is_told_what_really_happened() -> None:
    batch = make("random")
    policy = batch.chooser.policy
    told: list[Round] = []
    observe = policy.observe
    policy.observe = lambda one: (told.append(one), observe(one))
    texts = Texts(batch, seed=3)
    texts.add()
    texts.add()
    for _ in range(60):
        before = len(told)
        texts.step()
        if len(told) > before and len(texts.requests) == 2:  # a text that ends inside its draft has no bonus token
            one = told[-1]
            assert (one.drafted, one.accepted, one.emitted) == texts.last
    assert len(told) > 20


def test_a_request_alone_is_not_proposed_for_beyond_what_its_text_may_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = make("auto", ("prompt-lookup",))
    clock, asked = [0.0], []

    def propose(drafter: PromptLookup, length: int) -> Draft:
        clock[0] += 0.006  # of 0.02 that plain decoding takes
        asked.append(length)
        return Draft()

    monkeypatch.setattr(PromptLookup, "propose", propose)
    batch.clock = lambda: clock[0]
    texts = Texts(batch)
    texts.add()
    for _ in range(80):
        texts.step()
        clock[0] += 0.02
    assert 0.3 * (len(asked) - 1) <= 3.0 + 0.02 * 80  # how long they take is not known before the first
    assert len(asked) > 8


def test_a_budget_is_kept_over_the_batch_and_uniform_drafts_are_all_of_one_length() -> None:
    texts = run(make("auto", budget=5), 150)
    assert max(texts.drafted) <= 5
    assert max(run(make("auto"), 150).drafted) > 5
    for policy in ("auto", "random"):
        texts = run(make(policy, uniform="always"), 100)
        assert all(len({len(draft) for draft in drafts}) <= 1 for drafts in texts.proposals)
        assert sum(texts.drafted) > 0


def test_what_requests_left_behind_is_freed() -> None:
    batch = make("auto")
    texts = run(batch, 500, rows=4)
    assert texts.made > 2 * 4  # how many more depends on what is drafted, and so on the clock
    assert len(batch.streams._streams) <= ROWS


def test_an_empty_step_and_a_prompt_still_being_read_are_left_alone() -> None:
    batch = make("auto")
    tokens = np.arange(ROWS * CONTEXT, dtype=np.int32).reshape(ROWS, CONTEXT)
    ends = np.full(ROWS, 20, np.int32)
    names = ["one", "two"]
    assert batch.propose(names, names, [[], []], ends, tokens) == [[], []]
    drafts = batch.propose(names, names, [[], [39]], ends, tokens)
    assert drafts[0] == []
    assert len(drafts) == 2


def test_another_policy_can_take_over_in_the_middle() -> None:
    batch = make("auto")
    texts = Texts(batch)
    policies = [batch.settings.build_policy(spec) for spec in ("auto", "nightjar", "off")]
    for step in range(90):
        while len(texts.requests) < 4:
            texts.add()
        batch.use(policies[step // 10 % 3])
        texts.step()
        if step // 10 % 3 == 2:
            assert texts.drafted[-1] == 0
    assert sum(texts.drafted) > 0


def booked(batch: BatchProposer) -> dict[str, list[float]]:
    """What the metrics hold by arm: rounds, drafted, accepted and emitted tokens."""
    batch.meter.flush()
    return {str(arm): tally.totals[:4] for arm, tally in batch.meter._tallies.items() if tally.totals[0]}


@pytest.mark.parametrize("policy", ["auto", "random", "fixed:drafter=suffix,length=4"])
def test_drafts_that_vllm_drops_are_rounds_of_plain_decoding(policy: str) -> None:
    batch = make(policy)
    texts = Texts(batch, tells=True)
    told: list[Any] = []
    observe = batch.chooser.policy.observe
    batch.chooser.policy.observe = lambda one: (told.append(one), observe(one))
    for _ in range(3):
        texts.add()
        texts.requests[-1]["cap"] = 0
    for _ in range(60):
        texts.step()
    found = booked(batch)
    assert sum(texts.drafted) > 0, "nothing was drafted that could have been dropped"
    drafting = [arm for arm in found if arm != "off" and found[arm][1]]
    assert drafting == []
    assert found["off"][2] == 0
    if policy == "auto":
        assert list(found) == ["off"]
    assert not any(one.drafted for one in told)


@pytest.mark.parametrize("policy", ["auto", "random"])
def test_a_cut_draft_counts_with_the_tokens_that_were_verified(policy: str) -> None:
    batch = make(policy)
    texts, sums = Texts(batch, seed=5, tells=True), np.zeros(3)
    for cap in (0, 2, 99):
        texts.add()
        texts.requests[-1]["cap"] = cap
    before = 0
    for _ in range(25):
        texts.step()
        sums += texts.last if before else 0
        before = 1
    assert len(texts.requests) == 3, "no text ended, so that every draft was seen"
    found = np.sum(list(booked(batch).values()), axis=0)
    assert found[1:4].tolist() == sums.tolist()
    assert found[0] + found[2] == found[3]


@pytest.mark.parametrize("policy", ["auto", "random", "off", "fixed:drafter=suffix,length=4"])
def test_changes_of_arm_are_counted(policy: str) -> None:
    batch = make(policy)
    run(batch, 80)
    switches = batch.meter._totals.switches
    if policy in ("auto", "random"):
        assert 0 < switches <= batch.meter._totals.steps
    else:
        assert switches == 0


class Followed:
    """A batch, and everything its policy and its meter are told."""

    def __init__(self, batch: BatchProposer) -> None:
        self.batch = batch
        self.told: list[Any] = []
        policy, meter = batch.chooser.policy, batch.meter
        for owner, name in ((policy, "observe"), (policy, "observe_batch"), (meter, "played"), (meter, "step")):
            if hasattr(owner, name):
                setattr(owner, name, self._noting(name, getattr(owner, name)))

    def _noting(self, name: str, method: Any) -> Any:
        def noting(*given: Any, **named: Any) -> None:
            self.told.append((name, *map(_plain, given), *named.values()))
            method(*given, **named)

        return noting


def _plain(value: Any) -> Any:
    """What can be compared."""
    if isinstance(value, BatchRound):
        rows = value.batch
        columns = rows.slots, rows.fresh, rows.match, rows.size, np.nan_to_num(rows.confidence, nan=-1.0), rows.limit
        mine = value.drafter, value.drafted, value.emitted, value.agreed
        return [column.tolist() for column in (*columns, *mine)], value.seconds, value.draft_seconds
    return astuple(value) if isinstance(value, Round) else value


def follow_anew(batch: BatchProposer) -> None:
    """Let no step look as the one before: who is where is worked out in every one."""
    follow = batch.streams.follow

    def copied(*given: Any) -> list[Stream | None]:
        return follow(*given).copy()

    batch.streams.follow = copied  # type: ignore[method-assign]


class Disorder(Texts):
    """Requests come, are aborted, preempted and resumed, change places and read their prompts in pieces."""

    def __init__(self, one: BatchProposer, other: BatchProposer, seed: int) -> None:
        super().__init__(one, seed=seed, limits=seed % 2 == 1)
        self.both = one, other
        self.away: list[dict[str, Any]] = []
        self.reckoned: list[tuple[int, int, int, int]] = []  # by step: requests, drafted, accepted, emitted
        one.propose = self._propose_both  # type: ignore[method-assign]

    @property
    def alive(self) -> list[str]:
        return [request["name"] for request in (*self.requests, *self.away)]

    def _propose_both(
        self, names: list[str], alive: list[str], sampled: list[list[int]], ends: np.ndarray, tokens: np.ndarray
    ) -> list[list[int]]:
        for row, request in enumerate(self.requests):  # a prompt not read to its end yet has sampled nothing
            if request["unread"] > 0:
                ends[row] -= len(sampled[row])
                request["read"] -= len(sampled[row])
                request["unread"] -= 1
                sampled[row] = []
        self._reckon(sampled)
        drafts, expected = (
            BatchProposer.propose(batch, names, alive, [*map(list, sampled)], ends, tokens) for batch in self.both
        )
        assert drafts == expected
        for request, new, draft in zip(self.requests, sampled, drafts, strict=True):
            request["made"] = draft if new else None
        return drafts

    def _reckon(self, sampled: list[list[int]]) -> None:
        """What a policy can know of the drafts of the step before, request by request."""
        sums = [0, 0, 0, 0]
        for request, new in zip(self.requests, sampled, strict=True):
            draft = request.get("made")
            if draft is None or not new:
                continue
            cut = len(new) <= len(draft) and new == draft[: len(new)]
            verified = len(new) - 1 if cut else len(draft)
            sums = [a + b for a, b in zip(sums, (1, verified, min(len(new) - 1, len(draft)), len(new)), strict=True)]
        if sums[0]:
            requests, drafted, accepted, emitted = sums
            self.reckoned.append((requests, drafted, accepted, emitted))

    def disturb(self) -> None:
        rng, requests = self.rng, self.requests
        back = [self.away.pop(0)] if self.away and len(requests) < ROWS and rng.random() < 0.3 else []
        if requests and rng.random() < 0.1:
            gone = requests.pop(rng.randrange(len(requests)))
            gone.update(draft=None, made=None, unread=rng.choice([0, 1]))
            if rng.random() < 0.6:
                self.away.append(gone)
        requests += back
        while len(requests) < ROWS and rng.random() < 0.3:
            self.add()
            requests[-1]["unread"] = rng.choice([0, 0, 2])
        if rng.random() < 0.1:
            rng.shuffle(requests)
        if rng.random() < 0.05:  # a step in which vLLM leaves the proposer out: nothing of it is seen
            for request in requests:
                if not request["unread"] and request["read"] < CONTEXT - 20:
                    request["read"] += 2
                    request.update(draft=None, made=None)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("uniform", ["auto", "always"])
@pytest.mark.parametrize(
    "policy", ["nightjar", "random", "kl-ucb:reward=goodput", "tetris:drafter=suffix", "auto", "auto budget=20"]
)
def test_a_step_like_the_last_is_treated_as_any_other(policy: str, uniform: str, seed: int) -> None:
    policy, _, budget = policy.partition(" budget=")
    one, other = (make(policy, steady=True, budget=int(budget or 0), uniform=uniform) for _ in range(2))
    follow_anew(other)
    quick, slow = Followed(one), Followed(other)
    texts = Disorder(one, other, seed)
    for _ in range(100):
        texts.disturb()
        texts.step()
        one.meter.flush()
        other.meter.flush()
        assert quick.told == slow.told
    assert any(texts.drafted) or budget  # uniform drafts of many requests do not fit one
    played = [told[2:6] for told in quick.told if told[0] == "played"]
    if not one.chooser.policy.per_request:
        assert played == texts.reckoned
    elif uniform != "always":  # one for each arm of a step; and padding that came true is not told apart
        assert np.sum(played, axis=0).tolist() == np.sum(texts.reckoned, axis=0).tolist()


@pytest.mark.parametrize("seed", range(6))
def test_columns_say_what_a_loop_over_requests_and_tokens_would(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (make("auto", steady=True) for _ in range(2))
    chooser, seen = one.chooser, 0
    accepted: list[bool] = []  # whether what the played drafter agreed on is what vLLM accepted
    proposed: dict[int, list[Draft]] = {}  # by slot: each drafter's
    fresh: dict[int, bool] = {}  # by slot, when it was drafted for
    new: dict[int, bool] = {}
    sampled: dict[int, list[int]] = {}
    make_arrays, observe_step, observe = chooser._arrays.make, chooser.observe, chooser.policy.observe_batch

    def note_proposals(proposals: list[Draft], drafters: int, slots: np.ndarray, *given: Any) -> Any:
        proposed.clear()
        proposed.update({slot: proposals[i :: len(slots)] for i, slot in enumerate(slots.tolist())})
        fresh.update(new)
        return make_arrays(proposals, drafters, slots, *given)

    def note_sampled(step: Decoding) -> None:
        sampled.clear()
        sampled.update({stream.slot: new for stream, new in zip(step.live, step.sampled, strict=True)})
        observe_step(step)
        new.clear()
        new.update({stream.slot: stream.fresh for stream in step.live})

    def check(outcome: BatchRound) -> None:
        nonlocal seen
        rows = outcome.batch
        for i, slot in enumerate(rows.slots.tolist()):
            new = sampled[slot]
            assert (rows.fresh[i], outcome.emitted[i]) == (fresh[slot], len(new))
            for d, draft in enumerate(proposed[slot]):
                size = len(draft.tokens)
                assert (rows.size[d, i], rows.match[d, i]) == (size, draft.hint.match)
                expected = [*(draft.hint.confidence or [np.nan] * size), *[0.0] * (one.longest - size)]
                assert np.array_equal(rows.confidence[d, i], expected, equal_nan=True)
                assert outcome.agreed[d, i] == drafter_agreement({"draft": draft.tokens, "text": new})["draft"]["text"]
                seen += 1
            if (d := outcome.drafter[i]) >= 0:
                accepted.append(len(new) - 1 == min(outcome.agreed[d, i], outcome.drafted[i]))
        observe(outcome)

    monkeypatch.setattr(chooser._arrays, "make", note_proposals)
    monkeypatch.setattr(chooser, "observe", note_sampled)
    monkeypatch.setattr(chooser.policy, "observe_batch", check)
    texts = Disorder(one, other, seed)
    for _ in range(150):
        texts.disturb()
        texts.step()
    assert seen > 200
    assert np.mean(accepted) > 0.95, "but for padding that came true, and texts that end inside a draft"
