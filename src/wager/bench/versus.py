"""Policies against each other on real servers: the same requests for each, turn by turn, in one run."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from typing import Any

from wager.bench.arrivals import Closed, Conversation, Plan
from wager.bench.load import Summary, run, summarise
from wager.bench.servers import Server

PLAIN, TABLE = "no speculation", "vLLM's table"
SETTLE = 0.5  # seconds for an engine to notice that another policy is to play


@dataclass(frozen=True, slots=True)
class Point:
    """One load: a plan and the requests it puts."""

    name: str
    plan: Plan
    prompts: Sequence[Conversation]
    max_tokens: int


@dataclass(slots=True)
class Turn:
    """One method under one load, once."""

    method: str
    point: str
    repeat: int
    summary: Summary
    texts: list[str] = field(repr=False)

    def json(self) -> dict[str, Any]:
        """As JSON, without the texts."""
        return {"method": self.method, "point": self.point, "repeat": self.repeat, **self.summary.json()}


@dataclass(slots=True)
class Contest:
    """Servers that take turns: all asleep but the one that is measured."""

    servers: dict[str, Server]  # method -> its server; several methods may share one
    control: dict[str, tuple[Path, str]]  # method -> file that names the policy, and the policy

    def turn(self, method: str, point: Point, repeat: int) -> Turn:
        """Play one load with one method."""
        server = self.servers[method]
        if method in self.control:
            path, policy = self.control[method]
            path.write_text(policy)
        server.wake()
        try:
            sleep(SETTLE)
            served = run(server.url, point.plan, point.prompts, max_tokens=point.max_tokens)
        finally:
            server.sleep()
        return Turn(method, point.name, repeat, summarise(served), [one.text for one in served])

    def play(
        self,
        methods: Sequence[str],
        points: Sequence[Point],
        repeats: Sequence[int],
        *,
        seed: int = 0,
    ) -> Iterator[Turn]:
        """Every method under every load, in an order drawn anew for each load and repetition."""
        for repeat in repeats:
            for point in points:
                order = list(methods)
                random.Random(f"{seed} {repeat} {point.name}").shuffle(order)
                for method in order:
                    yield self.turn(method, point, repeat)


def table_from(turns: Sequence[Turn], fixed: Mapping[str, int], largest: int) -> list[list[int]]:
    """vLLM's schedule of lengths by batch size, the best fixed length measured at each concurrency.

    fixed: method -> length. Between two concurrencies that were measured the nearer one's length is taken.
    """
    best: dict[int, int] = {}
    for point in dict.fromkeys(turn.point for turn in turns):
        if not point.isdecimal():
            continue
        speeds = {m: _speed(turns, m, point) for m in fixed}
        best[int(point)] = fixed[max(speeds, key=lambda m: speeds[m])]
    measured = sorted(best)
    schedule, start = [], 1
    for this, following in zip(measured, [*measured[1:], None], strict=True):
        end = largest if following is None else (this + following) // 2
        schedule.append([start, max(start, end), best[this]])
        start = schedule[-1][1] + 1
    return schedule


def _speed(turns: Sequence[Turn], method: str, point: str) -> float:
    return statistics.median(
        t.summary.output_tokens_per_second for t in turns if (t.method, t.point) == (method, point)
    )


def compared(turns: Sequence[Turn], base: str = PLAIN) -> list[dict[str, Any]]:
    """Every method at every load: its throughput, and throughput and latency beside ``base`` in the same repetition."""
    by = {(t.method, t.point, t.repeat): t for t in turns}
    rows = []
    for point in dict.fromkeys(t.point for t in turns):
        for method in dict.fromkeys(t.method for t in turns):
            own = [t for t in turns if (t.method, t.point) == (method, point)]
            if not own:
                continue
            pairs = [(t, by[(base, point, t.repeat)]) for t in own if (base, point, t.repeat) in by]
            ratios = [
                t.summary.output_tokens_per_second / b.summary.output_tokens_per_second
                for t, b in pairs
                if b.summary.output_tokens_per_second
            ]
            latency = [
                t.summary.latency_seconds.mean / b.summary.latency_seconds.mean
                for t, b in pairs
                if t.summary.latency_seconds and b.summary.latency_seconds
            ]
            pace = [
                t.summary.tpot_seconds.mean / b.summary.tpot_seconds.mean
                for t, b in pairs
                if t.summary.tpot_seconds and b.summary.tpot_seconds
            ]
            rows.append(
                {
                    "point": point,
                    "method": method,
                    "tokens_per_second": statistics.median(t.summary.output_tokens_per_second for t in own),
                    "throughput_ratio": statistics.median(ratios) if ratios else None,
                    "throughput_ratios": ratios,
                    "latency_ratio": statistics.median(latency) if latency else None,
                    "latency_ratios": latency,
                    "tpot_ratio": statistics.median(pace) if pace else None,
                    "tpot_ratios": pace,
                    "errors": sum(t.summary.errors for t in own),
                    "texts": sum(len(t.texts) for t, _ in pairs),
                    "texts_that_differ": sum(_differing(t, b) for t, b in pairs),
                }
            )
    return rows


def _differing(turn: Turn, base: Turn) -> int:
    return sum(a != b for a, b in zip(turn.texts, base.texts, strict=False))


def closed(concurrency: int, requests: int, prompts: Sequence[Conversation], max_tokens: int) -> Point:
    """A closed loop as a load of that name."""
    return Point(str(concurrency), Closed(concurrency, requests), prompts, max_tokens)
