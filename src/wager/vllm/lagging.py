"""A head that skips the steps in which nothing is drafted, and reads what it missed before it is used again.

Heads that read the target's hidden states (EAGLE, MTP) need them for every token of a text. In a step without drafts
they are kept instead of being read: the hidden state and the token after it, for every request, in a ring by their
position. Before the head drafts again, or when a request has missed as many tokens as are kept, it reads all of them in
one forward.
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

BATCH, HIDDEN, AUXILIARY, LAST = 0, 3, 4, 7  # arguments of propose() by position
WINDOW = 32  # tokens of a request that are kept at most
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

    def __init__(self, speculator: Any, states: Any, window: int = WINDOW) -> None:
        slots, device = speculator.max_num_reqs, speculator.device
        self.head = speculator
        self.window = max(1, min(window, speculator.max_num_tokens // slots))
        places = slots * self.window
        self.hidden = torch.zeros(places, speculator.hidden_size, dtype=speculator.dtype, device=device)
        self.tokens = torch.zeros(places, dtype=torch.int32, device=device)
        self.newest = torch.zeros(slots, dtype=torch.int64, device=device)  # position of each slot's newest token
        self.missed = np.zeros(slots, dtype=np.int64)  # tokens of each request's slot
        self.catch_ups = 0  # forwards that read what was missed
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
        batch: Any = SimpleNamespace(
            num_tokens=1, idx_mapping_np=np.zeros(1, dtype=np.int64), query_start_loc_np=np.zeros(2, dtype=np.int32),
            idx_mapping=torch.zeros(1, dtype=torch.int64, device=head.device),
            query_start_loc=torch.zeros(2, dtype=torch.int32, device=head.device),
            positions=torch.zeros(1, dtype=torch.int64, device=head.device),
        )  # fmt: skip
        last = torch.zeros(1, dtype=torch.int64, device=head.device)
        for tokens in (1, 2):  # all requests, and some of them
            batch.num_tokens = tokens
            self._keep(batch, np.zeros(1, dtype=np.int64), head.hidden_states[:1], last)
        self.missed[:] = 0

    def remove_request(self, name: str) -> int | None:
        """A request is over or preempted: its slot has missed nothing."""
        slot: int | None = self._remove(name)
        if slot is not None:
            self.missed[slot] = 0
        return slot

    @torch.inference_mode()
    def propose(self, *given: Any, **named: Any) -> Any:
        """The head's drafts; none, and no forward, in a step of plain decoding."""
        if named.get("dummy_run"):
            return self._propose(*given, **named)
        batch: InputBatch = given[BATCH]
        slots = batch.idx_mapping_np[: batch.num_reqs]
        plain = batch.num_tokens == batch.num_reqs and not batch.has_prefill
        without_drafts = named.get("num_speculative_tokens") == 0 and not given[AUXILIARY]
        behind = np.arange(batch.num_reqs) if plain and without_drafts else np.flatnonzero(self.missed[slots])
        if not behind.size:
            return self._propose(*given, **named)
        alone = without_drafts and (plain or bool((batch.num_scheduled_tokens[behind] == 1).all()))
        if not alone or self.missed[slots].max() == self.window:
            self.catch_up(batch)
        if alone:
            self._keep(batch, behind, given[HIDDEN], given[LAST])
        # Beside a prefill it runs for all; those that are behind read this token once more when they catch up.
        return NOTHING if alone and plain else self._propose(*given, **named)

    def _keep(self, batch: InputBatch, requests: np.ndarray, hidden: torch.Tensor, last: torch.Tensor) -> None:
        """Keep what the head would have read: of each of these requests one token."""
        every, rows, last = requests.size == batch.num_tokens, batch.idx_mapping, last.view(-1)
        self.missed[batch.idx_mapping_np[requests]] += 1
        if self.kernels is not None:
            size = hidden.shape[1]
            chosen = rows if every else self._there(requests)
            self.kernels.keep[(requests.size, -(-size // BLOCK))](
                hidden, hidden.stride(0), last, batch.positions, rows, chosen, rows if every else batch.query_start_loc,
                self.hidden, self.tokens, self.newest, EVERY=every, WINDOW=self.window, SIZE=size, BLOCK=BLOCK,
            )  # fmt: skip
            return
        tokens, slots = batch.query_start_loc_np[requests], batch.idx_mapping_np[requests]
        positions = batch.positions[tokens].long()
        places = torch.from_numpy(slots) * self.window + positions % self.window
        self.hidden[places], self.tokens[places] = hidden[tokens], last[slots].int()
        self.newest[slots] = positions

    def catch_up(self, batch: InputBatch) -> None:
        """Have the head read what the requests of a batch have missed, each as many tokens as the one that missed most.

        A request that missed fewer has rows before its own that are written nowhere.
        """
        head, count = self.head, batch.num_reqs
        slots = batch.idx_mapping_np[:count]
        missed = self.missed[slots]
        width = int(missed.max())
        total, back = count * width, np.arange(width - 1, -1, -1)  # back: how long ago a column's token was the newest
        nowhere = self._there((back >= missed[:, None]).reshape(-1))
        rows = batch.idx_mapping[:count].long()
        positions = (self.newest.index_select(0, rows)[:, None] - self._there(back)).clamp(min=0)
        places = (rows[:, None] * self.window + positions % self.window).view(-1)
        starts = np.arange(count + 1, dtype=np.int32) * width
        buffers = head.input_buffers
        head.hidden_states[:total] = self.hidden.index_select(0, places)
        buffers.input_ids[:total] = self.tokens.index_select(0, places).to(buffers.input_ids.dtype)
        buffers.positions[:total] = positions.view(-1).to(buffers.positions.dtype)
        buffers.query_start_loc[: count + 1] = self._there(starts)
        # the last row of each request is its newest token
        buffers.seq_lens[:count] = (positions[:, -1] + 1).to(buffers.seq_lens.dtype)
        head.draft_max_seq_len = min(int(batch.seq_lens_cpu_upper_bound[:count].max()), head.max_model_len)
        self._forward(batch, count, total, starts, nowhere)
        self.missed[slots] = 0
        self.catch_ups += 1

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
