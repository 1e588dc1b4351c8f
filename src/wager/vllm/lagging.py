"""A head that skips the steps in which it drafts nothing, and reads what it missed before it is used again.

Heads that read the target's hidden states (EAGLE, EAGLE-3, MTP) need them for every token of a text. In a step in which
nothing is drafted, or by matching alone, they are kept instead of being read: the hidden state and the token after it,
for every token that was right, in a ring by their position. Before the head drafts again, or when a request may have
missed more tokens than are kept, it reads all of them.

How many of the drafted tokens in a step are right is known on the device only. The CPU counts all of them: it knows
how many tokens a request has missed at most.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from wager.vllm.drafts import NOTHING

if TYPE_CHECKING:
    from vllm.v1.worker.gpu.input_batch import InputBatch

BATCH, HIDDEN, AUXILIARY, SAMPLED, LAST = 0, 3, 4, 5, 7  # arguments of propose() by position
WINDOW, LEAST = 512, 32  # tokens of a request that are kept at most, and at least
RING_BYTES = 128 << 20  # of GPU memory; fewer tokens are kept where they would take more
BLOCK = 1024  # numbers of a hidden state that one program of a kernel copies
NO_SLOT = -1  # as a place in the KV cache: nothing is written


def can_lag(speculator: Any) -> bool:
    """Whether a speculator is such a head, in an engine without the features that this does not know."""
    from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator import TargetDependentARSpeculator

    if not isinstance(speculator, TargetDependentARSpeculator) or not speculator.advance_draft_positions:
        return False
    config, parallel = speculator.vllm_config, speculator.vllm_config.parallel_config
    ranks = parallel.data_parallel_size, parallel.decode_context_parallel_size, parallel.prefill_context_parallel_size
    return max(ranks) == 1 and not config.model_config.is_multimodal_model


class Lagging:
    """What the requests of an engine have missed; wraps the head's ``propose`` and the states' ``remove_request``."""

    def __init__(self, speculator: Any, states: Any, window: int = 0) -> None:
        slots, device, dtype = speculator.max_num_reqs, speculator.device, speculator.dtype
        self.head = speculator
        fitting = RING_BYTES // (slots * speculator.hidden_size * dtype.itemsize)
        self.window = window or max(LEAST, min(WINDOW, fitting))
        places = slots * self.window
        self.hidden = torch.zeros(places, speculator.hidden_size, dtype=dtype, device=device)
        self.tokens = torch.zeros(places, dtype=torch.int32, device=device)
        self.newest = torch.zeros(slots, dtype=torch.int64, device=device)  # position of each slot's newest token
        self.missed = torch.zeros(slots, dtype=torch.int32, device=device)  # tokens; where most_missed is not 0
        self.most_missed = np.zeros(slots, dtype=np.int64)  # the same at most, as far as the CPU knows
        self.catch_ups = 0  # times that what was missed was read
        self._slot_mappings: torch.Tensor | None = None
        self._propose = speculator.propose
        self._remove = states.remove_request
        speculator.propose, states.remove_request = self.propose, self.remove_request
        speculator.lagging = self
        self.kernels: Any = None
        if device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1":
            from wager.vllm import lag_kernels

            self.kernels = lag_kernels

    def warm_up(self) -> None:
        """Compile the kernel, so that no request waits for it; what it writes is not read."""
        head = self.head

        def zeros(count: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(count, dtype=dtype, device=head.device)

        batch: Any = SimpleNamespace(
            num_reqs=1, num_scheduled_tokens=np.ones(1, dtype=np.int32), query_start_loc_np=np.zeros(2, dtype=np.int32),
            input_ids=zeros(2, torch.int32), idx_mapping_np=np.zeros(1, dtype=np.int64),
            idx_mapping=zeros(1, torch.int64), query_start_loc=zeros(2, torch.int32), positions=zeros(1, torch.int64),
        )  # fmt: skip
        sampled, last = zeros(1, torch.int32) + 1, zeros(head.max_num_reqs, torch.int64)
        for _ in range(2):  # a request that has missed nothing before, and one that has
            self._keep(batch, np.zeros(1, dtype=np.int64), head.hidden_states[:1], sampled, last)
        self.most_missed[:] = 0

    def remove_request(self, name: str) -> int | None:
        """A request is over or preempted: its slot has missed nothing."""
        slot: int | None = self._remove(name)
        if slot is not None:
            self.most_missed[slot] = 0
        return slot

    def propose(self, *given: Any, **named: Any) -> Any:
        """The head's drafts; none, and no forward, where it is to draft nothing and no prompt is read."""
        if named.get("dummy_run"):
            return self._propose(*given, **named)
        batch: InputBatch = given[BATCH]
        before, new = self.most_missed[batch.idx_mapping_np], batch.num_scheduled_tokens
        if named.get("num_speculative_tokens") == 0 and not batch.has_prefill and not given[AUXILIARY]:
            missed = before + new
            if missed.max() <= self.window:  # the usual step: as little work of the CPU as can be
                self.most_missed[batch.idx_mapping_np] = missed
                self._copy(batch, None, before, new, given[HIDDEN], given[SAMPLED], given[LAST])
                return NOTHING
        return self._propose_or_keep(before, *given, **named)

    @torch.inference_mode()
    def _propose_or_keep(self, before: np.ndarray, *given: Any, **named: Any) -> Any:
        batch: InputBatch = given[BATCH]
        lags, prefill = named.get("num_speculative_tokens") == 0, batch.has_prefill
        behind = np.flatnonzero(before) if prefill or not lags else np.arange(batch.num_reqs)
        if not behind.size:
            return self._propose(*given, **named)
        new = batch.num_scheduled_tokens[behind]
        if not lags or int((before[behind] + new).max()) > self.window:
            half = self.window // 2
            lags = lags and not prefill and int(new.max()) <= half
            if before.any():
                self.catch_up(batch, half if lags else 1)  # the others may be over before they have to
        if lags:
            hidden = given[HIDDEN]
            if given[AUXILIARY]:  # EAGLE-3: of several layers, which it makes one state of
                hidden = self.head.model.combine_hidden_states(torch.cat(given[AUXILIARY], dim=-1))
            self._keep(batch, behind, hidden, given[SAMPLED], given[LAST])
            if not prefill:
                return NOTHING
        # Beside a prefill it runs for all; those that are behind read these tokens once more when they catch up.
        return self._propose(*given, **named)

    def _keep(
        self, batch: InputBatch, requests: np.ndarray, hidden: torch.Tensor, sampled: torch.Tensor, last: torch.Tensor
    ) -> None:
        """Keep what the head would have read of these requests."""
        slots, new = batch.idx_mapping_np, batch.num_scheduled_tokens
        every = requests.size == batch.num_reqs
        if not every:
            slots, new = slots[requests], new[requests]
        before = self.most_missed[slots]
        self.most_missed[slots] = before + new
        self._copy(batch, None if every else requests, before, new, hidden, sampled, last)

    def _copy(
        self, batch: InputBatch, requests: np.ndarray | None, before: np.ndarray, new: np.ndarray, hidden: torch.Tensor,
        sampled: torch.Tensor, last: torch.Tensor,
    ) -> None:  # fmt: skip
        """Copy the states and tokens of these requests, None for all of the batch; ``before``, ``new``: tokens that
        each had missed before, at most, and that it has read now."""
        rows, last, size = batch.idx_mapping, last.view(-1), hidden.shape[1]
        if self.kernels is not None:
            every = requests is None and bool(before.all())
            which = rows if every else self._there(2 * _all(requests, batch) + (before == 0))
            self.kernels.keep[(new.size, int(new.max()), -(-size // BLOCK))](
                hidden, hidden.stride(0), batch.input_ids, last, batch.positions, sampled, rows, which,
                batch.query_start_loc, self.hidden, self.tokens, self.newest, self.missed, EVERY=every,
                WINDOW=self.window, SIZE=size, BLOCK=BLOCK,
            )  # fmt: skip
            return
        requests = _all(requests, batch)
        slots = batch.idx_mapping_np[requests]
        for request, slot, had in zip(requests.tolist(), slots.tolist(), before.tolist(), strict=True):
            start, count = int(batch.query_start_loc_np[request]), int(sampled[request])
            own = slice(start, start + count)
            places = slot * self.window + batch.positions[own].long() % self.window
            self.hidden[places] = hidden[own]
            self.tokens[places] = torch.cat((batch.input_ids[start + 1 : start + count], last[slot : slot + 1].int()))
            self.newest[slot] = batch.positions[start + count - 1]
            self.missed[slot] = count + (int(self.missed[slot]) if had else 0)

    def catch_up(self, batch: InputBatch, least: int = 1) -> None:
        """Have the head read what those requests of a batch have missed that may have missed at least so many tokens,
        as many at once as it can read."""
        slots = batch.idx_mapping_np[: batch.num_reqs]
        missed = self.most_missed[slots]
        missed[missed < least] = 0
        most, at_once = int(missed.max()), max(1, self.head.max_num_tokens // batch.num_reqs)
        for newest in reversed(range(0, most, at_once)):
            self._read(batch, missed, newest, min(most, newest + at_once))
        self.most_missed[slots[missed > 0]] = 0
        self.catch_ups += 1

    def _read(self, batch: InputBatch, missed: np.ndarray, newest: int, oldest: int) -> None:
        """Have it read the tokens of each request from ``newest`` to ``oldest`` tokens before the newest one.

        Of those that were not missed, every request has one at least, nothing is written.
        """
        head, count = self.head, batch.num_reqs
        widths = np.clip(missed - newest, 1, oldest - newest)
        starts = np.zeros(count + 1, dtype=np.int32)
        np.cumsum(widths, out=starts[1:])
        total, request = int(starts[-1]), np.repeat(np.arange(count), widths)
        back = newest + starts[1:][request] - 1 - np.arange(total)  # how long ago each row's token was the newest
        back[missed[request] <= back] = self.window  # no token that is kept
        requests_there, back_there = self._there(np.stack((request, back)))
        rows = batch.idx_mapping[:count].long()
        slots = rows.index_select(0, requests_there)
        nowhere = back_there >= self.missed.index_select(0, slots)
        positions = (self.newest.index_select(0, slots) - back_there).clamp(min=0)
        places = slots * self.window + positions % self.window
        buffers = head.input_buffers
        head.hidden_states[:total] = self.hidden.index_select(0, places)
        buffers.input_ids[:total] = self.tokens.index_select(0, places).to(buffers.input_ids.dtype)
        buffers.positions[:total] = positions.to(buffers.positions.dtype)
        buffers.query_start_loc[: count + 1] = self._there(starts)
        # the last row of each request is the newest of these tokens
        ends = (self.newest.index_select(0, rows) + (1 - newest)).clamp(min=1)
        buffers.seq_lens[:count] = torch.minimum(ends.to(buffers.seq_lens.dtype), batch.seq_lens[:count])
        head.draft_max_seq_len = min(int(batch.seq_lens_cpu_upper_bound[:count].max()), head.max_model_len)
        self._forward(batch, count, total, starts, nowhere)

    def _forward(self, batch: InputBatch, count: int, total: int, starts: np.ndarray, nowhere: torch.Tensor) -> None:
        from vllm.config.compilation import CUDAGraphMode
        from vllm.v1.worker.gpu.attn_utils import build_slot_mappings_by_layer
        from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor

        head, buffers = self.head, self.head.input_buffers
        if self._slot_mappings is None:
            self._slot_mappings = torch.empty_like(head.block_tables.slot_mappings)
        rows, starts_there = batch.idx_mapping[:count], buffers.query_start_loc[: count + 1]
        slot_mappings = head.block_tables.compute_slot_mappings(
            rows, starts_there, buffers.positions, total, out=self._slot_mappings
        )
        slot_mappings.masked_fill_(nowhere, NO_SLOT)
        metadata = head._build_attn_metadata(
            num_reqs=count, batch_desc=BatchExecutionDescriptor(CUDAGraphMode.NONE, total, count), step=0,
            query_start_loc_np=starts, seq_lens_cpu_upper_bound=batch.seq_lens_cpu_upper_bound,
            slot_mappings=slot_mappings,
        )  # fmt: skip
        head._run_model(total, metadata, build_slot_mappings_by_layer(slot_mappings, head.kv_cache_config), None)

    def _there(self, array: np.ndarray) -> torch.Tensor:
        """On the device, without waiting for it."""
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if self.hidden.device.type == "cuda":
            return tensor.pin_memory().to(self.hidden.device, non_blocking=True)
        return tensor


def _all(requests: np.ndarray | None, batch: InputBatch) -> np.ndarray:
    """These requests of a batch, None for all, by their numbers."""
    return np.arange(batch.num_reqs) if requests is None else requests
