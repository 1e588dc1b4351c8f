"""A load on a server, sent by the client of `vllm bench serve`, and what it measured.

vLLM's benchmark schedules the requests, sends them and takes the times. Added here: a time limit for a request and for
a closed loop, answers that broke off count as errors, and an interrupted load keeps what it measured.
"""

import asyncio
import io
import json
import math
import os
import sys
import urllib.error
import urllib.request
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from wager.bench.arrivals import Conversation, Plan
from wager.policies.base import require
from wager.vllm import compat

TIMEOUT = 600.0  # seconds after which a request is given up
FASTEST = 0.02  # seconds: no request is expected to take less; bounds the requests of a closed loop with a duration
PAUSE = 0.1  # seconds between two requests of a closed loop's place after an error, so that no dead server is flooded
UNFINISHED = "the answer ended without a count of its tokens: it broke off, or the server sends no usage"
DRAFTS = "spec_decode_"  # how vLLM's figures on drafts begin


@dataclass(frozen=True, slots=True)
class Served:
    """One request. Seconds; start and scheduled count from the start of the load."""

    number: int  # in the plan, from 0; its prompt was prompts[number % len(prompts)]
    scheduled: float  # arrival in a trace; else the start
    start: float
    ttft: float | None  # from arrival to the first token
    latency: float  # from arrival to the last token
    prompt_tokens: int = 0  # as the server counted them
    output_tokens: int = 0
    error: str | None = None
    text: str = field(default="", repr=False)

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first; None where there is only one."""
        if self.ttft is None or self.output_tokens < 2:
            return None
        return (self.latency - self.ttft) / (self.output_tokens - 1)

    def json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "text"}


def spread(values: Iterable[float | None]) -> dict[str, float] | None:
    """Mean, median and 99th percentile of the values that are there; None where none is."""
    known = [value for value in values if value is not None]
    p50, p99 = map(float, np.quantile(known, (0.5, 0.99))) if known else (0.0, 0.0)
    return {"mean": float(np.mean(known)), "p50": p50, "p99": p99} if known else None


def summarise(served: Sequence[Served], speculation: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Throughput and latencies, as JSON; tokens and times are those of the requests that succeeded."""
    good = [request for request in served if request.error is None]
    failed = sorted((r for r in served if r.error is not None), key=lambda r: r.start + r.latency)
    seconds = max((r.scheduled + r.latency for r in served), default=0.0)  # from the start to the last answer's end
    prompts, tokens = sum(r.prompt_tokens for r in good), sum(r.output_tokens for r in good)
    return {
        **{"requests": len(served), "errors": len(failed), "first_error": failed[0].error if failed else None},
        **{"seconds": seconds, "prompt_tokens": prompts, "output_tokens": tokens},
        "output_tokens_per_second": tokens / seconds if seconds > 0 else 0.0,
        "requests_per_second": len(good) / seconds if seconds > 0 else 0.0,
        **{f"{name}_seconds": spread(getattr(r, name) for r in good) for name in ("latency", "ttft", "tpot")},
        "late_seconds": max((r.start - r.scheduled for r in served), default=0.0),  # what this client itself added
        "speculation": dict(speculation or {}),  # vLLM's figures: acceptance by position, …
    }


@dataclass(slots=True)
class Load:
    """One load on a server; what was measured can be read after an interruption, too."""

    url: str
    plan: Plan
    prompts: Sequence[Conversation]  # in their order, from the start again where there are too few
    model: str | None = None  # None: the first that the server lists
    max_tokens: int | None = 128  # of an answer; a trace's own lengths are cut to it; None: only with a trace
    temperature: float = 0.0
    extra: Mapping[str, Any] = field(default_factory=dict)  # into the body of every request, as {"vllm_xargs": {...}}
    ignore_eos: bool = False
    timeout: float = TIMEOUT  # seconds
    seed: int = 0  # of Poisson arrivals
    progress: bool = False  # vLLM's bar on stderr
    on_answer: Callable[[], None] | None = None  # called after every request
    speculation: dict[str, Any] = field(default_factory=dict)  # vLLM's figures, when it is over
    _answers: list[tuple[int, Any]] = field(default_factory=list)  # number in the plan, vLLM's RequestFuncOutput
    _ends: float = math.inf  # when a closed loop's time is over, on the clock

    def __post_init__(self) -> None:
        some, finite = self.max_tokens is None or self.max_tokens >= 1, 0 < self.timeout < math.inf
        require(bool(self.prompts), "a load needs at least one prompt")
        require(some, f"an answer has at least 1 token, not {self.max_tokens}")
        require(0 <= self.temperature < math.inf, f"a temperature is 0 (greedy) or above, not {self.temperature:g}")
        require(finite, f"a request is given up after more than 0 seconds, not {self.timeout:g}")
        self.url = base_url(self.url)

    def run(self) -> list[Served]:
        """Every request of the plan in its order, answered or failed; a failure is a result, never an exception."""
        compat.check_version()
        self.model = self.model or served_model(self.url)
        load_client()
        from vllm.benchmarks.lib.endpoint_request_func import ASYNC_REQUEST_FUNCS

        for name in ("no_proxy", "NO_PROXY"):  # straight to the server, whatever proxies the environment names
            os.environ[name] = ",".join(filter(None, (os.environ.get(name), urlsplit(self.url).hostname)))
        np.random.seed(self.seed)
        ASYNC_REQUEST_FUNCS["wager"] = self._request
        self._ends = perf_counter() + (math.inf if self.plan.seconds is None else self.plan.seconds)
        with redirect_stdout(io.StringIO()), warnings.catch_warnings():  # vLLM prints a summary of its own
            warnings.simplefilter("ignore")
            result = asyncio.run(self._benchmark())
        self.speculation = {k.removeprefix(DRAFTS): v for k, v in result.items() if k.startswith(DRAFTS)}
        return self.served

    @property
    def served(self) -> list[Served]:
        """The requests that have ended, in the order of the plan."""
        at = self.plan.at
        began = min((answer.start_time - (at[i] if at else 0.0) for i, answer in self._answers), default=0.0)
        ended = sorted(self._answers, key=lambda pair: pair[0])
        return [_served(i, answer, answer.start_time - began, at[i] if at else None) for i, answer in ended]

    async def _benchmark(self) -> dict[str, Any]:
        from vllm.benchmarks.serve import TaskType, benchmark

        plan = self.plan
        given: dict[str, Any] = {
            **{"endpoint_type": "wager", "base_url": self.url, "api_url": f"{self.url}/v1/chat/completions"},
            **{"model_id": self.model, "model_name": self.model, "input_requests": self._requests()},
            **{"request_rate": plan.rate, "max_concurrency": plan.concurrency, "self_timed": bool(plan.at)},
            "disable_tqdm": not self.progress or plan.requests is None,
            "ignore_eos": self.ignore_eos,
            "extra_body": {"temperature": self.temperature, **self.extra},
        }
        unused: dict[str, Any] = {"burstiness": 1.0, "num_warmups": 0, "profile": False, "ready_check_timeout_sec": 0}
        unused |= dict.fromkeys(("tokenizer", "logprobs", "lora_modules", "extra_headers"))
        unused |= {"selected_percentile_metrics": [], "selected_percentiles": [], "goodput_config_dict": {}}
        result: dict[str, Any] = await benchmark(task_type=TaskType.GENERATION, **given, **unused)
        return result

    def _requests(self) -> list[Any]:
        from vllm.benchmarks.datasets import SampleRequest

        plan, mark, most = self.plan, uuid.uuid4().hex[:8], self.max_tokens or sys.maxsize
        count = plan.requests or math.ceil((plan.concurrency or 0) * (plan.seconds or 0.0) / FASTEST)  # by the clock
        asked = []
        for i in range(count):
            at, tokens = (plan.at[i], min(most, plan.tokens[i])) if plan.at else (None, most)
            how = {"request_id": f"wager-{mark}-{i}", "chat_messages": self.prompts[i % len(self.prompts)]}
            asked.append(SampleRequest(prompt="", prompt_len=0, expected_output_len=tokens, timestamp=at, **how))
        return asked

    async def _request(self, request_func_input: Any, session: Any, pbar: Any = None) -> Any:
        """One request by vLLM's client, called as vLLM calls it."""
        from vllm.benchmarks.lib.endpoint_request_func import RequestFuncOutput, async_request_openai_chat_completions

        began = perf_counter()
        if began >= self._ends:
            return RequestFuncOutput(start_time=began)  # not sent and not counted
        try:
            async with asyncio.timeout(self.timeout):
                answer = await async_request_openai_chat_completions(request_func_input, session, pbar)
            if answer.success and not answer.output_tokens:
                answer.success, answer.error = False, UNFINISHED
        except TimeoutError:
            answer = RequestFuncOutput(start_time=began, error=f"no whole answer within {self.timeout:g} s")
        if not answer.success:
            answer.latency = perf_counter() - began
        self._answers.append((int(request_func_input.request_id.rpartition("-")[2]), answer))
        if self.on_answer is not None:
            self.on_answer()
        if not answer.success and self.plan.concurrency:
            await asyncio.sleep(PAUSE)
        return answer


def load_client() -> None:
    """Import vLLM's benchmark, which takes long and is no part of a load."""
    with compat.quiet():
        import vllm.benchmarks.lib.endpoint_request_func
        import vllm.benchmarks.serve  # noqa: F401


def _served(number: int, answer: Any, start: float, arrival: float | None) -> Served:
    scheduled = start if arrival is None else arrival
    late, tokens, error = start - scheduled, (0, 0), None
    if answer.success:
        tokens = answer.prompt_len, answer.output_tokens
    else:
        lines = answer.error.strip().splitlines() or ["the server gave no reason"]  # of a traceback, its last line
        error = lines[-1].removeprefix("aiohttp.client_exceptions.")[:300]
    ttft = late + answer.ttft if answer.ttft else None
    return Served(number, scheduled, start, ttft, late + answer.latency, *tokens, error, answer.generated_text)


def base_url(url: str) -> str:
    """A server's address without /v1; refused where it is none."""
    url = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        whole = False
    require(whole, f"a server's URL is as in http://127.0.0.1:8000, not {url!r}")
    return url.rstrip("/").removesuffix("/v1")


def served_model(url: str, model: str | None = None) -> str:
    """The model named, else the first that the server lists; a server that does not answer is refused."""
    key = os.environ.get("OPENAI_API_KEY") or "none"
    request = urllib.request.Request(f"{base_url(url)}/v1/models", headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as reply:
            listed = [str(one["id"]) for one in json.load(reply)["data"]]
    except (urllib.error.HTTPError, ValueError, LookupError, TypeError) as error:
        if model is not None:  # it is there; not every server lists its models
            return model
        raise ValueError(f"{url} does not list its models ({error}); name one with --model") from None
    except OSError as error:
        reason = getattr(error, "reason", None) or error
        raise ValueError(f"no server answers at {url}: {getattr(reason, 'strerror', None) or reason}") from None
    require(model is not None or bool(listed), f"{url} lists no model; name one with --model")
    return model or listed[0]
