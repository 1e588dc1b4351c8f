"""What every arm is worth in the next round: tokens expected, less what their seconds are worth."""

from math import exp, inf
from operator import itemgetter

from wager.core import OFF, Arm, Context
from wager.core.arm import known_arm
from wager.policies.auto.arms import ArmGroup, ArmTable, Best, Estimate, Models, Plan, Table, Weighed
from wager.policies.auto.config import AutoConfig
from wager.policies.auto.exploration import Exploration
from wager.policies.auto.features import Proposal
from wager.policies.auto.kinds import TextKind
from wager.policies.auto.merging import MergeModel, best_merge
from wager.policies.auto.positional import PositionalAcceptance, reached
from wager.policies.auto.proposals import ProposalWeighing
from wager.policies.auto.reading import TextAcceptance
from wager.policies.auto.verify import bucket

SKIPPED = 8  # tokens that a drafter has missed, as a rule, when it is taken up again after rounds of another kind

_value = itemgetter(0)


class ArmWeighing(ProposalWeighing):
    """The part of `auto` that compares arms, from what the models of acceptance and latency have learned."""

    config = AutoConfig()
    # What every round looks at has a slot: past 30 names an object's dictionary is slow to search.
    __slots__ = (
        *("exploration", "in_text", "kind", "merging", "positional"),
        *("_chains", "_drawn", "_foreseen", "_read_arms"),
        *("_several", "_unmerged", "_weighed", "_worst_of"),
    )
    merging: MergeModel
    positional: PositionalAcceptance
    exploration: Exploration
    in_text: TextAcceptance
    kind: TextKind
    _verify_seconds: Table

    def reset(self) -> None:
        super().reset()
        self._read_arms: tuple[Arm, ...] | None = None  # those the table is made of
        self._plans = {}
        self._weighed: Weighed = []
        self._chains: set[str] = set()  # drafters without hints of which there are chains alone
        self._drawn: dict[str, float] | None = None  # draws that no choice was made by yet
        self._foreseen: Models | None = None  # weighed while the device works, for the next choice
        # an arm of this choice, what it takes at most, and how much of that passes before it is verified
        self._worst_of: tuple[Arm, float, float] | None = None
        self._unmerged: Estimate | None = None  # the chosen draft without it
        self._several = False  # whether several drafters without hints are available: then idle ones may read

    def _read(self, arms: tuple[Arm, ...]) -> None:
        menu = [self.arms[i] for i in self.available(arms)]
        self._table = ArmTable(menu, self.drafters, self.longest, self._key)
        self._plans.clear()
        self._read_arms, self._foreseen = arms, None

    def _key(self, arm: Arm) -> str:
        """What an arm shares its acceptance with: the drafter's chains, or its tree."""
        return arm.drafter if arm.tree is None else f"{arm.drafter}@{arm.tree}"

    def _catch_up(self, drafter: str, context: Context) -> float:
        """Seconds a drafter needs for the tokens it has not read."""
        lag = context.lag.get(drafter)
        return self.latency.drafts.catch_up(drafter, lag * context.batch, self._now.plain_seconds) if lag else 0.0

    def _worst(self, arm: Arm, context: Context, late: float | None = None) -> float:
        """Seconds that a round of this arm takes at most, as far as they can be known; proposals left out.

        late: of these what `_late` says, where that is known. What was worked out last is kept.
        """
        hint = context.hints.get(arm.drafter)
        if arm.tree is None and hint is not None:
            own = min(arm.length, hint.size) if hint.size else arm.length
            late, width = 0.0, 1 + own + (arm.merged.length if arm.merged else 0)
        else:
            late, width = self._late(arm, context) if late is None else late, arm.budget + 1
        worst = late + self.latency.verify.worst(width)
        self._worst_of = arm, worst, late
        return worst

    def _late(self, arm: Arm, context: Context) -> float:
        """Seconds until a model has drafted, at most."""
        key, latency, plain = self._key(arm), self.latency, self._now.plain_seconds
        late = latency.worst_catch_up(arm.drafter, context.lag.get(arm.drafter, 0), plain)
        if key in latency.drafts.starts and arm.alone != context.previous:
            late += latency.drafts.starts[key]
        return late + latency.worst_draft(key, arm.length, plain)

    def _weigh(
        self, context: Context, seconds: Table, rate: float, off: float, room: float = inf, cautious: bool = False
    ) -> Best:
        """The value and the estimate of the best draft that takes at most ``room`` seconds, plain decoding having the
        value ``off``.

        Where that is cautious, acceptance is taken to be the lower the less is known of it.
        """
        self._estimates, self._weighed = [(OFF, 1.0, seconds[1])] if self._table.off else [], []
        self._worst_of, self._now.merge = None, (0.0, 0.0)
        merging = context.merges and not cautious
        hinted: Best = -inf, None
        if context.hints:
            hinted = self._weigh_hinted(context, seconds, rate, off, room, cautious)
        if len(self.hinted) < len(self.drafters):
            value, proposal = hinted
            least = value - (self._leaving(context, rate) if proposal is not None else 0.0)
            known = -inf if merging and self._now.proposals else least
            best = self._weigh_unhinted(context, seconds, rate, (known, proposal), room, cautious)
            if best[1] is not proposal:
                best = self._merged(best, context, rate, room) if merging else best
                if best[0] > least:
                    return best
        return self._merged(hinted, context, rate, room) if merging else hinted

    def _merged(self, found: Best, context: Context, rate: float, room: float) -> Best:
        """The same draft with the proposal merged into it that adds most, if one adds anything in ``room`` seconds."""
        self._now.merge = 0.0, 0.0
        value, best = found
        if best is None or (context.remaining is not None and context.remaining <= best[0].length):
            return found  # a draft that is cut short near the end of a text would not be told from what is merged
        (arm, tokens, taken), table, proposals = best, self._verify_seconds, self._now.proposals
        own: list[float] = []  # of a model's draft, how likely it is to be accepted so far
        width, share, base = 1 + arm.budget, 1.0, None
        if arm.drafter in context.hints:
            base = next(proposal for proposal in proposals if proposal.name == arm.drafter)
            width = 1 + min(arm.length, base.length)
        elif proposals:
            key, share = self._key(arm), self.merging.share
            own = next(
                reached(odds[: arm.length], factor) for group, odds, factor, *_ in self._weighed if group.key == key
            )
        most, length, more, expected = 0.0, 0, 0.0, 0.0
        beside: Proposal | None = None
        for other in proposals:
            shared = 0 if base is None else base.agreement.get(other.name, 0)
            if other is base or (base is not None and shared >= width - 1):
                continue
            longest = self._table.longest[other.index]
            gain, n, independent = best_merge(other, longest, own, shared, table, width, rate, share)
            if gain > most:
                most, beside, length, expected = gain, other, n, independent
                more = table[width + n - shared] - table[width]
        if beside is None:
            return found
        merged = known_arm(arm.drafter, arm.length, arm.tree, known_arm(beside.name, length))
        if room < inf:
            known = self._worst_of
            if self._worst(merged, context, known[2] if known is not None and known[0] is arm else None) > room:
                return found
        self._now.merge, self._unmerged = (most, expected), best
        if base is not None:  # without either of the two there would be nothing to merge
            self._now.gains[base.index] += most
            self._now.gains[beside.index] += most
        return value + most, (merged, tokens + most + rate * more, taken + more)

    def _leaving(self, context: Context, rate: float) -> float:
        """Tokens that it costs to leave the model that drafted last for a proposal: it has to read what that brings."""
        last = context.previous
        if context.batch > 1 or last is None or not last.length or last.drafter in self.hinted:
            return 0.0
        if context.lag.get(last.drafter, 0) > 1:  # it was left already
            return 0.0
        return rate * self.latency.drafts.catch_up(last.drafter, SKIPPED, self._now.plain_seconds)

    def _weigh_unhinted(
        self, context: Context, seconds: Table, rate: float, found: Best, room: float, cautious: bool
    ) -> Best:
        """The best arm of the drafters that say nothing beforehand, if better than what was found."""
        known, self._foreseen = self._foreseen, None
        if known is None or cautious or not known.fits(context):
            known = self._weigh_models(context, seconds, rate, cautious)
        self._drawn = None
        self._now.values, self._weighed = known.by_drafter, known.weighed
        better = [one for one in known.arms if one[0] > found[0]]
        return self._fitting(better, context, room) or found

    def _weigh_models(self, context: Context, seconds: Table, rate: float, cautious: bool) -> Models:
        """Evaluate every arm of the drafters that say nothing beforehand, by Thompson draws."""
        batch, lags, drafts = context.batch, context.lag, self.latency.drafts
        arms_found: list[tuple[float, Estimate]] = []
        plan = self._plans.get(bucket(batch)) or self._plan(batch)
        widest = 1 + (self.budget // batch if self.budget else self.latency.widest)
        if batch > 1 and not self.latency.batches.drafted_nearby(batch):  # one token tells what the others will take
            widest = min(widest, 1 + min((arms[0][1] for _, _, arms, _, _ in plan), default=0))
        drawn = self._draw([group.key for group, *_ in plan], batch) if not cautious else {}
        weighed: Weighed = []
        few, unknown = self.config.repeats, self.config.token_share * seconds[1]
        starts, previous = drafts.starts, context.previous
        several = batch == 1 and self._several
        text = self.in_text.factors if several else {}
        values: dict[str, float] = {}
        to_come, least = context.remaining or inf, 1.0 / self.config.round_memory
        for group, drafter, arms, counts, line in plan:
            # as in `PositionalAcceptance.tokens` and `DraftLatency.parts`, without their calls
            odds, factor = counts.odds, exp(-counts.deviation) if cautious else drawn[group.key]
            if several:
                if not cautious and self._settled(group, context):
                    factor = 1.0
                factor *= text.get(drafter, 1.0)
            fixed, each = line.fixed / batch, line.each / batch
            if line.count < few:
                fixed, each = 0.0, unknown if unknown < each or not line.count else each
            fee = once = 0.0
            if drafter in lags:
                if text and self._stays(drafter):
                    fee = self._switching(drafter, context, rate)
                elif lags[drafter]:
                    late = again = drafts.catch_up(drafter, lags[drafter] * batch, seconds[1])
                    if batch == 1:  # the rest of what it missed, a prompt as a rule, is read once in a text
                        again = min(late, drafts.catch_up(drafter, SKIPPED, seconds[1]))
                        once = rate * (late - again)
                    fixed += again / (self.exploration.expected_stay * batch)
            weighed.append((group, odds, factor, fixed, each))
            start = starts[group.key] / few if group.key in starts else 0.0
            reach = tokens = 1.0
            done = 0
            for arm, length, width in arms:
                while done < length:
                    x = odds[done] * factor
                    reach *= x / (1.0 + x)
                    tokens += reach
                    done += 1
                taken = seconds[width] + fixed + each * length
                if start and arm != previous:
                    taken += start
                value = tokens - rate * taken
                if text:
                    values[drafter] = max(value, values.get(drafter, value))
                    value -= fee
                if once:
                    value -= once * max(least, tokens / to_come)
                if width <= widest:
                    arms_found.append((value, (arm, tokens, taken)))
        return Models(previous, lags, arms_found, values, weighed)

    def _draw(self, keys: list[str], batch: int) -> dict[str, float]:
        """Thompson draws of these groups; those of a choice that was foreseen and not made count for the next one."""
        if batch > 1 or self._drawn is None or self._drawn.keys() != set(keys):
            self._drawn = self.positional.draw(keys, anew=batch > 1)
        self.positional.settle_learned()
        return self._drawn

    def _fitting(self, better: list[tuple[float, Estimate]], context: Context, room: float) -> Best | None:
        """The best of these that takes at most ``room`` seconds."""
        while better:
            best = max(better, key=_value)
            if room == inf:
                return best
            if self._worst(best[1][0], context) <= room:
                return best
            better.remove(best)
        return None

    def _settled(self, group: ArmGroup, context: Context) -> bool:
        """Whether it is known without being run, because its drafter reads, or has a card and can read in an engine in
        which idle models read where that pays, and has no trees beside its chains: then there is no Thompson draw.
        Between chains and trees, which reading does not tell apart, a change is free."""
        here, key = self.in_text, group.key
        card = key == group.drafter and bool(self.positional.counts[key].card)  # of chains
        reads = here.reads is not False and context.can_read(key)
        return (key in here.readable or (card and reads)) and key in self._chains

    def _stays(self, drafter: str) -> bool:
        """Whether another drafter is in use in this text, so that a change to this one has to pay."""
        return self.in_text.current not in ("", drafter)

    def _switching(self, drafter: str, context: Context, rate: float) -> float:
        """Tokens that catching up costs beyond those that the drafter would have brought since the last change, and no
        less than the share of one of the rounds to come."""
        cost = rate * self.latency.drafts.long_catch_up(drafter, context.lag[drafter], self._now.plain_seconds)
        rounds = (
            self.config.round_memory if context.remaining is None else min(self.config.round_memory, context.remaining)
        )
        return max(cost - self.in_text.credit.get(drafter, 0.0), cost / max(1.0, rounds))

    def _plan(self, batch: int) -> Plan:
        """The groups of drafters without hints, with what is known of each."""
        counts, line = self.positional.of, self.latency.drafts.line
        groups = [group for group in self._table.groups if group.drafter not in self.hinted]
        self._plans[bucket(batch)] = plan = [
            (group, group.drafter, group.arms, counts(group.key, group.longest), line(group.key, batch))
            for group in groups
        ]
        names = [group.drafter for group in groups]
        self._several = len(set(names)) > 1
        self._chains = {group.key for group in groups if names.count(group.drafter) == 1}
        return plan

    def _costs(self, batch: int) -> tuple[list[float], float]:
        """Seconds of verification by width, each request's share, and the tokens a second is worth."""
        return self.latency.at(batch)

    def _expect_rate(self, context: Context) -> None:
        """Before anything was timed, a second is worth what the best arm of a model brings in it, by the model's card:
        were it worth no more than in plain decoding, long drafts would seem to pay."""
        if not self.latency.verify.scale or self.latency.rates.known(1):
            return
        self._note_hinted(context.hints)
        rates, (seconds, _) = [], self._costs(1)
        for group, _, arms, counts, _ in self._plans.get(1) or self._plan(1):
            fixed, each = self.latency.drafts.parts(group.key, 1, seconds[1])
            tokens = self.positional.tokens(counts.odds, 1.0)
            rates += [tokens[n] / (seconds[width] + fixed + each * n) for _, n, width in arms if counts.card]
        if rates:
            self.latency.rates.expect(1, max(rates))
