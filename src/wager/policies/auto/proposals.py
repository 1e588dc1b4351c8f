"""What the proposals of cheap drafters are worth: the best prefix of each, known before the round."""

from collections.abc import Iterable, Sequence
from math import inf

from wager.core import Context
from wager.policies.auto.acceptance import AcceptanceModel
from wager.policies.auto.arms import ArmTable, Best, Estimate, Plan, Table
from wager.policies.auto.decision import Decision
from wager.policies.auto.features import AGREEMENT, NO_AGREEMENT, Proposal
from wager.policies.auto.latency import LatencyModel
from wager.policies.base import Policy


class ProposalWeighing(Policy):
    """The part of `auto` that compares what drafters propose before the round."""

    __slots__ = (
        *("acceptance", "hinted", "index", "latency"),
        *("_estimates", "_now", "_other", "_plans", "_records", "_table"),
    )
    acceptance: AcceptanceModel
    latency: LatencyModel
    hinted: set[str]  # drafters whose proposals are known before a round
    index: dict[str, int]
    budget: int
    _table: ArmTable
    _plans: dict[int, Plan]  # of drafters without hints, by bucket of batch sizes

    def reset(self) -> None:
        super().reset()
        self.hinted = set()
        # By the drafters that have a hint; two in turn, for a round may be observed after the next choice.
        self._records: dict[tuple[bool, tuple[str, ...]], list[Proposal]] = {}
        self._other = False  # which of the two; every choice has the other one, however often it weighs
        self._estimates: list[Estimate] = []
        self._now = Decision({}, 0.0, 0.0, {})  # the last one

    def _weigh_hinted(
        self, context: Context, seconds: Table, rate: float, off: float, room: float, cautious: bool
    ) -> Best:
        """Find the best prefix of every proposal."""
        top = second = off  # second: the best without the drafter of the best
        most, best, leader = -inf, None, -1
        estimates, exact, at_least = self._estimates, self._table.exact, self._table.at_least
        self._now.proposals = proposals = self._fill(context)
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
        self._now.gains = gains = [0.0] * len(self.drafters)
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

    def _fill(self, context: Context) -> list[Proposal]:
        """The proposals of this round; drafters that propose nothing are left out."""
        hints, agreement = context.hints, context.agreement
        limit = self.budget // context.batch if self.budget else self.longest
        names = tuple(hints)
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
