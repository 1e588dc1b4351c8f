"""A load on an OpenAI-compatible server, and what it measured: a client that streams and looks at the clock."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count
from time import perf_counter
from typing import Any

import numpy as np

from wager.bench.arrivals import Closed, Conversation, Open, Plan
from wager.bench.streaming import Answer, ask, connect, find_model

TIMEOUT = 600.0  # seconds after which a request is given up
PAUSE = 0.1  # seconds a place of a closed loop stays empty after an error, so that a dead server is not hammered


@dataclass(frozen=True, slots=True)
class Served:
    """One request: when it was to start and did, when its tokens came, what it cost; seconds count from the start."""

    number: int  # in the plan, from 0; it asked prompts[number % len(prompts)]
    scheduled: float  # arrival; of a closed loop, the start
    start: float
    first: float | None  # first text received
    end: float
    prompt_tokens: int  # as the server counted them; 0 where it did not
    output_tokens: int
    error: str | None = None
    text: str = field(default="", repr=False)

    @property
    def latency(self) -> float:
        """Seconds from arrival to the last token."""
        return self.end - self.scheduled

    @property
    def ttft(self) -> float | None:
        """Seconds from arrival to the first token, waiting included."""
        return None if self.first is None else self.first - self.scheduled

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first; None where there is only one."""
        if self.first is None or self.output_tokens < 2:
            return None
        return (self.end - self.first) / (self.output_tokens - 1)

    def json(self) -> dict[str, Any]:
        """As JSON, without the text."""
        times = {"scheduled": self.scheduled, "start": self.start, "first": self.first, "end": self.end}
        counts = {"prompt_tokens": self.prompt_tokens, "output_tokens": self.output_tokens}
        return {"number": self.number, **times, **counts, "error": self.error}


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds over requests."""

    mean: float
    p50: float
    p99: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Of the values that are there; None where none is."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        return cls(float(np.mean(known)), float(np.quantile(known, 0.5)), float(np.quantile(known, 0.99)))


@dataclass(frozen=True, slots=True)
class Summary:
    """What a load measured; tokens and times are those of the requests that succeeded."""

    requests: int  # all of them
    errors: int
    first_error: str | None
    seconds: float  # from the start to the last answer's end
    prompt_tokens: int
    output_tokens: int
    output_tokens_per_second: float
    requests_per_second: float
    latency_seconds: Spread | None
    ttft_seconds: Spread | None
    tpot_seconds: Spread | None
    late_seconds: float  # the latest start after its schedule: what this client itself added

    def json(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def summarise(served: Sequence[Served], seconds: float | None = None) -> Summary:
    """Throughput and latencies of requests that took ``seconds`` together, by default until the last one's end."""
    good = [request for request in served if request.error is None]
    failed = sorted((r for r in served if r.error is not None), key=lambda r: r.end)
    took = max((r.end for r in served), default=0.0) if seconds is None else seconds
    tokens = sum(r.output_tokens for r in good)
    return Summary(
        requests=len(served),
        errors=len(failed),
        first_error=failed[0].error if failed else None,
        seconds=took,
        prompt_tokens=sum(r.prompt_tokens for r in good),
        output_tokens=tokens,
        output_tokens_per_second=tokens / took if took > 0 else 0.0,
        requests_per_second=len(good) / took if took > 0 else 0.0,
        latency_seconds=Spread.of(r.latency for r in good),
        ttft_seconds=Spread.of(r.ttft for r in good),
        tpot_seconds=Spread.of(r.tpot for r in good),
        late_seconds=max((r.start - r.scheduled for r in served), default=0.0),
    )


def run(
    url: str,
    plan: Plan,
    prompts: Sequence[Conversation],
    *,
    model: str | None = None,
    max_tokens: int | None = 128,
    temperature: float = 0.0,
    extra: Mapping[str, Any] | None = None,
    ignore_eos: bool = False,
    timeout: float = TIMEOUT,
    on_start: Callable[[], None] | None = None,
    on_done: Callable[[Served], None] | None = None,
) -> list[Served]:
    """Every request of the plan in its order, answered or failed; a failure is a result, never an exception.

    Prompts are asked in their order, from the start again where there are too few; the first model that the server
    lists is asked unless one is named. A plan's own answer lengths are cut to ``max_tokens``. ``extra`` goes into the
    body of every request, as in ``{"vllm_xargs": {...}}``.
    """
    if not prompts:
        raise ValueError("a load needs at least one prompt")
    if max_tokens is not None and max_tokens < 1:
        raise ValueError(f"an answer has at least 1 token, not {max_tokens}")
    if not 0 <= temperature < math.inf:
        raise ValueError(f"a temperature is 0 (greedy) or above, not {temperature:g}")
    if not 0 < timeout < math.inf:
        raise ValueError(f"a request is given up after more than 0 seconds, not {timeout:g}")

    async def drive() -> list[Served]:
        async with connect(url) as client:
            asked = {"model": model or await find_model(client, url), "temperature": temperature}
            body = {**({"ignore_eos": True} if ignore_eos else {}), **(extra or {})}
            asking = partial(ask, client, timeout, **asked, extra_body=body)
            return await _Load(plan, prompts, max_tokens, asking, on_start, on_done).play()

    return asyncio.run(drive())


def served_model(url: str, model: str | None = None) -> str:
    """The model asked for, else the first that the server lists; an unreachable server is refused."""

    async def find() -> str:
        async with connect(url) as client:
            return await find_model(client, url, model)

    return asyncio.run(find())


@dataclass(slots=True)
class _Load:
    """A plan being played."""

    plan: Plan
    prompts: Sequence[Conversation]
    max_tokens: int | None
    asking: Callable[..., Awaitable[Answer]]
    on_start: Callable[[], None] | None
    on_done: Callable[[Served], None] | None
    served: list[Served] = field(default_factory=list)
    began: float = 0.0  # the clock's

    async def play(self) -> list[Served]:
        self.began = perf_counter()
        await (self._arrive(self.plan) if isinstance(self.plan, Open) else self._keep_up(self.plan))
        return sorted(self.served, key=lambda request: request.number)

    async def _arrive(self, plan: Open) -> None:
        async with asyncio.TaskGroup() as flying:
            for number, at in enumerate(plan.at):
                await asyncio.sleep(at - self._now())
                flying.create_task(self._request(number, plan.tokens[number] if plan.tokens else None, at))

    async def _keep_up(self, plan: Closed) -> None:
        numbers = iter(range(plan.requests)) if plan.requests is not None else count()
        ends = math.inf if plan.seconds is None else plan.seconds

        async def place() -> None:
            while self._now() < ends and (number := next(numbers, None)) is not None:
                if (await self._request(number, None, None)).error is not None:
                    await asyncio.sleep(PAUSE)

        async with asyncio.TaskGroup() as flying:
            for _ in range(plan.concurrency):
                flying.create_task(place())

    async def _request(self, number: int, planned: int | None, scheduled: float | None) -> Served:
        start = self._now()
        longest = min((n for n in (planned, self.max_tokens) if n is not None), default=None)
        limit = {} if longest is None else {"max_tokens": longest}
        if self.on_start is not None:
            self.on_start()
        answer = await self.asking(messages=self.prompts[number % len(self.prompts)], **limit)
        request = Served(
            number,
            start if scheduled is None else scheduled,
            start,
            None if answer.first is None else answer.first - self.began,
            answer.end - self.began,
            answer.prompt_tokens,
            answer.output_tokens,
            answer.error,
            "".join(answer.text),
        )
        self.served.append(request)
        if self.on_done is not None:
            self.on_done(request)
        return request

    def _now(self) -> float:
        return perf_counter() - self.began
