"""vLLM's scheduler hook: the length of the next drafts, decided in every step, and requests' own limits.

Named to vLLM as ``--scheduler-cls wager.vllm.scheduler.scheduler``, by `wager serve` or beside a speculative
configuration of one's own. It adds to vLLM's schedulers and replaces nothing: what is scheduled when stays vLLM's
decision.
"""

from __future__ import annotations

from collections import deque
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from wager.core import OFF, Arm
from wager.policies.steps import Step
from wager.vllm.compat import (
    SchedulerHooks,
    check_version,
    drafts_break_sampling,
    is_cpu_build,
    restore_lengths,
    set_draft_length,
)
from wager.vllm.drafts import MatchOnly
from wager.vllm.guarded import guard
from wager.vllm.lengths import Lengths
from wager.vllm.metrics import Meter
from wager.vllm.policy_file import PolicyFile
from wager.vllm.settings import KEY, SCHEDULER, engine_settings, speculative_methods
from wager.vllm.state import open_state

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

logger = init_logger("vllm.wager")

LIMIT = "wager_max_length"  # in a request's vllm_xargs: most tokens to draft for it, 0 for none


def scheduler(vllm_config: VllmConfig, **given: Any) -> Scheduler:
    """The scheduler for this engine: synchronous or asynchronous, as vLLM settled it."""
    check_version()
    settings = engine_settings(vllm_config)
    if settings.hook == SCHEDULER and not is_cpu_build() and KEY in vllm_config.additional_config:
        restore_lengths(vllm_config)
    asynchronous = bool(vllm_config.scheduler_config.async_scheduling)
    kinds = (Adaptive, AdaptiveAsync) if settings.hook == SCHEDULER else (Limited, LimitedAsync)
    return kinds[asynchronous](vllm_config=vllm_config, **given)


class _Limits(SchedulerHooks):
    """Per-request limits on the draft length, from the requests' own arguments; no drafts where they would do harm."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        settings = engine_settings(self.vllm_config)
        configured = self.vllm_config.speculative_config
        methods, length = speculative_methods(settings), settings.max_length
        if configured is None or configured.method not in methods or configured.num_speculative_tokens != length:
            raise ValueError(
                f"wager was set up for {methods[0]} with up to {length} tokens, but vLLM for {configured}; start "
                "both with `wager serve` or engine_args"
            )
        self._limits: dict[str, int] = {}  # request -> most tokens to draft for it, where it set a limit
        self._cut: set[str] = set()  # requests whose next draft was cut by that
        # requests beside which nothing may be drafted; None: there are no such
        self._sampled: set[str] | None = set() if drafts_break_sampling() else None
        if self._sampled is not None:
            self.schedule = self._schedule_beside_sampled  # elsewhere vLLM's own is called, without a detour
            self.disable_padding()
            logger.warning(
                "wager: this CPU build of vLLM samples wrongly where there are drafts; while a request with a "
                "temperature above 0 is running, nothing is drafted for anyone"
            )

    def add_request(self, request: Request) -> None:
        limit = requested_limit(request)
        if self._sampled is not None and request.sampling_params and request.sampling_params.temperature > 0:
            self._sampled.add(request.request_id)
        super().add_request(request)  # type: ignore[misc]
        if limit is not None:
            self._limits = {name: n for name, n in self._limits.items() if name in self.requests}
            self._cut &= self._limits.keys()
            self._limits[request.request_id] = limit
            self.sees_drafts = True

    def _schedule_beside_sampled(self, *given: Any, **named: Any) -> SchedulerOutput:
        if self._sampled:
            self._sampled &= self.requests.keys()
            if self._sampled:
                for request in self.running:
                    self.truncate_draft(request, 0)
        scheduled: SchedulerOutput = super().schedule(*given, **named)  # type: ignore[misc]
        return scheduled

    def drafts_ready(self) -> None:
        for name, limit in self._limits.items():
            request = self.requests.get(name)
            if request is not None and len(request.spec_token_ids) > limit:
                self.truncate_draft(request, limit)
                self._cut.add(name)


class _Adaptive(_Limits):
    """The policy's length in every step."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        settings = engine_settings(self.vllm_config)
        policy = guard(settings.build_policy())
        parallel = self.vllm_config.parallel_config
        replica = parallel.data_parallel_index
        self.state_file = open_state(Path(settings.state), policy, replica) if settings.state else None
        names, seconds = settings.arm_names, settings.log_seconds
        meter = Meter(SCHEDULER, settings.policy, settings.arms, drafters=names, log_seconds=seconds)
        overlap = bool(self.vllm_config.scheduler_config.async_scheduling)
        dear = self.vllm_config.speculative_config.method == "draft_model"
        self.lengths = Lengths(policy, settings.arms, meter, overlap=overlap, dear=dear)
        self.control = PolicyFile(settings, policy) if settings.control else None
        pipeline = parallel.pipeline_parallel_size > 1
        self._arms: dict[str, Arm] | None = {} if pipeline else None  # request -> arm that drafts for it now
        self._matching = settings.matching  # whose arms are those in which matching drafts alone beside a model
        self._quick = not pipeline and self.control is None  # steps that are like the last one need no look
        self._usual = 1  # tokens of a request that decodes in the next step, with its draft
        # steps scheduled and not over, oldest first, with when they were scheduled
        self._flights: deque[tuple[SchedulerOutput, Step, float]] = deque()
        logger.info("wager: %s decides over %s", settings.policy, ", ".join(map(str, settings.arms)))

    def step_scheduled(self, scheduler_output: SchedulerOutput) -> None:
        batch, total = len(scheduler_output.num_scheduled_tokens), scheduler_output.total_num_scheduled_tokens
        # A request that joins may be padded with drafts nobody made.
        joining = scheduler_output.scheduled_new_reqs or scheduler_output.scheduled_cached_reqs.resumed_req_ids
        if total == batch and not joining and self._quick and not self._sampled:
            step = self.lengths.repeat(batch)
            if step is not None:
                set_draft_length(scheduler_output, 0)
                self._flights.append((scheduler_output, step, 0.0))
                return
        drafts = scheduler_output.scheduled_spec_decode_tokens
        drafted = sum(map(len, drafts.values())) if drafts else 0
        mixed = bool(joining) or total != batch + drafted
        verifying = batch
        if mixed:
            batch, verifying = self._decoding(scheduler_output)
        if self.control is not None:
            self.lengths.rounds.policy = self.control.policy()
        drafted_by = None if self._arms is None else self._drafted_by(scheduler_output)
        longest, cut = self._limited(scheduler_output) if self._limits else (None, False)
        step, began = self.lengths.plan(
            batch, verifying, drafted, mixed, drafted_by, off=bool(self._sampled), longest=longest, cut=cut
        )
        if self._arms is not None:
            self._arms = {name: arm for name, arm in self._arms.items() if name in self.requests}
            self._arms.update(dict.fromkeys(scheduler_output.num_scheduled_tokens, step.next_arm))
        arm = step.next_arm
        self._usual = 1 + arm.length
        alone = self._matching and arm.drafter == self._matching
        set_draft_length(scheduler_output, MatchOnly(arm.length) if alone else arm.length)
        self._flights.append((scheduler_output, step, began))

    def _limited(self, scheduler_output: SchedulerOutput) -> tuple[int | None, bool]:
        """Most tokens that any request of the next step takes, None where one has no limit, and whether a draft that
        this step verifies was cut."""
        scheduled = scheduler_output.num_scheduled_tokens
        cut = self._cut & scheduled.keys()
        self._cut -= cut
        decoding = [name for name, tokens in scheduled.items() if self._decodes(name, tokens)]
        limited = bool(decoding) and self._limits.keys() >= set(decoding)
        return max(self._limits[name] for name in decoding) if limited else None, bool(cut)

    def _decodes(self, name: str, tokens: int) -> bool:
        """Whether a request of which so many tokens are scheduled will decode in the next step."""
        request = self.requests[name]
        return bool(request.num_computed_tokens + tokens >= request.num_tokens + request.num_output_placeholders)

    def _drafted_by(self, scheduler_output: SchedulerOutput) -> Arm:
        """The arm whose drafts this step verifies, in a pipeline: it has several steps under way, each with requests
        of its own."""
        assert self._arms is not None
        drafts = scheduler_output.scheduled_spec_decode_tokens or scheduler_output.num_scheduled_tokens
        return self._arms.get(next(iter(drafts), ""), OFF)

    def _decoding(self, scheduler_output: SchedulerOutput) -> tuple[int, int]:
        """Requests that will decode in the next step, and those that decode in this one: not those in prefill."""
        scheduled, drafts = scheduler_output.num_scheduled_tokens, scheduler_output.scheduled_spec_decode_tokens
        # Most requests have the last step's draft and one token more: they decode. Only the others are looked at.
        usual, joined = self._usual, [new.req_id for new in scheduler_output.scheduled_new_reqs]
        joined += scheduler_output.scheduled_cached_reqs.resumed_req_ids
        odd = [name for name, tokens in scheduled.items() if tokens != usual]
        odd += [name for name in joined if scheduled[name] == usual]
        after = now = len(scheduled) - len(odd)
        for name in odd:
            request, tokens = self.requests[name], scheduled[name]
            after += self._decodes(name, tokens)
            now += tokens - len(drafts.get(name, ())) == 1 and request.num_computed_tokens >= request.num_prompt_tokens
        return after, now

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, Any]:
        outputs: dict[int, Any] = super().update_from_output(  # type: ignore[misc]
            scheduler_output, model_runner_output
        )
        flights = self._flights
        while flights:
            planned, step, began = flights.popleft()
            if planned is scheduler_output:
                # A successor that prefills was launched meanwhile: launching it can take longer than this step.
                timed = not (flights and flights[0][1].mixed)
                if step.held and not (step.mixed or step.drafted):  # a token for each request
                    self.lengths.count(step, 0, step.batch, bool(self.running), timed)
                else:
                    self._finish(step, began, model_runner_output.sampled_token_ids, timed)
                break
        return outputs

    def _finish(self, step: Step, began: float, sampled: list[list[int]], timed: bool) -> None:
        """A step is over; sampled: tokens of each of its requests; timed: its seconds are its own."""
        tokens = list(map(len, sampled))
        emitted, requests = sum(tokens), len(tokens) - tokens.count(0)
        survivors: tuple[int, ...] = ()
        if step.arm.length and not step.held:
            # every request has the target's own token, and one for each draft token accepted
            ended = [tokens.count(n) for n in range(step.arm.length + 1, 1, -1)]
            survivors = tuple(accumulate(ended))[::-1]
        counts = emitted - requests, emitted, survivors
        self.lengths.finish(step, began, *counts, busy=bool(self.running), timed=timed)
        if self.state_file is not None and not step.held:
            self.state_file.tick()

    def shutdown(self) -> None:
        if self.state_file is not None:
            self.state_file.save()
        super().shutdown()  # type: ignore[misc]


def requested_limit(request: Request) -> int | None:
    """Most tokens to draft for this request, if it asked for a limit."""
    given = (request.sampling_params.extra_args or {}) if request.sampling_params else {}
    if LIMIT not in given:
        return None
    try:
        limit = int(given[LIMIT])
        if limit < 0 or limit != float(given[LIMIT]):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        logger.warning("wager: %s is a whole number of tokens, 0 for none, not %r; ignored", LIMIT, given[LIMIT])
        return None
    return limit


class Adaptive(_Adaptive, Scheduler):
    """Synchronous scheduling with an adaptive length."""


class AdaptiveAsync(_Adaptive, AsyncScheduler):
    """Asynchronous scheduling with an adaptive length."""


class Limited(_Limits, Scheduler):
    """Synchronous scheduling beside the proposer hook, which chooses lengths itself."""


class LimitedAsync(_Limits, AsyncScheduler):
    """Asynchronous scheduling beside the proposer hook."""
