"""Draft models that skip the steps in which they draft nothing.

A draft model reads tokens alone, and the runner has those of every request on the device. So nothing is kept, and a
step without drafts launches nothing. All that a request may have missed is read: some tokens more than it has missed,
where drafts of another drafter were rejected meanwhile. What is computed for those is what it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from wager.vllm.drafts import NOTHING
from wager.vllm.lagging import BATCH, WINDOW, Lagging, may_skip_steps

if TYPE_CHECKING:
    from vllm.v1.worker.gpu.input_batch import InputBatch


def is_draft_model(speculator: Any) -> bool:
    """Whether a speculator is a draft model, in an engine where it can skip steps."""
    from vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator import StandaloneARSpeculator

    return may_skip_steps(speculator, StandaloneARSpeculator)


class LaggingDraftModel(Lagging):
    """A draft model that reads what it missed from the runner's texts."""

    def __init__(self, speculator: Any, states: Any, window: int = WINDOW) -> None:
        super().__init__(speculator, states, window)
        self.states = states  # whose table of texts may still be replaced by one on the device

    def propose(self, *given: Any, **named: Any) -> Any:
        if named.get("dummy_run") or not self.skips:
            return self._propose(*given, **named)
        batch: InputBatch = given[BATCH]
        slots, new = batch.idx_mapping_np[: batch.num_reqs], batch.num_scheduled_tokens
        before, idle = self.most_missed[slots], named.get("num_speculative_tokens") == 0
        if idle and (not batch.has_prefill or before.any()):
            # Beside a prefill it runs for all; those that are behind read these tokens once more when they catch up.
            lagging = np.ones(batch.num_reqs, dtype=bool) if not batch.has_prefill else before > 0
            if before.any() and int((before + new)[lagging].max()) > self.window:
                self.catch_up(batch, max(1, self.window // 2))  # the others may be over before they have to
                before = self.most_missed[slots]
            self.most_missed[slots] = before + new * lagging
            if not batch.has_prefill:
                return NOTHING
        elif before.any():
            self.catch_up(batch)
        return self._propose(*given, **named)

    def ends(self, batch: InputBatch, slots: torch.Tensor) -> torch.Tensor:
        # This step's own tokens are read when it drafts, or are the next to be missed.
        begins = batch.query_start_loc[: len(slots)].long()
        found: torch.Tensor = batch.positions.index_select(0, begins).long()
        return found

    def was_read(self, slots: torch.Tensor, positions: torch.Tensor, back: torch.Tensor) -> torch.Tensor:
        return positions < 0

    def run(self, slots: torch.Tensor, positions: torch.Tensor, metadata: Any, slot_mappings: Any) -> None:
        tokens = self.states.all_token_ids.gpu[slots, positions]
        self.speculator._run_model(tokens.int(), positions, metadata, slot_mappings, None)
