"""What a load consists of: when requests arrive, and how long their answers may be."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wager.policies.base import require
from wager.simulation.serving import load_trace

Conversation = list[dict[str, Any]]  # messages as the chat completions endpoint takes them


@dataclass(frozen=True, slots=True)
class Plan:
    """When requests are started: at the times of a trace, at a rate, or as soon as an earlier one has ended."""

    requests: int | None  # None: a closed loop that ends by the clock
    at: tuple[float, ...] = ()  # of a trace, seconds after the start, ascending
    tokens: tuple[int, ...] = ()  # of a trace, of each answer
    rate: float = math.inf  # requests a second of a Poisson process
    concurrency: int | None = None  # requests in flight of a closed loop
    seconds: float | None = None  # after which a closed loop starts none; those in flight are waited for


def closed(concurrency: int, requests: int | None = None, seconds: float | None = None) -> Plan:
    """So many requests in flight, each replaced as it ends, until the count or the time is reached."""
    require(concurrency >= 1, f"concurrency is at least 1, not {concurrency}")
    _check_extent(requests, seconds, "a closed loop needs")
    return Plan(requests, concurrency=concurrency, seconds=seconds)


def poisson(rate: float, *, requests: int | None = None, seconds: float | None = None) -> Plan:
    """So many requests a second, with exponential gaps, until the count or the time is reached."""
    require(0 < rate < math.inf, f"a rate is above 0 requests a second, not {rate:g}")
    _check_extent(requests, seconds, "Poisson arrivals need")
    counts = [count for count in (requests, None if seconds is None else round(rate * seconds)) if count is not None]
    require(min(counts) > 0, f"no request arrives in {seconds} s at a rate of {rate:g}; make the duration longer")
    return Plan(min(counts), rate=rate)


def traced(
    path: str | Path, *, speed: float = 1, start: float = 0, seconds: float | None = None, requests: int | None = None
) -> Plan:
    """Arrivals and answer lengths of a recorded load; ``start`` and ``seconds`` are the trace's, before ``speed``."""
    require(0 < speed < math.inf, f"a trace is played at a speed above 0, not {speed:g}")
    require(0 <= start < math.inf, f"a trace starts at 0 seconds or later, not {start:g}")
    _check_extent(requests, seconds)
    recorded = sorted(load_trace(path), key=lambda arrival: arrival.at)
    end = math.inf if seconds is None else start + seconds
    chosen = [arrival for arrival in recorded if start <= arrival.at < end][:requests]
    lasts = f"it lasts {recorded[-1].at:,.0f} seconds"
    require(bool(chosen), f"{path} has no request from second {start:g} to {end:g}; {lasts}")
    return Plan(len(chosen), tuple((a.at - start) / speed for a in chosen), tuple(a.output for a in chosen))


def _check_extent(requests: int | None, seconds: float | None, needs: str = "") -> None:
    require(requests is None or requests >= 1, f"at least 1 request, not {requests}")
    require(seconds is None or 0 < seconds < math.inf, f"a duration is above 0 seconds, not {seconds}")
    require(not needs or requests is not None or seconds is not None, f"{needs} a number of requests or a duration")
