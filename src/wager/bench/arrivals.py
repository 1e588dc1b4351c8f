"""What a load consists of: when requests arrive, how long their answers may be, and what they ask."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wager.simulation.serving import load_trace

Conversation = list[dict[str, Any]]  # messages as the chat completions endpoint takes them


@dataclass(frozen=True, slots=True)
class Open:
    """An open loop: requests arrive at their times, whether or not earlier ones have been answered."""

    at: tuple[float, ...]  # seconds after the start, ascending
    tokens: tuple[int, ...] | None = None  # most tokens of each answer; None leaves that to the caller

    def __post_init__(self) -> None:
        if not self.at:
            raise ValueError("an open loop needs at least one arrival")
        if any(not 0 <= at < math.inf for at in self.at) or list(self.at) != sorted(self.at):
            raise ValueError("arrivals are seconds from 0, in ascending order")
        if self.tokens is not None and (len(self.tokens) != len(self.at) or min(self.tokens) < 1):
            raise ValueError(f"each of {len(self.at)} arrivals needs a number of tokens of 1 or more")

    @property
    def requests(self) -> int:
        """How many requests there will be."""
        return len(self.at)


@dataclass(frozen=True, slots=True)
class Closed:
    """A closed loop: so many requests in flight, each replaced as it ends, until the count or the time is reached."""

    concurrency: int
    requests: int | None = None
    seconds: float | None = None  # none is started later; those in flight are waited for

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ValueError(f"concurrency is at least 1, not {self.concurrency}")
        _check_extent(self.requests, self.seconds)
        if self.requests is None and self.seconds is None:
            raise ValueError("a closed loop needs a number of requests or a duration, else it never ends")


Plan = Open | Closed


def poisson(rate: float, *, requests: int | None = None, seconds: float | None = None, seed: int = 0) -> Open:
    """``rate`` requests a second with exponential gaps, until the count or the time is reached."""
    if not 0 < rate < math.inf:
        raise ValueError(f"a rate is above 0 requests a second, not {rate:g}")
    _check_extent(requests, seconds)
    if requests is None and seconds is None:
        raise ValueError("Poisson arrivals need a number of requests or a duration, else they never end")
    random = np.random.default_rng(seed)
    at: list[float] = []
    now = float(random.exponential(1 / rate))
    while (requests is None or len(at) < requests) and (seconds is None or now < seconds):
        at.append(now)
        now += float(random.exponential(1 / rate))
    if not at:
        raise ValueError(f"no request arrives in {seconds:g} s at a rate of {rate:g}; make the duration longer")
    return Open(tuple(at))


def traced(
    path: str | Path,
    *,
    speed: float = 1.0,
    start: float = 0.0,
    seconds: float | None = None,
    requests: int | None = None,
) -> Open:
    """Arrivals and answer lengths of a recorded load; ``start`` and ``seconds`` are the trace's, before ``speed``."""
    if not 0 < speed < math.inf:
        raise ValueError(f"a trace is played at a speed above 0, not {speed:g}")
    if not 0 <= start < math.inf:
        raise ValueError(f"a trace starts at 0 seconds or later, not {start:g}")
    _check_extent(requests, seconds)
    recorded = sorted(load_trace(path), key=lambda arrival: arrival.at)
    end = math.inf if seconds is None else start + seconds
    chosen = [arrival for arrival in recorded if start <= arrival.at < end][:requests]
    if not chosen:
        raise ValueError(
            f"{path} has no request from second {start:g} to {end:g}; it lasts {recorded[-1].at:,.0f} seconds"
        )
    return Open(tuple((a.at - start) / speed for a in chosen), tuple(a.output for a in chosen))


def conversations(path: str | Path) -> list[Conversation]:
    """The prompts of a JSON lines file: records with a ``prompt``, ``turns`` (the first is asked) or ``messages``."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")  # splitlines would cut texts at U+2028 too
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a file of prompts: it is not UTF-8 text") from None
    read = [_conversation(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not read:
        raise ValueError(f"{path} holds no prompts")
    return read


def _conversation(line: str, where: str) -> Conversation:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    match record:
        case {"messages": [{"role": str(), "content": _}, *_] as messages}:
            return list(messages)
        case {"turns": [str(text), *_]} | {"prompt": str(text)}:
            return [{"role": "user", "content": text}]
    raise ValueError(f"{where} needs a prompt (text), turns (texts) or messages (role and content) as a JSON record")


def _check_extent(requests: int | None, seconds: float | None) -> None:
    if requests is not None and requests < 1:
        raise ValueError(f"at least 1 request, not {requests}")
    if seconds is not None and not 0 < seconds < math.inf:
        raise ValueError(f"a duration is above 0 seconds, not {seconds:g}")
