"""A portfolio of cheap drafters: one of them and a length for every request of a batch, decided in columns.

Every drafter proposes for every request in every step, so all of them are scored on the true tokens for nothing; what
has to be tried out is only what steps cost. Arrays over a batch are (K, N): positions, then drafters and requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wager.core import Arm, Context, Hint, Round
from wager.policies.base import ArmPolicy, require
from wager.policies.costs import OFF_STEP, RAGGED, UNIFORM, Costs, kind_of
from wager.policies.rows import Bools, Floats, Ints, Outcome, Rows

# Acceptance is counted by drafter, match, position and confidence. Where the table is read, confidence is told apart
# in 40ths, so that a token's place in it is one multiplication and one addition away.
MATCHES = np.array([0, 0, 1, 2, 3, 3, 4, 4, 4, 4, 5])  # bucket of a match of 0, 1, ... 10 tokens or more
POSITIONS = 4  # 0, 1, 2, 3 or more
FINENESS = 40
COLUMNS = FINENESS + 2  # none, then [0, 1/40) ... [39/40, 1), 1
SURENESS = np.searchsorted([1, 13, 25, 35, 40], np.arange(COLUMNS), side="right")  # none, < .3, .6, .85, .975, above
KINDS = (int(MATCHES.max()) + 1, POSITIONS, int(SURENESS.max()) + 1)
MATCH, POSITION, CONFIDENCE = KINDS
STARTS = MATCHES * float(POSITION * COLUMNS) + 1  # where a match's part of the table begins
WINDOW = 500.0  # tokens of evidence a cell remembers
SHRINK = 8.0  # tokens of evidence a cell's parent is worth
SAMPLE = 64  # rows of a step that are counted, at least
PENDING = 256  # rows to collect before the tables are worked out anew
SURE = 0.99  # no token is likelier than this
FADE = 0.95  # a request's own record, from step to step

TRIES = 3  # steps of each kind for every size of batch, to begin with
LOSS = 0.1  # goodput a trial may cost; a dearer one is as much rarer
Counts = NDArray[np.float64]


class Portfolio(ArmPolicy):
    """The drafter and length of best expected goodput, request by request, from shared tables and learned costs."""

    uses = frozenset({"hints", "others"})
    learned: ClassVar[tuple[str, ...]] = ("saved",)

    def __init__(
        self, arms: Sequence[Arm], *, budget: int = 0, memory: float = 4.0, explore: float = 0.005, seed: int = 0
    ) -> None:
        super().__init__(arms, seed=seed)
        require(budget >= 0, f"budget is at least 0 tokens a step (0: no limit), not {budget}")
        require(memory > 0, f"memory is above 0 tokens, not {memory}")
        require(0 <= explore <= 0.1, f"explore is between 0 and 0.1 of the steps, not {explore}")
        self.budget = budget
        self.memory = memory
        self.explore = explore
        self.drafters = tuple(dict.fromkeys(arm.drafter for arm in self.arms if arm.length))
        # Which cell each place of the table shows.
        blocks = np.arange(len(self.drafters) * MATCH * POSITION)[:, None] * CONFIDENCE
        self._cell = (blocks + SURENESS).ravel()
        self._depths: dict[int, tuple[Ints, Floats]] = {}
        self._numbers: Ints = np.arange(1024)
        self._line = (0, 0.0, 0.0)  # draft tokens, seconds per token and without any, of ...
        self._seconds: Floats = np.zeros(0)  # ... steps that draft 1, 2, ... tokens
        self._record = np.dtype((np.void, 16 * max(1, len(self.drafters))))
        self.reset()

    def reset(self) -> None:
        super().reset()
        drafters = len(self.drafters)
        self.costs = Costs()
        self.prices: dict[int, float] = {}  # size of batch -> tokens a draft token had to bring in its last step
        self.counts: Counts = np.zeros((2, drafters, MATCH, POSITION * CONFIDENCE))  # tried and accepted, fading
        self.new: Counts = np.zeros_like(self.counts)  # not yet part of them
        self.pending: list[tuple[Ints, Ints, Bools]] = []  # steps whose tokens are not counted yet: cells, scored, lost
        self.waiting = 0  # rows since the tables were worked out
        self.rows = 0  # rows before that
        self.turn = 0  # which rows of a large batch are counted
        self._keep(np.zeros((16, 2 * max(1, drafters))))
        self.asked = self._unasked()  # one stream, by drafter: tokens proposed, and the cell of each
        self._estimate()

    # --- a batch, in columns -----------------------------------------------------------------------------------------

    def choose_rows(self, rows: Rows) -> tuple[Ints, Ints]:
        """Drafter and length per request: the tokens of best expected goodput over the batch."""
        drafters, count, longest = rows.confidence.shape
        if drafters != len(self.drafters):
            raise ValueError(f"rows of {drafters} drafters for a policy of {len(self.drafters)}: {self.drafters}")
        if not drafters or not count or not longest:
            return _nobody(count)
        size = 1 << count.bit_length()
        base, token, ragged = self.costs.at(count)
        room = int(np.minimum.reduce(rows.limit))
        chains = self._survival(rows, rows.size if room >= longest else np.minimum(rows.size, rows.limit))

        # A request's drafter is the one that brings most beyond the price of its tokens: largest sum of S - price
        # where that is positive, and so of max(S, price). The price hangs on what the whole batch drafts and that on
        # the drafters; the last step's is near enough, and this pass corrects it for the next.
        gain = np.add.reduce(np.maximum(chains, self.prices.get(size, 0.0)), axis=0)
        best = gain.reshape(drafters, count).argmax(axis=0)
        kept = chains.take(best * count + self._upto(count), axis=1)  # (K, B)

        # Survival falls along a chain, so the n likeliest tokens of the batch are always prefixes (as in TETRIS).
        likely = kept.flatten()
        likely.sort()
        likely = likely[::-1]
        full = longest * count
        most = min(self.budget, full) if self.budget else full
        tokens = np.add.accumulate(likely[:most])
        tokens += count
        line = (most, token, base + ragged)
        if line != self._line:  # the same for as long as the batch and its costs are
            self._line, self._seconds = line, self._upto(most + 1)[1:] * token + (base + ragged)
        goodput: Counts = tokens / self._seconds
        n = int(goodput.argmax()) + 1

        values = [count / base, 0.0, 0.0]
        if likely[0] > 0.0:
            values[RAGGED] = float(goodput[n - 1])
        if most == full and room >= longest:
            values[UNIFORM] = float(tokens[-1]) / (base + token * full)
        # Where nobody drafts, or everybody the same, no token has a price until the next ragged step.
        top = max(values)
        self.prices[size] = token * top if values.index(top) == RAGGED else 0.0

        kind, vary = self._try(size, values)
        if kind == OFF_STEP:
            return _nobody(count)
        if kind == UNIFORM:
            return best, np.full(count, longest)
        if vary:
            n = _bend(goodput[likely[:most] > 0.0], n, vary)
        floor = float(likely[n - 1])
        lengths = np.add.reduce(kept >= floor, axis=0)
        if n == self.budget:
            _trim(lengths, kept, floor, n)
        best[lengths == 0] = -1
        return best, lengths

    def observe_rows(self, outcome: Outcome) -> None:
        """Learn from a finished step: every proposal's tokens as far as the true ones are known, and the seconds."""
        rows, agreed = outcome.rows, outcome.agreed
        drafters, count, longest = rows.confidence.shape
        if not drafters or not count or not longest:
            return
        if outcome.seconds > 0.0:
            drafted = int(np.add.reduce(outcome.drafted))
            self.costs.learn(count, drafted, longest * count, outcome.seconds + outcome.draft_seconds)
        cells, odds = rows.work or self._look(rows)
        # A token is scored if all before it agreed and the true token is known.
        scored = np.minimum(agreed + 1, np.minimum(rows.size, outcome.emitted))

        expected = np.zeros((longest + 1, drafters * count))  # accepted tokens the table expects of so many scored
        _accumulate(np.add, odds, expected[1:])
        own = self._records(rows.slots)
        own *= FADE
        own[:, :drafters] += agreed.T
        own[:, drafters:] += expected.take(self._at(scored)).reshape(drafters, count).T
        self._whole[rows.slots] = own.view(self._record)[:, 0]

        lost = scored > agreed  # a proposed token was not the true one
        if count >= 2 * SAMPLE:  # of a large batch some rows are enough, others in every step
            step = count // SAMPLE
            self.turn = (self.turn + 1) % step
            cells = cells.reshape(longest, drafters, count)[:, :, self.turn :: step].reshape(longest, -1)
            scored, lost = scored[:, self.turn :: step], lost[:, self.turn :: step]
            count = scored.shape[1]
        if self.pending and self.pending[0][0].shape[0] != longest:
            self._absorb()
        self.pending.append((cells, scored.ravel(), lost.ravel()))
        self._collect(count)

    def _look(self, rows: Rows) -> tuple[Ints, Counts]:
        """Where each proposed token stands in the table and what the table expects of it, both (K, N)."""
        drafters, count, longest = rows.confidence.shape
        at = np.empty((longest, drafters, count))
        np.multiply(rows.confidence.transpose(2, 0, 1), float(FINENESS), out=at)
        np.fmax(at, -1.0, out=at)  # where there is no confidence: the column before the first
        at += self._depth(longest)[1]
        flat = at.reshape(longest, drafters * count)
        flat += STARTS.take(rows.match, mode="clip").ravel()
        cells = flat.astype(np.intp)
        return cells, self.table.take(cells)

    def _survival(self, rows: Rows, size: Ints) -> Counts:
        """Probability that each proposed token is reached and accepted, (K, N); 0 past ``size``, (D, B)."""
        drafters, count, longest = rows.confidence.shape
        if np.count_nonzero(rows.fresh):
            self._records(rows.slots)  # makes room
            self.own[rows.slots[rows.fresh]] = 0.0
        _, odds = rows.work = self._look(rows)
        own = self._records(rows.slots)
        own += self.memory
        padded = np.empty((longest + 1, drafters * count))
        chains = padded[:longest]
        np.multiply(odds, (own[:, :drafters] / own[:, drafters:]).T.ravel(), out=chains)
        np.minimum(chains, SURE, out=chains)
        padded.reshape(-1)[self._at(size)] = 0.0  # after a chain's last token; it makes all that follow 0
        _accumulate(np.multiply, chains, chains)
        return chains

    def _at(self, depth: Ints) -> Ints:
        """Places in a flat (K, N) array of the given depth per drafter and request."""
        places = np.multiply(depth.ravel(), depth.size, dtype=np.intp)
        places += self._upto(depth.size)
        return places

    def _upto(self, count: int) -> Ints:
        """0, 1, ... count - 1."""
        if len(self._numbers) < count:
            self._numbers = np.arange(2 * count)
        return self._numbers[:count]

    def _depth(self, longest: int) -> tuple[Ints, Floats]:
        """Positions as a column, and where the part of each position and drafter begins in the table."""
        known = self._depths.get(longest)
        if known is None:
            require(longest < 128, f"a proposal has fewer than 128 tokens, not {longest}")
            depth, drafter = np.arange(longest)[:, None], np.arange(len(self.drafters))[:, None]
            part = np.minimum(depth, POSITION - 1)[:, :, None] + drafter * MATCH * POSITION
            known = self._depths[longest] = depth.astype(np.int8), part * float(COLUMNS)
        return known

    def _records(self, slots: Ints) -> Counts:
        """A copy of what the requests of these slots have shown, (B, 2 D)."""
        try:
            return self._whole.take(slots).view(np.float64).reshape(len(slots), -1)
        except IndexError:
            wider = np.zeros((2 * int(slots.max()) + 1, self.own.shape[1]))
            wider[: len(self.own)] = self.own
            self._keep(wider)
            return self._records(slots)

    def _keep(self, own: Counts) -> None:
        """Per slot: tokens accepted by drafter, then those the tables expected."""
        self.own = own
        self._whole: NDArray[np.void] = own.view(self._record)[:, 0]  # the same, a request in one piece

    # --- acceptance, shared by all requests --------------------------------------------------------------------------

    def _collect(self, rows: int) -> None:
        """Take in the evidence once there is enough to be worth it: at first after every few rows."""
        self.waiting += rows
        if self.waiting >= min(PENDING, 1 + self.rows / 8):
            self._absorb()

    def _absorb(self) -> None:
        """Count what is pending; each cell forgets as much as it learns."""
        if self.pending:
            cells, scored, lost = (np.concatenate(part, axis=-1) for part in zip(*self.pending, strict=True))
            width = len(scored)
            known = (self._depth(len(cells))[0] < scored.astype(np.int8)).ravel().nonzero()[0]
            flat = cells.ravel()
            self.new += self._count(flat.take(known))
            missed = lost.nonzero()[0]
            self.new[1] -= self._count(flat.take((scored.take(missed) - 1) * width + missed))
            self.pending = []
        self.counts /= 1.0 + self.new[0] / WINDOW
        self.counts += self.new
        self.new[:] = 0.0
        self.rows += self.waiting
        self.waiting = 0
        self._estimate()

    def _count(self, places: Ints) -> Counts:
        """How many of these places of the table show each cell."""
        counted: Counts = np.bincount(self._cell.take(places), minlength=len(self.cells)).astype(np.float64)
        return counted.reshape(self.new.shape[1:])

    def _estimate(self) -> None:
        """Acceptance per cell, shrunk towards its drafter and match, those towards the drafter, that towards 1/2."""
        tried, accepted = self.counts
        by_match = np.add.reduce(self.counts, axis=3)
        by_drafter = np.add.reduce(by_match, axis=2)
        drafter = (by_drafter[1] + SHRINK / 2) / (by_drafter[0] + SHRINK)
        match = (by_match[1] + SHRINK * drafter[:, None]) / (by_match[0] + SHRINK)
        self.cells: Counts = ((accepted + SHRINK * match[:, :, None]) / (tried + SHRINK)).ravel()
        self.table: Counts = self.cells.take(self._cell)
        self._listed: list[float] = []  # the cells for one stream, once it asks

    # --- what a step costs -------------------------------------------------------------------------------------------

    def _try(self, size: int, values: list[float]) -> tuple[int, int]:
        """The kind of step to play, and whether with more (1) or fewer (-1) tokens than seems best.

        A kind that is not possible has value 0. Acceptance is learned in any case, so trials are for costs alone.
        """
        best = max(values)
        leader = values.index(best)
        if not self.explore:
            return leader, 0
        tries, steps = self.costs.tried(size)
        for kind in (OFF_STEP, RAGGED, UNIFORM):  # off costs at most the tokens of a step: it is tried in any case
            if tries[kind] < TRIES and values[kind] > (best / 2 if kind else 0.0):
                return kind, 0
        if self.rng.random() >= self.explore + 0.5 / (steps + 10):
            return leader, 0
        kind = (leader + 1 + int(self.rng.random() * (3 if leader == RAGGED else 2))) % 3
        luck = self.rng.random()
        if kind == leader:
            return RAGGED, 1 if luck < 0.5 else -1
        if values[kind] > 0.0 and luck * (best - values[kind]) < LOSS * best:
            return kind, 1
        return leader, 0

    # --- one stream, by arms -----------------------------------------------------------------------------------------

    def choose(self, context: Context) -> Arm:
        slots = self.available(context.arms)
        count = context.batch
        size = 1 << count.bit_length()
        base, token, ragged = self.costs.at(count)
        if context.tokens == 0 or context.prompt is not None:
            self.own[0] = 0.0
        tokens = self._hinted(context)
        leaders: list[Arm | None] = [None, None, None]
        values = [0.0, 0.0, 0.0]
        for arm in sorted((self.arms[i] for i in slots if self.arms[i].tree is None), key=_length):
            if 0 < self.budget < arm.length * count:
                continue
            reach = tokens[arm.drafter] if arm.length else [1.0]
            n = min(arm.length, len(reach) - 1)
            kind = kind_of(n, self.longest)
            value = count * reach[n] / (base + token * n * count + (ragged if kind == RAGGED else 0.0))
            if value > values[kind]:
                values[kind], leaders[kind] = value, arm
        kind, _ = self._try(size, values)
        return leaders[kind] or min((self.arms[i] for i in slots), key=_budget)

    def _hinted(self, context: Context) -> dict[str, list[float]]:
        """Tokens a round is expected to emit per request by drafter and tokens drafted; keeps what was asked."""
        if not self._listed:
            self._listed = self.cells.tolist()
        self.asked = self._unasked()
        expected: dict[str, list[float]] = {}
        own = (self.own[0] + self.memory).tolist() if context.batch == 1 else [1.0] * self.own.shape[1]
        for at, name in enumerate(self.drafters):
            hint = context.hints.get(name)
            if hint is not None:
                self.asked[at] = self._told(at, hint)
            factor = own[at] / own[at + len(self.drafters)]
            reach, chance = [1.0], 1.0
            proposed, cells = self.asked[at]
            for cell in cells[:proposed]:
                chance *= min(SURE, factor * self._listed[cell])
                reach.append(reach[-1] + chance)
            expected[name] = reach
        return expected

    def _told(self, drafter: int, hint: Hint) -> tuple[int, list[int]]:
        """Tokens a hint promises, and the cell of each position."""
        block = drafter * MATCH + int(MATCHES[min(hint.match, len(MATCHES) - 1)])
        sure = [int(SURENESS[1 + int(FINENESS * p)]) for p in hint.confidence[: self.longest]]
        proposed = len(sure) if sure or not hint.match else self.longest
        sure += [0] * (self.longest - len(sure))
        rows = [block * POSITION + min(j, POSITION - 1) for j in range(self.longest)]
        return proposed, [row * CONFIDENCE + column for row, column in zip(rows, sure, strict=True)]

    def _unasked(self) -> list[tuple[int, list[int]]]:
        """What is known of drafters that gave no hint: they may propose as much as they like."""
        return [(self.longest, self._told(d, Hint())[1]) for d in range(len(self.drafters))]

    def observe(self, round: Round) -> None:
        seconds = round.draft_seconds + round.verify_seconds
        if seconds > 1e-9:
            self.costs.learn(round.batch, round.drafted, self.longest * round.batch, seconds)
        arm = round.arm
        known = {} if arm.tree or not arm.length else {arm.drafter: (round.accepted, round.drafted)}
        if round.batch > 1:
            for name, (accepted, _) in known.items():
                self._score_batch(self.drafters.index(name), arm.length, accepted, round.rejected)
        else:
            others = {name: (agreed, self.longest) for name, agreed in round.others.items() if name not in known}
            self.own[0] *= FADE
            for name, (agreed, drafted) in (others | known).items():
                if name in self.drafters:
                    self._score(self.drafters.index(name), agreed, drafted, round.emitted, name in known)
        self._collect(round.batch)

    def _score(self, drafter: int, agreed: int, drafted: int, emitted: int, played: bool) -> None:
        """Count the tokens of one proposal, as far as the true ones are known."""
        if not self._listed:
            self._listed = self.cells.tolist()
        proposed, cells = self.asked[drafter]
        reach = min(drafted if played else proposed, emitted, self.longest)
        agreed = min(agreed, reach)
        scored = cells[: min(agreed + 1, reach)]
        tried, accepted = self.new.reshape(2, -1)
        for at, cell in enumerate(scored):
            tried[cell] += 1.0
            accepted[cell] += at < agreed
        self.own[0, drafter] += agreed
        self.own[0, drafter + len(self.drafters)] += sum(self._listed[cell] for cell in scored)

    def _score_batch(self, drafter: int, length: int, accepted: int, rejected: int) -> None:
        """Count a batch of which only totals are known, as if every token had been as likely as every other."""
        trials = accepted + rejected
        if not trials:
            return
        rate = accepted / trials
        shares = [rate**j for j in range(length)]
        seen, kept = self.new.reshape(2, -1)
        for share, cell in zip(shares, self.asked[drafter][1], strict=False):
            seen[cell] += trials * share / sum(shares)
            kept[cell] += trials * share / sum(shares) * rate

    # --- saving ------------------------------------------------------------------------------------------------------

    @property
    def saved(self) -> dict[str, Any]:
        """Everything learned, in lists."""
        return {
            "costs": self.costs.saved,
            "prices": dict(self.prices),
            "counts": self.counts.tolist(),
            "new": self.new.tolist(),
            "pending": [[part.tolist() for part in step] for step in self.pending],
            "waiting": self.waiting,
            "rows": self.rows,
            "turn": self.turn,
            "own": self.own.tolist(),
            "asked": list(self.asked),
        }

    @saved.setter
    def saved(self, saved: dict[str, Any]) -> None:
        self.costs.saved = saved["costs"]
        self.prices = saved["prices"]
        self.counts = np.array(saved["counts"]).reshape(self.counts.shape)
        self.new = np.array(saved["new"]).reshape(self.new.shape)
        self.pending = [tuple(np.array(part) for part in step) for step in saved["pending"]]  # type: ignore[misc]
        self.waiting, self.rows, self.turn, self.asked = (saved[key] for key in ("waiting", "rows", "turn", "asked"))
        self._keep(np.array(saved["own"]))
        self._estimate()


def _nobody(count: int) -> tuple[Ints, Ints]:
    return np.full(count, -1), np.zeros(count, dtype=np.int64)


def _accumulate(add: np.ufunc, values: Counts, out: Counts) -> None:
    """Running sums or products down the columns of (K, N); numpy's own are slow where rows are long."""
    if values.shape[1] < 128:
        add.accumulate(values, axis=0, out=out)
        return
    out[0] = before = values[0]
    for row, to in zip(values[1:], out[1:], strict=True):
        before = add(before, row, to)


def _bend(goodput: Counts, n: int, way: int) -> int:
    """As many more (or fewer) tokens than n as do not lose too much."""
    fine = (goodput >= (1 - LOSS) * goodput[n - 1]).nonzero()[0]
    return int(fine[-1 if way > 0 else 0]) + 1


def _trim(lengths: Ints, kept: Counts, floor: float, n: int) -> None:
    """Keep to n tokens where several are as likely as the last of them: the later requests go without."""
    over = int(lengths.sum()) - n
    if over > 0:
        lengths[(kept == floor).any(axis=0).nonzero()[0][-over:]] -= 1


def _length(arm: Arm) -> int:
    return arm.length


def _budget(arm: Arm) -> int:
    return arm.budget
