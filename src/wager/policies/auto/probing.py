"""When `auto` plays a round to learn from it, and for how many rounds it need not be asked."""

from abc import abstractmethod
from math import inf

from wager.core import OFF, Context, Round
from wager.policies.auto.arms import Best, Estimate
from wager.policies.auto.decision import Decision
from wager.policies.auto.exploration import PLAIN_BURST
from wager.policies.auto.readers import Reading
from wager.policies.auto.verify import OFF_STEP, bucket

NEARLY = 0.8  # of plain decoding's goodput that a draft is expected to have, if it is tried where others are known
RAREST = 4.0  # times the usual interval, at most, between two probes


class Probing(Reading):
    """The part of `auto` that times plain decoding, tries texts that begin, lets a choice stand, and learns late."""

    __slots__ = ("_calibrated", "_earlier")
    _calibrated: bool  # whether plain decoding was timed before the first round
    _earlier: Decision | None  # the choice before, while its round is not observed

    def observe(self, round: Round) -> None:
        if self._earlier is None:
            self._learn(round)
            return
        later, self._now = self._now, self._earlier
        self._keep_earlier(False)
        self._learn(round)
        self._now = later

    @abstractmethod
    def _learn(self, round: Round) -> None:
        """Learn from the round of the last choice, or from one for which it stood."""

    def _keep_earlier(self, unobserved: bool) -> None:
        """Before a choice: keep the last one, if its round is not observed yet."""
        bound, self._earlier = self.exploration.bound, None
        bound.unobserved = 0.0
        if unobserved:
            self._earlier = self._now
            bound.unobserved = self._unsettled()

    def foresee(self, context: Context) -> None:
        """Weigh the arms of a model for the next choice; of several, what each has missed by then is not known."""
        self._foreseen = None
        if context.arms is not self._read_arms or not self._plans.get(1) or self._several:
            return
        if not (self._table.off and context.previous != OFF and self._plain_overdue()):
            self._foreseen = self._weigh_models(context, *self._costs(1), cautious=False)

    def may_stand(self, choosing_seconds: float) -> int:
        """Within the bound on a text's loss, were every draft rejected of the rounds for which the choice stands; and
        beside drafters that propose, as long as their proposals bring less than choosing by them takes."""
        now = self._now
        if now.best is None or (now.best[0].length and now.best[0].drafter in self.hinted):
            return 0
        if now.reading:  # in a round that is not observed yet: what that took is not charged
            return 0
        memory = self.config.round_memory
        if self.hinted:
            gain, cost = self.exploration.proposed_gain, now.rate * choosing_seconds
            if gain > cost:
                return 0
            # one that comes in the meantime waits no longer; the less they bring, the longer it may
            memory = min(memory, self.config.short_memory * cost / max(gain, 1e-9))
        if self._several:  # until it is to be considered who reads: only then another is found to be better
            memory = min(memory, max(self.config.repeats, self.in_text.wait))
        lost, bound = self._may_lose(), self.exploration.bound
        room = bound.draft_room - (sum(now.called.values()) / now.plain_seconds if now.called else 0.0)
        rounds = memory if lost <= 0.0 else room / lost - 1.0  # one was chosen already
        return max(0, int(min(rounds, memory)))

    def _unsettled(self) -> float:
        """Plain tokens that the round chosen last loses at most, while it is not observed."""
        now = self._now
        beside = sum(now.called.values()) + now.most_reading
        return max(0.0, self._may_lose()) + (beside / now.plain_seconds if beside else 0.0)

    def _may_lose(self) -> float:
        """Plain tokens that a round of the arm chosen last loses at most, as the bound charges it."""
        now, verify = self._now, self.latency.verify
        if now.best is None or not now.best[0].length or now.most_seconds == inf or not now.plain_seconds:
            return 0.0
        timed = min(now.plain_seconds, verify.plain or inf)
        return now.most_seconds * verify.noise * self.exploration.bound.slower / timed - 1.0

    def _note_proposals(self, found: Best, off: float) -> None:
        """Learn what proposals bring beyond the best arm that none is needed for, plain decoding having the value
        ``off``."""
        value, best = found
        if best is None or (best[0].merged is None and best[0].drafter not in self.hinted):
            self.exploration.proposed(0.0)
            return
        if best[0].merged is not None and best[0].drafter not in self.hinted:
            self.exploration.proposed(self._now.merge[0])
            return
        rate, seconds = self._now.rate, self._verify_seconds
        for group, odds, factor, fixed, each in self._weighed:
            tokens = self.positional.tokens(odds, factor)
            off = max(off, *(tokens[n] - rate * (seconds[width] + fixed + each * n) for _, n, width in group.arms))
        if off > -inf:
            self.exploration.proposed(max(0.0, value - off))

    def _text_is_tried(self, context: Context, seconds: list[float]) -> bool:
        """Whether an engine's only request, whose text begins, is drafted for to learn of it: while nothing is drafted,
        nothing is known of a new text. As often as such probes may cost at any batch size."""
        if context.remaining is not None or self.hinted or not self._table.off:
            return False
        exploration = self.exploration
        exploration.rounds_since_draft = max(exploration.rounds_since_draft, *context.lag.values(), 0)
        least = max(self.config.short_memory, self._probe_interval(context, seconds))
        return exploration.rounds_since_draft >= least

    def _probe_interval(self, context: Context, seconds: list[float]) -> int:
        """Rounds of a batch without drafts until one is probed: all probes together cost about `trial_share` of the
        time. They are rarest where no draft would pay, were all of it accepted: only that it takes less could change
        that."""
        interval, batch, lags = self.config.probe_interval, context.batch, context.lag
        if self.exploration.rounds_since_draft < self.config.short_memory:
            return interval
        few, batches = self.config.repeats, self.latency.batches
        if 0.0 < batches.drafted(batch) < few and not batches.drafted_nearby(batch, few - 1):
            return int(self.config.short_memory)  # too few to leave drafting for long
        plain, least, pays = seconds[1], inf, False
        for _, drafter, arms, _, line in self._plans.get(bucket(batch)) or self._plan(batch):
            late = self.latency.drafts.catch_up(drafter, lags.get(drafter, 0) * batch, plain)
            drafts = [(n, seconds[width] + (line.fixed + line.each * n) / batch) for _, n, width in arms]
            least = min(least, drafts[0][1] + late / batch)
            pays = pays or any((1 + n) * plain > taken for n, taken in drafts)
        return int((min(RAREST, least / plain - 1.0) if pays else RAREST) * interval)

    def _step_kind(
        self, values: tuple[float, float], none: Estimate | None, draft: Estimate | None, batch: int
    ) -> Estimate | None:
        """Of a step of a batch without drafts and one with them, the better one, or the other to learn of it."""
        trials, size, best = self.exploration.trials, bucket(batch), none if values[1] <= values[0] else draft
        chosen = best
        if trials.due(size):
            goodput = [e[1] / e[2] if e else 0.0 for e in (none, draft, None)]
            if self.latency.batches.drafted_nearby(batch, self.config.repeats - 1) and goodput[1] < NEARLY * goodput[0]:
                goodput[1] = 0.0  # what drafts take at other loads tells enough
            chosen = none if trials.choose(size, (*values, -inf), goodput)[0] == OFF_STEP else draft
        if none is not None and draft is not None:
            chosen = none if trials.plain_due(size, self._plain_loss(draft, batch), chosen=chosen is none) else chosen
        self.exploring = chosen is not best
        return chosen

    def _plain_loss(self, best: Estimate, batch: int) -> float:
        """What a few steps of a batch without this draft, to time them, are expected to cost, in steps."""
        (arm, tokens, seconds), steps, plain = best, PLAIN_BURST, self._now.plain_seconds
        late = 0.0
        if arm.length and arm.drafter not in self.hinted:
            late = self.latency.drafts.catch_up(arm.drafter, steps * batch, plain) / (plain * batch)
        return steps * (1.0 - seconds / (plain * tokens)) + late

    def _plain_overdue(self) -> bool:
        """Whether plain decoding has to be timed: at first, now and then, and in a text that seems to lose to it, where
        it never was; in an engine, where it was not in this text."""
        bound, lead, early = self.exploration.bound, 0.0, False
        if self._calibrated:  # known well enough not to judge by the first round, nor to settle every doubt
            early = bound.tokens < self.config.shrinkage
            lead = self._now.rate * self._now.plain_seconds - 1.0
        return (not bound.timed and bound.balance < 0.0 and not early) or self.latency.verify.overdue(lead)
