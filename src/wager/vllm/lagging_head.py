"""Heads that read the target's hidden states (EAGLE, EAGLE-3, MTP) and skip the steps in which they draft nothing.

Of every token that is right the hidden state and the token after it are kept instead of being read, in a ring by their
position, and read when the head catches up.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from wager.vllm.drafts import NOTHING
from wager.vllm.lagging import AUXILIARY, BATCH, HIDDEN, LAST, SAMPLED, WINDOW, Lagging, may_skip_steps

if TYPE_CHECKING:
    from vllm.v1.worker.gpu.input_batch import InputBatch

LEAST = 32  # tokens of a request that are kept at least
RING_BYTES = 128 << 20  # of GPU memory; fewer tokens are kept where they would take more
BLOCK = 1024  # numbers of a hidden state that one program of a kernel copies


def is_head(speculator: Any) -> bool:
    """Whether a speculator is such a head, in an engine where it can skip steps."""
    from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator import TargetDependentARSpeculator

    return may_skip_steps(speculator, TargetDependentARSpeculator) and bool(speculator.advance_draft_positions)


class LaggingHead(Lagging):
    """A head that keeps what it would have read."""

    def __init__(self, speculator: Any, states: Any, window: int = 0) -> None:
        slots, device, dtype = speculator.max_num_reqs, speculator.device, speculator.dtype
        fitting = RING_BYTES // (slots * speculator.hidden_size * dtype.itemsize)
        super().__init__(speculator, states, window or max(LEAST, min(WINDOW, fitting)))
        places = slots * self.window
        self.hidden = torch.zeros(places, speculator.hidden_size, dtype=dtype, device=device)
        self.tokens = torch.zeros(places, dtype=torch.int32, device=device)
        self.newest = torch.zeros(slots, dtype=torch.int64, device=device)  # position of each slot's newest token
        self.missed = torch.zeros(slots, dtype=torch.int32, device=device)  # tokens; where most_missed is not 0
        self.kernels: Any = None
        if device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1":
            from wager.vllm import lag_kernels

            self.kernels = lag_kernels

    def warm_up(self) -> None:
        """Compile the kernel; what it writes is not read."""
        if not self.skips:
            return
        head = self.speculator

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

    def propose(self, *given: Any, **named: Any) -> Any:
        if named.get("dummy_run") or not self.skips:
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
                hidden = self.speculator.model.combine_hidden_states(torch.cat(given[AUXILIARY], dim=-1))
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
            which = rows if every else self.there(2 * _all(requests, batch) + (before == 0))
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
        longest = int(batch.seq_lens_cpu_upper_bound[: batch.num_reqs].max())
        self.speculator.draft_max_seq_len = min(longest, self.speculator.max_model_len)
        super().catch_up(batch, least)

    def ends(self, batch: InputBatch, slots: torch.Tensor) -> torch.Tensor:
        return self.newest.index_select(0, slots) + 1

    def was_read(self, slots: torch.Tensor, positions: torch.Tensor, back: torch.Tensor) -> torch.Tensor:
        return back >= self.missed.index_select(0, slots)

    def run(self, slots: torch.Tensor, positions: torch.Tensor, metadata: Any, slot_mappings: Any) -> None:
        head, buffers, total = self.speculator, self.speculator.input_buffers, len(positions)
        places = slots * self.window + positions % self.window
        head.hidden_states[:total] = self.hidden.index_select(0, places)
        buffers.input_ids[:total] = self.tokens.index_select(0, places).to(buffers.input_ids.dtype)
        head._run_model(total, metadata, slot_mappings, None)


def _all(requests: np.ndarray | None, batch: InputBatch) -> np.ndarray:
    """These requests of a batch, None for all, by their numbers."""
    return np.arange(batch.num_reqs) if requests is None else requests
