"""A stand-in for vLLM's engine loop: the real scheduler, and a model that knows every text in advance."""

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest

vllm = pytest.importorskip("vllm.config", reason="vLLM is not installed; see the README on serving")

import torch  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.v1.core.sched.output import SchedulerOutput  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec  # noqa: E402
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request, RequestStatus  # noqa: E402
from vllm.v1.structured_output import StructuredOutputManager  # noqa: E402

import wager.vllm  # noqa: E402
from wager.vllm.scheduler import scheduler  # noqa: E402

BLOCK = 32


def make_scheduler(
    folder: str,
    *,
    asynchronous: bool = False,
    blocks: int = 1000,
    prefill: int = 64,
    rows: int = 16,
    plain: dict[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """The scheduler wager gives an engine, over a cache of so many blocks, reading so many tokens a step.

    plain: arguments of an engine that is not started by wager.
    """
    sizes = {"max_model_len": 512, "max_num_seqs": rows, "max_num_batched_tokens": prefill}
    if plain is None:
        given = {"drafters": "ngram", "policy": "random", **settings}
        args = wager.vllm.engine_args(folder, enable_prefix_caching=False, **sizes, **given)
    else:
        args = {"model": folder, "dtype": "float32", "enable_prefix_caching": False, **sizes, **plain}
    config = EngineArgs(**args).create_engine_config()
    config.scheduler_config.async_scheduling = asynchronous
    config.cache_config.num_gpu_blocks = blocks
    layer = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    cache = KVCacheConfig(blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], layer)])
    outputs = StructuredOutputManager(config)
    return scheduler(config, kv_cache_config=cache, structured_output_manager=outputs, block_size=BLOCK, log_stats=True)


def make_request(name: str, prompt: int, tokens: int, *, limit: Any = None, temperature: float = 0) -> Request:
    """A request for so many tokens; its text is known: the prompt counts up from a number of its own."""
    extra = None if limit is None else {"wager_max_length": limit}
    params = SamplingParams(temperature=temperature, max_tokens=tokens, ignore_eos=True, extra_args=extra)
    start = sum(map(ord, name)) * 1000
    return Request(name, list(range(start, start + prompt)), params, None)


@dataclass
class Engine:
    """Steps of an engine without a model. A draft's tokens are right with probability ``accuracy``."""

    scheduler: Any
    asynchronous: bool = False
    accuracy: float = 0.7
    seed: int = 0
    emitted: dict[str, list[int]] = field(default_factory=dict)
    lengths: list[int] = field(default_factory=list)  # of drafts verified, as scheduled
    asked: list[int] = field(default_factory=list)  # length asked for in each step

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.flights: deque[tuple[SchedulerOutput, dict[str, int]]] = deque()
        self.computed: dict[str, int] = {}  # tokens of each request the model knows, asynchronous scheduling's view

    def run(self, steps: int = 10_000, between: Any = None) -> None:
        """Until nothing is left to do."""
        for step in range(steps):
            if between is not None:
                between(step, self.scheduler)
            if not self.scheduler.has_requests() and not self.flights:
                return
            self.step()
        raise AssertionError(f"requests are stuck: {list(self.scheduler.requests)}")

    def step(self) -> None:
        """Schedule, run the model, tell the scheduler; asynchronous scheduling keeps two steps under way."""
        if self.scheduler.has_requests():
            output = self.scheduler.schedule()
            self.asked.append(output.num_spec_tokens_to_schedule)
            self.flights.append((output, self._execute(output)))
            if self.asynchronous and len(self.flights) < 2:
                return
        output, sampled = self.flights.popleft()
        rows = list(output.num_scheduled_tokens)
        result = ModelRunnerOutput(
            req_ids=rows,
            req_id_to_index={name: i for i, name in enumerate(rows)},
            sampled_token_ids=[sampled[name] for name in rows],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        for outputs in self.scheduler.update_from_output(output, result).values():
            for one in outputs.outputs:
                self.emitted.setdefault(one.request_id, []).extend(one.new_token_ids)
        if not self.asynchronous and output.total_num_scheduled_tokens:
            length = output.num_spec_tokens_to_schedule
            drafts = [self._draft(name, length) if sampled[name] else [] for name in rows]
            self.scheduler.update_draft_token_ids(DraftTokenIds(rows, drafts))

    def _execute(self, output: SchedulerOutput) -> dict[str, list[int]]:
        """The true next tokens of every request that was scheduled to its end."""
        sampled: dict[str, list[int]] = {}
        for name in output.num_scheduled_tokens:
            request = self.scheduler.requests[name]
            drafts = output.scheduled_spec_decode_tokens.get(name, [])
            if drafts:
                self.lengths.append(len(drafts))
            # vLLM has already counted these tokens as computed
            if request.is_prefill_chunk:
                sampled[name] = []
                continue
            if self.asynchronous:
                known = self.computed.get(name, request.num_prompt_tokens)
                right = 0
                while right < len(drafts) and self.random.random() < self.accuracy:
                    right += 1
            else:
                known = request.num_tokens
                right = next((i for i, t in enumerate(drafts) if t != true_token(request, known + i)), len(drafts))
            sampled[name] = [true_token(request, known + i) for i in range(right + 1)]
            self.computed[name] = known + right + 1
        return sampled

    def _draft(self, name: str, length: int) -> list[int]:
        request = self.scheduler.requests.get(name)
        if request is None:
            return []
        right = [self.random.random() < self.accuracy for _ in range(length)]
        return [true_token(request, request.num_tokens + i) if fine else 7 for i, fine in enumerate(right)]


def true_token(request: Request, position: int) -> int:
    """The token this text has at this position."""
    return request.prompt_token_ids[0] + position


def true_text(request: Request, tokens: int) -> list[int]:
    """The output the model gives without speculation."""
    return [true_token(request, request.num_prompt_tokens + i) for i in range(tokens)]


def abort(scheduler: Any, name: str) -> None:
    """The client went away."""
    scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
