"""What deciding and bookkeeping cost a server's step, with stub steps: no model, no drafting."""

import random
import resource
import statistics
from collections.abc import Sequence
from itertools import cycle
from time import thread_time
from types import SimpleNamespace
from typing import Any

import numpy as np

from wager.core import Hint
from wager.drafters import Draft, Drafter, registry
from wager.vllm.metrics import Meter
from wager.vllm.proposer import BatchProposer
from wager.vllm.settings import PROPOSER, SCHEDULER, Settings

CONTEXT = 2048  # tokens a request may have
OTHER_DATA = 1 << 19  # numbers (4 MB) that are read and written between two steps


def step_cost(hook: str, policy: str, batch: int, taken: Sequence[float]) -> dict[str, Any]:
    """Seconds a step of one hook with one policy at one batch size; the first fifth of the steps warms up."""
    warm = sorted(taken[len(taken) // 5 :])
    seconds = {"median_seconds": statistics.median(warm), "mean_seconds": statistics.fmean(warm)}
    seconds["p90_seconds"] = warm[int(0.9 * len(warm))]
    return {"hook": hook, "policy": policy, "batch": batch, **seconds}


def scheduler_hook(policy: str, batch: int, steps: int, acceptance: float = 0.5) -> dict[str, Any]:
    """The scheduler hook around a scheduler that does nothing itself. Needs vLLM, for the hook's own module.

    Seconds of the processor. Asynchronous scheduling: a step is scheduled before its predecessor is over. Between two
    steps the caches are filled with other data, as by the rest of an engine's step.
    """
    settings = Settings(("ngram",), 5, policy, log_seconds=0.0)
    hook, rng, names = _scheduler(settings, batch), random.Random(0), [f"request-{i}" for i in range(batch)]
    joining: dict[str, Any] = {"scheduled_cached_reqs": SimpleNamespace(resumed_req_ids=()), "scheduled_new_reqs": []}
    other, length, took = np.zeros(OTHER_DATA), 0, []
    before: Any = None
    for _ in range(steps):
        output = SimpleNamespace(
            num_scheduled_tokens=dict.fromkeys(names, length + 1),
            scheduled_spec_decode_tokens=dict.fromkeys(names, [0] * length) if length else {},
            total_num_scheduled_tokens=batch * (length + 1),
            num_spec_tokens_to_schedule=0,
            **joining,
        )
        right = [next((n for n in range(length) if rng.random() > acceptance), length) for _ in names]
        result = SimpleNamespace(sampled_token_ids=[[0] * (n + 1) for n in right])
        other += 1.0
        began = thread_time()
        hook._update_after_schedule(output)
        if before is not None:
            hook.update_from_output(*before)
        took.append(thread_time() - began)
        before, length = (output, result), output.num_spec_tokens_to_schedule
    return step_cost(SCHEDULER, policy, batch, took)


def _scheduler(settings: Settings, batch: int) -> Any:
    from wager.vllm.scheduler import _Adaptive

    class Nothing:
        def __init__(self, vllm_config: Any) -> None:
            self.vllm_config = vllm_config
            self.requests: dict[str, Any] = {}
            self.running: list[Any] = [None]

        def schedule(self) -> Any: ...
        def _update_after_schedule(self, scheduler_output: Any) -> None: ...
        def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> dict[int, Any]:
            return {}

    class Timed(_Adaptive, Nothing): ...

    config = SimpleNamespace(
        additional_config=settings.additional_config(),
        speculative_config=SimpleNamespace(method="ngram", num_speculative_tokens=settings.max_length),
        parallel_config=SimpleNamespace(pipeline_parallel_size=1, data_parallel_index=0),
        scheduler_config=SimpleNamespace(max_num_seqs=batch, async_scheduling=True),
    )
    hook = Timed(vllm_config=config)
    hook.lengths.clock = thread_time  # what other processes take is no part of a step
    return hook


def _proposer(settings: Settings, drafters: Sequence[Drafter], batch: int) -> tuple[BatchProposer, "_Listening"]:
    given: dict[str, Any] = {"drafters": settings.names, "log_seconds": 0.0, "export": False}
    meter = _Listening(PROPOSER, settings.policy, settings.arms, **given)
    return BatchProposer(settings.build_policy(), settings, drafters, meter, rows=batch, context=CONTEXT), meter


def proposer_hook(policy: str, batch: int, steps: int) -> dict[str, Any]:
    """The proposer hook with two drafters that answer at once; what they take is not counted."""
    settings = Settings(("suffix", "prompt-lookup"), 5, policy, log_seconds=0.0)
    engine, meter = _proposer(settings, [_Ready(name, settings.max_length) for name in settings.names], batch)
    rng = np.random.default_rng(0)
    texts = rng.integers(0, 50_000, (batch, CONTEXT), np.int32)
    ends, sampled = np.full(batch, CONTEXT), list[list[int]]()
    started = 0  # times that all requests were replaced
    for _ in range(steps):
        if int(ends.max()) > CONTEXT - 10:  # start over with shorter texts
            ends = rng.integers(300, 900, batch)
            sampled = [[int(texts[row, end - 1])] for row, end in enumerate(ends)]
            started += 1
        names = [f"{started} {row}" for row in range(batch)]
        drafts = engine.propose(names, names, sampled, ends, texts)
        new = [int(rng.integers(1, len(draft) + 2)) for draft in drafts]
        sampled = [texts[row, ends[row] : ends[row] + n].tolist() for row, n in enumerate(new)]
        ends = ends + new
    return step_cost(PROPOSER, policy, batch, meter.decisions)


def proposer_memory(requests: int = 3000, batch: int = 16) -> tuple[float, float]:
    """Most bytes this process has held after the first third of so many requests, and after all of them."""
    # Real drafters follow texts of phrases that come again; tokens are accepted by chance.
    settings = Settings(("suffix", "prompt-lookup"), 5, log_seconds=0.0)
    drafters = [drafter for drafter in map(registry.build, settings.drafters) if drafter is not None]
    engine, _ = _proposer(settings, drafters, batch)
    rng = random.Random(0)
    phrases = [[rng.randrange(50_000) for _ in range(6)] for _ in range(3000)]
    texts, ends = np.zeros((batch, CONTEXT), np.int32), np.zeros(batch, np.int64)
    left, names = [0] * batch, [""] * batch  # tokens each is still to get, and whose row it is
    drafts: list[list[int]] = [[] for _ in range(batch)]
    done, held = 0, 0.0
    while done < requests:
        sampled = []
        for row in range(batch):
            if left[row] <= 0:
                prompt = [token for _ in range(rng.randrange(7, 34)) for token in rng.choice(phrases)]
                texts[row, : len(prompt)], ends[row] = prompt, len(prompt)
                left[row], drafts[row] = rng.randrange(20, 80), []
                done += 1
                names[row] = f"request {done}"
                held = held or (_peak() if done >= requests // 3 else 0.0)
            new = [*drafts[row][: rng.randint(0, len(drafts[row]))], rng.choice(phrases)[0]]
            texts[row, ends[row] : ends[row] + len(new)] = new
            ends[row] += len(new)
            left[row] -= len(new)
            sampled.append(new)
        drafts = engine.propose(names, names, sampled, ends, texts)
    return held, _peak()


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


class _Listening(Meter):
    """Keeps what each decision took."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.decisions: list[float] = []

    def step(self, batch: float, length: float, decision_seconds: float, **named: Any) -> None:
        super().step(batch, length, decision_seconds, **named)
        self.decisions.append(decision_seconds)


class _Ready(Drafter):
    """Has its drafts made in advance."""

    def __init__(self, name: str, longest: int) -> None:
        self.name = name
        rng = random.Random(f"{name} 0")
        self._drafts = cycle([
            Draft([rng.randrange(50_000) for _ in range(n)], Hint(n + 1, tuple(rng.random() for _ in range(n))))
            for n in (rng.randint(0, longest) for _ in range(97))
        ])  # fmt: skip

    def share(self) -> Drafter:
        return self

    def begin(self, prompt: Sequence[int]) -> None: ...
    def extend(self, tokens: Sequence[int]) -> None: ...
    def propose(self, length: int, sample: Any = None) -> Draft:
        return next(self._drafts).cut(length)
