"""Drafters that are models and skip the steps in which they draft nothing, in vLLM's V2 model runner.

Such a drafter needs every token of a text in its KV cache. In a step in which nothing is drafted, or by matching alone,
it is not run. Before it drafts again, or when a request may have missed more tokens than its window, it reads what was
missed. `lagging_head` and `lagging_draft_model` say what each kind of drafter has to keep for that.

How many of the drafted tokens in a step are right is known on the device only. The CPU counts all of them: it knows
how many tokens a request has missed at most.

What was missed is written where the worker's block table says. That table is append-only: of a layer that keeps only a
window of a text (sliding window, chunks, Mamba) it still names blocks that vLLM has freed meanwhile and that may be
another request's. So a drafter skips steps only where each of its layers keeps the whole text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.logger import init_logger

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.worker.gpu.input_batch import InputBatch

logger = init_logger("vllm.wager")

BATCH, HIDDEN, AUXILIARY, SAMPLED, LAST = 0, 3, 4, 5, 7  # arguments of propose() by position
WINDOW = 512  # tokens of a request that are missed at most
NO_SLOT = -1  # as a place in the KV cache: nothing is written
NEVER = 1 << 30  # as a number of tokens ago: before every text


def may_skip_steps(speculator: Any, kind: type[Any]) -> bool:
    """Whether a speculator is of this kind, in an engine without the features that skipping steps does not know."""
    if not isinstance(speculator, kind):
        return False
    config, parallel = speculator.vllm_config, speculator.vllm_config.parallel_config
    ranks = parallel.data_parallel_size, parallel.decode_context_parallel_size, parallel.prefill_context_parallel_size
    return max(ranks) == 1 and not config.model_config.is_multimodal_model


def keeps_whole_texts(layers: Collection[str], cache: KVCacheConfig) -> bool:
    """Whether no block of these layers is freed before its request is over.

    Decided by exact types: a derived one may free blocks, as reference sliding windows do. Where vLLM gives a layer
    with a window the specification of full attention, it keeps all of its blocks.
    """
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, UniformTypeKVCacheSpecs

    specs: dict[str, Any] = {}
    for group in cache.kv_cache_groups:
        spec = group.kv_cache_spec
        own = spec.kv_cache_specs if isinstance(spec, UniformTypeKVCacheSpecs) else {}
        specs.update({name: own.get(name, spec) for name in group.layer_names})
    return all(type(specs.get(name)) in (FullAttentionSpec, MLAAttentionSpec) for name in layers)


class Lagging(ABC):
    """What the requests of an engine have missed; wraps the speculator's ``propose`` and ``set_attn`` and the states'
    ``remove_request``.

    It skips steps once ``set_attn``, which is told what the drafter's layers keep, has found that it can.
    """

    def __init__(self, speculator: Any, states: Any, window: int) -> None:
        self.speculator, self.window = speculator, window
        self.most_missed = np.zeros(speculator.max_num_reqs, dtype=np.int64)  # tokens by slot, at most
        self.catch_ups = 0  # times that what was missed was read
        self.skips = False  # whether it can skip steps
        self._slot_mappings: torch.Tensor | None = None
        self._propose = speculator.propose
        self._set_attn = speculator.set_attn
        self._remove = states.remove_request
        speculator.propose, speculator.set_attn = self.propose, self.set_attn
        states.remove_request = self.remove_request
        speculator.lagging = self

    @abstractmethod
    def propose(self, *given: Any, **named: Any) -> Any:
        """The drafts; none, and no forward, where nothing is to be drafted and no prompt is read."""

    @abstractmethod
    def ends(self, batch: InputBatch, slots: torch.Tensor) -> torch.Tensor:
        """The position after the last token that each of a batch's requests has missed, (requests,)."""

    @abstractmethod
    def was_read(self, slots: torch.Tensor, positions: torch.Tensor, back: torch.Tensor) -> torch.Tensor:
        """Whether a slot's token at a position, ``back`` tokens before the last one missed, was not missed, (rows,)."""

    @abstractmethod
    def run(self, slots: torch.Tensor, positions: torch.Tensor, metadata: Any, slot_mappings: Any) -> None:
        """One forward of the drafter over these tokens, (rows,) each."""

    def warm_up(self) -> None:  # noqa: B027  # most have nothing to compile
        """Compile what would otherwise be compiled while a request waits."""

    def set_attn(self, model_state: Any, kv_cache_config: KVCacheConfig, *given: Any, **named: Any) -> None:
        """The engine's KV cache is settled: whether the drafter can skip steps."""
        self._set_attn(model_state, kv_cache_config, *given, **named)
        self.skips = keeps_whole_texts(self.speculator.draft_attn_layer_names, kv_cache_config)
        if self.skips:
            logger.info("wager: the drafter runs only in steps it drafts in, and reads up to %d tokens it missed",
                        self.window)  # fmt: skip
        else:
            logger.info_once(
                "wager: the drafter has layers without full attention, whose KV cache cannot be completed later; it "
                "runs in every step"
            )

    def remove_request(self, name: str) -> int | None:
        """A request is over or preempted: its slot has missed nothing."""
        slot: int | None = self._remove(name)
        if slot is not None:
            self.most_missed[slot] = 0
        return slot

    @torch.inference_mode()
    def catch_up(self, batch: InputBatch, least: int = 1) -> None:
        """Read what those requests of a batch have missed that may have missed at least so many tokens, as many at
        once as fit into a forward."""
        slots = batch.idx_mapping_np[: batch.num_reqs]
        missed = self.most_missed[slots]
        missed[missed < least] = 0
        most, at_once = int(missed.max()), max(1, self.speculator.max_num_tokens // batch.num_reqs)
        for newest in reversed(range(0, most, at_once)):
            self._read(batch, missed, newest, min(most, newest + at_once))
        self.most_missed[slots[missed > 0]] = 0
        self.catch_ups += 1

    def _read(self, batch: InputBatch, missed: np.ndarray, newest: int, oldest: int) -> None:
        """Read the tokens of each request from ``newest`` to ``oldest`` tokens before the last one missed.

        Of those that were not missed, every request has one at least, nothing is written.
        """
        from vllm.config.compilation import CUDAGraphMode
        from vllm.v1.worker.gpu.attn_utils import build_slot_mappings_by_layer
        from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor

        speculator, buffers, count = self.speculator, self.speculator.input_buffers, batch.num_reqs
        widths = np.clip(missed - newest, 1, oldest - newest)
        starts = np.zeros(count + 1, dtype=np.int32)
        np.cumsum(widths, out=starts[1:])
        total, request = int(starts[-1]), np.repeat(np.arange(count), widths)
        back = newest + starts[1:][request] - 1 - np.arange(total)  # tokens between each row's and the last one missed
        back[missed[request] <= back] = NEVER
        request_there, back_there = self.there(np.stack((request, back)))
        by_request = batch.idx_mapping[:count].long()
        ends, slots = self.ends(batch, by_request), by_request.index_select(0, request_there)
        positions = ends.index_select(0, request_there) - 1 - back_there
        nowhere = self.was_read(slots, positions, back_there)
        positions = positions.clamp(min=0)
        buffers.positions[:total] = positions.to(buffers.positions.dtype)
        buffers.query_start_loc[: count + 1] = self.there(starts)
        lengths = (ends - newest).clamp(min=1).to(buffers.seq_lens.dtype)
        buffers.seq_lens[:count] = torch.minimum(lengths, batch.seq_lens[:count])
        if self._slot_mappings is None:
            self._slot_mappings = torch.empty_like(speculator.block_tables.slot_mappings)
        slot_mappings = speculator.block_tables.compute_slot_mappings(
            batch.idx_mapping[:count], buffers.query_start_loc[: count + 1], buffers.positions, total,
            out=self._slot_mappings,
        )  # fmt: skip
        slot_mappings.masked_fill_(nowhere, NO_SLOT)
        metadata = speculator._build_attn_metadata(
            num_reqs=count, batch_desc=BatchExecutionDescriptor(CUDAGraphMode.NONE, total, count), step=0,
            query_start_loc_np=starts, seq_lens_cpu_upper_bound=batch.seq_lens_cpu_upper_bound,
            slot_mappings=slot_mappings,
        )  # fmt: skip
        by_layer = build_slot_mappings_by_layer(slot_mappings, speculator.kv_cache_config)
        self.run(slots, positions, metadata, by_layer)

    def there(self, array: np.ndarray) -> torch.Tensor:
        """On the device, without waiting for it."""
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if self.speculator.device.type == "cuda":
            return tensor.pin_memory().to(self.speculator.device, non_blocking=True)
        return tensor
