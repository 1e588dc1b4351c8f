"""Two ways to decide for a batch: one arm for the step, or a drafter and a length for every request."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from wager.core import OFF, Arm, Context, Round
from wager.core.batch import Batch, BatchRound
from wager.drafters import Draft, Drafter
from wager.policies import Policy
from wager.vllm.metrics import Meter
from wager.vllm.settings import Settings
from wager.vllm.streams import Stream

NO_DRAFT = Draft()
NO_TOKEN = -(2**31)  # where a proposal is over
METERED = 16  # steps that are handed to the meter together

Texts = Sequence[Sequence[Drafter]]  # each request's own drafters, up to date with its text


class Step(NamedTuple):
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

    def of(self, some: list[int]) -> Step:
        """Some of the requests alone."""
        return Step(
            [self.live[i] for i in some],
            [self.sampled[i] for i in some],
            self.slots[some],
            self.fresh[some],
            self.rows[some],
            self.ends[some],
            self.counts[some],
            self.limits[some],
            self.token_ids,
            self.seconds,
        )


class Chooser(ABC):
    """Decides what each request drafts, and turns what came of it into what a policy learns from.

    In every step: `learn` from the drafts of the step before, `choose` new ones, be `told` what drafting took, `meter`.
    """

    draft_seconds = 0.0  # what drafting took in the last `choose`

    def __init__(self, policy: Policy, settings: Settings, drafters: Sequence[str]) -> None:
        self.policy, self.settings, self.names = policy, settings, drafters
        self.longest = settings.max_length
        self.arms = settings.arms  # one tuple throughout: policies keep what they worked out for it
        self.tokens = 0  # emitted since the engine started
        self.forget()

    def forget(self) -> None:
        """The drafts made last will not be seen again."""
        self._live: list[Stream] = []  # whom they were made for

    @abstractmethod
    def learn(self, step: Step) -> None:
        """The requests have gone on as the step says."""

    @abstractmethod
    def choose(self, step: Step, texts: Texts, clock: Callable[[], float]) -> list[list[int]]:
        """A draft for every request, in order."""

    def told(self, seconds: float) -> None:
        """Drafting took so long in this step."""
        self.draft_seconds = seconds

    @abstractmethod
    def meter(self, meter: Meter, *, mixed: bool, decision: float) -> None:
        """Count the step."""

    def _again(self, step: Step) -> tuple[Step, list[int] | None]:
        """The requests that were drafted for in the last step, and where they were then; None: all, where they are."""
        if step.live is self._live:
            return step, None
        where = {stream: i for i, stream in enumerate(self._live)}
        now = [i for i, s in enumerate(step.live) if s in where and not (s.fresh or s.resumed)]
        return step.of(now), [where[step.live[i]] for i in now]

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
        super().forget()
        self._arm: Arm | None = None
        self._made: list[list[int]] = []  # a draft for each of live
        self._played: tuple[Arm, int, int, int, int, float] | None = None
        self._took = 0.0
        self._switched = False

    def learn(self, step: Step) -> None:
        self._played = None
        emitted = int(np.add.reduce(step.counts))
        self.tokens += emitted
        if self._arm is None:
            return
        made = self._made
        step, then = self._again(step)
        if then is not None:
            made = [made[i] for i in then]
            emitted = int(np.add.reduce(step.counts))
        if not made:
            return
        drafted = accepted = 0
        for draft, new in zip(made, step.sampled, strict=True):
            size, right = len(draft), len(new) - 1
            if right >= size:  # all of it was
                accepted += size
                drafted += size
            else:
                accepted += right
                # The target's own token is as drafted, too: the draft was cut before that token was verified.
                drafted += right if draft[right] == new[right] else size
        arm, requests, seconds = self._arm, len(made), step.seconds
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

    def choose(self, step: Step, texts: Texts, clock: Callable[[], float]) -> list[list[int]]:
        before = self._arm
        arm = self.policy.choose(Context(self.arms, len(step.live), self.tokens, before))
        began = clock()
        drafts = self._draft(arm, texts, step.limits)
        self.draft_seconds = clock() - began
        self._arm = arm
        if self.settings.uniform == "always":
            self._uniform(drafts, arm.length, step.limits)
        self._switched = self._arm is not before
        self._live, self._made = step.live, drafts
        return drafts

    def _draft(self, arm: Arm, texts: Texts, limits: np.ndarray) -> list[list[int]]:
        if not arm.length:
            return [[] for _ in texts]
        which = self.names.index(arm.drafter)
        return [
            drafters[which].propose(min(arm.length, limit)).tokens
            for drafters, limit in zip(texts, limits.tolist(), strict=True)
        ]

    def meter(self, meter: Meter, *, mixed: bool, decision: float) -> None:
        batch = max(1, len(self._made))
        if self._played is not None:
            arm, requests, drafted, accepted, emitted, seconds = self._played
            meter.played(arm, requests, drafted, accepted, emitted, seconds and seconds + self._took, requests)
        self._took = self.draft_seconds
        length = sum(map(len, self._made)) / batch
        meter.step(batch, length, decision, mixed=mixed, switched=self._switched)


class _Played(NamedTuple):
    """What the requests of a step played and what came of it; arrays are (requests,)."""

    drafter: np.ndarray
    made: np.ndarray
    verified: np.ndarray
    emitted: np.ndarray
    seconds: float


class ByRow(Chooser):
    """A drafter and a length for every request; every drafter is asked, and scored on how the text went on."""

    def __init__(self, policy: Policy, settings: Settings, drafters: Sequence[str]) -> None:
        super().__init__(policy, settings, drafters)
        kinds = [OFF, *(Arm(name, n) for name in drafters for n in range(1, self.longest + 1))]
        self._kinds = kinds  # by 0 for off, else 1 + drafter * longest + length - 1
        self._counted: dict[tuple[int, bool], list[_Played]] = {}  # by batch and whether timed: not metered yet
        self._steps = 0
        self._depth = np.arange(self.longest + 1)
        self._upto = np.tri(self.longest + 1, k=-1, dtype=np.bool_)  # in row n, the first n columns
        self._unsure = [[math.nan] * n for n in range(self.longest + 1)]

    def forget(self) -> None:
        super().forget()
        self._rows: Batch | None = None
        self._mean = 0.0

    def learn(self, step: Step) -> None:
        if self._rows is None:
            return
        old, tokens, drafter, made = self._rows, self._tokens, self._drafter, self._made
        step, then = self._again(step)
        if then is not None:
            if not then:
                return
            old = old.of(then)
            tokens, drafter, made = tokens[:, then], drafter[then], made[then]
        # How many leading tokens of each proposal are the true ones; what lies past a text's end does not count.
        counts, count = step.counts, len(drafter)
        begins = step.rows * step.token_ids.shape[1] + step.ends - counts
        true = step.token_ids.reshape(-1).take(begins[:, None] + self._depth, mode="clip")
        agreed = np.minimum((tokens == true).argmin(axis=2), counts)
        # A draft whose tokens all came true without a bonus token after them was cut short before it was verified.
        right = agreed[drafter, np.arange(count)]  # of drafter -1 anything: it made no tokens
        verified = np.minimum(made, np.where(right >= counts, counts - 1, made))
        self.policy.observe_batch(
            BatchRound(old, drafter, verified, counts, agreed, step.seconds, self.draft_seconds, self._arm)
        )
        seconds = step.seconds and step.seconds + self.draft_seconds
        self._counted.setdefault((count, seconds > 0), []).append(_Played(drafter, made, verified, counts, seconds))

    def choose(self, step: Step, texts: Texts, clock: Callable[[], float]) -> list[list[int]]:
        context = Context(self.arms, len(step.live), self.tokens)
        proposals, seconds = self._propose(context, texts, clock)
        self.draft_seconds = sum(seconds)
        rows, self._tokens = self._columns(step, proposals)
        rows.proposal_seconds, rows.context = seconds, context
        choices = self.policy.choose_batch(rows)
        drafter, length, self._arm = choices.drafter, choices.length, choices.arm
        count, longest, limits = len(texts), self.longest, step.limits
        drafter = np.maximum(drafter, 0)
        place = drafter * count + np.arange(count)  # of each request's proposal among all
        drafts = [proposals[at].tokens[:n] for at, n in zip(place.tolist(), length.tolist(), strict=True)]
        made = np.minimum(length, rows.size.reshape(-1).take(place))
        uniform = self.settings.uniform
        if uniform != "never" and int(np.minimum.reduce(length)) == longest:
            self._uniform(drafts, longest, limits)
            made = _sizes(drafts)
        elif uniform == "always":
            fits = not self.settings.budget or longest * count <= self.settings.budget
            most = 2 * int(made.sum()) >= longest * count
            self._uniform(drafts, longest if fits and most else 0, limits)
            made = _sizes(drafts)
        self._live, self._rows, self._made = step.live, rows, made
        self._drafter = np.where(made > 0, drafter, -1)
        self._mean = int(np.add.reduce(made)) / count
        return drafts

    def _propose(self, context: Context, texts: Texts, clock: Callable[[], float]) -> tuple[list[Draft], list[float]]:
        """What the drafters the policy selects propose for every request, drafter by drafter, and the seconds of each.

        The others propose nothing.
        """
        names = self.policy.select_drafters(context)
        proposals: list[Draft] = []
        seconds: list[float] = []
        before = clock()
        for which, name in enumerate(self.names):
            if name in names:
                proposals += [own[which].propose(self.longest) for own in texts]
            else:
                proposals += [NO_DRAFT] * len(texts)
            after = clock()
            seconds.append(after - before if name in names else 0.0)
            before = after
        return proposals, seconds

    def _agreement(self, table: np.ndarray, size: np.ndarray) -> np.ndarray:
        """Leading tokens that two drafters both propose, (drafters, drafters, requests)."""
        drafters, count = size.shape
        shared = np.zeros((drafters, drafters, count), np.int64)
        for i in range(drafters):
            for j in range(i + 1, drafters):
                differ = table[i] != table[j]
                first = differ.argmax(axis=1)  # 0 also where nothing differs
                first[~differ.any(axis=1)] = self.longest
                shared[i, j] = shared[j, i] = np.minimum(first, np.minimum(size[i], size[j]))
        return shared

    def _columns(self, step: Step, proposals: list[Draft]) -> tuple[Batch, np.ndarray]:
        """The proposals of every drafter in turn, in columns; and their tokens (drafters, requests, longest + 1)."""
        shape = len(self.names), len(step.live)
        # Lists first and one array of each at the end: writing into arrays piece by piece takes thrice as long.
        sizes: list[int] = []
        matches: list[int] = []
        tokens: list[int] = []
        sure: list[float] = []
        for draft in proposals:
            hint, n = draft.hint, len(draft.tokens)
            sizes.append(n)
            matches.append(hint.match)
            tokens += draft.tokens
            sure += hint.confidence or self._unsure[n]
        count, total = len(sizes), len(tokens)
        size = np.fromiter(sizes, np.int64, count)
        proposed = self._upto.take(size, axis=0)  # (proposals, longest + 1); the last column is empty: all have an end
        table = np.full(proposed.shape, NO_TOKEN, np.int32)
        table[proposed] = np.fromiter(tokens, np.int32, total)
        confidence = np.zeros(proposed.shape)
        confidence[proposed] = np.fromiter(sure, np.float64, total)
        rows = Batch(
            step.slots,
            step.fresh,
            np.fromiter(matches, np.int64, count).reshape(shape),
            size.reshape(shape),
            confidence.reshape(*shape, -1)[:, :, :-1],
            step.limits,
        )
        by_drafter = table.reshape(*shape, -1)
        rows.agreement = self._agreement(by_drafter, rows.size)
        return rows, by_drafter

    def meter(self, meter: Meter, *, mixed: bool, decision: float) -> None:
        self._steps += 1
        if self._steps % METERED == 0:
            for (batch, _), steps in self._counted.items():
                self._count(meter, batch, steps)
            self._counted.clear()
        meter.step(len(self._live), self._mean, decision, mixed=mixed)

    def _count(self, meter: Meter, batch: int, steps: list[_Played]) -> None:
        """Count what requests played in some steps of this batch."""
        *columns, seconds = zip(*steps, strict=True)
        drafter, made, verified, emitted = map(np.concatenate, columns)
        kind = np.where(made > 0, drafter * self.longest + made, 0)
        share = np.repeat(seconds, batch) / batch
        values = None, verified, np.minimum(emitted - 1, verified), emitted, share
        sums = np.array([np.bincount(kind, value, len(self._kinds)) for value in values])
        for played in np.flatnonzero(sums[0]).tolist():
            requests, drafted, accepted, new, taken = sums[:, played].tolist()
            meter.played(self._kinds[played], int(requests), int(drafted), int(accepted), int(new), taken, batch)


def _sizes(lists: Sequence[Sequence[Any]]) -> np.ndarray:
    """How long each is."""
    return np.fromiter(map(len, lists), np.int64, len(lists))
