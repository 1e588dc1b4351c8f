"""What every arm is worth in the next round: tokens expected, less what their seconds are worth."""

from collections.abc import Iterable, Mapping, Sequence
from math import exp, inf
from operator import itemgetter

from wager.core import OFF, Arm, Context
from wager.policies.auto.acceptance import AcceptanceModel
from wager.policies.auto.arms import ArmGroup, ArmTable, Estimate, Models, Weighed
from wager.policies.auto.config import AutoConfig
from wager.policies.auto.exploration import Exploration
from wager.policies.auto.features import AGREEMENT, NO_AGREEMENT, Proposal
from wager.policies.auto.latency import DraftLine, LatencyModel
from wager.policies.auto.positional import AcceptanceCounts, PositionalAcceptance
from wager.policies.auto.reading import TextAcceptance
from wager.policies.auto.verify import bucket
from wager.policies.base import Policy

SKIPPED = 8  # tokens that a drafter has missed, as a rule, when it is taken up again after rounds of another kind

Plan = list[tuple[ArmGroup, str, list[tuple[Arm, int, int]], AcceptanceCounts, DraftLine]]
Best = tuple[float, Estimate | None]  # the largest value, and what it is expected of
Table = list[float]
_value = itemgetter(0)


class ArmWeighing(Policy):
    """The part of `auto` that compares arms, from what the models of acceptance and latency have learned."""

    config = AutoConfig()
    # What every round looks at has a slot: past 30 names an object's dictionary is slow to search.
    __slots__ = (
        *("acceptance", "exploration", "hinted", "in_text", "index", "latency", "positional"),
        *("_called", "_estimates", "_gains", "_plain_seconds", "_plans", "_proposals", "_read_arms", "_records"),
        *("_chains", "_drawn", "_foreseen", "_other", "_reads", "_several", "_table", "_values", "_weighed"),
        "_worst_of",
    )
    acceptance: AcceptanceModel
    positional: PositionalAcceptance
    latency: LatencyModel
    exploration: Exploration
    in_text: TextAcceptance
    hinted: set[str]  # drafters whose proposals are known before a round
    index: dict[str, int]
    budget: int
    _verify_seconds: Table

    def reset(self) -> None:
        super().reset()
        self.hinted = set()
        self._read_arms: tuple[Arm, ...] | None = None  # those the table is made of
        # By the drafters that have a hint; two in turn, for a round may be observed after the next choice.
        self._records: dict[tuple[bool, tuple[str, ...]], list[Proposal]] = {}
        self._other = False  # which of the two
        self._plans: dict[int, Plan] = {}  # by bucket of batch sizes
        self._proposals: list[Proposal] = []  # of this round
        self._estimates: list[Estimate] = []
        self._weighed: Weighed = []
        self._gains: Sequence[float] = ()  # tokens each drafter's proposal brought beyond the others'
        self._called: Mapping[str, float] = {}  # drafter -> seconds its proposal took
        self._plain_seconds = 0.0
        self._values: dict[str, float] = {}  # drafter -> what its best arm is worth, catching up left out
        self._chains: set[str] = set()  # drafters without hints of which there are chains alone
        self._drawn: dict[str, float] | None = None  # draws that no choice was made by yet
        self._foreseen: Models | None = None  # weighed while the device works, for the next choice
        self._worst_of: tuple[Arm, float] | None = None  # what an arm of this choice takes at most
        self._several = False  # whether several drafters without hints are available: then idle ones may read
        self._reads = False  # whether they do in this engine

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
        return self.latency.drafts.catch_up(drafter, lag * context.batch, self._plain_seconds) if lag else 0.0

    def _worst(self, arm: Arm, context: Context) -> float:
        """Seconds that a round of this arm takes at most, as far as they can be known; proposals left out."""
        hint, plain = context.hints.get(arm.drafter), self._plain_seconds
        if arm.tree is None and hint is not None:
            return self.latency.verify.worst(1 + (min(arm.length, hint.size) if hint.size else arm.length))
        late = self.latency.worst_catch_up(arm.drafter, context.lag.get(arm.drafter, 0), plain)
        if arm != context.previous:
            late += self.latency.drafts.starts.get(self._key(arm), 0.0)
        late += self.latency.worst_draft(self._key(arm), arm.length, plain)
        return late + self.latency.verify.worst(arm.budget + 1)

    def _weigh(
        self, context: Context, seconds: Table, rate: float, off: float, room: float = inf, cautious: bool = False
    ) -> Best:
        """The value and the estimate of the best draft that takes at most ``room`` seconds, plain decoding having the
        value ``off``.

        Where that is cautious, acceptance is taken to be the lower the less is known of it.
        """
        self._estimates, self._weighed = [(OFF, 1.0, seconds[1])] if self._table.off else [], []
        self._worst_of = None
        found: Best = -inf, None
        if context.hints:
            found = self._weigh_hinted(context, seconds, rate, off, room, cautious)
        if len(self.hinted) < len(self.drafters):
            value, hinted = found
            leaving = self._leaving(context, rate) if hinted is not None else 0.0
            best = self._weigh_unhinted(context, seconds, rate, (value - leaving, hinted), room, cautious)
            found = found if best[1] is hinted else best
        return found

    def _leaving(self, context: Context, rate: float) -> float:
        """Tokens that it costs to leave the model that drafted last for a proposal: it has to read what that brings."""
        last = context.previous
        if context.batch > 1 or last is None or not last.length or last.drafter in self.hinted:
            return 0.0
        if context.lag.get(last.drafter, 0) > 1:  # it was left already
            return 0.0
        return rate * self.latency.drafts.catch_up(last.drafter, SKIPPED, self._plain_seconds)

    def _weigh_hinted(
        self, context: Context, seconds: Table, rate: float, off: float, room: float, cautious: bool
    ) -> Best:
        """Find the best prefix of every proposal."""
        top = second = off  # second: the best without the drafter of the best
        most, best, leader = -inf, None, -1
        estimates, exact, at_least = self._estimates, self._table.exact, self._table.at_least
        self._proposals = proposals = self._fill(context)
        longest = self.longest if room == inf else max(0, self.latency.verify.widest(room) - 1)
        cuts = self.acceptance.cut(proposals, seconds, rate, cautious, longest=longest)
        for proposal, (value, n, tokens) in zip(proposals, cuts, strict=True):
            i = proposal.index
            arm = exact[i][n] if n < proposal.length else at_least[i][n]
            if arm is not None:
                own = arm, tokens, seconds[n + 1]
            else:
                found = self._best_available(proposal, seconds, rate, self.acceptance.trust(i) if cautious else 1.0)
                if found is None:
                    continue
                own, value = found, found[1] - rate * found[2]
            estimates.append(own)
            if value > top:
                second, top, leader = top, value, i
                most, best = value, own
                continue
            if value > second:
                second = value
            if value > most:
                most, best = value, own
        self._gains = gains = [0.0] * len(self.drafters)
        if leader >= 0:
            gains[leader] = top - second if second > -inf else 1.0
        return most, best

    def _best_available(self, proposal: Proposal, seconds: Table, rate: float, trust: float) -> Estimate | None:
        """The best prefix of a proposal among those there is an arm for."""
        reach = tokens = 1.0
        top, best = -inf, None
        for n, chance in enumerate(proposal.chances[: proposal.evaluated], 1):
            reach *= chance * trust
            tokens += reach
            value = tokens - rate * seconds[n + 1]
            arm = (self._table.exact if n < proposal.length else self._table.at_least)[proposal.index][n]
            if value > top and arm is not None:
                top, best = value, (arm, tokens, seconds[n + 1])
        return best

    def _weigh_unhinted(
        self, context: Context, seconds: Table, rate: float, found: Best, room: float, cautious: bool
    ) -> Best:
        """The best arm of the drafters that say nothing beforehand, if better than what was found."""
        known, self._foreseen = self._foreseen, None
        if known is None or cautious or not known.fits(context):
            known = self._weigh_models(context, seconds, rate, cautious)
        self._drawn = None
        self._values, self._weighed = known.by_drafter, known.weighed
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
                if not cautious and self._settled(group):
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
            arm = best[1][0]
            self._worst_of = arm, self._worst(arm, context)
            if self._worst_of[1] <= room:
                return best
            better.remove(best)
        return None

    def _settled(self, group: ArmGroup) -> bool:
        """Whether it is known without being run, because its drafter reads and has no trees beside its chains: then
        there is no Thompson draw. Between chains and trees, which reading does not tell apart, a change is free."""
        return group.key in self.in_text.readable and group.key in self._chains

    def _stays(self, drafter: str) -> bool:
        """Whether another drafter is in use in this text, so that a change to this one has to pay."""
        return self.in_text.current not in ("", drafter)

    def _switching(self, drafter: str, context: Context, rate: float) -> float:
        """Tokens that catching up costs beyond those that the drafter would have brought since the last change, and no
        less than the share of one of the rounds to come."""
        cost = rate * self.latency.drafts.long_catch_up(drafter, context.lag[drafter], self._plain_seconds)
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

    def _fill(self, context: Context) -> list[Proposal]:
        """The proposals of this round; drafters that propose nothing are left out."""
        hints, agreement = context.hints, context.agreement
        limit = self.budget // context.batch if self.budget else self.longest
        self._other, names = not self._other, tuple(hints)
        records = self._records.get((self._other, names))
        if records is None:
            records = self._records[self._other, names] = self._new_records(names)
        out = []
        for record in records if limit else ():
            name = record.name
            hint = hints[name]
            length = hint.size or (limit if hint.match else 0)
            if length:
                record.hint, record.hints, record.length = hint, hints, length if length < limit else limit
                record.agreement = agreement.get(name, NO_AGREEMENT)
                out.append(record)
        return out

    def _note_hinted(self, names: Iterable[str]) -> None:
        """From now on these are known to say something of their proposals."""
        self.hinted.update(name for name in names if name in self.index)
        self._plans.clear()

    def _new_records(self, names: Sequence[str]) -> list[Proposal]:
        """One for each drafter with a hint, in the drafters' order."""
        self._note_hinted(names)
        known = sorted((name for name in names if name in self.index), key=self.index.__getitem__)
        first = {name: AGREEMENT + 4 * self.index[name] for name in known}
        return [
            Proposal(self.index[name], name, self.longest, [(other, first[other]) for other in known if other != name])
            for name in known
        ]
