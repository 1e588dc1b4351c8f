"""`auto`: the drafter and length of largest expected value, from learned acceptance and learned latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, ClassVar, NamedTuple

import numpy as np

from wager.core import OFF, Arm, Context, Hint, Round, Signal
from wager.core.batch import Batch, BatchRound, Choices
from wager.policies.auto.acceptance import AGREEMENT, NO_AGREEMENT, AcceptanceModel, Proposal
from wager.policies.auto.batch import BatchChooser, context_of_one, no_drafts, round_of_one
from wager.policies.auto.config import AutoConfig
from wager.policies.auto.exploration import Exploration
from wager.policies.auto.latency import LatencyModel
from wager.policies.auto.positional import PositionalAcceptance
from wager.policies.auto.verify import OFF_STEP, RAGGED, UNIFORM, bucket, kind_of
from wager.policies.base import Option, Policy, require

NO_HINT = Hint()
NO_HINTS: Mapping[str, Hint] = {}


class ArmGroup(NamedTuple):
    """Arms that share their acceptance: one drafter's chains, or one of its trees."""

    key: str
    drafter: str
    longest: int
    arms: list[tuple[Arm, int, int, int]]  # arm, length, width of its verification, kind of step


class Estimate(NamedTuple):
    """What is expected of an arm."""

    arm: Arm
    tokens: float
    seconds: float


class Auto(Policy):
    """Runs whatever brings most tokens beyond what its seconds are worth; learns from all drafters that are cheap."""

    # A round of value v takes s seconds, in which the engine would otherwise have brought r·s tokens at its present
    # rate r. The whole text is done soonest if every round has the arm of largest v - r·s: the ratio v/s is what the
    # rounds have to maximise together, not one by one.
    needs = frozenset({Signal.HINTS, Signal.OTHERS})
    per_request = True
    explains = True
    config = AutoConfig()
    learned: ClassVar[tuple[str, ...]] = ("models",)

    def __init__(self, arms: Sequence[Arm], *, budget: int = 0, seed: int = 0) -> None:
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
        self.latency = LatencyModel(1 + max(arm.budget for arm in self.arms), self.longest, config)
        self.exploration = Exploration(self.drafters, self.rng, config)
        self.batch = BatchChooser(self.drafters, self.acceptance, self.latency, self.exploration, self.budget)
        self.hinted: set[str] = set()  # drafters whose proposals are known before a round
        self._read_arms: tuple[Arm, ...] | None = None  # those the tables below are made of
        self._records: dict[tuple[str, ...], list[Proposal]] = {}  # by the drafters that have a hint
        self._proposals: list[Proposal] = []  # of this round
        self._estimates: list[Estimate] = []
        self._groups_weighed: list[tuple[ArmGroup, list[float], float, float]] = []
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
        if context.arms is not self._read_arms:
            self._read(context.arms)
        batch = context.batch
        if batch == 1 and context.previous is None:
            self._begin()
        seconds, rate = self._seconds(batch), self._rate(batch)
        self._estimates, self._groups_weighed, self._proposals = [], [], []
        self._called, self._gains, self._value_rate = context.proposal_seconds, (), rate
        self._verify_seconds, self._plain_seconds = seconds, seconds[1]
        if batch == 1 and self._off and self.latency.verify.overdue():
            return self._take(Estimate(OFF, 1.0, seconds[1]))
        probing = self.exploration.probe_due
        values: list[float] = [-inf, -inf, -inf]  # by kind of step
        leaders: list[Estimate | None] = [None, None, None]
        if self._off:
            leaders[OFF_STEP] = plain = Estimate(OFF, 1.0, seconds[1])
            self._estimates.append(plain)
            values[OFF_STEP] = -inf if probing else 1.0 - rate * seconds[1]
        limit = self.budget // batch if self.budget else self.longest
        if context.hints:
            self._weigh_hinted(context, seconds, rate, limit, values, leaders)
        if self._unhinted:
            self._weigh_unhinted(context, seconds, rate, values, leaders)
        if batch > 1 and not probing:
            goodput = [0.0 if e is None else e.tokens / e.seconds for e in leaders]
            kind = self.exploration.trials.choose(bucket(batch), values, goodput)[0]
        else:
            kind = max((OFF_STEP, RAGGED, UNIFORM), key=values.__getitem__)
        best = leaders[kind]
        if best is None:
            arm = min(self._menu, key=_budget)
            return self._take(Estimate(arm, 1.0, seconds[arm.budget + 1]))
        if probing and best.arm is not OFF:  # one token tells what drafting costs by now
            arm = self._shortest[best.arm.drafter]
            best = Estimate(arm, best.tokens, best.seconds)
        return self._take(best)

    def _take(self, best: Estimate) -> Arm:
        self._chosen = best
        return best.arm

    def _weigh_hinted(
        self,
        context: Context,
        seconds: list[float],
        rate: float,
        limit: int,
        values: list[float],
        leaders: list[Estimate | None],
    ) -> None:
        """Find the best prefix of every proposal."""
        top = second = values[OFF_STEP]  # second: the best without the drafter of the best
        leader, cut, estimates = -1, self.acceptance.cut, self._estimates
        self._proposals = self._fill(context, limit)
        for proposal in self._proposals:
            i = proposal.index
            value, n, tokens = cut(proposal, seconds, rate)
            arm = self._exact[i][n] if n < proposal.length else self._at_least[i][n]
            if arm is not None:
                own = Estimate(arm, tokens, seconds[n + 1])
            else:
                found = self._best_available(proposal, seconds, rate)
                if found is None:
                    continue
                own, value = found, found.tokens - rate * found.seconds
            estimates.append(own)
            if value > values[RAGGED]:
                values[RAGGED], leaders[RAGGED] = value, own
            if value > top:
                second, top, leader = top, value, i
            elif value > second:
                second = value
        self._gains = [0.0] * len(self.drafters)
        if leader >= 0:
            self._gains[leader] = top - second if second > -inf else 1.0

    def _best_available(self, proposal: Proposal, seconds: list[float], rate: float) -> Estimate | None:
        """The best prefix of a proposal among those there is an arm for."""
        reach = tokens = 1.0
        top, best = -inf, None
        for n, chance in enumerate(proposal.chances[: proposal.evaluated], 1):
            reach *= chance
            tokens += reach
            value = tokens - rate * seconds[n + 1]
            arm = (self._exact if n < proposal.length else self._at_least)[proposal.index][n]
            if value > top and arm is not None:
                top, best = value, Estimate(arm, tokens, seconds[n + 1])
        return best

    def _weigh_unhinted(
        self,
        context: Context,
        seconds: list[float],
        rate: float,
        values: list[float],
        leaders: list[Estimate | None],
    ) -> None:
        """Evaluate every arm of the drafters that say nothing beforehand, by one Thompson draw for each group."""
        batch, lags, drafts, stay = context.batch, context.lag, self.latency.drafts, self.exploration.expected_stay
        most = self.budget // batch if self.budget else inf
        for group in self._unhinted:
            key, drafter, longest, arms = group
            tokens = self.positional.tokens(key, longest)
            fixed, each = drafts.parts(key, batch, seconds[1] * batch)
            if drafter in lags:
                fixed += drafts.catch_up(drafter, lags[drafter]) / stay
            if batch > 1:
                fixed /= batch
                each /= batch
            self._groups_weighed.append((group, tokens, fixed, each))
            for arm, length, width, kind in arms:
                taken = seconds[width] + fixed + each * length
                value = tokens[length] - rate * taken
                if value > values[kind] and width <= most + 1:
                    values[kind], leaders[kind] = value, Estimate(arm, tokens[length], taken)

    def _seconds(self, batch: int) -> list[float]:
        """Seconds of verification by width, each request's share."""
        return self.latency.seconds(batch)

    def _rate(self, batch: int) -> float:
        """Tokens that a second is worth."""
        return self.latency.rate(batch)

    def _fill(self, context: Context, limit: int) -> list[Proposal]:
        """The proposals of this round; drafters that propose nothing are left out."""
        hints, agreement = context.hints, context.agreement
        names = tuple(hints)
        records = self._records.get(names)
        if records is None:
            records = self._records[names] = self._new_records(names)
        out = []
        for record in records:
            name = record.name
            hint = hints[name]
            length = hint.size or (limit if hint.match else 0)
            if length:
                out.append(record.fill(hint, min(length, limit), hints, agreement.get(name, NO_AGREEMENT)))
        return out

    def _new_records(self, names: Sequence[str]) -> list[Proposal]:
        """One for each drafter with a hint, in the drafters' order."""
        known = sorted((name for name in names if name in self.index), key=self.index.__getitem__)
        self.hinted.update(known)
        self._unhinted = [group for group in self._groups if group.drafter not in self.hinted]
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
        exploration.selection.learn(self._gains, self._called, self._value_rate, self._plain_seconds)
        self._called = {}
        key = self._key(arm)
        usual = self.positional.rate(key) if drafted and exploration.probe_due else 1.0
        exploration.observe(drafted > 0, round.accepted > usual * (round.accepted + round.rejected))
        if batch > 1 and round.verify_seconds > 1e-9:
            # by what was played: a drafter may have had less to propose than it was allowed
            exploration.trials.note(bucket(batch), kind_of(arm.budget, self.longest))
        unhinted = drafted > 0 and not hinted
        exploration.follow(arm.drafter if unhinted else "")
        if unhinted:
            length = arm.length if arm.tree or batch > 1 else drafted
            self.latency.drafts.learn(key, batch, length, round.draft_seconds)
            if batch > 1:
                self.positional.learn_batch(key, round.accepted, round.rejected, length)
            else:
                self.positional.learn(key, round.accepted, length)

    def options(self) -> list[Option]:
        """What was expected of the arms in the round chosen last: the chosen one first, then the best."""
        chosen, table = self._chosen, self._verify_seconds
        if chosen is None:
            return []
        own = {e.arm: e for e in self._estimates}
        for group, tokens, fixed, each in self._groups_weighed:
            for arm, length, width, _ in group.arms:
                own[arm] = Estimate(arm, tokens[length], table[width] + fixed + each * length)
        own[chosen.arm] = chosen
        rate = self._value_rate
        ranked = sorted(own.values(), key=lambda e: (e.arm != chosen.arm, e.seconds * rate - e.tokens))
        return [Option(e.arm, e.tokens, max(e.seconds, 1e-9)) for e in ranked]

    def _begin(self) -> None:
        """A new text."""
        self.acceptance.begin()
        self.exploration.selection.begin()

    def _read(self, arms: tuple[Arm, ...]) -> None:
        """Tables of the arms that are available."""
        self._menu = [self.arms[i] for i in self.available(arms)]
        self._off = OFF in self._menu
        chains = [{a.length: a for a in self._menu if a.drafter == name and a.tree is None} for name in self.drafters]
        numbers = range(self.longest + 1)
        self._exact = [[own.get(n) for n in numbers] for own in chains]  # the arm of exactly n tokens
        # the shortest arm of at least n tokens: what proposals of n tokens are played with
        self._at_least = [[next((own[m] for m in sorted(own) if m >= n > 0), None) for n in numbers] for own in chains]
        self._shortest: dict[str, Arm] = {}
        for arm in sorted(self._menu, key=_budget):
            self._shortest.setdefault(arm.drafter, arm)
        groups: dict[str, list[Arm]] = {}
        for name in self.drafters:
            for arm in sorted((a for a in self._menu if a.drafter == name), key=_length):
                groups.setdefault(self._key(arm), []).append(arm)
        self._groups = [
            ArmGroup(
                key,
                own[0].drafter,
                own[-1].length,
                [(arm, arm.length, arm.budget + 1, kind_of(arm.budget, self.longest)) for arm in own],
            )
            for key, own in groups.items()
        ]
        self._unhinted = [group for group in self._groups if group.drafter not in self.hinted]
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
            return no_drafts(count)
        if count > 1:
            return self.batch.choose(batch)
        if not batch.fresh[0]:
            self.acceptance.resume(int(batch.slots[0]))
        context = context_of_one(batch, self.drafters, self.arms, self.budget)
        arm = self.choose(context)
        length = min(arm.length, context.hints[arm.drafter].size) if arm.length else 0
        return Choices(np.array([self.index[arm.drafter]]), np.array([length]), arm) if length else no_drafts(1)

    def observe_batch(self, result: BatchRound) -> None:
        """Learn from a finished step: every proposal's tokens as far as the true ones are known, and the seconds."""
        batch = result.batch
        if len(batch.slots) > 1 and batch.confidence.size:
            self.batch.observe(result)
        elif batch.confidence.size:
            self.observe(round_of_one(result, self.drafters))
            self.acceptance.suspend(int(batch.slots[0]))

    # --- saving ------------------------------------------------------------------------------------------------------

    @property
    def models(self) -> dict[str, Any]:
        """Everything learned."""
        parts = ("acceptance", "positional", "latency", "exploration")
        return {name: getattr(self, name).state_dict() for name in parts} | {
            "kind": self.batch.kind,
            "hinted": sorted(self.hinted),
            "proposals": [proposal.state_dict() for proposal in self._proposals],
            "selection": [list(self._gains), dict(self._called), self._value_rate, self._plain_seconds],
        }

    @models.setter
    def models(self, state: Mapping[str, Any]) -> None:
        for name in ("acceptance", "positional", "latency", "exploration"):
            getattr(self, name).load_state_dict(state[name])
        self.batch.kind, self.hinted = state["kind"], set(state["hinted"])
        self._gains, self._called, self._value_rate, self._plain_seconds = state["selection"]
        self._proposals = [
            Proposal.from_state(self.index[saved["name"]], self.longest, saved) for saved in state["proposals"]
        ]


def _length(arm: Arm) -> int:
    return arm.length


def _budget(arm: Arm) -> int:
    return arm.budget
