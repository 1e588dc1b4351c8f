"""Drafts for the requests of a step under a policy: the interface, and one arm for all requests of the step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from wager.core import OFF, Arm, Context, Round
from wager.drafters import Drafter
from wager.policies import Policy
from wager.vllm.metrics import Meter
from wager.vllm.settings import Settings
from wager.vllm.streams import Stream

Texts = Sequence[Sequence[Drafter]]  # each request's own drafters, up to date with its text


class Decoding(NamedTuple):
    """The requests that decode in a step, one entry each, in the order of their rows."""

    live: list[Stream]  # the very same list while they are the same requests in the same rows
    sampled: list[list[int]]  # new tokens of each
    slots: np.ndarray  # (requests,)
    fresh: np.ndarray  # (requests,) seen for the first time
    rows: np.ndarray  # (requests,) where they stand in token_ids
    ends: np.ndarray  # (requests,) tokens of each
    counts: np.ndarray  # (requests,) of these, the new ones: at least 1
    limits: np.ndarray  # (requests,) most tokens each may draft
    token_ids: np.ndarray  # (rows of the engine, context)
    seconds: float  # what verifying took; 0 where the step did other work too
    verified: np.ndarray | None = None  # (requests,) draft tokens of each that vLLM verified; None: unknown

    def of(self, some: list[int]) -> Decoding:
        """Some of the requests only."""
        live, sampled = [self.live[i] for i in some], [self.sampled[i] for i in some]
        slots, fresh, rows, ends, counts, limits = (each[some] for each in self[2:8])
        verified = None if self.verified is None else self.verified[some]
        own = live, sampled, slots, fresh, rows, ends, counts, limits
        return Decoding(*own, self.token_ids, self.seconds, verified)


class Chooser(ABC):
    """Lets a policy choose what each request drafts, and has it observe what came of it.

    In every step: `observe` the drafts of the step before, `choose` new ones, set `draft_seconds`, `count`.
    """

    draft_seconds = 0.0  # of the last `choose`, and of keeping drafters up to date with their texts

    def __init__(self, policy: Policy, settings: Settings, drafters: Sequence[str], meter: Meter) -> None:
        self.policy, self.settings, self.names, self.meter = policy, settings, drafters, meter
        self.longest = settings.max_length
        self.arms = policy.arms  # one tuple throughout: policies keep what they worked out for it
        self.tokens = 0  # emitted since the engine started
        self.forget()

    def forget(self) -> None:
        """The drafts made last will not be seen again."""
        self._live: list[Stream] = []  # whom they were made for

    @abstractmethod
    def observe(self, step: Decoding) -> None:
        """These tokens came of the last drafts."""

    @abstractmethod
    def choose(self, step: Decoding, texts: Texts, clock: Callable[[], float]) -> list[list[int]]:
        """A draft for every request, in order."""

    @abstractmethod
    def count(self, *, tokens: int, mixed: bool, decision: float) -> None:
        """Count the step, in which so many tokens were sampled, in the metrics."""

    def _again(self, step: Decoding) -> tuple[Decoding, list[int] | None]:
        """The requests that were drafted for in the last step, and where they were then; None: all, where they are."""
        if step.live is self._live:
            return step, None
        where = {stream: i for i, stream in enumerate(self._live)}
        now = [i for i, s in enumerate(step.live) if s in where and not (s.fresh or s.resumed)]
        return step.of(now), [where[step.live[i]] for i in now]

    def _make_uniform(self, drafts: list[list[int]], length: int, limits: np.ndarray) -> None:
        """Make every draft this long: cut, or padded with a token that will be refused or happens to be right."""
        if limits.min() < length:
            return
        for draft in drafts:
            del draft[length:]
            draft += [draft[-1] if draft else 0] * (length - len(draft))


class StepChooser(Chooser):
    """One arm for all requests of a step, from any policy; each request's drafter proposes for its own text."""

    def forget(self) -> None:
        super().forget()
        self._arm: Arm | None = None
        self._drafts: list[list[int]] = []  # one for each of live
        self._played: list[tuple[Arm, int, int, int, int]] = []  # requests, drafted, accepted, emitted
        self._seconds = 0.0  # of these
        self._took = 0.0
        self._switched = False

    def observe(self, step: Decoding) -> None:
        self._played = []
        emitted = int(np.add.reduce(step.counts))
        self.tokens += emitted
        if self._arm is None:
            return
        drafts = self._drafts
        step, then = self._again(step)
        if then is not None:
            drafts = [drafts[i] for i in then]
            emitted = int(np.add.reduce(step.counts))
        if not drafts:
            return
        drafted = accepted = dropped = 0
        verified = [None] * len(drafts) if step.verified is None else step.verified.tolist()
        for draft, new, known in zip(drafts, step.sampled, verified, strict=True):
            length, right = len(draft), len(new) - 1
            if known is not None:
                drafted += min(known, length)
                accepted += min(right, known, length)
                dropped += length > 0 and not known
            elif right >= length:  # all of it was
                accepted += length
                drafted += length
            else:
                accepted += right
                # The target's own token is as drafted, too: the draft was cut before that token was verified.
                drafted += right if draft[right] == new[right] else length
        arm, requests, drafting, seconds = self._arm, len(drafts), self.draft_seconds, step.seconds
        played = requests - dropped
        self._played = [(arm, played, drafted, accepted, emitted - dropped)] if played else []
        self._played += [(OFF, dropped, 0, 0, dropped)] if dropped else []
        self._seconds = seconds
        if seconds > 0 and played:  # a round of which nothing was verified tells nothing of its arm
            emitted = min(emitted, accepted + requests)
            told = Round(arm, drafted, accepted, emitted, requests, draft_seconds=drafting, verify_seconds=seconds)
            self.policy.observe(told)

    def choose(self, step: Decoding, texts: Texts, clock: Callable[[], float]) -> list[list[int]]:
        arm = self.policy.choose(Context(self.arms, len(step.live), self.tokens, self._arm))
        began = clock()
        drafts: list[list[int]] = [[] for _ in texts]
        if arm.length:
            which, limits = self.names.index(arm.drafter), np.minimum(step.limits, arm.length).tolist()
            drafts = [own[which].propose(limit).tokens for own, limit in zip(texts, limits, strict=True)]
        self.draft_seconds = clock() - began
        if self.settings.uniform == "always":
            self._make_uniform(drafts, arm.length, step.limits)
        self._switched, self._arm = self._arm is not None and arm != self._arm, arm
        self._live, self._drafts = step.live, drafts
        return drafts

    def count(self, *, tokens: int, mixed: bool, decision: float) -> None:
        batch = max(1, len(self._drafts))
        everyone = sum(requests for _, requests, *_ in self._played)
        for arm, requests, drafted, accepted, emitted in self._played:
            seconds = (self._seconds and self._seconds + self._took) * requests / everyone
            self.meter.played(arm, requests, drafted, accepted, emitted, seconds, everyone)
        self._took = self.draft_seconds
        length = sum(map(len, self._drafts)) / batch
        self.meter.step(batch, length, decision, tokens=tokens, mixed=mixed, switched=self._switched)
