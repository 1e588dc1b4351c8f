"""`auto`: the drafter and length of largest expected value, from learned acceptance and learned latency."""

from collections.abc import Mapping, Sequence
from math import exp, inf

import numpy as np

from wager.core import OFF, Arm, Context, Hint, Round, Signal
from wager.core.batch import Batch, BatchRound, Choices
from wager.policies.auto.acceptance import AcceptanceModel
from wager.policies.auto.arms import ArmGroup, ArmTable
from wager.policies.auto.batch import BatchChooser, context_of_one, round_of_one
from wager.policies.auto.config import AutoConfig
from wager.policies.auto.exploration import Exploration
from wager.policies.auto.features import AGREEMENT, NO_AGREEMENT, Proposal
from wager.policies.auto.latency import DraftLine, LatencyModel
from wager.policies.auto.positional import AcceptanceCounts, PositionalAcceptance
from wager.policies.auto.verify import OFF_STEP, RAGGED, bucket
from wager.policies.base import Arms, Option, Policy, require

NO_HINT, NO_HINTS = Hint(), dict[str, Hint]()
Plan = list[tuple[ArmGroup, str, list[tuple[Arm, int, int]], AcceptanceCounts, DraftLine]]
Estimate = tuple[Arm, float, float]  # an arm, and the tokens and seconds expected of it
Best = tuple[float, Estimate | None]  # the largest value, and what it is expected of
Table = list[float]


class Auto(Policy):
    """The arm of best expected goodput, plain decoding included, from acceptance and latency learned online."""

    # A round of value v takes s seconds, in which the engine would otherwise have brought r·s tokens at its present
    # rate r. The whole text is done soonest if every round has the arm of largest v - r·s: the ratio v/s is what the
    # rounds have to maximise together, not one by one.
    needs = frozenset({Signal.HINTS, Signal.OTHERS})
    per_request = True
    explains = True
    holds = True
    config = AutoConfig()
    learned = ("acceptance", "positional", "latency", "exploration", "batch", "hinted")
    # What every round looks at has a slot: past 30 names an object's dictionary is slow to search.
    __slots__ = (
        *("acceptance", "batch", "exploration", "hinted", "index", "latency", "positional"),
        *("_called", "_chosen", "_estimates", "_gains", "_plain_seconds", "_plans", "_proposals", "_read_arms"),
        *("_records", "_table", "_value_rate", "_verify_seconds", "_weighed"),
    )

    def __init__(self, arms: Arms, *, budget: int = 0, seed: int = 0) -> None:
        super().__init__(arms, seed=seed)
        require(budget >= 0, f"budget is at least 0 tokens a step (0: no limit), not {budget}")
        self.budget = budget
        self.index = {name: i for i, name in enumerate(self.drafters)}
        self.reset()

    def reset(self) -> None:
        super().reset()
        config = self.config
        self.acceptance = AcceptanceModel(len(self.drafters), config)
        self.positional = PositionalAcceptance(self.rng, config)
        self.latency = LatencyModel(1 + max(arm.budget for arm in self.arms), config)
        self.exploration = Exploration(self.drafters, self.rng, config)
        self.batch = BatchChooser(self.drafters, self.acceptance, self.latency, self.exploration, self.budget)
        self.hinted: set[str] = set()  # drafters whose proposals are known before a round
        self._read_arms: tuple[Arm, ...] | None = None  # those the table is made of
        self._records: dict[tuple[str, ...], list[Proposal]] = {}  # by the drafters that have a hint
        self._plans: dict[int, Plan] = {}  # by bucket of batch sizes
        self._proposals: list[Proposal] = []  # of this round
        self._estimates: list[Estimate] = []
        self._weighed: list[tuple[ArmGroup, list[float], float, float, float]] = []
        self._chosen: Estimate | None = None
        self._gains: Sequence[float] = ()  # tokens each drafter's proposal brought beyond the others'
        self._called: Mapping[str, float] = {}  # drafter -> seconds its proposal took
        self._verify_seconds: list[float] = []
        self._value_rate = self._plain_seconds = 0.0

    # --- one arm: for one request, or for all of a batch -------------------------------------------------------------

    def select_drafters(self, context: Context) -> tuple[str, ...]:
        """The cheap drafters whose proposals are worth their seconds, and those due for a probe."""
        return self.exploration.selection.select()

    def choose(self, context: Context) -> Arm:
        batch, exploration = context.batch, self.exploration
        if context.arms is not self._read_arms:
            self._read(context.arms)
        if batch == 1 and context.previous is None:
            self.acceptance.begin()
            exploration.begin()
        seconds, rate = self._costs(batch)
        table, plain = self._table, seconds[1]
        self._proposals, self._gains, self._called = [], (), context.proposal_seconds
        self._verify_seconds, self._plain_seconds, self._value_rate = seconds, plain, rate
        if batch == 1 and table.off and self.latency.verify.overdue():
            self._estimates, self._weighed, self._chosen = [], [], (OFF, 1.0, plain)
            return OFF
        probing = exploration.rounds_since_draft >= self.config.probe_interval
        none: Estimate | None = (OFF, 1.0, plain) if table.off else None
        off = 1.0 - rate * plain if none and not probing else -inf
        value, best = self._weigh(context, seconds, rate, off)
        if batch > 1 and not probing and exploration.trials.due(bucket(batch)):
            goodput = [e[1] / e[2] if e else 0.0 for e in (none, best, None)]
            if exploration.trials.choose(bucket(batch), (off, value, -inf), goodput)[0] == OFF_STEP:
                best = none
        elif value <= off:
            best = none
        if best is None:  # nobody proposes, and plain decoding is not available
            best = table.fallback, 1.0, seconds[table.fallback.budget + 1]
        elif probing and best is not none:  # one token tells what drafting costs by now
            best = table.shortest[best[0].drafter], best[1], best[2]
        elif (
            batch == 1
            and none
            and best is not none
            and (best[2] + self._catch_up(best[0].drafter, context) - plain > exploration.allowance * plain)
        ):  # were the draft rejected, this text would fall behind plain decoding by more than is allowed
            value, best = self._weigh(context, seconds, rate, off, cautious=True)
            best = best if best and value > off else none
        self._chosen = best
        return best[0]

    def _catch_up(self, drafter: str, context: Context) -> float:
        """Seconds a drafter needs for the tokens it has not read."""
        lag = context.lag.get(drafter)
        return self.latency.drafts.catch_up(drafter, lag, self._plain_seconds) if lag else 0.0

    def _weigh(self, context: Context, seconds: Table, rate: float, off: float, cautious: bool = False) -> Best:
        """The value and the estimate of the best draft, plain decoding having the value ``off``.

        Where that is cautious, acceptance is taken to be the lower the less is known of it.
        """
        self._estimates, self._weighed = [(OFF, 1.0, seconds[1])] if self._table.off else [], []
        found: Best = -inf, None
        if context.hints:
            found = self._weigh_hinted(context, seconds, rate, off, cautious)
        if len(self.hinted) < len(self.drafters):
            found = self._weigh_unhinted(context, seconds, rate, found, cautious)
        return found

    def _weigh_hinted(self, context: Context, seconds: Table, rate: float, off: float, cautious: bool) -> Best:
        """Find the best prefix of every proposal."""
        top = second = off  # second: the best without the drafter of the best
        most, best, leader = -inf, None, -1
        estimates, exact, at_least = self._estimates, self._table.exact, self._table.at_least
        self._proposals = proposals = self._fill(context)
        cuts = self.acceptance.cut(proposals, seconds, rate, cautious)
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

    def _weigh_unhinted(self, context: Context, seconds: Table, rate: float, found: Best, cautious: bool) -> Best:
        """Evaluate every arm of the drafters that say nothing beforehand, by one Thompson draw for each group."""
        (most, best), batch, lags, drafts = found, context.batch, context.lag, self.latency.drafts
        plan = self._plans.get(bucket(batch)) or self._plan(batch)
        widest = 1 + (self.budget // batch if self.budget else self.latency.widest)
        draws, weighed = self.positional.draws_for(len(plan)), self._weighed
        few, unknown = self.config.repeats, self.config.token_share * seconds[1]
        for group, drafter, arms, counts, line in plan:
            # as in `PositionalAcceptance.tokens` and `DraftLatency.parts`, without their calls
            odds, factor = counts.odds, exp((-1.0 if cautious else draws.pop()) * counts.deviation)
            fixed, each = line.fixed / batch, line.each / batch
            if line.count < few:
                fixed, each = 0.0, unknown if unknown < each or not line.count else each
            if drafter in lags:
                late = drafts.catch_up(drafter, lags[drafter], seconds[1])
                fixed += late / (self.exploration.expected_stay * batch)
            weighed.append((group, odds, factor, fixed, each))
            reach = tokens = 1.0
            done = 0
            for arm, length, width in arms:
                while done < length:
                    x = odds[done] * factor
                    reach *= x / (1.0 + x)
                    tokens += reach
                    done += 1
                taken = seconds[width] + fixed + each * length
                value = tokens - rate * taken
                if value > most and width <= widest:
                    most, best = value, (arm, tokens, taken)
        return most, best

    def _plan(self, batch: int) -> Plan:
        """The groups of drafters without hints, with what is known of each."""
        counts, line = self.positional.of, self.latency.drafts.line
        groups = [group for group in self._table.groups if group.drafter not in self.hinted]
        self._plans[bucket(batch)] = plan = [
            (group, group.drafter, group.arms, counts(group.key, group.longest), line(group.key, batch))
            for group in groups
        ]
        return plan

    def _costs(self, batch: int) -> tuple[list[float], float]:
        """Seconds of verification by width, each request's share, and the tokens a second is worth."""
        return self.latency.at(batch)

    def _fill(self, context: Context) -> list[Proposal]:
        """The proposals of this round; drafters that propose nothing are left out."""
        hints, agreement = context.hints, context.agreement
        limit = self.budget // context.batch if self.budget else self.longest
        names = tuple(hints)
        records = self._records.get(names)
        if records is None:
            records = self._records[names] = self._new_records(names)
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

    def _new_records(self, names: Sequence[str]) -> list[Proposal]:
        """One for each drafter with a hint, in the drafters' order."""
        known = sorted((name for name in names if name in self.index), key=self.index.__getitem__)
        self.hinted.update(known)
        self._plans.clear()
        first = {name: AGREEMENT + 4 * self.index[name] for name in known}
        return [
            Proposal(self.index[name], name, self.longest, [(other, first[other]) for other in known if other != name])
            for name in known
        ]

    def observe(self, round: Round) -> None:
        arm, drafted, emitted, others = round.arm, round.drafted, round.emitted, round.others
        self.latency.learn(round)
        hinted = False
        for proposal in self._proposals:
            agreed, length = -1, proposal.length  # -1: the true tokens are not known
            if proposal.name == arm.drafter:
                agreed, hinted, length = round.accepted, True, min(length, drafted)
            elif proposal.name in others:
                agreed = others[proposal.name]
            self.acceptance.learn(proposal, min(agreed + 1, length, emitted), agreed)
            proposal.fill(NO_HINT, 0, NO_HINTS, NO_AGREEMENT)  # the round is let go
        self._proposals = []
        batch, exploration = round.batch, self.exploration
        if batch == 1:
            exploration.allowance += self.config.trial_share * emitted
            if drafted and self._plain_seconds:
                exploration.allowance += emitted - round.seconds / self._plain_seconds
        exploration.selection.learn(self._gains, self._called, self._value_rate, self._plain_seconds)
        self._called = {}
        unhinted = drafted > 0 and not hinted
        key, length = self._key(arm), arm.length if arm.tree or batch > 1 else drafted
        if not drafted:
            exploration.rounds_since_draft += 1
        elif unhinted:  # as long as it goes better than usual
            usual = self.positional.of(key, length).rate
            exploration.drafted(round.accepted > usual * (round.accepted + round.rejected))
        else:  # acceptance is known anyway: until its latency is believed
            exploration.drafted(self.latency.verify.doubted(drafted + 1))
        exploration.follow(arm.drafter if unhinted else "")
        if batch > 1 and round.verify_seconds > 1e-9:
            # by what was played: a drafter may have had less to propose than it was allowed
            exploration.trials.note(bucket(batch), RAGGED if arm.length else OFF_STEP)
        if unhinted:
            self.latency.drafts.line(key, batch).learn(length, round.draft_seconds)
            if batch > 1:
                self.positional.learn_batch(key, round, length)
            else:
                self.positional.learn(key, round.accepted, length)

    def options(self) -> list[Option]:
        """What was expected of the arms in the round chosen last: the chosen one first, then the best."""
        if self._chosen is None:
            return []
        rate, seconds, chosen = self._value_rate, self._verify_seconds, self._chosen[0]
        own = {estimate[0]: estimate for estimate in self._estimates}
        for group, odds, factor, fixed, each in self._weighed:
            tokens = self.positional.tokens(odds, factor)
            own |= {arm: (arm, tokens[n], seconds[width] + fixed + each * n) for arm, n, width in group.arms}
        own[chosen] = self._chosen
        ranked = sorted(own.values(), key=lambda e: (e[0] != chosen, rate * e[2] - e[1]))
        return [Option(arm, tokens, max(taken, 1e-9)) for arm, tokens, taken in ranked]

    def _read(self, arms: tuple[Arm, ...]) -> None:
        menu = [self.arms[i] for i in self.available(arms)]
        self._table = ArmTable(menu, self.drafters, self.longest, self._key)
        self._plans.clear()
        self._read_arms = arms

    def _key(self, arm: Arm) -> str:
        """What an arm shares its acceptance with: the drafter's chains, or its tree."""
        return arm.drafter if arm.tree is None else f"{arm.drafter}@{arm.tree}"

    # --- a drafter and a length for every request of a batch ---------------------------------------------------------

    def choose_batch(self, batch: Batch) -> Choices:
        """A drafter and a length for every request; a single one is decided by `choose`."""
        drafters, count, longest = batch.confidence.shape
        if drafters != len(self.drafters):
            raise ValueError(f"a batch of {drafters} drafters for a policy of {len(self.drafters)}: {self.drafters}")
        if not drafters or not count or not longest:
            return Choices.off(count)
        if count > 1:
            return self.batch.choose(batch)
        if not batch.fresh[0]:
            self.acceptance.resume(int(batch.slots[0]))
        arms = batch.context.arms if batch.context is not None else self.arms
        context = context_of_one(batch, self.drafters, arms, self.budget)
        arm = self.choose(context)
        length = min(arm.length, context.hints[arm.drafter].size) if arm.length else 0
        return Choices(np.array([self.index[arm.drafter]]), np.array([length]), arm) if length else Choices.off(1)

    def observe_batch(self, result: BatchRound) -> None:
        """Learn from a finished step: every proposal's tokens as far as the true ones are known, and the seconds."""
        batch = result.batch
        if len(batch.slots) > 1 and batch.confidence.size:
            self.batch.observe(result)
        elif batch.confidence.size:
            self.observe(round_of_one(result, self.drafters))
            self.acceptance.suspend(int(batch.slots[0]))
