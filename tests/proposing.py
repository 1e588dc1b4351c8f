"""An engine's batch for the proposer hook, without an engine: a model that knows every text."""

import random
from itertools import count
from time import perf_counter
from typing import Any

import numpy as np

from wager.drafters import Drafter, registry
from wager.vllm.metrics import Meter
from wager.vllm.proposer import BatchProposer
from wager.vllm.settings import PROPOSER, Settings

CONTEXT = 200
ROWS = 6


class Texts:
    """An engine whose model knows every text: phrases that repeat, so that lookup drafters are right now and then."""

    def __init__(self, batch: BatchProposer, *, seed: int = 0, limits: bool = False, tells: bool = False) -> None:
        self.batch = batch
        self.tells = tells  # which drafts were verified, as vLLM's model runner does
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
        made = {"truth": truth, "read": start, "draft": None, "cap": cap, "unread": 0, "name": f"request {self.made}"}
        self.requests.append(made)
        self.made += 1

    @property
    def alive(self) -> list[str]:
        return [request["name"] for request in self.requests]

    def step(self) -> None:
        """Verify the drafts of the step before, and ask for the next ones."""
        sampled: list[list[int]] = []
        drafted = accepted = emitted = 0
        verified: dict[str, list[int]] = {}
        for request in self.requests:
            truth, at = request["truth"], request["read"]
            draft = (request["draft"] or [])[: request["cap"]]
            if draft:
                verified[request["name"]] = draft
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
        names = [request["name"] for request in self.requests]
        told = (verified,) if self.tells else ()
        drafts = self.batch.propose(names, self.alive, sampled, ends, self.tokens, *told)
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


def make(
    policy: str = "auto", drafters: tuple[str, ...] = ("suffix", "prompt-lookup"), *, steady: bool = False, **given: Any
) -> BatchProposer:
    """A batch; a steady one's clock shows a millisecond more whenever it is read."""
    settings = Settings(drafters, policy=policy, log_seconds=0.0, **given)
    built: list[Drafter] = [d for d in map(registry.build, settings.drafters) if d is not None]
    meter = Meter(PROPOSER, policy, settings.arms, drafters=settings.names, log_seconds=0.0, export=False)
    ticks = count(1)
    clock = (lambda: 1e-3 * next(ticks)) if steady else perf_counter
    return BatchProposer(settings.build_policy(), settings, built, meter, rows=ROWS, context=CONTEXT, clock=clock)


def run(batch: BatchProposer, steps: int, *, seed: int = 0, rows: int = 4, **given: Any) -> Texts:
    texts = Texts(batch, seed=seed, **given)
    for _ in range(steps):
        while len(texts.requests) < rows:
            texts.add()
        texts.step()
    return texts
