"""A drafter and a length for every request of a batch, from the same models as for one request.

Arrays over a batch are (K, N): positions, then drafters and requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wager.core import OFF, Arm, Context, Hint, Round
from wager.core.batch import Batch, BatchRound, Choices, Ints
from wager.policies.auto.acceptance import AcceptanceModel, Floats
from wager.policies.auto.exploration import Exploration
from wager.policies.auto.latency import LatencyModel
from wager.policies.auto.verify import OFF_STEP, RAGGED, UNIFORM, bucket
from wager.policies.base import Learner


@dataclass(eq=False)
class BatchChooser(Learner):
    """Decides for two requests or more, each by its own proposals."""

    drafters: Sequence[str]
    acceptance: AcceptanceModel
    latency: LatencyModel
    exploration: Exploration
    budget: int  # most draft tokens in a step; 0: no limit
    kind: int = OFF_STEP  # of the step chosen last
    learned: ClassVar = ("kind",)

    def choose(self, batch: Batch) -> Choices:
        """Drafter and length per request: the tokens whose probability exceeds what their seconds are worth."""
        drafters, count, longest = batch.confidence.shape
        self.exploration.bound.leave()
        base, token, ragged = self.latency.batches.at(count)
        rate = self.latency.rates.at(count, count / base)
        room = int(np.minimum.reduce(batch.limit))
        sizes = batch.size if room >= longest else np.minimum(batch.size, batch.limit)
        chains, batch.work = self.acceptance.survival(batch, sizes)

        # A draft token takes `token` seconds, worth `price` tokens. A request's drafter is the one whose tokens bring
        # most beyond that: largest sum of S - price where it is positive, and so of max(S, price).
        price = rate * token
        gain = np.add.reduce(np.maximum(chains, price), axis=0).reshape(drafters, count)
        best = gain.argmax(axis=0)
        if len(batch.proposal_seconds):
            self._learn_values(batch.proposal_seconds, gain, best, price * longest, rate, base)
        kept = chains.take(best * count + np.arange(count), axis=1, mode="clip")  # (K, B)

        # Survival falls along a chain, so the tokens above any price are always prefixes (as in TETRIS).
        lengths, n = self._within_budget(np.add.reduce(kept > price, axis=0), kept)
        full = longest * count
        values, goodput = [count - rate * base, -np.inf, -np.inf], [count / base, 0.0, 0.0]
        if n:
            tokens = count + float(kept[np.arange(longest)[:, None] < lengths].sum())
            seconds = base + ragged + token * n
            values[RAGGED], goodput[RAGGED] = tokens - rate * seconds, tokens / seconds
        if room >= longest and (not self.budget or full <= self.budget):
            tokens, seconds = count + float(kept.sum()), base + token * full
            values[UNIFORM], goodput[UNIFORM] = tokens - rate * seconds, tokens / seconds
        trials, vary = self.exploration.trials, 0
        self.kind = max((OFF_STEP, RAGGED, UNIFORM), key=values.__getitem__)
        if trials.due(bucket(count)):
            self.kind, vary = trials.choose(bucket(count), values, goodput)
        if self.kind == OFF_STEP:
            return Choices.off(count)
        if self.kind == UNIFORM:
            return Choices(best, np.full(count, longest))
        if vary:  # to learn what tokens cost, at another number of them
            lengths, n = self._within_budget(np.add.reduce(kept > price * (0.5 if vary > 0 else 2.0), axis=0), kept)
        return Choices(np.where(lengths, best, -1), lengths)

    def _within_budget(self, lengths: Ints, kept: Floats) -> tuple[Ints, int]:
        """Lengths, or if these are too many tokens the likeliest of them (on a tie the earlier), and their sum."""
        n, most = int(np.add.reduce(lengths)), self.budget
        if not most or n <= most:
            return lengths, n
        longest, count = kept.shape
        order = np.argsort(-kept.T.ravel(), kind="stable")[:most]
        return np.bincount(order // longest, minlength=count), most

    def _learn_values(
        self, called: Sequence[float], gain: Floats, best: Ints, nothing: float, rate: float, base: float
    ) -> None:
        """Tell what each drafter's proposals bring beyond those of the others, or beyond drafting nothing."""
        rest = gain.copy()
        rest[best, np.arange(gain.shape[1])] = nothing
        margin = gain.max(axis=0) - np.maximum(rest.max(axis=0), nothing)
        gains = np.bincount(best, margin, len(gain)).tolist()
        seconds = {name: taken for name, taken in zip(self.drafters, called, strict=True) if taken}
        self.exploration.selection.learn(gains, seconds, rate, base)

    def observe(self, result: BatchRound) -> None:
        """Learn from a finished step."""
        batch, agreed = result.batch, result.agreed
        count, longest = batch.confidence.shape[1:]
        if result.seconds > 0.0:
            seconds = result.seconds + result.draft_seconds
            self.latency.learn_step(count, int(np.add.reduce(result.drafted)), longest, seconds)
            self.latency.rates.learn(count, int(np.add.reduce(result.emitted)), seconds)
            self.exploration.trials.note(bucket(count), self.kind)
        if batch.work is None:
            _, batch.work = self.acceptance.survival(batch, batch.size)
        # A token is scored if all before it agreed and the true token is known.
        scored = np.minimum(agreed + 1, np.minimum(batch.size, result.emitted))
        self.acceptance.learn_batch(batch, batch.work, scored, agreed)


def context_of_one(batch: Batch, drafters: Sequence[str], arms: tuple[Arm, ...], budget: int) -> Context:
    """A batch of one request as the context of a single one."""
    limit = min(int(batch.limit[0]), budget or batch.confidence.shape[2])
    hints: dict[str, Hint] = {}
    for i, name in enumerate(drafters):
        size = min(int(batch.size[i, 0]), limit)
        sure = batch.confidence[i, 0, :size]
        sure = sure[: int(np.isnan(sure).argmax()) if np.isnan(sure).any() else size]
        hints[name] = Hint(int(batch.match[i, 0]) if size else 0, tuple(sure.tolist()), size)
    agreement: dict[str, dict[str, int]] = {}
    if batch.agreement is not None:
        agreement = {
            one: {two: min(int(batch.agreement[i, j, 0]), limit) for j, two in enumerate(drafters) if i != j}
            for i, one in enumerate(drafters)
        }
    called = {name: taken for name, taken in zip(drafters, batch.proposal_seconds, strict=False) if taken}
    previous = None if batch.fresh[0] else OFF
    return Context(arms, previous=previous, hints=hints, agreement=agreement, proposal_seconds=called)


def round_of_one(result: BatchRound, drafters: Sequence[str]) -> Round:
    """What came back of a batch of one request as the round of a single one."""
    which, drafted, emitted = int(result.drafter[0]), int(result.drafted[0]), int(result.emitted[0])
    arm = Arm(drafters[which], drafted) if drafted and which >= 0 else OFF
    accepted = min(emitted - 1, drafted) if arm.length else 0
    others = {
        name: min(int(result.agreed[i, 0]), emitted) for i, name in enumerate(drafters) if i != which or not drafted
    }
    emitted, seconds = min(emitted, accepted + 1), max(0.0, result.seconds)
    draft_seconds = result.draft_seconds if seconds else 0.0
    return Round(arm, arm.length, accepted, emitted, draft_seconds=draft_seconds, verify_seconds=seconds, others=others)
