"""Two ways to decide for a batch: one arm for the step, or a drafter and a length for every request."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wager.core import OFF, Arm, Context, Round
from wager.drafters import Draft, Drafter
from wager.policies import BatchPolicy
from wager.policies.rows import Outcome, Rows
from wager.vllm.metrics import Meter
from wager.vllm.settings import Settings
from wager.vllm.streams import Stream

NO_DRAFT = Draft()


class Chooser(ABC):
    """Decides what each request drafts, and turns what came of it into what a policy learns from.

    In every step: `learn` from the drafts of the step before, `choose` new ones, be `told` what drafting took, `meter`.
    """

    draft_seconds = 0.0  # what drafting took in the last `choose`

    def __init__(self, policy: Any, settings: Settings, drafters: Sequence[str]) -> None:
        self.policy, self.settings, self.names = policy, settings, drafters
        self.longest = settings.max_length
        self.arms = settings.arms  # one tuple throughout: policies keep what they worked out for it
        self.tokens = 0  # emitted since the engine started
        self.forget()

    @abstractmethod
    def forget(self) -> None:
        """The drafts made last will not be seen again."""

    @abstractmethod
    def learn(
        self,
        live: Sequence[Stream],
        ends: np.ndarray,
        counts: np.ndarray,
        token_ids: np.ndarray,
        rows: np.ndarray,
        seconds: float,
    ) -> None:
        """The requests now have ``counts`` new tokens each, up to ``ends`` in their rows of ``token_ids``.

        seconds: what verifying took; 0 where the step did other work too.
        """

    @abstractmethod
    def choose(
        self, live: Sequence[Stream], texts: Sequence[Sequence[Drafter]], limits: np.ndarray, clock: Callable[[], float]
    ) -> list[list[int]]:
        """A draft for every request, in order."""

    def told(self, seconds: float) -> None:
        """Drafting took so long in this step."""
        self.draft_seconds = seconds

    @abstractmethod
    def meter(self, meter: Meter, *, mixed: bool, decision: float) -> None:
        """Count the step."""

    def _uniform(self, drafts: list[list[int]], length: int, limits: np.ndarray) -> None:
        """Make every draft this long: cut, or padded with a token that will be refused or happens to be right."""
        if limits.min() < length:
            return
        for draft in drafts:
            del draft[length:]
            draft += [draft[-1] if draft else 0] * (length - len(draft))


class ByStep(Chooser):
    """One arm for all requests of a step, from any policy; each request's drafter proposes for its own text."""

    def forget(self) -> None:
        self._arm: Arm | None = None
        self._made: dict[int, list[int]] = {}  # slot -> draft
        self._played: tuple[Arm, int, int, int, int, float] | None = None
        self._took = 0.0
        self._switched = False

    def learn(
        self,
        live: Sequence[Stream],
        ends: np.ndarray,
        counts: np.ndarray,
        token_ids: np.ndarray,
        rows: np.ndarray,
        seconds: float,
    ) -> None:
        self._played = None
        self.tokens += int(counts.sum())
        if self._arm is None:
            return
        requests = drafted = accepted = emitted = 0
        made = self._made
        for stream, count, row, end in zip(live, counts.tolist(), rows.tolist(), ends.tolist(), strict=True):
            draft = made.get(stream.slot)
            if draft is None or stream.fresh or stream.resumed:
                continue
            requests += 1
            emitted += count
            accepted += min(count - 1, len(draft))
            # All new tokens are as drafted, the target's own among them: the draft was cut before it was verified.
            cut = count <= len(draft) and token_ids[row, end - count : end].tolist() == draft[:count]
            drafted += count - 1 if cut else len(draft)
        if not requests:
            return
        arm = self._arm
        self._played = (arm, requests, drafted, accepted, emitted, seconds)
        if seconds > 0:
            self.policy.observe(
                Round(
                    arm,
                    drafted,
                    accepted,
                    min(emitted, accepted + requests),
                    requests,
                    draft_seconds=self.draft_seconds,
                    verify_seconds=seconds,
                )
            )

    def choose(
        self, live: Sequence[Stream], texts: Sequence[Sequence[Drafter]], limits: np.ndarray, clock: Callable[[], float]
    ) -> list[list[int]]:
        before = self._arm
        if isinstance(self.policy, BatchPolicy):
            drafts = self._choose_batch(texts, limits, clock)
        else:
            arm = self.policy.choose(Context(self.arms, len(live), self.tokens, before))
            began = clock()
            drafts = self._draft(arm, texts, limits)
            self.draft_seconds = clock() - began
            self._arm = arm
            if self.settings.uniform == "always":
                self._uniform(drafts, arm.length, limits)
        self._switched = self._arm is not before
        self._made = {stream.slot: draft for stream, draft in zip(live, drafts, strict=True)}
        return drafts

    def _draft(self, arm: Arm, texts: Sequence[Sequence[Drafter]], limits: np.ndarray) -> list[list[int]]:
        if not arm.length:
            return [[] for _ in texts]
        which = self.names.index(arm.drafter)
        return [
            drafters[which].propose(min(arm.length, limit)).tokens
            for drafters, limit in zip(texts, limits.tolist(), strict=True)
        ]

    def _choose_batch(
        self, texts: Sequence[Sequence[Drafter]], limits: np.ndarray, clock: Callable[[], float]
    ) -> list[list[int]]:
        """A policy that decides for all requests together, from their drafters' hints."""
        began = clock()
        proposals = [
            {d.name: d.propose(limit) for d in drafters} for drafters, limit in zip(texts, limits.tolist(), strict=True)
        ]
        self.draft_seconds = clock() - began
        contexts = [
            Context(self.arms, len(texts), self.tokens, hints={n: d.hint for n, d in own.items()}) for own in proposals
        ]
        arms = self.policy.choose_batch(contexts)
        # one arm stands for the step in what is learned and counted: the longest played
        self._arm = max(arms, key=lambda arm: arm.length)
        return [own.get(arm.drafter, NO_DRAFT).cut(arm.length).tokens for own, arm in zip(proposals, arms, strict=True)]

    def meter(self, meter: Meter, *, mixed: bool, decision: float) -> None:
        batch = max(1, len(self._made))
        if self._played is not None:
            arm, requests, drafted, accepted, emitted, seconds = self._played
            meter.played(arm, requests, drafted, accepted, emitted, seconds and seconds + self._took, requests)
        self._took = self.draft_seconds
        length = sum(map(len, self._made.values())) / batch
        meter.step(batch, length, decision, mixed=mixed, switched=self._switched)


class ByRow(Chooser):
    """A drafter and a length for every request; every drafter is asked, and scored on how the text went on."""

    def __init__(self, policy: Any, settings: Settings, drafters: Sequence[str]) -> None:
        super().__init__(policy, settings, drafters)
        kinds = [OFF, *(Arm(name, n) for name in drafters for n in range(1, self.longest + 1))]
        self._kinds = kinds  # by 0 for off, else 1 + drafter * longest + length - 1
        # (batch, whether timed) -> (what, kind): requests, drafted, accepted, emitted, seconds
        self._tally: dict[tuple[int, bool], np.ndarray] = {}
        self._steps = 0
        self._depth = np.arange(self.longest)
        self._pads = [[-1] * (self.longest - n) for n in range(self.longest + 1)]  # past the end of n tokens
        self._zeros = [[0.0] * (self.longest - n) for n in range(self.longest + 1)]
        self._unsure = [[math.nan] * n for n in range(self.longest + 1)]

    def forget(self) -> None:
        self._rows: Rows | None = None
        self._live: Sequence[Stream] = []
        self._mean = 0.0

    def learn(
        self,
        live: Sequence[Stream],
        ends: np.ndarray,
        counts: np.ndarray,
        token_ids: np.ndarray,
        rows: np.ndarray,
        seconds: float,
    ) -> None:
        self.tokens += int(counts.sum())
        if self._rows is None:
            return
        old = self._rows
        tokens, drafter, made = self._tokens, self._drafter, self._made
        if live != self._live or any(stream.resumed for stream in live):
            # Which of the requests drafted for in the last step are here now, and where they were then.
            where = {stream: i for i, stream in enumerate(self._live)}
            now = [i for i, s in enumerate(live) if s in where and not (s.fresh or s.resumed)]
            then = [where[live[i]] for i in now]
            if not now:
                return
            ends, counts, rows = ends[now], counts[now], rows[now]
            old = Rows(
                old.slots[then],
                old.fresh[then],
                old.match[:, then],
                old.size[:, then],
                old.confidence[:, then],
                old.limit[then],
            )
            tokens, drafter, made = tokens[:, then], drafter[then], made[then]
        # The new tokens of each request, (requests, longest), and how far each proposal agrees with them.
        at = (ends - counts)[:, None] + self._depth
        known = self._depth < counts[:, None]
        true = token_ids[rows[:, None], np.minimum(at, token_ids.shape[1] - 1)]
        agreed = np.logical_and.accumulate((tokens == true) & known, axis=2).sum(axis=2)
        # A draft whose tokens all came true without a bonus token after them was cut short before it was verified.
        verified = np.minimum(made, np.where(agreed_of(agreed, drafter) >= counts, counts - 1, made))
        self.policy.observe_rows(Outcome(old, drafter, verified, counts, agreed, seconds, self.draft_seconds))
        self._count(drafter, made, verified, counts, seconds and seconds + self.draft_seconds)

    def choose(
        self, live: Sequence[Stream], texts: Sequence[Sequence[Drafter]], limits: np.ndarray, clock: Callable[[], float]
    ) -> list[list[int]]:
        began = clock()
        proposals = [[drafter.propose(self.longest) for drafter in own] for own in texts]
        self.draft_seconds = clock() - began
        rows, tokens = self._columns(live, proposals, limits)
        drafter, length = self.policy.choose_rows(rows)
        drafts = [
            proposals[i][d].tokens[:n] if n else []
            for i, (d, n) in enumerate(zip(drafter.tolist(), length.tolist(), strict=True))
        ]
        longest = self.longest
        uniform = self.settings.uniform
        if uniform != "never" and int(length.min()) == longest:
            self._uniform(drafts, longest, limits)
        elif uniform == "always":
            fits = not self.settings.budget or longest * len(drafts) <= self.settings.budget
            most = 2 * sum(map(len, drafts)) >= longest * len(drafts)
            self._uniform(drafts, longest if fits and most else 0, limits)
        lengths = list(map(len, drafts))
        self._mean = sum(lengths) / len(lengths)
        made = np.array(lengths)
        self._rows, self._tokens, self._made = rows, tokens, made
        self._drafter = np.where(made > 0, np.maximum(drafter, 0), -1)
        self._live = live
        return drafts

    def _columns(
        self, live: Sequence[Stream], proposals: list[list[Draft]], limits: np.ndarray
    ) -> tuple[Rows, np.ndarray]:
        """What the drafters propose, in columns; and the tokens, (drafters, requests, longest), -1 past the end."""
        b, d, k = len(live), len(self.names), self.longest
        # Python lists first and one array of each at the end: writing into arrays piece by piece takes thrice as long.
        tokens: list[int] = []
        sure: list[float] = []
        sizes: list[int] = []
        matches: list[int] = []
        pads, zeros, unsure = self._pads, self._zeros, self._unsure
        for own in proposals:
            for draft in own:
                n = len(draft.tokens)
                hint = draft.hint
                sizes.append(n)
                matches.append(hint.match)
                tokens += draft.tokens
                tokens += pads[n]
                sure += hint.confidence or unsure[n]
                sure += zeros[n]
        confidence = np.array(sure, np.float64).reshape(b, d, k).transpose(1, 0, 2)
        return (
            Rows(
                np.fromiter((stream.slot for stream in live), np.int64, b),
                np.fromiter((stream.fresh for stream in live), np.bool_, b),
                np.array(matches, np.int64).reshape(b, d).T,
                np.array(sizes, np.int64).reshape(b, d).T,
                confidence,
                limits,
            ),
            np.array(tokens, np.int64).reshape(b, d, k).transpose(1, 0, 2),
        )

    def _count(
        self, drafter: np.ndarray, made: np.ndarray, verified: np.ndarray, emitted: np.ndarray, seconds: float
    ) -> None:
        batch = len(drafter)
        kind = np.where(made > 0, drafter * self.longest + made, 0)
        key = batch, seconds > 0
        tally = self._tally.get(key)
        if tally is None:
            tally = self._tally[key] = np.zeros((5, len(self._kinds)))
        share = np.full(batch, seconds / batch)
        for row, values in enumerate((None, verified, np.minimum(emitted - 1, verified), emitted, share)):
            tally[row] += np.bincount(kind, values, len(self._kinds))

    def meter(self, meter: Meter, *, mixed: bool, decision: float) -> None:
        self._steps += 1
        if self._steps % 16 == 0:
            for (batch, _), tally in self._tally.items():
                for kind in np.flatnonzero(tally[0]).tolist():
                    requests, drafted, accepted, emitted, seconds = tally[:, kind].tolist()
                    meter.played(
                        self._kinds[kind], int(requests), int(drafted), int(accepted), int(emitted), seconds, batch
                    )
            self._tally.clear()
        rows = self._rows
        batch = len(rows.slots) if rows is not None else 0
        meter.step(batch, self._mean, decision, mixed=mixed)


def agreed_of(agreed: np.ndarray, drafter: np.ndarray) -> np.ndarray:
    """How far the draft each request played agrees, (requests,)."""
    return np.where(drafter >= 0, agreed[np.maximum(drafter, 0), np.arange(len(drafter))], 0)
