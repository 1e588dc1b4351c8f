"""The proposer hook on a batch as vLLM keeps it: rows of tokens, requests that come, go and change places."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from wager.core import Round
from wager.drafters import Drafter, registry
from wager.policies.rows import Outcome
from wager.vllm.metrics import Meter
from wager.vllm.proposer import Batch
from wager.vllm.settings import PROPOSER, Settings

CONTEXT = 200
ROWS = 6


class Texts:
    """An engine whose model knows every text: phrases that repeat, so that lookup drafters are right now and then."""

    def __init__(self, batch: Batch, *, seed: int = 0, limits: bool = False) -> None:
        self.batch = batch
        self.rng = random.Random(seed)
        self.tokens = np.zeros((ROWS, CONTEXT), np.int32)
        self.requests: list[dict[str, Any]] = []  # by row
        self.limits = limits
        self.drafted: list[int] = []  # tokens proposed in each step
        self.proposals: list[list[list[int]]] = []  # of steps in which no request is near its context's end
        self.made = 0
        self.last = (0, 0, 0)  # drafted, accepted, emitted in the last step, over requests that had a draft

    def add(self) -> None:
        phrases = [[self.rng.randrange(5, 40) for _ in range(6)] for _ in range(3)]
        truth = [t for _ in range(60) for t in self.rng.choice(phrases)][: CONTEXT - 1]
        cap = self.rng.choice([0, 2, 99]) if self.limits else 99
        start = self.rng.randrange(8, 40)
        self.requests.append({"truth": truth, "read": start, "draft": None, "cap": cap, "new": True})
        self.made += 1

    def step(self) -> None:
        """Verify the drafts of the step before, and ask for the next ones."""
        sampled: list[list[int]] = []
        drafted = accepted = emitted = 0
        for request in self.requests:
            truth, at = request["truth"], request["read"]
            draft = (request["draft"] or [])[: request["cap"]]
            right = 0
            while right < len(draft) and at + right < len(truth) and draft[right] == truth[at + right]:
                right += 1
            new = truth[at : at + right + 1]
            sampled.append(new)
            if request["draft"] is not None and new:
                drafted, accepted, emitted = drafted + len(draft), accepted + right, emitted + len(new)
            request["read"] = at + len(new)
        for row, request in enumerate(self.requests):
            self.tokens[row, : request["read"]] = request["truth"][: request["read"]]
        self.last = (drafted, accepted, emitted)
        ends = np.zeros(ROWS, np.int32)
        ends[: len(self.requests)] = [request["read"] for request in self.requests]
        drafts = self.batch.propose(sampled, ends, self.tokens)
        assert len(drafts) == len(self.requests)
        for request, draft in zip(self.requests, drafts, strict=True):
            assert request["read"] + len(draft) < CONTEXT, "a draft may not run out of the context"
            request["draft"] = draft
        if all(request["read"] < CONTEXT - 10 for request in self.requests):
            self.proposals.append(drafts)
        self.drafted.append(sum(map(len, drafts)))
        # a request that has come to its end leaves, and vLLM moves the last row into its place
        for row in range(len(self.requests) - 1, -1, -1):
            if self.requests[row]["read"] >= CONTEXT - 1:
                self.requests[row] = self.requests[-1]
                self.requests.pop()


def make(policy: str = "", drafters: tuple[str, ...] = ("suffix", "prompt-lookup"), **given: Any) -> Batch:
    settings = Settings(drafters, policy=policy, log_seconds=0.0, **given)
    built: list[Drafter] = [d for d in map(registry.build, settings.drafters) if d is not None]
    meter = Meter(PROPOSER, policy, settings.arms, drafters=settings.names, log_seconds=0.0, export=False)
    return Batch(settings.build_policy(), settings, built, meter, rows=ROWS, context=CONTEXT)


def run(batch: Batch, steps: int, *, seed: int = 0, rows: int = 4, **given: Any) -> Texts:
    texts = Texts(batch, seed=seed, **given)
    for _ in range(steps):
        while len(texts.requests) < rows:
            texts.add()
        texts.step()
    return texts


@pytest.mark.parametrize(
    "policy", ["random", "nightjar", "kl-ucb:reward=goodput", "tetris:drafter=suffix", "portfolio"]
)
def test_every_policy_drafts_and_is_right_now_and_then(policy: str) -> None:
    batch = make(policy)
    texts = Texts(batch)
    accepted = 0
    for _ in range(200):
        while len(texts.requests) < 4:
            texts.add()
        texts.step()
        accepted += texts.last[1]
    assert sum(texts.drafted) > 100
    assert accepted > 50


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


@pytest.mark.parametrize("limits", [False, True], ids=["all verified", "some cut by the scheduler"])
def test_every_drafter_is_scored_on_the_true_tokens(limits: bool) -> None:
    batch = make("portfolio")
    policy = batch.chooser.policy
    observe = policy.observe_rows
    seen = 0

    def check(outcome: Outcome) -> None:
        nonlocal seen
        seen += 1
        assert (outcome.agreed <= outcome.rows.size).all()
        assert (outcome.agreed <= outcome.emitted).all()
        assert (outcome.emitted >= 1).all()
        # What vLLM accepted, less the bonus token, can be no more than was verified; and what the played drafter
        # agreed on among verified tokens is exactly that.
        played = outcome.drafter >= 0
        who, where = np.maximum(outcome.drafter, 0), np.arange(len(played))
        accepted = np.where(played, np.minimum(outcome.agreed[who, where], outcome.drafted), 0)
        assert (outcome.emitted - 1 == accepted).all()
        observe(outcome)

    texts = Texts(batch, seed=5, limits=limits)

    policy.observe_rows = check
    for _ in range(150):
        while len(texts.requests) < 3:
            texts.add()
        if any(request["read"] > CONTEXT - 20 for request in texts.requests):
            break
        texts.step()
    assert seen > 10


def test_the_budget_is_kept_over_the_batch() -> None:
    texts = run(make("portfolio", budget=5), 150)
    assert max(texts.drafted) <= 5
    assert max(run(make("portfolio"), 150).drafted) > 5


def test_uniform_drafts_are_all_of_one_length() -> None:
    for policy in ("portfolio", "random"):
        texts = run(make(policy, uniform="always"), 100)
        assert all(len({len(draft) for draft in drafts}) <= 1 for drafts in texts.proposals)
        assert sum(texts.drafted) > 0


def test_what_requests_left_behind_is_freed() -> None:
    batch = make("portfolio")
    texts = run(batch, 1500, rows=4)
    assert texts.made > 50
    assert len(batch.streams) <= 3 * ROWS
    live = [stream for stream in batch.streams._missed if stream.payload is not None]
    assert len(live) <= 2 * ROWS


def test_an_empty_step_and_a_prompt_still_being_read_are_left_alone() -> None:
    batch = make("portfolio")
    tokens = np.arange(ROWS * CONTEXT, dtype=np.int32).reshape(ROWS, CONTEXT)
    ends = np.full(ROWS, 20, np.int32)
    assert batch.propose([[], []], ends, tokens) == [[], []]
    drafts = batch.propose([[], [39]], ends, tokens)
    assert drafts[0] == []
    assert len(drafts) == 2


def test_another_policy_can_take_over_in_the_middle() -> None:
    batch = make("portfolio")
    texts = Texts(batch)
    policies = [batch.settings.build_policy(spec) for spec in ("portfolio", "nightjar", "off")]
    for step in range(90):
        while len(texts.requests) < 4:
            texts.add()
        batch.play(policies[step // 10 % 3])
        texts.step()
        if step // 10 % 3 == 2:
            assert texts.drafted[-1] == 0
    assert sum(texts.drafted) > 0
