"""Which idle models of `auto` read the text though they do not draft, and what the text shows of all models."""

from functools import partial
from math import exp, inf

from wager.core import Context, Round
from wager.policies.auto.arms import Estimate
from wager.policies.auto.reading import expected_gain
from wager.policies.auto.weighing import ArmWeighing


class Reading(ArmWeighing):
    """The part of `auto` that weighs what reading brings."""

    __slots__ = ()

    def _worth_reading(
        self, context: Context, chosen: Estimate, rate: float
    ) -> tuple[dict[str, tuple[float, float]], int]:
        """Idle models that read now, the most worth first, with the seconds that are expected and those that it takes
        at most; and the rounds until that is to be considered again. Those that can only draft are left out.

        A reading makes the estimate of a drafter's log odds move by some standard deviation; without it the better of
        two drafters is missed now and then, in every round. That has been growing as the square root of the tokens it
        missed, so all rounds since it read last have cost two thirds of as many of the present one.
        """
        here, mine, wait = self.in_text, chosen[0].drafter, self.config.round_memory
        values = self._values_in_text(rate)
        # without the draw that it was chosen by
        best = values.pop(mine) if mine in values else chosen[1] - rate * chosen[2]
        to_come = self._rounds_to_come(context, chosen[1])
        found: dict[str, tuple[float, float, float]] = {}
        for name, value in values.items():
            if not context.can_read(name):
                continue
            missed, lag = here.of(name).missed, context.lag.get(name, 0) + chosen[0].deepest + 1
            seconds, most = self._reading_seconds(name, lag, self._now.plain_seconds)
            cost, waited = rate * seconds, max(1.0, missed / chosen[1])
            gain = expected_gain(best, value, partial(self._value_in_text, name, rate=rate))
            if min(2.0 / 3.0 * waited, to_come) * gain >= cost and missed:
                found[name] = gain * waited - cost, seconds, most
                wait = min(wait, 0.5 * waited)
            else:  # the cost is reached in so many times the rounds
                times = (1.5 * cost / (gain * waited)) ** (2.0 / 3.0) if gain > 0.0 else 2.0
                wait = min(wait, waited * (min(2.0, max(1.25, times)) - 1.0))
        return {name: found[name][1:] for name in sorted(found, key=lambda name: -found[name][0])}, int(wait)

    def _kept_for_reading(self, context: Context, rate: float) -> float:
        """What a text that is losing may not lose by drafts, in plain tokens: the time of the idle models to read of
        which nothing is known in it, where they can still read and that is expected to pay in the rounds to come. One
        half of the bound at most.

        Otherwise the model that drafts first would use up the bound where it is the wrong one, and the right one would
        never be found.
        """
        here, bound, plain, kept = self.in_text, self.exploration.bound, self._now.plain_seconds, 0.0
        if bound.standing >= 0.0 or not here.current or not here.reads:
            return 0.0
        most_kept = min(0.5 * self.config.allowed_tokens, bound.readable(context.remaining) + 1e-6)
        values = self._values_in_text(rate)
        best = max(1.0 - rate * plain, values.pop(here.current, -inf))
        for name, value in values.items():
            if context.can_read(name) and not here.of(name).information:
                seconds, most = self._reading_seconds(name, context.lag.get(name, 0) + 1, plain)
                gain = expected_gain(best, value, partial(self._value_in_text, name, rate=rate))
                pays = self._rounds_to_come(context, 1.0) * gain >= rate * seconds
                kept += most / plain if pays and kept + most / plain <= most_kept else 0.0
        return kept

    def _rounds_to_come(self, context: Context, tokens: float) -> float:
        """In this text, if each brings so many tokens; no more than can be known of."""
        memory = self.config.round_memory
        return memory if context.remaining is None else min(memory, context.remaining / tokens)

    def _values_in_text(self, rate: float) -> dict[str, float]:
        """What the best arm of every model is worth in this text, catching up left out."""
        self.positional.settle_learned()  # a round may have been observed since the arms were weighed
        names = dict.fromkeys(name for _, name, _, _, _ in self._plans.get(1) or self._plan(1))
        return {name: self._value_in_text(name, 0.0, rate) for name in names}

    def _value_in_text(self, drafter: str, deviations: float, rate: float) -> float:
        """What a drafter's best arm is worth if reading moves its log odds by so many standard deviations."""
        seconds, here, best = self._verify_seconds, self.in_text, -inf
        factor = here.factors.get(drafter, 1.0)
        for group, name, arms, counts, _ in self._plans.get(1) or self._plan(1):
            if name == drafter:
                fixed, each = self.latency.drafts.parts(group.key, 1, seconds[1])
                odds = counts.odds[0] * factor
                moved = deviations and exp(deviations * here.deviation(drafter, odds / (1.0 + odds), counts.relative))
                tokens = self.positional.tokens(counts.odds, factor * (moved or 1.0))
                best = max(best, *(tokens[n] - rate * (seconds[width] + fixed + each * n) for _, n, width in arms))
        return best

    def _reading_seconds(self, drafter: str, tokens: int, plain: float) -> tuple[float, float]:
        """Seconds in which a drafter is expected to read so many tokens, and those that it takes at most."""
        fixed, each = self.latency.drafts.parts(drafter, 1, plain)
        late, most = (
            self.latency.drafts.long_catch_up(drafter, tokens, plain),
            self.latency.worst_catch_up(drafter, tokens, plain),
        )
        return fixed + each + late, self.latency.worst_draft(drafter, 1, plain) + most

    def _follow_text(self, round: Round, key: str, length: int) -> None:
        """What this text shows of drafters without hints: of the one that drafted (``key``) and of those that read."""
        now, here, drafter, known = self._now, self.in_text, round.arm.drafter if key else "", round.others
        if now.best is not None and (key or not round.drafted):
            run = now.best[1] - now.rate * now.best[2] - now.merge[0]
            here.compare(now.values, run, drafter)
        hits = {drafter: here.scored(scores)} if isinstance(scores := known.get(drafter), tuple) else {}
        unseen = here.unseen  # tokens that nobody was scored at; learning from a draft counts its own
        here.pass_by(
            round.emitted, (n for n in self.drafters if n not in self.hinted), aside=not key and round.drafted > 0
        )
        if key:
            tried = min(round.own + 1, length)
            chances = [x / (1.0 + x) for x in self.positional.of(key, length).odds[:tried]]
            here.learn(drafter, chances, round.own)
        else:
            unseen = here.unseen
        for name, scores in known.items():
            if not isinstance(scores, int) and name in self.index and name not in hits:
                hits[name] = here.scored(scores)
        scored = max((len(own) for name, own in hits.items() if name in self.positional.shifts), default=0)
        self.positional.fade(min(unseen, scored))
        self.kind.fade(min(unseen, scored))
        for name, own in hits.items():
            self.kind.learn(name, own, first=True)
            here.learn(name, self.positional.read(name, own), sum(own))
            here.readable.add(name)
        for name, seconds in round.read_seconds.items():
            step, _ = self._reading_seconds(name, 1, now.plain_seconds)
            read = now.reading.get(name, 0) + round.emitted
            self.latency.drafts.caught_up(name, read, max(0.0, seconds - step))
        for name in (*round.read_seconds, *((drafter,) if key else ())):
            here.of(name).missed = 0
        here.wait, now.wait, now.reading, now.most_reading = max(here.wait, now.wait) - 1, 0, {}, 0.0
        here.settle()
