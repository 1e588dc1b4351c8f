"""Methods compared on real servers: the same requests for each, one server at work at a time."""

import random
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from typing import Any

from wager.bench.arrivals import Conversation, Plan
from wager.bench.load import Load, summarise
from wager.bench.servers import Server

PLAIN, TABLE = "no speculation", "vLLM's table"
FIGURES: dict[str, Callable[[Mapping[str, Any]], float]] = {  # held against those of no speculation
    "throughput": lambda summary: float(summary["output_tokens_per_second"]),
    "latency": lambda summary: float((summary["latency_seconds"] or {"mean": 0.0})["mean"]),
    "tpot": lambda summary: float((summary["tpot_seconds"] or {"mean": 0.0})["mean"]),
}
SETTLE = 0.5  # seconds for an engine to notice that another policy is to play


@dataclass(frozen=True, slots=True)
class Point:
    """One load: a plan and the requests it puts."""

    name: str  # of a closed loop, its requests in flight
    plan: Plan
    prompts: Sequence[Conversation]
    max_tokens: int


@dataclass(slots=True)
class Measurement:
    """One method under one load, once."""

    method: str
    point: str
    repeat: int
    summary: Mapping[str, Any]
    texts: list[str] = field(repr=False)

    def json(self) -> dict[str, Any]:
        return {"method": self.method, "point": self.point, "repeat": self.repeat, **self.summary}


class Servers(ExitStack):
    """Servers of one model with the same arguments, all suspended but the one that is measured; a context manager."""

    def __init__(self, model: str, arguments: Sequence[str], logs: Path | None) -> None:
        super().__init__()
        self.model, self.arguments = model, list(arguments)
        self.folder = logs or Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.control = self.folder / "policy"  # the file that names the policy of a server that plays several
        self.servers: dict[str, Server] = {}  # method -> its server; several methods may share one
        self.policies: dict[str, str] = {}  # method -> what the control file is to name

    def start(self, method: str, *more: str, ours: bool = False) -> Server:
        """A server for the method, ready and suspended: stock vLLM, or ``ours``."""
        given = [self.model, "--dtype", "float32", "--no-enable-prefix-caching", *self.arguments, *more]
        server = (Server.wager if ours else Server.vllm)(*given, log=self.folder / f"{method}.log")
        self.enter_context(server).wait().suspend()
        self.servers[method] = server
        return server

    def run(self, methods: Sequence[str], points: Sequence[Point], repeat: int) -> Iterator[Measurement]:
        """Every method under every load, in an order drawn anew for each load."""
        for point in points:
            order = list(methods)
            random.Random(f"0 {repeat} {point.name}").shuffle(order)
            for method in order:
                yield self._measure(method, point, repeat)

    def _measure(self, method: str, point: Point, repeat: int) -> Measurement:
        server = self.servers[method]
        if method in self.policies:
            self.control.write_text(self.policies[method])
        server.resume()
        try:
            sleep(SETTLE)
            load = Load(server.url, point.plan, point.prompts, max_tokens=point.max_tokens)
            served = load.run()
        finally:
            server.suspend()
        return Measurement(method, point.name, repeat, summarise(served, load.speculation), [r.text for r in served])


def table_from(measured: Sequence[Measurement], fixed: Mapping[str, int], largest: int) -> list[list[int]]:
    """vLLM's schedule of lengths by batch size, the best fixed length measured at each concurrency."""
    # fixed: method -> length. Between two concurrencies that were measured the nearer one's length is taken.
    speeds: dict[tuple[int, str], list[float]] = {}
    for one in measured:
        if one.point.isdecimal() and one.method in fixed:
            speeds.setdefault((int(one.point), one.method), []).append(one.summary["output_tokens_per_second"])
    levels = sorted({level for level, _ in speeds})
    schedule, start = [], 1
    for this, following in zip(levels, [*levels[1:], None], strict=True):
        best = max(fixed, key=lambda method: statistics.median(speeds[this, method]))
        end = largest if following is None else (this + following) // 2
        schedule.append([start, max(start, end), fixed[best]])
        start = schedule[-1][1] + 1
    return schedule


def compared(measured: Sequence[Measurement], base: str = PLAIN) -> list[dict[str, Any]]:
    """Every method at every load: its throughput, and throughput and latency beside ``base`` in the same repetition."""
    by = {(m.method, m.point, m.repeat): m for m in measured}
    rows = []
    for point, method in dict.fromkeys((m.point, m.method) for m in measured):
        own = [m for m in measured if (m.method, m.point) == (method, point)]
        pairs = [(m, by[(base, point, m.repeat)]) for m in own if (base, point, m.repeat) in by]
        speed = statistics.median(m.summary["output_tokens_per_second"] for m in own)
        row: dict[str, Any] = {"point": point, "method": method, "tokens_per_second": speed}
        for name, of in FIGURES.items():
            both = [(of(m.summary), of(o.summary)) for m, o in pairs]
            ratios = [ours / theirs for ours, theirs in both if ours and theirs]  # where both are known
            row |= {f"{name}_ratio": statistics.median(ratios) if ratios else None, f"{name}_ratios": ratios}
        differ = sum(a != b for m, o in pairs for a, b in zip(m.texts, o.texts, strict=False))
        texts = {"texts": sum(len(m.texts) for m, _ in pairs), "texts_that_differ": differ}
        rows.append({**row, "errors": sum(m.summary["errors"] for m in own), **texts})
    return rows
