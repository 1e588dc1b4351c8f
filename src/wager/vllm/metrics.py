"""What the policy does in a running server, as Prometheus metrics and as a line in the log.

The decisions are made in vLLM's engine or worker process, and ``/metrics`` is answered by its API server. Where
PROMETHEUS_MULTIPROC_DIR is set, prometheus_client writes every value into a file of that folder, and the server
adds up the files of all processes: so what is counted here appears there.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

import wager
from wager.core.arm import Arm
from wager.vllm.compat import metrics_reach_the_server

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge

log = logging.getLogger("vllm.wager")  # below vLLM's own logger: its format and level apply

# Name -> labels and help. All arms' counters come first, in the order of a _Tally's totals.
COUNTERS: dict[str, tuple[tuple[str, ...], str]] = {
    "wager_pulls_total": (("arm",), "Rounds of a request that played this arm."),
    "wager_drafted_tokens_total": (("arm",), "Draft tokens that were verified."),
    "wager_accepted_tokens_total": (("arm",), "Draft tokens that were accepted."),
    "wager_emitted_tokens_total": (("arm",), "Tokens of these rounds: accepted ones and the target's own."),
    "wager_seconds_total": (("arm",), "Seconds of the steps, shared out over the arms their requests played."),
    "wager_tokens_total": ((), "Tokens of all steps: those of the arms' rounds, and the first of every request."),
    "wager_steps_total": (("kind",), "Steps; mixed ones held prefill work and were not learned from."),
    "wager_switches_total": ((), "Steps in which the policy changed what it plays."),
    "wager_decision_seconds_total": ((), "Seconds spent on deciding."),
}
GAUGES: dict[str, tuple[tuple[str, ...], str]] = {
    "wager_goodput": (("arm", "batch"), "Tokens a second of this arm at this many decoding requests, lately."),
    "wager_length": ((), "Mean draft length a decoding request was given, lately."),
    "wager_batch": ((), "Mean number of decoding requests a step, lately."),
    "wager_switch_seconds": ((), "Latest estimate of what switching speculation on costs, in seconds."),
    "wager_updated_timestamp_seconds": ((), "When all of these were last written, in seconds since the epoch."),
    "wager_info": (("hook", "policy", "drafters", "version"), "1; the labels say what runs."),
}
PER_ARM = tuple(name for name, (labels, _) in COUNTERS.items() if labels == ("arm",))
FORGET = 0.98  # goodput's memory a step: about the last 50 steps of an arm and batch bucket
PAUSE = 1.0  # seconds between two steps beyond which the server was idle
WRITING = 0.001  # of the time at most goes into writing; unless it is this quick, counters are up to `interval` old


@cache
def _exported() -> tuple[dict[str, Counter], dict[str, Gauge]]:
    """The metrics of this process, made once: a second one of a name would write over the first one's values."""
    from prometheus_client import Counter, Gauge

    return (
        {name: Counter(name.removesuffix("_total"), text, labels) for name, (labels, text) in COUNTERS.items()},
        {name: Gauge(name, text, labels, multiprocess_mode="mostrecent") for name, (labels, text) in GAUGES.items()},
    )


@cache
def _exportable() -> bool:
    """Whether to export at all; warns, once, where the server will not see it."""
    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if not metrics_reach_the_server():
        log.warning(
            "wager's metrics stay inside this process, and the server's /metrics does not show them; start with "
            "`wager serve`, or set PROMETHEUS_MULTIPROC_DIR to an empty folder before vLLM starts"
        )
    elif not folder or not os.path.isdir(folder):
        log.warning("wager exports no metrics: PROMETHEUS_MULTIPROC_DIR is %r, which is no folder", folder)
        return False
    return True


def bucket(bits: int) -> str:
    """The batch sizes of this many bits, as a label: 1, 2-3, 4-7, 8-15, …"""
    low, high = 1 << bits >> 1, (1 << bits) - 1
    return f"{low}" if low >= high else f"{low}-{high}"


@dataclass(slots=True)
class _Tally:
    """What one arm has brought so far; only ever added to, so that it can be read at any moment."""

    totals: list[float] = field(default_factory=lambda: [0] * len(PER_ARM))  # in the order of PER_ARM
    flushed: list[float] = field(default_factory=lambda: [0] * len(PER_ARM))  # the totals last exported
    # Bits of the batch -> tokens and seconds, forgetting; what was last exported.
    goodput: dict[int, list[float]] = field(default_factory=dict)


@dataclass(slots=True)
class _Totals:
    """What all steps have brought so far; the difference of two is what happened between."""

    steps: int = 0
    mixed: int = 0  # steps
    tokens: int = 0
    batch: int = 0  # summed over steps
    lengths: float = 0.0  # summed over the decoding requests of all steps
    switches: int = 0
    deciding: float = 0.0  # seconds
    busy: float = 0.0  # seconds, pauses left out
    off: float = 0  # pulls
    pulls: float = 0
    drafted: float = 0
    accepted: float = 0
    emitted: float = 0

    def since(self, before: _Totals) -> _Totals:
        return _Totals(*(getattr(self, name) - getattr(before, name) for name in self.__slots__))

    def line(self) -> str:
        """One line for the log; there was a step."""
        parts = [
            f"{self.steps} step{'s' * (self.steps != 1)}",
            f"batch {self.batch / self.steps:.1f}",
            f"length {self.lengths / max(1, self.batch):.1f}",
            f"acceptance {100 * self.accepted / self.drafted:.0f} %" if self.drafted else "nothing drafted",
            f"{self.tokens / self.busy:.1f} tokens/s" if self.busy else f"{self.tokens} tokens",
            f"off {100 * self.off / self.pulls:.0f} % of rounds" if self.pulls else "no rounds",
            f"switches {self.switches}",
            f"decisions {1e6 * self.deciding / self.steps:.0f} µs a step",
        ]
        return "wager: " + ", ".join(parts)


class Meter:
    """Counts what a policy does, for the server's /metrics and its log; a step costs it a few microseconds.

    Everything is counted in plain numbers and handed to prometheus_client, all of it at once, by ``tick``: at least
    every ``interval`` seconds, and as often as WRITING allows; by ``flush`` when the engine has nothing left to do;
    and by a thread when the steps have stopped without a word. Meters of several processes add up: where every
    worker of a tensor-parallel group decides alike, give ``export=False`` to all but one. ``log_seconds=0`` logs
    nothing.
    """

    def __init__(
        self, hook: str, policy: str, arms: Sequence[Arm], *, drafters: Sequence[str], interval: float = 1.0,
        log_seconds: float = 10.0, export: bool = True, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.interval, self.log_seconds, self.clock = interval, log_seconds, clock
        self.export = export and _exportable()
        self._tallies = {arm: _Tally() for arm in arms}
        self._totals, self._flushed, self._logged = _Totals(), _Totals(), _Totals()
        self._seconds = 0.0  # played since the last tick
        self._switch_seconds = self._switch_flushed = -1.0  # none measured yet
        self.pending: list[Callable[[], None]] = []  # each calls `played` for what it has not counted yet
        self._lock = threading.Lock()
        self._ticked = now = clock()
        self._due, self._log_due = now + interval, now + log_seconds
        if self.export:
            counters, gauges = _exported()
            gauges["wager_info"].labels(hook, policy, ",".join(drafters), wager.__version__).set(1)
            for name, kinds in (*((name, arms) for name in PER_ARM), ("wager_steps_total", ("clean", "mixed"))):
                for kind in kinds:
                    counters[name].labels(str(kind))  # shown from the start, as 0
        if self.export or log_seconds:
            known = weakref.ref(self), interval
            threading.Thread(target=_turn_when_idle, args=known, name="wager-metrics", daemon=True).start()

    def played(
        self, arm: Arm, requests: float, drafted: float, accepted: float, emitted: float, seconds: float, batch: int
    ) -> None:
        """Count the totals of one step, or of several alike, over the requests that played this arm.

        ``seconds`` is their share of the step, ``batch`` how many requests decoded in the whole step. 0 seconds: not
        timed, as in a mixed step; tokens count, goodput stays.
        """
        tally = self._tallies.get(arm) or self._tallies.setdefault(arm, _Tally())
        totals = tally.totals
        totals[0] += requests
        totals[1] += drafted
        totals[2] += accepted
        totals[3] += emitted
        if seconds > 0:
            totals[4] += seconds
            self._seconds += seconds
            cell = tally.goodput.get(bits := batch.bit_length())
            if cell is None:
                tally.goodput[bits] = [emitted, seconds, -1.0]
            else:
                keep = FORGET if requests <= batch else FORGET ** (requests // batch)  # several steps at once
                cell[0] = keep * cell[0] + emitted
                cell[1] = keep * cell[1] + seconds

    def step(
        self, batch: float, length: float, decision_seconds: float, *, tokens: float, mixed: float = 0,
        switched: bool = False, steps: float = 1,
    ) -> None:  # fmt: skip
        """Count one step, or several of one length: their decoding requests, the mean length those were given, what
        deciding took, and all their tokens, also those of requests that have just been prefilled.

        ``mixed``: how many of them held prefill work and were not learned from.
        """
        totals = self._totals
        totals.steps += int(steps)
        totals.mixed += int(mixed)
        totals.tokens += int(tokens)
        totals.batch += int(batch)
        totals.lengths += length * batch
        totals.deciding += decision_seconds
        totals.switches += switched

    def switch_cost(self, seconds: float) -> None:
        """Note the latest estimate of what switching speculation on costs."""
        self._switch_seconds = seconds

    @property
    def due(self) -> bool:
        """Whether the next tick writes."""
        return self.clock() >= self._due

    def tick(self) -> None:
        """End a step: flush and log when it is time to."""
        now = self.clock()
        gap = now - self._ticked
        self._totals.busy += gap if gap < PAUSE else min(gap, self._seconds)
        self._ticked, self._seconds = now, 0.0
        if now >= self._due:
            self.turn(now)

    def flush(self) -> None:
        """Hand everything counted so far to prometheus_client."""
        with self._lock:
            self._flush(self._now())

    def turn(self, now: float) -> None:
        """Flush, and log if that is due; does nothing before it is time again."""
        with self._lock:
            if now < self._due:
                return
            totals = self._now()
            self._flush(totals)
            self._due = now + min(self.interval, (self.clock() - now) / WRITING)
            if self.log_seconds and now >= self._log_due:
                self._log_due = now + self.log_seconds
                if totals.steps > self._logged.steps:
                    log.info(totals.since(self._logged).line())
                self._logged = totals

    def turn_if_late(self) -> None:
        """Turn if ticks have stopped with a turn due."""
        if (now := self.clock()) > self._due + self.interval / 2:
            self.turn(now)

    def _now(self) -> _Totals:
        """A copy of the totals with those over the arms."""
        for count in self.pending:
            count()
        tallies = list(self._tallies.items())
        off = sum(tally.totals[0] for arm, tally in tallies if arm.length == 0)
        pulls, drafted, accepted, emitted, _ = (sum(tally.totals[at] for _, tally in tallies) for at in range(5))
        return replace(self._totals, off=off, pulls=pulls, drafted=drafted, accepted=accepted, emitted=emitted)

    def _flush(self, totals: _Totals) -> None:
        try:
            if self.export:
                self._write(totals.since(self._flushed))
        except (OSError, ValueError) as error:  # the folder is full, a clock went back: the server goes on
            log.warning("wager stops exporting metrics: %s", error)
            self.export = False
        self._flushed = totals

    def _write(self, new: _Totals) -> None:
        """Export what changed; ``new`` is what happened since the last flush."""
        counters, gauges = _exported()
        for arm, tally in list(self._tallies.items()):
            totals = list(tally.totals)
            for name, now, before in zip(PER_ARM, totals, tally.flushed, strict=True):
                if now != before:
                    counters[name].labels(str(arm)).inc(now - before)
            tally.flushed = totals
            for bits, cell in list(tally.goodput.items()):
                if (goodput := cell[0] / cell[1]) != cell[2]:
                    gauges["wager_goodput"].labels(str(arm), bucket(bits)).set(goodput)
                    cell[2] = goodput
        if new.steps:
            counters["wager_steps_total"].labels("clean").inc(new.steps - new.mixed)
            counters["wager_steps_total"].labels("mixed").inc(new.mixed)
            counters["wager_tokens_total"].inc(new.tokens)
            counters["wager_switches_total"].inc(new.switches)
            counters["wager_decision_seconds_total"].inc(new.deciding)
            gauges["wager_batch"].set(new.batch / new.steps)
        if new.batch:
            gauges["wager_length"].set(new.lengths / new.batch)
        gauges["wager_updated_timestamp_seconds"].set(time.time())
        if self._switch_seconds != self._switch_flushed:
            gauges["wager_switch_seconds"].set(self._switch_seconds)
            self._switch_flushed = self._switch_seconds


def _turn_when_idle(meter: weakref.ref[Meter], interval: float) -> None:
    """Do what tick would have done, as long as there is a meter."""
    while (found := meter()) is not None:
        found.turn_if_late()
        del found
        time.sleep(interval)
