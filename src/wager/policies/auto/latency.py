"""One model of latency: seconds by batch size, width, drafter and catch-up, and the tokens a second is worth."""

from collections.abc import Callable
from math import inf
from typing import ClassVar

from wager.core import Arm, Calibration, Round
from wager.policies.auto.config import AutoConfig
from wager.policies.auto.verify import BatchLatency, VerifyLatency, bucket
from wager.policies.base import Learner

LONG = 1024  # tokens that a drafter reads in no more than two plain steps: it is smaller, and reads them at once
Kind = int | tuple[str, int]  # of drafts: their length, with the drafter where several are told apart; 0: none


class DraftLine(Learner):
    """Seconds of one drafter's drafts by length: a fixed part and one for each token, by fading least squares."""

    __slots__ = ("config", "count", "drafts", "each", "fixed", "lengths", "products", "seconds", "squares")
    learned = ("drafts", "lengths", "squares", "seconds", "products", "count")

    def __init__(self, config: AutoConfig) -> None:
        self.config = config
        self.drafts = 0.0  # fading sums over drafts: of 1, of lengths, of their squares, of seconds, of both multiplied
        self.lengths = self.squares = self.seconds = self.products = 0.0
        self.count = 0
        self.fixed = self.each = 0.0  # seconds of every draft, and of each token

    def learn(self, length: int, seconds: float) -> None:
        """A draft of so many tokens took so long; a slow outlier is clipped, a fast one replaces all before it."""
        keep, outlier = 1.0 - 1.0 / self.config.round_memory, self.config.outlier
        if self.count:
            expected = self.fixed + self.each * length
            if seconds * outlier < expected:
                keep = 0.0
            elif seconds > outlier * expected > 0.0:  # 0: an engine has not told drafting from verifying yet
                seconds = outlier * expected
        self.drafts = keep * self.drafts + 1.0
        self.lengths = keep * self.lengths + length
        self.squares = keep * self.squares + length * length
        self.seconds = keep * self.seconds + seconds
        self.products = keep * self.products + length * seconds
        self.count += 1
        self.settle()

    def settle(self) -> None:
        """Solve for the two parts; before lengths differ, all seconds are the tokens'."""
        if not self.count:
            return
        n = self.drafts
        length, seconds = self.lengths / n, self.seconds / n
        most = seconds / length
        each = (self.products / n - length * seconds + most) / (self.squares / n - length * length + 1.0)
        self.each = each = min(most, max(0.0, each))
        self.fixed = seconds - each * length


class DraftLatency(Learner):
    """Seconds of drafters that are models: of their drafts, and of catching up on tokens they have not read.

    Catching up on a hundred tokens takes hardly longer than on ten where they are read at once, so it is known by the
    power of two of their number, and more than was ever seen is expected to take as long as the most that was.
    """

    learned = ("lines", "lags", "starts")
    elements: ClassVar = {"lines": DraftLine}

    def __init__(self, config: AutoConfig) -> None:
        self.config = config
        self.lines: dict[tuple[str, int], DraftLine] = {}  # by drafter or tree, and bucket of batch sizes
        self.lags: dict[str, dict[int, float]] = {}  # drafter -> power of two -> seconds
        self.starts: dict[str, float] = {}  # drafter or tree -> seconds more of a draft that was not begun ahead
        self._latest: dict[str, DraftLine] = {}  # stands in for buckets in which nothing was drafted

    def line(self, key: str, batch: int) -> DraftLine:
        """The line of a drafter or tree at this batch size; it starts from the last one of another size."""
        at = (key, bucket(batch))
        line = self.lines.get(at)
        if line is None:
            line = self.lines[at] = DraftLine(self.config)
            if key in self._latest:
                line.load_state_dict(self._latest[key].state_dict())
            self._latest[key] = line
        return line

    def parts(self, key: str, batch: int, verify: float) -> tuple[float, float]:
        """Seconds of every draft, and of each token of it, where plain decoding takes ``verify``."""
        line, unknown = self.line(key, batch), self.config.token_share * verify
        if line.count < self.config.repeats:  # the first drafts are often slow: they cannot rule a drafter out
            return 0.0, min(line.each, unknown) if line.count else unknown
        return line.fixed, line.each

    def catch_up(self, drafter: str, tokens: int, plain: float) -> float:
        """Seconds to catch up on so many tokens, where plain decoding takes ``plain``."""
        known, share = self.lags.get(drafter), self.config.token_share
        if tokens < 2:  # one token is read along with the next
            return 0.0
        if not known:  # a drafter takes that share of what the target would
            return share * (1.0 + share * tokens) * plain
        size = tokens.bit_length()
        nearest = size if size in known else max((other for other in known if other < size), default=min(known))
        return known[nearest]

    def long_catch_up(self, drafter: str, tokens: int, plain: float) -> float:
        """The same where more tokens than ever were not read cost more: as the two largest numbers timed suggest."""
        seconds, known = self.catch_up(drafter, tokens, plain), sorted(self.lags.get(drafter, ()))
        more = tokens.bit_length() - known[-1] if len(known) > 1 else 0
        if more <= 0:
            return seconds
        few, many = (self.lags[drafter][size] for size in known[-2:])
        growth = (many / few) ** (1.0 / (known[-1] - known[-2])) if few > 0.0 else 1.0
        return seconds * float(min(2.0, max(1.0, growth)) ** more)

    def most_catch_up(self, drafter: str, tokens: int, plain: float, target: float = inf) -> float:
        """What it takes at most, noise left out: for each token more than ever twice what one took between the two
        largest numbers that were timed, or the share of each where only one was; twice what is expected if none was.

        ``target``: seconds that one more token takes the target. A drafter is smaller: none takes it twice as long.
        """
        seconds, known = self.catch_up(drafter, tokens, plain), self.lags.get(drafter)
        if not known:
            return 2.0 * seconds
        sizes = sorted(known)
        largest = 2.0 ** sizes[-1]
        more = tokens / largest - 1.0  # times the largest
        if more <= 0.0:
            return seconds
        each = min(seconds, 2.0 * target * largest)
        if len(sizes) > 1:
            fewer = 2.0 ** (sizes[-2] - sizes[-1])
            each = min(each, 2.0 * max(0.0, known[sizes[-1]] - known[sizes[-2]]) / (1.0 - fewer))
        return seconds + each * more

    def caught_up(self, drafter: str, tokens: int, seconds: float) -> None:
        """Catching up took so long; a faster time is believed sooner, since the first is often slow."""
        known, size = self.lags.setdefault(drafter, {}), max(1, tokens).bit_length()
        before = known.get(size)
        if not before:
            known[size] = seconds
        else:
            rate = 1.0 / self.config.short_memory if seconds > before else 0.5
            known[size] = before + rate * (min(seconds, self.config.outlier * before) - before)

    def started(self, key: str, more: float) -> None:
        """A draft that was not begun ahead took so many seconds more than those that are."""
        before = self.starts.get(key, 0.0)
        self.starts[key] = before + (max(0.0, more) - before) / self.config.repeats

    def settle(self) -> None:
        self._latest = {key: line for (key, _), line in self.lines.items()}


class ReferenceRate(Learner):
    """Tokens a second of the latest rounds, for every bucket of batch sizes: what a second is worth."""

    learned = ("sums",)

    def __init__(self, config: AutoConfig) -> None:
        self.keep = 1.0 - 1.0 / config.round_memory
        self.worth = config.shrinkage  # tokens that a rate which is expected counts as
        self.sums: dict[int, tuple[float, float]] = {}  # tokens, seconds

    def at(self, batch: int, otherwise: float) -> float:
        """At this batch size; if nothing was learned there, ``otherwise``."""
        sums = self.sums.get(bucket(batch))
        return sums[0] / sums[1] if sums is not None else otherwise

    def known(self, batch: int) -> bool:
        """Whether anything was learned, or is expected, at this batch size."""
        return bucket(batch) in self.sums

    def expect(self, batch: int, rate: float) -> None:
        """Start from this rate, which the first tokens are to confirm."""
        self.sums[bucket(batch)] = self.worth, self.worth / rate

    def learn(self, batch: int, tokens: int, seconds: float) -> None:
        """One step more."""
        if seconds > 1e-9:
            size, keep = batch.bit_length(), self.keep
            before, taken = self.sums.get(size, (0.0, 0.0))
            self.sums[size] = keep * before + tokens, keep * taken + seconds


class LatencyModel(Learner):
    """Seconds of any round, learned from rounds."""

    learned = ("verify", "batches", "drafts", "rates")

    def __init__(self, widest: int, config: AutoConfig, merged: int = 0) -> None:
        self.config = config
        self.widest = widest  # most tokens of one request in a verification, without the ``merged`` of another drafter
        self.verify = VerifyLatency(widest + merged, config)
        self.batches = BatchLatency(config)
        self.drafts = DraftLatency(config)
        self.rates = ReferenceRate(config)
        self._tables: dict[int, list[float]] = {}  # by batch size, of the estimates now

    def at(self, batch: int) -> tuple[list[float], float]:
        """Seconds of verification by width (tokens of each request), as each request's share of the step; and the
        tokens a second is worth, before any was timed or expected those of plain decoding."""
        if batch == 1:  # a text that loses to plain decoding can still be decoded plainly: no second is worth less
            table = self.verify.seconds
            plain = 1.0 / table[1]
            rate = self.rates.at(1, plain)
            return table, rate if rate > plain else plain
        table = self._tables.get(batch) or self._table(batch)
        return table, self.rates.at(batch, 1.0 / table[1])

    def _table(self, batch: int) -> list[float]:
        base, token, drafting = self.batches.at(batch)
        table = [0.0, base / batch, *((base + drafting) / batch + token * n for n in range(1, self.widest))]
        self._tables[batch] = table
        return table

    def calibrate(self, known: Calibration, key: Callable[[Arm], str]) -> None:
        """Start from what was timed; a repeated time counts as `repeats` rounds, so that three others replace it."""
        self.verify.calibrate(known.verify)
        timed = {key(arm): line for arm in known.draft if not (line := self.drafts.line(key(arm), 1)).count}
        for arm, seconds in known.draft.items():
            for _ in range(self.config.repeats if key(arm) in timed else 0):
                timed[key(arm)].learn(arm.length, seconds)
        for drafter, lags in known.catch_up.items():
            for tokens, seconds in lags.items() if drafter not in self.drafts.lags else ():
                self.drafts.caught_up(drafter, tokens, seconds)

    def worst_catch_up(self, drafter: str, tokens: int, plain: float) -> float:
        """Seconds in which one request's drafter reads so many tokens at most, noise left out."""
        if tokens < 2:
            return 0.0
        by_width, widest = self.verify.seconds, self.widest
        target = max((by_width[widest] - by_width[1]) / max(1, widest - 1), plain / LONG)
        return self.drafts.most_catch_up(drafter, tokens, plain, target)

    def worst_draft(self, key: str, length: int, plain: float) -> float:
        """Seconds that such a draft for one request hardly ever exceeds; twice what is expected, before it is known."""
        line = self.drafts.line(key, 1)
        if line.count < self.config.repeats:
            return 2.0 * self.drafts.parts(key, 1, plain)[1] * length
        return self.verify.noise * (line.fixed + line.each * length)

    def learn(self, round: Round) -> None:
        """A round of one arm for all requests."""
        batch, drafted = round.batch, round.drafted
        if batch > 1:
            if round.verify_seconds > 1e-9:
                # One length for all: whether it is the longest makes no difference, whether anything is drafted may.
                self.learn_step(batch, drafted, 0, round.verify_seconds)
        elif round.verify_seconds > 1e-9:
            self.verify.learn(drafted + 1, round.verify_seconds)
        elif not drafted:  # without a clock there is nothing to wait for
            self.verify.rounds[1] += 1.0
        self.rates.learn(batch, round.emitted, round.seconds)
        if batch > 1 and round.lag and round.verify_seconds > 1e-9:
            self.drafts.caught_up(round.arm.drafter, round.lag * batch, round.lag_seconds)

    def resumed(self, key: str, length: int, round: Round) -> bool:
        """Learn from a round of one request in which a drafter had to catch up, or whose draft was not begun ahead;
        true if its seconds must not be learned as those of a draft.

        What such a draft takes beyond the usual belongs to catching up: it is not paid by a drafter that stays.
        """
        if (round.lag < 2 and round.begun) or round.verify_seconds <= 1e-9:
            return False
        line, more = self.drafts.line(key, 1), 0.0
        usual = line.count >= self.config.repeats
        if usual:
            more = round.draft_seconds - line.fixed - line.each * length
        if round.lag < 2:
            if usual:
                self.drafts.started(key, min(more, self.config.outlier * (line.fixed + line.each * length)))
            return usual
        self.drafts.caught_up(round.arm.drafter, round.lag, max(0.0, round.lag_seconds + more))
        return usual

    def learn_step(self, batch: int, drafted: int, longest: int, seconds: float) -> None:
        """A step of a batch that verified so many draft tokens, of at most ``longest`` a request; 0: one length."""
        if self.batches.learn(batch, drafted, longest * batch, seconds):
            self._tables.clear()

    def settle(self) -> None:
        self._tables.clear()


class StepLatency:
    """Splits an engine's steps, which verify one draft and make the next: seconds = verify[kind] + draft[kind].

    Drafting nothing is the zero of drafting; what a drafter costs even then is part of every step.
    """

    config = AutoConfig()

    def __init__(self) -> None:
        self._verify: dict[tuple[int, Kind], list[float]] = {}  # (bucket, kind of drafts) -> [steps, seconds]
        self._draft: dict[tuple[int, Kind], list[float]] = {}
        self._switch = [0.0, 0.0]  # times drafting was resumed, mean seconds that took beyond what was expected

    def observe(self, batch: int, verified: Kind, drafted: Kind, seconds: float, *, resumed: bool = False) -> float:
        """A step took so long; ``resumed``: drafting was resumed after steps without any, and its cost is in this step.

        Returns that cost: what the step took beyond another such step; 0 where it is not known.
        """
        size, least = bucket(batch), 1.0 / self.config.round_memory
        verify = self._verify.setdefault((size, verified), [0, 0.0])
        draft = self._draft.setdefault((size, drafted), [0, 0.0])
        error = seconds - verify[1] - draft[1]
        if resumed and self.known(batch, verified) and (not drafted or draft[0] >= self.config.repeats):
            # What it took beyond such a step is the cost of resuming, and no part of the others.
            self._switch[0] += 1
            self._switch[1] += (error - self._switch[1]) * max(least, 1 / self._switch[0])
            return max(0.0, error)
        verify[0] += 1
        if verify[0] == 1:  # nothing tells the two apart yet: drafting keeps what it was
            verify[1] = max(0.0, error)
            return 0.0
        share = 0.5 if drafted else 1.0
        verify[1] += share * error * max(least, 1 / verify[0])
        if drafted:
            draft[0] += 1
            draft[1] = max(0.0, draft[1] + share * error * max(least, 1 / draft[0]))
        return 0.0

    def known(self, batch: int, verified: Kind) -> bool:
        """Whether such steps were timed often enough to tell what another took beyond them."""
        return self._verify.get((bucket(batch), verified), (0,))[0] >= self.config.repeats

    def verifying(self, batch: int, verified: Kind) -> float:
        """Mean seconds of such steps, drafting left out where it is told apart; 0 while they are not known."""
        return self._verify[bucket(batch), verified][1] if self.known(batch, verified) else 0.0

    def drafting(self, batch: int, drafted: Kind) -> float:
        """Seconds it takes to draft this for such a batch, 0 while unknown."""
        known = self._draft.get((bucket(batch), drafted)) if drafted else None
        return known[1] if known else 0.0

    @property
    def switching(self) -> float:
        """Mean seconds that resuming drafting has cost."""
        return max(0.0, self._switch[1])
