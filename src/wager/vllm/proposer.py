"""vLLM's proposer hook: several drafters side by side, a drafter and a length for every request.

Named to vLLM as the model of ``{"method": "custom_class"}``. vLLM calls `Proposer.propose` at the end of every step
with the texts as they are; what it returns is verified in the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from wager.core import OFF, Arm
from wager.core.require import require
from wager.drafters import Drafter, registry
from wager.policies import Policy
from wager.vllm import compat
from wager.vllm.choosers import Chooser, Decoding, StepChooser
from wager.vllm.guarded import guard
from wager.vllm.metrics import Meter
from wager.vllm.policy_file import PolicyFile
from wager.vllm.request_chooser import RequestChooser
from wager.vllm.settings import PROPOSER, Settings
from wager.vllm.state import open_state
from wager.vllm.streams import Stream, Streams

if TYPE_CHECKING:
    from vllm.config import VllmConfig

INDEXED = 4096  # tokens of a prompt its drafters know, from its end: they read it while all other requests wait


class Proposer:
    """Drafts for every request of a step, and learns from what became of the drafts of the step before."""

    row_names: Sequence[str] = ()  # each row's request
    alive: Container[str] = ()  # all requests that are not over
    verified: Mapping[str, Sequence[int]] | None = None  # request -> the draft that this step verified

    def __init__(self, vllm_config: VllmConfig) -> None:
        from vllm.distributed import get_tensor_model_parallel_rank

        compat.check_version()
        compat.follow_model_runner(Proposer)
        settings = Settings.of(vllm_config.additional_config)
        configured = vllm_config.speculative_config.num_speculative_tokens
        differ = f"wager drafts up to {settings.max_length} tokens, but vLLM was configured for {configured}"
        require(configured == settings.max_length, f"{differ}; start both with `wager serve` or engine_args")
        drafters = [drafter for drafter in map(registry.build, settings.drafters) if drafter is not None]
        first = int(get_tensor_model_parallel_rank()) == 0  # every rank drafts the same, and its drafts alone are used
        policy = guard(settings.build_policy())
        arms = (OFF, *(Arm(d.name, n) for d in drafters for n in range(1, settings.max_length + 1)))
        seconds = settings.log_seconds if first else 0.0
        meter = Meter(PROPOSER, settings.policy, arms, drafters=settings.names, log_seconds=seconds, export=first)
        replica = vllm_config.parallel_config.data_parallel_index
        self.state_file = open_state(Path(settings.state), policy, replica) if settings.state and first else None
        self.control = PolicyFile(settings, policy) if settings.control else None
        rows, context = vllm_config.scheduler_config.max_num_seqs, vllm_config.model_config.max_model_len
        self.batch = BatchProposer(policy, settings, drafters, meter, rows=rows, context=context)

    def load_model(self, *given: Any, **named: Any) -> None:
        """Called by vLLM; there is no model to load."""

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: np.ndarray,
        token_ids_cpu: np.ndarray,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """A draft for every row, empty where nothing is to be drafted."""
        if self.control is not None:
            self.batch.use(self.control.policy())
        step = self.row_names, self.alive, sampled_token_ids, num_tokens_no_spec, token_ids_cpu
        drafts = self.batch.propose(*step, self.verified)
        if self.state_file is not None:
            self.state_file.tick()
        return drafts

    def idle(self) -> None:
        """Called when the engine has no request left: what was counted is written, as no step is to come."""
        self.batch.meter.flush()


class BatchProposer:
    """Drafts for the rows of an engine's batch, step after step; knows nothing of vLLM but the shape of that batch."""

    def __init__(
        self, policy: Policy, settings: Settings, drafters: Sequence[Drafter], meter: Meter, *, rows: int,
        context: int, clock: Callable[[], float] = perf_counter,
    ) -> None:  # fmt: skip
        self.settings, self.meter, self.clock = settings, meter, clock
        self.drafters, self.context = drafters, context
        self.longest = settings.max_length
        self.streams = Streams(on_end=_end)
        self._unlimited = np.full(rows, self.longest)  # what every request may draft, far from its context's end
        self._none_fresh = np.zeros(rows, np.bool_)  # no request is new
        self._choosers: dict[int, Chooser] = {}  # by policy: each knows the drafts it made last
        self._ended = 0.0  # when the last drafts were handed over
        self._counting = 0.0  # seconds of the step before: they are part of what deciding takes
        self._set_rows([])
        self.use(policy)

    def use(self, policy: Policy) -> None:
        """This policy decides from now on."""
        chooser = self._choosers.get(id(policy))
        if chooser is None:
            kind, names = RequestChooser if policy.per_request else StepChooser, [d.name for d in self.drafters]
            chooser = self._choosers[id(policy)] = kind(policy, self.settings, names, self.meter)
        elif chooser is not self.chooser:
            chooser.forget()  # what it drafted when it was last used is not what is being verified now
        self.chooser: Chooser = chooser

    def propose(
        self,
        names: Sequence[str],
        alive: Container[str],
        sampled: list[list[int]],
        lengths: np.ndarray,
        token_ids: np.ndarray,
        verified: Mapping[str, Sequence[int]] | None = None,
    ) -> list[list[int]]:
        """Drafts for the rows of this step; names and alive as in `Streams.follow`.

        verified: the draft of each request that vLLM verified in this step. It drops drafts, or cuts them, where a
        request has a limit or is sampled on a CPU. None: unknown, and told from the tokens as far as possible.
        """
        began = self.clock()
        streams = self.streams
        by_row = streams.follow(names, alive, sampled, lengths)
        if by_row is not self._by_row:
            self._set_rows(by_row)
        live = self._live
        if not live:
            self.chooser.forget()
            self._ended = 0.0
            return [[] for _ in sampled]
        prefilling = len(live) < len(by_row)
        # A step with prefill in it, or in which a request came back, took longer for reasons of its own.
        mixed = prefilling or not streams.settled
        seconds = 0.0 if mixed or not self._ended else began - self._ended
        fresh = self._none_fresh[: len(live)] if streams.settled else np.array([stream.fresh for stream in live])
        ends, counts, before = streams.ends, streams.counts, streams.before
        new = sampled
        if prefilling:
            ends, counts, before = ends[self._rows], counts[self._rows], before[self._rows]
            new = [sampled[row] for row in self._at]
        limits = self._unlimited[: len(live)]
        if int(np.maximum.reduce(ends)) + self.longest >= self.context:
            limits = np.minimum(self.longest, self.context - 1 - ends).clip(0)
        found = None if verified is None else self._verified(names, verified)
        step = Decoding(live, new, self._slots, fresh, self._rows, ends, counts, limits, token_ids, seconds, found)
        chooser = self.chooser
        chooser.observe(step)
        observed = self.clock()
        texts = [
            self._text(stream, token_ids[row], start, end)
            for stream, row, start, end in zip(live, self._at, before.tolist(), ends.tolist(), strict=True)
        ]
        extended = self.clock()
        drafts = chooser.choose(step, texts, self.clock)
        if prefilling:
            made = dict(zip(self._at, drafts, strict=True))
            drafts = [made.get(row, []) for row in range(len(sampled))]
        self._ended = now = self.clock()
        chooser.draft_seconds += extended - observed
        decision = self._counting + now - began - chooser.draft_seconds
        chooser.count(tokens=int(np.add.reduce(streams.counts)), mixed=mixed, decision=decision)
        self.meter.tick()
        self._counting = self.clock() - now
        return drafts

    def _verified(self, names: Sequence[str], drafts: Mapping[str, Sequence[int]]) -> np.ndarray:
        """Draft tokens verified, for each request that decodes."""
        found = (len(drafts.get(names[row], ())) for row in self._at)
        return np.fromiter(found, np.int64, len(self._at))

    def _set_rows(self, by_row: list[Stream | None]) -> None:
        """Note which request is in which row; it holds until one comes, goes or moves."""
        self._by_row = by_row
        self._live = [stream for stream in by_row if stream is not None]
        self._at = [row for row, stream in enumerate(by_row) if stream is not None]
        self._rows = np.array(self._at, np.int64)
        self._slots = np.array([stream.slot for stream in self._live], np.int64)

    def _text(self, stream: Stream, row: np.ndarray, start: int, end: int) -> list[Drafter]:
        """The request's own drafters, up to date with its text: it went on from start to end."""
        texts: list[Drafter] | None = stream.payload
        if texts is None:
            texts = stream.payload = [drafter.share() for drafter in self.drafters]
            text = row[max(0, end - INDEXED) : end].tolist()
            for drafter in texts:
                drafter.begin(text)
        else:
            new = row[start:end].tolist()
            for drafter in texts:
                drafter.extend(new)
        return texts


def _end(stream: Stream) -> None:
    """A request is over: what it wrote is remembered, and its own memory freed."""
    for drafter in stream.payload or ():
        drafter.end()
    stream.payload = None
