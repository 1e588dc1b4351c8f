"""`auto`: the drafter and length of largest expected value, from learned acceptance and learned latency."""

from math import inf, sqrt

import numpy as np

from wager.core import OFF, Arm, Calibration, Context, Hint, Round, Signal
from wager.core.batch import Batch, BatchRound, Choices
from wager.policies.auto.acceptance import AcceptanceModel
from wager.policies.auto.arms import Best, Estimate
from wager.policies.auto.batch import BatchChooser, context_of_one, round_of_one
from wager.policies.auto.decision import Decision
from wager.policies.auto.exploration import Exploration
from wager.policies.auto.features import NO_AGREEMENT
from wager.policies.auto.kinds import TextKind
from wager.policies.auto.latency import LatencyModel
from wager.policies.auto.merging import MergeModel
from wager.policies.auto.positional import PositionalAcceptance
from wager.policies.auto.probing import Probing
from wager.policies.auto.reading import TextAcceptance
from wager.policies.auto.verify import OFF_STEP, RAGGED, bucket
from wager.policies.base import Arms, Option, require

NO_HINT, NO_HINTS = Hint(), dict[str, Hint]()


class Auto(Probing):
    """The arm of best expected goodput, plain decoding included, from acceptance and latency learned online."""

    # A round of value v takes s seconds, in which the engine would otherwise have brought r·s tokens at its present
    # rate r. The whole text is done soonest if every round has the arm of largest v - r·s: the ratio v/s is what the
    # rounds have to maximise together, not one by one.
    needs = frozenset({Signal.HINTS, Signal.OTHERS, Signal.READ, Signal.COSTS, Signal.KINDS})
    least_readers = 2  # one model has nothing to be compared with
    per_request = True
    explains = True
    holds = True
    carries = True
    late = True
    tries_cheaper = True
    learned = ("acceptance", "positional", "kind", "in_text", "latency", "merging", "exploration", "batch", "hinted")
    __slots__ = (
        "_awaiting",
        "_plain_seen",
        "_timed",
        "_verify_seconds",
        "batch",
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
        self.in_text = TextAcceptance(config)
        self.kind = TextKind(config)
        merged = max((arm.length for arm in self.arms if arm.tree is None), default=0) if len(self.drafters) > 1 else 0
        self.latency = LatencyModel(1 + max(arm.budget for arm in self.arms), config, merged)
        self.merging = MergeModel(config)
        self.exploration = Exploration(self.drafters, self.rng, config)
        self.batch = BatchChooser(self.drafters, self.acceptance, self.latency, self.exploration, self.budget)
        self._verify_seconds: list[float] = []
        self._timed = False
        self._awaiting = 0  # rounds in which a new text's first draft may still be under way
        self._earlier = None
        self._calibrated = False
        self._plain_seen = False  # whether plain decoding was timed since this policy was made, loaded or reset

    def calibrate(self, known: Calibration) -> None:
        """Start from seconds that were timed and acceptance that was published; acceptance that was learned stays."""
        self._foreseen = None
        self.latency.calibrate(known, self._key)
        self._calibrated = self._calibrated or bool(known.verify.get(1))
        if known.apart is not None:
            self.positional.between_drafter_variance = known.apart
        for key, name in {self._key(arm): arm.drafter for arm in self.arms}.items():
            if rates := known.acceptance.get(key, known.acceptance.get(name)):
                self.positional.expect(key, rates)
        if known.apart is not None:
            self.in_text.expect(known.apart, self.positional.shifts)
        self.kind.expect(known.kinds)
        self.positional.follow(self.kind)

    # --- one arm: for one request, or for all of a batch -------------------------------------------------------------

    def select_drafters(self, context: Context) -> tuple[str, ...]:
        """The cheap drafters whose proposals are worth their seconds, and those due for a probe; none where the text
        cannot afford the seconds."""
        bound, goes_on = self.exploration.bound, context.batch == 1 and context.previous is not None
        room = bound.room - (self._unsettled() if context.unobserved else 0.0)
        if goes_on and bound.proposing_cost > room and OFF in context.arms:
            return ()
        return self.exploration.selection.select()

    def choose(self, context: Context) -> Arm:
        batch, exploration = context.batch, self.exploration
        if context.arms is not self._read_arms:
            self._read(context.arms)
        self._keep_earlier(context.unobserved)
        if batch == 1 and context.previous is None:
            self._begin_text(context)
        if batch == 1:
            self._expect_rate(context)
        seconds, rate = self._costs(batch)
        table, plain, self._timed = self._table, seconds[1], self.latency.verify.scale > 0.0
        # what models are worth is as before until they are weighed again
        now = self._now = Decision(context.proposal_seconds, plain, rate, self._now.values)
        self._other = not self._other
        self._verify_seconds = seconds
        self.exploring = True
        timing = context.unobserved and context.previous == OFF  # plain decoding, in the round before
        if batch == 1 and table.off and not timing and self._plain_overdue():
            self._estimates, self._weighed, now.best = [], [], (OFF, 1.0, plain)
            return OFF
        exploration.interval = self.config.probe_interval
        if batch > 1:
            if context.previous is None or not context.previous.length:
                # what a drafter has missed also counts the steps in which a choice was held
                exploration.rounds_since_draft = max(exploration.rounds_since_draft, *context.lag.values(), 0)
            exploration.interval = self._probe_interval(context, seconds)
        if batch == 1 and context.previous is None and self._text_is_tried(context, seconds):
            exploration.rounds_since_draft, probing = self.config.probe_interval, True
            self._awaiting = self.config.repeats
        else:
            probing = not self._awaiting and exploration.probe_due(bucket(batch))
            self._awaiting = max(0, self._awaiting - 1)
        none: Estimate | None = (OFF, 1.0, plain) if table.off else None
        off = 1.0 - rate * plain if none and not probing else -inf
        bounded = batch == 1 and none is not None
        # what the round may take, were its draft rejected: then the text is still within its bound
        timed = min(plain, self.latency.verify.plain or plain)
        bound = exploration.bound
        bound.kept = self._kept_for_reading(context, rate) if self._several and bounded else 0.0
        room = (timed * (1.0 + bound.draft_room) - sum(now.called.values())) / bound.slower if bounded else inf
        value, best = self._weigh(context, seconds, rate, off, room)
        if batch == 1 and self.hinted:
            self._note_proposals((value, best), off)
        if batch > 1 and not probing:
            best = self._step_kind((off, value), none, best, batch)
        else:
            self.exploring = probing
            if value <= off:
                best = none
        if best is None:  # nobody proposes, and plain decoding is not available
            best = table.fallback, 1.0, seconds[table.fallback.budget + 1]
        elif probing and best is not none:  # one token tells what drafting costs by now
            best = self._unmerged if self._unmerged is not None and best[0].merged else best
            best = table.shortest[best[0].drafter], best[1], best[2]
        elif batch > 1 and best[0].length and best[0].length >= self.latency.batches.longest(batch):
            best = self._longer(best, batch)
        if bounded and best is not none:
            best = self._affordable(best, context, off, room, probing) or none
        assert best is not None
        now.best, now.merge = best, now.merge if best[0].merged else (0.0, 0.0)
        return best[0]

    def _begin_text(self, context: Context) -> None:
        self.acceptance.begin()
        self.in_text.begin()
        self.kind.begin(context.kinds, self.positional.in_all_kinds())
        self.positional.follow(self.kind)
        self.exploration.begin()
        # An engine's only request may be of another load than the one before.
        self.exploration.bound.timed = context.remaining is not None and self._plain_seen

    def select_readers(self, context: Context) -> tuple[str, ...]:
        """Idle models whose reading is expected to pay, as far as the text can afford their seconds."""
        now, self.in_text.reads = self._now, True
        now.reading, now.most_reading = {}, 0.0
        if self.in_text.wait > 0 or not self._several or context.batch > 1 or now.best is None:
            return ()
        arm, bound, plain = now.best[0], self.exploration.bound, now.plain_seconds
        if arm.drafter in self.hinted:  # another kind of round
            return ()
        # what is left of the text's bound once the round that was chosen has taken the most that it can
        taken = now.most_seconds / plain - 1.0 if arm.length and now.most_seconds < inf else 0.0
        left = plain * (bound.room - taken) - sum(now.called.values())
        share = plain * bound.reading(context.remaining)
        readers, now.wait = self._worth_reading(context, now.best, now.rate)
        for name, (_, most) in readers.items():
            if most <= min(left, share):
                now.reading[name] = context.lag.get(name, 0)
                now.most_reading += most
                left, share = left - most, share - most
        return tuple(now.reading)

    def _longer(self, best: Estimate, batch: int) -> Estimate:
        """A draft of up to twice the tokens, where this one is the longest so far and the other could bring more.

        As long as all drafts are equally long, nothing tells what each token takes from what verifying any draft does,
        which is most of it where the host is slow. Then a longer one seems to take far more than it does.
        """
        arm, tokens, seconds = best
        most = min(2 * arm.length, self.budget // batch if self.budget else self.longest)
        for group, odds, factor, _, _ in self._weighed:
            longer = [other for other, length, _ in group.arms if arm.length < length <= most]
            if longer and group.key == self._key(arm):
                length = longer[-1].length
                made = self.positional.tokens(odds, factor)[length]
                taken = seconds * (1.0 + self.config.token_share * (length - arm.length))
                if made / taken > tokens / seconds:
                    return longer[-1], made, taken
        return best

    def _affordable(self, best: Estimate, context: Context, off: float, room: float, probing: bool) -> Estimate | None:
        """The best draft if it may be tried, or else one that is expected to pay even with little trust in acceptance;
        None: no draft."""
        seconds, rate, plain = self._verify_seconds, self._now.rate, self._now.plain_seconds
        bound, (arm, _, taken) = self.exploration.bound, best
        allowed = bound.trials(context.remaining)
        if context.remaining is not None and taken <= plain * (1.0 + allowed) and self._untried(arm):
            allowed = max(allowed, bound.first_trial(context.remaining))
        found: Best = inf, best
        most = plain * (1.0 + allowed) - self._catch_up(arm.drafter, context)
        if taken > most:
            found = self._weigh(context, seconds, rate, off, room, cautious=True)
            alone = self._unmerged if arm.merged is not None else None
            if alone is not None and alone[2] <= most and alone[1] - rate * alone[2] > found[0]:
                found = alone[1] - rate * alone[2], alone  # without what is merged into it, it may be tried
        if found[1] is None or found[0] <= off or (probing and found[1] is not best):
            return None
        known, arm = self._worst_of, found[1][0]
        self._now.most_seconds = known[1] if known is not None and known[0] is arm else self._worst(arm, context)
        return found[1]

    def _untried(self, arm: Arm) -> bool:
        """Whether less is known of a model than its card would tell."""
        known = self.positional.of(self._key(arm), arm.length).total if arm.drafter not in self.hinted else inf
        return known < self.config.shrinkage - 0.5

    def _learn(self, round: Round) -> None:
        self._foreseen = None
        if self.in_text.reads is None:
            self.in_text.reads = False
        now, arm, drafted, emitted, others = self._now, round.arm, round.drafted, round.emitted, round.others
        if drafted:
            self._awaiting = 0
        self.latency.learn(round)
        hinted = False
        for proposal in now.proposals:
            agreed, length = -1, proposal.length  # -1: the true tokens are not known
            if proposal.name == arm.drafter:
                agreed, hinted, length = round.own, True, min(length, arm.length, drafted)
            elif isinstance(known := others.get(proposal.name), int):
                agreed = known
            self.acceptance.learn(proposal, min(agreed + 1, length, emitted), agreed)
            proposal.fill(NO_HINT, 0, NO_HINTS, NO_AGREEMENT)  # the round is let go
        now.proposals = []
        batch, exploration = round.batch, self.exploration
        if batch == 1 and now.plain_seconds:
            self._keep_account(round)
        exploration.selection.learn(now.gains, now.called, now.rate, now.plain_seconds)
        now.called = {}
        unhinted = drafted > 0 and not hinted
        key, length = self._key(arm), arm.length if arm.tree or arm.merged or batch > 1 else drafted
        if unhinted and arm.merged is not None:
            self.merging.learn(now.merge[1], round.accepted - round.own)
        if not drafted:
            exploration.rounds_since_draft += 1
        elif unhinted:  # as long as it goes better than usual
            usual, tried = self.positional.of(key, length).rate, round.own + round.rejected
            chance = sqrt(tried * usual * (1.0 - usual)) if batch > 1 else 0.0  # a batch has both at once
            exploration.drafted(round.own > usual * tried + chance, bucket(batch))
        else:  # acceptance is known anyway: until its latency is believed
            exploration.drafted(self.latency.verify.doubted(drafted + 1), bucket(batch))
        exploration.follow(arm.drafter if unhinted else "")
        if batch > 1 and round.verify_seconds > 1e-9:
            # by what was played: a drafter may have had less to propose than it was allowed
            exploration.trials.note(bucket(batch), RAGGED if arm.length else OFF_STEP)
        if unhinted:
            told = round.verify_seconds > 1e-9 or not round.draft_seconds  # drafting from verifying
            if told and not (batch == 1 and self.latency.resumed(key, length, round)):
                self.latency.drafts.line(key, batch).learn(length, round.draft_seconds)
            if batch > 1:
                self.positional.learn_batch(key, round, length)
            else:
                self.kind.fade(min(round.own + 1, length))
                self.kind.learn(key, [1.0] * round.own + [0.0] * (round.own < length))
                if self.positional.learn(key, round.own, length) and self._several:
                    self.in_text.begin()
        if batch == 1 and self._several:
            self._follow_text(round, key if unhinted else "", length)
        if batch == 1 and self.kind.told:
            self.positional.follow(self.kind)

    def _keep_account(self, round: Round) -> None:
        """What the text has lost or gained by this round."""
        now, bound = self._now, self.exploration.bound
        plain = min(now.plain_seconds, self.latency.verify.plain or now.plain_seconds)
        proposing = sum(now.called.values())
        if now.called:
            bound.proposed(proposing / plain)
        reading = sum(round.read_seconds.values()) if round.read_seconds else 0.0
        if round.drafted:
            most = now.most_seconds * self.latency.verify.noise + proposing  # twice: four times the usual error
            bound.drafted(round.emitted, round.seconds - reading, most, plain)
            bound.balance -= reading / plain
        else:
            self._plain_seen = True
            bound.decoded(round.emitted, (round.seconds - round.verify_seconds) / plain)

    def options(self) -> list[Option]:
        """What was expected of the arms in the round chosen last: the chosen one first, then the best."""
        found = self._now.best
        if found is None:
            return []
        rate, seconds, chosen = self._now.rate, self._verify_seconds, found[0]
        own = {estimate[0]: estimate for estimate in self._estimates}
        for group, odds, factor, fixed, each in self._weighed:
            tokens = self.positional.tokens(odds, factor)
            own |= {arm: (arm, tokens[n], seconds[width] + fixed + each * n) for arm, n, width in group.arms}
        own[chosen] = found
        ranked = sorted(own.values(), key=lambda e: (e[0] != chosen, rate * e[2] - e[1]))
        return [Option(arm, tokens, max(taken, 1e-9), self._timed) for arm, tokens, taken in ranked]

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
        self.exploration.bound.belong(int(batch.slots[0]))
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
