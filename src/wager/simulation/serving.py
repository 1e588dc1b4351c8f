"""Serving: requests that come and go, batched continuously, one draft length per step."""

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import numpy as np

from wager.core import OFF, Arm, Context, Round, require
from wager.core.batch import Batch, Choices, Ints
from wager.policies import Policy
from wager.simulation.base import Environment

DRAFTER = "draft"
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds on a machine that is bound by memory while few tokens are verified and by arithmetic when many are."""

    floor: float = 0.020  # one pass over the target's weights
    per_token: float = 0.0008  # arithmetic per verified token
    draft_step: float = 0.0015  # one pass over the drafter's weights
    draft_per_token: float = 0.00002
    prefill_per_token: float = 0.0001  # of a prompt
    wake: float = 0.010  # to wake an idle drafter ...
    lag_per_token: float = 0.00004  # ... and for each token of each request that it missed

    def __post_init__(self) -> None:
        for field_ in fields(self):
            seconds = getattr(self, field_.name)
            finite = 0 <= seconds < math.inf and (field_.name != "floor" or seconds > 0)
            require(finite, f"the cost {field_.name!r} is finite and at least 0 seconds, not {seconds}")

    def verify(self, tokens: int) -> float:
        """One forward pass of the target over so many tokens: a roofline with a rounded corner."""
        return float(np.hypot(self.floor, self.per_token * tokens))

    def draft(self, steps: int, batch: int) -> float:
        """So many passes of the drafter over the batch."""
        return steps * (self.draft_step + self.draft_per_token * batch)

    def catch_up(self, lag: int) -> float:
        """The drafter reading so many tokens that were generated without it."""
        return self.wake + self.lag_per_token * lag if lag else 0.0


@dataclass(frozen=True, slots=True)
class Arrival:
    at: float  # seconds
    prompt: int  # tokens
    output: int  # tokens


def load_trace(path: str | Path, *, speed: float = 1.0) -> tuple[Arrival, ...]:
    """Arrivals from a CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens, time compressed by ``speed``."""
    require(0 < speed < math.inf, f"a trace is played at a speed above 0, not {speed}")
    rows: list[Arrival] = []
    try:
        with open(path, newline="", encoding="utf-8") as file:
            start: datetime | None = None
            for row in csv.DictReader(file):
                when = datetime.fromisoformat(row["TIMESTAMP"][:26])
                start = start or when
                seconds = (when - start).total_seconds() / speed
                rows.append(Arrival(seconds, int(row["ContextTokens"]), max(1, int(row["GeneratedTokens"]))))
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a load trace: it is no text in UTF-8") from None
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        why = f"it has no column {error.args[0]}" if isinstance(error, KeyError) else str(error)[:200]
        needs = "it needs the columns TIMESTAMP, ContextTokens and GeneratedTokens"
        raise ValueError(f"{path} is not a load trace: {needs} ({why})") from error
    require(bool(rows), f"{path} is not a load trace: it has no rows")
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class Serving:
    """An engine with one drafter under a load.

    Either ``load`` holds numbers of concurrent requests, each kept up for an equal share of the tokens (a request that
    ends is replaced at once), or requests arrive by ``rate`` (per second) or as in ``trace``.
    """

    goal: int  # tokens to generate
    lengths: tuple[int, ...] = (1, 2, 3, 4, 5)
    acceptance: tuple[float, ...] = (0.7,)  # mean over requests, one per stretch of the text's tokens
    load: tuple[int, ...] = (8,)
    rate: float = 0.0
    trace: tuple[Arrival, ...] = ()
    costs: Costs = field(default_factory=Costs)
    max_batch: int = 64
    output: int = 200  # mean tokens of an answer; prompts are half as long
    spread: float = 20.0  # concentration of acceptance around its mean, request by request

    def __post_init__(self) -> None:
        sizes = min(self.goal, self.output, self.max_batch) >= 1 and self.spread > 0
        require(sizes, "tokens, output, max batch and spread are at least 1")
        require(min(self.lengths, default=0) >= 1, f"draft lengths are at least 1, not {self.lengths}")
        likely = bool(self.acceptance) and all(0 < p < 1 for p in self.acceptance)
        require(likely, f"acceptance probabilities lie strictly between 0 and 1, not {self.acceptance}")
        loaded = 0 <= self.rate < math.inf and bool(self.load or self.rate or self.trace)
        require(loaded, "serving needs a load, a rate above 0 or a trace")
        fits, most = all(1 <= n <= self.max_batch for n in self.load), self.max_batch
        require(fits, f"concurrent requests lie between 1 and the largest batch {most}, not {self.load}")

    @property
    def arms(self) -> tuple[Arm, ...]:
        return (OFF, *(Arm(DRAFTER, length) for length in self.lengths))

    def horizon(self, spec: str) -> int:
        return self.goal

    def start(self, seed: int, policy: Policy | None = None) -> "Engine":
        return Engine(self, seed)


class Engine(Environment):
    """Continuous batching in steps: admit, draft, verify, emit. Idle time passes on the clock only."""

    per_request = True

    def __init__(self, scenario: Serving, seed: int) -> None:
        super().__init__(scenario.arms, scenario.goal)
        self.scenario = scenario
        self.clock = 0.0
        self._work = np.random.default_rng([seed, 0])  # requests: alike for every policy
        self._draws = np.random.default_rng([seed, 1])
        self._arrivals = self._coming() if scenario.rate or scenario.trace else None
        self._waiting: Arrival | None = None
        self._latencies: list[float] = []
        self._wakes = 0
        self._lag_seconds = 0.0
        # Of the requests being decoded: acceptance, tokens to come, those the drafter has not seen, and the arrival.
        self.batch = 0
        self._acceptance, self._since = np.zeros((0, 1)), np.zeros(0)
        self._left, self._lag = np.zeros(0, int), np.zeros(0, int)
        self._lagging = False  # whether any lag is above 0
        self._verify: dict[int, float] = {}  # tokens -> seconds
        self._admit()

    @property
    def done(self) -> bool:
        return not self.batch or self.tokens >= self.goal

    def context(self) -> Context:
        known = {DRAFTER: int(self._lag.max())} if self._lagging else {}
        return Context(self.arms, batch=self.batch, tokens=self.tokens, previous=self.previous, lag=known)

    def play(self, arm: Arm) -> Round:
        return self._step(arm, None, arm.length)

    def play_batch(self, choose: Callable[[Batch], Choices]) -> Round:
        """A step in which every request is drafted for in full, and the policy picks what is verified."""
        # The drafter's confidence is each request's acceptance, give or take.
        longest, count = max(self.scenario.lengths), self.batch
        blur = self._draws.normal(0.0, 0.05, (count, longest))
        full = np.full(count, longest)
        fresh, match = np.zeros(count, np.bool_), np.zeros((1, count), np.int64)
        confidence = np.clip(self._acceptance + blur, 0.0, 1.0)[None]
        choices = choose(
            Batch(np.arange(count), fresh, match, full[None], confidence, limit=full, context=self.context())
        )
        return self._step(choices.arm, choices.length, longest)

    def clairvoyant(self) -> Arm:
        """Best expected goodput for one who knows every request's acceptance; the cost of waking is left out."""
        batch, costs, acceptance = self.batch, self.scenario.costs, self._acceptance[:, 0]

        def goodput(arm: Arm) -> float:
            emitted = batch + sum(float((acceptance**i).sum()) for i in range(1, arm.length + 1))
            return emitted / (costs.draft(arm.length, batch) + costs.verify(batch * (arm.length + 1)))

        return max(self.arms, key=goodput)

    def facts(self) -> dict[str, float]:
        """Requests finished, times the idle drafter was woken, and latency in seconds from arrival to last token."""
        facts = {"requests": float(len(self._latencies)), "wakes": float(self._wakes), "lag_seconds": self._lag_seconds}
        if self._latencies:
            facts["latency_mean"] = float(np.mean(self._latencies))
            facts["latency_p99"] = float(np.quantile(self._latencies, 0.99))
        return facts

    def _step(self, arm: Arm, lengths: Ints | None, steps: int) -> Round:
        """One step: every request is verified with so many drafted tokens, all with the arm's length if not told."""
        costs, batch = self.scenario.costs, self.batch
        lag, catching_up = 0, 0.0
        if steps and self._lagging:
            lag, catching_up = int(self._lag.max()), costs.catch_up(int(self._lag.sum()))
        if lengths is None:
            runs, histogram = self._accepted(arm.length)
            drafted, rejected = arm.length * batch, batch - histogram[-1]
        else:
            runs = np.minimum(self._accepted(int(lengths.max()))[0], lengths)
            histogram = np.bincount(runs).tolist()
            drafted, rejected = int(lengths.sum()), int(np.count_nonzero(runs < lengths))
        accepted = sum(n * times for n, times in enumerate(histogram))
        emitted, total = runs + 1, accepted + batch
        self._left -= emitted
        ends = bool(np.minimum.reduce(self._left) <= 0)
        if ends:  # some have fewer tokens to come than they were given
            emitted += np.minimum(self._left, 0)
            total, self._left = int(emitted.sum()), np.maximum(self._left, 0)
        if (verifying := self._verify.get(batch + drafted)) is None:
            verifying = self._verify[batch + drafted] = costs.verify(batch + drafted)
        counts = drafted, accepted, total, batch, rejected
        outcome = self.advance(Round(arm, *counts, costs.draft(steps, batch), verifying, lag, catching_up))
        if not steps:
            self._lag += emitted
        elif self._lagging:
            self._lag[:] = 0
        self._lagging = not steps
        self._wakes += lag > 0
        self._lag_seconds += outcome.lag_seconds
        self.clock += outcome.seconds
        if ends:
            self._end()
        if ends or self._arrivals is not None or len(self.scenario.load) > 1:
            self._admit()
        return outcome

    def _accepted(self, longest: int) -> tuple[Ints, list[int]]:
        """Leading draft tokens that each request would have accepted of so many, and how often each number occurs."""
        if not longest:
            return np.zeros(self.batch, int), [self.batch]
        kept = np.zeros((self.batch, longest + 1), np.bool_)  # the last column stays: the first that is not kept
        np.less(self._draws.random((self.batch, longest)), self._acceptance, out=kept[:, :longest])
        runs = kept.argmin(axis=1)
        return runs, np.bincount(runs, minlength=longest + 1).tolist()

    def _end(self) -> None:
        """Let requests go that have all their tokens."""
        going = self._left > 0
        self._latencies += (self.clock - self._since[~going]).tolist()
        self._acceptance, self._since = self._acceptance[going], self._since[going]
        self._left, self._lag = self._left[going], self._lag[going]
        self.batch = len(self._left)
        self._lagging = self._lagging and self.batch > 0

    def _now(self, by_stretch: Sequence[Value]) -> Value:
        """Of values that each hold for an equal share of the tokens, the one that holds now."""
        return by_stretch[min(len(by_stretch) - 1, self.tokens * len(by_stretch) // self.goal)]

    def _admit(self) -> None:
        """Fill the batch: to the wanted concurrency, or with what has arrived; an idle engine waits."""
        if self._arrivals is None:
            while self.batch < self._now(self.scenario.load):
                self._begin(self._request(self.clock))
            return
        while self.batch < self.scenario.max_batch:
            self._waiting = self._waiting or next(self._arrivals, None)
            if self._waiting is None or (self.batch and self._waiting.at > self.clock):
                return
            self.clock = max(self.clock, self._waiting.at)
            self._begin(self._waiting)
            self._waiting = None

    def _coming(self) -> Iterator[Arrival]:
        """Requests in the order of their arrival: the trace's, else drawn."""
        yield from self.scenario.trace
        at = 0.0
        while not self.scenario.trace:
            at += self._work.exponential(1 / self.scenario.rate)
            yield self._request(at)

    def _request(self, at: float) -> Arrival:
        output = int(self._work.geometric(1 / self.scenario.output))
        return Arrival(at, prompt=1 + int(self._work.geometric(2 / (self.scenario.output + 1))), output=output)

    def _begin(self, request: Arrival) -> None:
        prefill = request.prompt * self.scenario.costs.prefill_per_token
        self.clock += prefill
        self.seconds += prefill
        mean, spread = self._now(self.scenario.acceptance), self.scenario.spread
        acceptance = self._work.beta(mean * spread, (1 - mean) * spread)
        self._acceptance = np.append(self._acceptance, [[acceptance]], axis=0)
        self._left, self._lag = np.append(self._left, request.output), np.append(self._lag, 0)
        self._since = np.append(self._since, request.at)
        self.batch += 1
