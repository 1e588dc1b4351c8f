"""A drafter and a length for every request of a step; every drafter is scored on how the text went on."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from wager.core import OFF, Arm, Context
from wager.core.batch import Batch, BatchRound
from wager.drafters import Draft
from wager.policies import Policy
from wager.policies.steps import uniform_length
from wager.vllm.choosers import Chooser, Decoding, Texts
from wager.vllm.metrics import Meter
from wager.vllm.proposals import ProposalArrays
from wager.vllm.settings import Settings

NO_DRAFT = Draft()


class _Played(NamedTuple):
    """What the requests of a step played and what came of it; arrays are (requests,)."""

    drafter: np.ndarray
    length: np.ndarray
    drafted: np.ndarray  # of that length, verified
    emitted: np.ndarray
    seconds: float  # 0: not timed


class RequestChooser(Chooser):
    """For policies that want every drafter's proposal for every request."""

    def __init__(self, policy: Policy, settings: Settings, drafters: Sequence[str], meter: Meter) -> None:
        super().__init__(policy, settings, drafters, meter)
        # by 0 for off, else 1 + drafter * longest + length - 1
        self._kinds = [OFF, *(Arm(name, n) for name in drafters for n in range(1, self.longest + 1))]
        self._arrays = ProposalArrays(self.longest)
        self._uncounted: deque[_Played] = deque()  # counted when the metrics are written
        meter.pending.append(self._count_played)

    def forget(self) -> None:
        super().forget()
        self._batch: Batch | None = None
        self._mean = 0.0
        self._switched = False

    def observe(self, step: Decoding) -> None:
        if self._batch is None:
            return
        batch, tokens, drafter, length = self._batch, self._tokens, self._drafter, self._length
        step, then = self._again(step)
        if then is not None:
            if not then:
                return
            batch, tokens, drafter, length = batch.of(then), tokens[:, then], drafter[then], length[then]
        counts = step.counts
        starts = step.rows * step.token_ids.shape[1] + step.ends - counts
        agreed = self._arrays.score(tokens, step.token_ids, starts, counts)
        # A draft whose tokens all came true without a bonus token after them was cut short before it was verified.
        right = agreed[drafter, np.arange(len(drafter))]  # of drafter -1 anything: it made no tokens
        drafted = np.minimum(length, np.where(right >= counts, counts - 1, length))
        arm = self._arm
        if step.verified is not None:
            # What vLLM cut off, or dropped, was not played: a request without a draft decoded plainly.
            drafted = length = np.minimum(length, step.verified)
            drafter = np.where(length > 0, drafter, -1)
            arm = arm if length.any() else OFF
        result = BatchRound(batch, drafter, drafted, counts, agreed, step.seconds, self.draft_seconds, arm)
        self.policy.observe_batch(result)
        seconds = step.seconds and step.seconds + self.draft_seconds
        self._uncounted.append(_Played(drafter, length, drafted, counts, seconds))

    def choose(self, step: Decoding, texts: Texts, clock: Callable[[], float]) -> list[list[int]]:
        goes_on = len(step.live) == 1 and not step.fresh[0]  # a text alone, which may not afford to ask drafters
        context = Context(self.arms, len(step.live), self.tokens, OFF if goes_on else None)
        proposals, seconds = self._propose(context, texts, clock)
        self.draft_seconds = sum(seconds)
        batch, self._tokens = self._arrays.make(proposals, len(self.names), step.slots, step.fresh, step.limits)
        batch.proposal_seconds, batch.context = seconds, context
        choices = self.policy.choose_batch(batch)
        self._arm, count = choices.arm, len(texts)
        drafter = np.maximum(choices.drafter, 0)
        place = drafter * count + np.arange(count)  # of each request's proposal among all
        drafts = [proposals[at].tokens[:n] for at, n in zip(place.tolist(), choices.length.tolist(), strict=True)]
        length = np.minimum(choices.length, batch.size.reshape(-1).take(place))
        common = uniform_length(choices.length, length, self.longest, self.settings.uniform, self.settings.budget)
        if common is not None:
            self._make_uniform(drafts, common, step.limits)
            length = np.fromiter(map(len, drafts), np.int64, count)
        drafter = np.where(length > 0, drafter, -1)
        self._switched = self._switches(step, drafter, length)
        self._live, self._batch, self._length, self._drafter = step.live, batch, length, drafter
        self._mean = int(np.add.reduce(length)) / count
        return drafts

    def _switches(self, step: Decoding, drafter: np.ndarray, length: np.ndarray) -> bool:
        """Whether a request that was in the last step plays another arm than it did there."""
        if self._batch is None:
            return False
        before = self._drafter, self._length
        if step.live is not self._live:
            where = {stream: i for i, stream in enumerate(self._live)}
            now = [i for i, stream in enumerate(step.live) if stream in where]
            then = [where[step.live[i]] for i in now]
            before, drafter, length = (self._drafter[then], self._length[then]), drafter[now], length[now]
        return bool((drafter != before[0]).any() or (length != before[1]).any())

    def _propose(self, context: Context, texts: Texts, clock: Callable[[], float]) -> tuple[list[Draft], list[float]]:
        """What every drafter proposes for every request, and its seconds; one that is not selected proposes nothing."""
        names = self.policy.select_drafters(context)
        proposals: list[Draft] = []
        seconds: list[float] = []
        for which, name in enumerate(self.names):
            if name not in names:
                proposals += [NO_DRAFT] * len(texts)
                seconds.append(0.0)
                continue
            before = clock()
            proposals += [own[which].propose(self.longest) for own in texts]
            seconds.append(clock() - before)
        return proposals, seconds

    def count(self, *, tokens: int, mixed: bool, decision: float) -> None:
        self.meter.step(len(self._live), self._mean, decision, tokens=tokens, mixed=mixed, switched=self._switched)

    def _count_played(self) -> None:
        """Count what was played since this was last called; another thread may go on playing."""
        steps: dict[tuple[int, bool], list[_Played]] = {}  # by batch and whether timed
        for _ in range(len(self._uncounted)):
            played = self._uncounted.popleft()
            steps.setdefault((len(played.drafter), played.seconds > 0), []).append(played)
        for (batch, _), own in steps.items():
            *columns, seconds = zip(*own, strict=True)
            drafter, length, drafted, emitted = map(np.concatenate, columns)
            kind = np.where(length > 0, drafter * self.longest + length, 0)
            share = np.repeat(seconds, batch) / batch
            values = None, drafted, np.minimum(emitted - 1, drafted), emitted, share
            sums = np.array([np.bincount(kind, value, len(self._kinds)) for value in values])
            for which in np.flatnonzero(sums[0]).tolist():
                requests, tokens, accepted, new, taken = sums[:, which].tolist()
                self.meter.played(self._kinds[which], int(requests), int(tokens), int(accepted), int(new), taken, batch)
