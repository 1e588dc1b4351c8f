"""When `auto` plays a round to learn from it, and for how many rounds it need not be asked."""

from math import inf

from wager.core import Context
from wager.policies.auto.readers import Reading
from wager.policies.auto.verify import bucket
from wager.policies.auto.weighing import Best, Estimate


class Probing(Reading):
    """The part of `auto` that times plain decoding, tries texts that begin, and lets a choice stand."""

    __slots__ = ("_chosen", "_most_seconds")
    _chosen: Estimate | None  # in the last round
    _most_seconds: float  # that the round chosen last takes at most, proposals left out
    _value_rate: float

    def may_stand(self, asking: float) -> int:
        """Within the bound on a text's loss, were every draft rejected that is not asked for; and beside drafters that
        propose, as long as their proposals bring less than asking for them takes."""
        if self._chosen is None or (self._chosen[0].length and self._chosen[0].drafter in self.hinted):
            return 0
        memory = self.config.round_memory
        if self.hinted:
            if self.exploration.proposed_gain > self._value_rate * asking:
                return 0
            memory = 0.5 * self.config.short_memory  # one that comes in the meantime waits no longer
        if self._several:  # until it is to be considered who reads: only then another is found to be better
            memory = min(memory, max(self.config.repeats, self.in_text.wait))
        lost, bound, verify = 0.0, self.exploration.bound, self.latency.verify
        if self._chosen[0].length and self._most_seconds < inf and self._plain_seconds:
            timed = min(self._plain_seconds, verify.plain or inf)
            lost = self._most_seconds * verify.noise * bound.slower / timed - 1.0  # as the bound charges it
        rounds = memory if lost <= 0.0 else bound.room / lost - 1.0  # one was chosen already
        return max(0, int(min(rounds, memory)))

    def _note_proposals(self, found: Best, off: float) -> None:
        """Learn what proposals bring beyond the best arm that none is needed for, plain decoding having the value
        ``off``."""
        value, best = found
        if best is None or best[0].drafter not in self.hinted:
            self.exploration.proposed(0.0)
            return
        rate, seconds = self._value_rate, self._verify_seconds
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
        """Rounds of a batch without drafts until one is probed: all probes together cost `trial_share` of the time."""
        interval, batch, lags = self.config.probe_interval, context.batch, context.lag
        if self.exploration.rounds_since_draft < self.config.short_memory:
            return interval
        if 0.0 < self.latency.batches.drafted(batch) < self.config.repeats:  # too few to leave drafting for long
            return int(self.config.short_memory)
        least = inf
        for _, drafter, arms, _, line in self._plans.get(bucket(batch)) or self._plan(batch):
            late = self.latency.drafts.catch_up(drafter, lags.get(drafter, 0) * batch, seconds[1])
            length, width = arms[0][1:]
            least = min(least, seconds[width] + (line.fixed + line.each * length + late) / batch)
        return int(min(1.0, least / seconds[1] - 1.0) * interval)

    def _plain_overdue(self) -> bool:
        """Whether plain decoding has to be timed: at first, now and then, and in a text that seems to lose to it."""
        verify, bound = self.latency.verify, self.exploration.bound
        if verify.overdue():
            return True
        stale = not bound.timed or verify.since_plain() > 1.0 / self.config.allowed_share
        return stale and bound.balance < 0.0
