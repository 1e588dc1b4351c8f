"""What a load consists of: when requests arrive, and how long their answers may be."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from wager.policies.base import require
from wager.simulation.serving import load_trace

Conversation = list[dict[str, Any]]  # messages as the chat completions endpoint takes them


@dataclass(frozen=True, slots=True)
class Trace:
    """An open loop: requests arrive at their times, whether or not earlier ones have been answered."""

    at: tuple[float, ...]  # seconds after the start, ascending
    tokens: tuple[int, ...]  # of each answer

    @property
    def requests(self) -> int:
        return len(self.at)


@dataclass(frozen=True, slots=True)
class Poisson:
    """An open loop of so many requests a second, with exponential gaps."""

    rate: float  # requests a second
    requests: int

    @classmethod
    def of(cls, rate: float, *, requests: int | None = None, seconds: float | None = None) -> Self:
        """Until the count or the time is reached."""
        require(0 < rate < math.inf, f"a rate is above 0 requests a second, not {rate:g}")
        _check_extent(requests, seconds, "Poisson arrivals need")
        fitting = math.inf if seconds is None else round(rate * seconds)
        if not fitting:
            raise ValueError(f"no request arrives in {seconds:g} s at a rate of {rate:g}; make the duration longer")
        return cls(rate, int(min(fitting, math.inf if requests is None else requests)))


@dataclass(frozen=True, slots=True)
class Closed:
    """A closed loop: so many requests in flight, each replaced as it ends, until the count or the time is reached."""

    concurrency: int
    requests: int | None = None
    seconds: float | None = None  # none is started later; those in flight are waited for

    def __post_init__(self) -> None:
        require(self.concurrency >= 1, f"concurrency is at least 1, not {self.concurrency}")
        _check_extent(self.requests, self.seconds, "a closed loop needs")


Plan = Trace | Poisson | Closed


def traced(
    path: str | Path, *, speed: float = 1, start: float = 0, seconds: float | None = None, requests: int | None = None
) -> Trace:
    """Arrivals and answer lengths of a recorded load; ``start`` and ``seconds`` are the trace's, before ``speed``."""
    require(0 < speed < math.inf, f"a trace is played at a speed above 0, not {speed:g}")
    require(0 <= start < math.inf, f"a trace starts at 0 seconds or later, not {start:g}")
    _check_extent(requests, seconds)
    recorded = sorted(load_trace(path), key=lambda arrival: arrival.at)
    end = math.inf if seconds is None else start + seconds
    chosen = [arrival for arrival in recorded if start <= arrival.at < end][:requests]
    lasts = f"it lasts {recorded[-1].at:,.0f} seconds"
    require(bool(chosen), f"{path} has no request from second {start:g} to {end:g}; {lasts}")
    return Trace(tuple((a.at - start) / speed for a in chosen), tuple(a.output for a in chosen))


def _check_extent(requests: int | None, seconds: float | None, needs: str = "") -> None:
    require(requests is None or requests >= 1, f"at least 1 request, not {requests}")
    if seconds is not None:
        require(0 < seconds < math.inf, f"a duration is above 0 seconds, not {seconds:g}")
    require(not needs or requests is not None or seconds is not None, f"{needs} a number of requests or a duration")
