"""Matching in vLLM's V2 model runner, alone or beside the model that vLLM drafts with.

Alone it is a speculator of its own. Beside a model (EAGLE, a draft model) it is that model's speculator, which drafts
as always; its draft is replaced where a match is likely to be better, which is decided on the GPU for each request. In
a step whose length is a `MatchOnly` the model drafts nothing, as in one without drafts, and every draft is a match.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from vllm.logger import init_logger
from vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor
from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample
from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator
from vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator import StandaloneARSpeculator

from wager.drafters.datastore import Datastore
from wager.vllm.compat import restore_lengths
from wager.vllm.drafts import NOTHING, MatchOnly, skip_empty_drafts
from wager.vllm.lagging import BATCH, LAST, SAMPLED, Lagging
from wager.vllm.lagging_draft_model import LaggingDraftModel, is_draft_model
from wager.vllm.lagging_head import LaggingHead, is_head
from wager.vllm.matching import RING, Matcher
from wager.vllm.settings import Settings, engine_settings, parse_drafter

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.config.compilation import CUDAGraphMode
    from vllm.v1.worker.gpu.input_batch import InputBatch
    from vllm.v1.worker.gpu.states import RequestState

logger = init_logger("vllm.wager")


def make_matcher(settings: Settings, states: RequestState, device: torch.device) -> Matcher:
    """A matcher over the runner's texts, which are brought onto the device, that learns when a text has ended."""
    if hasattr(states.all_token_ids, "_uva_buf"):
        # vLLM keeps texts in the CPU's memory unless its n-gram speculator reads them. Nobody has looked at them yet.
        size = states.max_num_reqs, states.max_model_len
        states.all_token_ids = StagedWriteTensor(size, dtype=torch.int32, device=device)
    path = next((value for name, value in map(parse_drafter, settings.drafters) if name == "retrieval"), "")
    store = Datastore.open(path) if path else None
    matcher = Matcher(states, settings.max_length, ring=RING if "suffix" in settings.names else 0, store=store)
    if matcher.ring_size:
        _listen(states, matcher)
    return matcher


def _listen(states: RequestState, matcher: Matcher) -> None:
    """Tell the matcher which slots are given up, and when they are about to be written to."""
    remove, write = states.remove_request, states.apply_staged_writes

    def remove_request(req_id: str) -> int | None:
        slot: int | None = remove(req_id)
        if slot is not None:
            matcher.end(slot)
        return slot

    def apply_staged_writes() -> None:
        matcher.flush()
        write()

    states.remove_request, states.apply_staged_writes = remove_request, apply_staged_writes


class MatchSpeculator(BaseSpeculator):
    """Drafts by matching alone; launches nothing in a step whose length is 0."""

    supports_mm_inputs = False
    draft_logits = None  # its drafts are certain: a token is accepted with its probability under the target
    idle_without_drafts = True

    def __init__(self, settings: Settings, states: RequestState, device: torch.device) -> None:
        self.matcher = make_matcher(settings, states, device)
        self.drafts = states.draft_tokens
        self.matcher.warm_up(self.drafts, by_slot=True)

    def init_cudagraph_manager(self, cudagraph_mode: CUDAGraphMode) -> None:
        """Two kernels a step need no graph."""

    def capture(self) -> None:
        """Two kernels a step need no graph."""

    def propose(self, *given: Any, **named: Any) -> Any:
        """A draft for every request of the batch, in the runner's own table."""
        if named.get("dummy_run"):
            return self.drafts
        if named.get("num_speculative_tokens") != 0:
            _match(self.matcher, given, self.drafts, by_slot=True)
        return NOTHING


def warm_up_verification(states: RequestState, device: torch.device, config: VllmConfig, logits: Any) -> None:
    """Compile vLLM's rejection sampler for greedy requests, so that the first draft does not wait for it.

    vLLM's own warm-up uses sampled requests, whose logits are float32; those of greedy ones stay in the model's type.
    """
    length, speculative = states.num_speculative_steps, config.speculative_config
    method, vocabulary = speculative.rejection_sample_method, states.vocab_size

    def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.zeros(*shape, dtype=dtype, device=device)

    few, rates = zeros(length + 1), zeros(length, dtype=torch.float32) if method == "synthetic" else None
    ends = torch.tensor([0, length + 1], dtype=torch.int32, device=device)
    places = torch.arange(length + 1, dtype=torch.int32, device=device)
    temperature, seeds = zeros(states.max_num_reqs, dtype=torch.float32), zeros(states.max_num_reqs)
    rejection_sample(
        zeros(length + 1, vocabulary, dtype=config.model_config.dtype), logits, few.int(), ends,
        few, few[:1], few, places, temperature, seeds, length, rates, use_block_verification=method == "block",
    )  # fmt: skip


def _match(
    matcher: Matcher, given: Sequence[Any], drafts: torch.Tensor, drafted: int | None = None, *, by_slot: bool = False
) -> None:
    batch: InputBatch = given[BATCH]
    # The CPU knows how long a text can be at most: all drafts accepted, and one token more.
    longest = int(batch.seq_lens_cpu_upper_bound[: batch.num_reqs].max()) + 1
    rows, last = batch.idx_mapping, given[LAST].view(-1)
    matcher.draft(rows, given[SAMPLED], last, drafts, longest, drafted, by_slot=by_slot)


def add_matching(speculator: Any, settings: Settings, states: RequestState, device: torch.device) -> Any:
    """The model's speculator, whose drafts give way to matches that are likely to be better.

    It stays the object it is, for vLLM loads it by its class; its ``propose`` is extended.
    """
    if getattr(speculator, "draft_logits", None) is not None:
        raise ValueError(
            "matching beside a model needs its drafts to be its likeliest tokens: leave draft_sample_method greedy"
        )
    matcher = make_matcher(settings, states, device)
    propose, longest, table = speculator.propose, settings.max_length, states.draft_tokens
    matcher.warm_up(torch.zeros_like(table[:1]), longest)
    matcher.warm_up(table, by_slot=True)

    @torch.inference_mode()
    def propose_and_match(*given: Any, **named: Any) -> Any:
        length = named.get("num_speculative_tokens", longest)
        if isinstance(length, MatchOnly) and not named.get("dummy_run"):
            propose(*given, **{**named, "num_speculative_tokens": 0})  # it lags, or reads what the target has read
            _match(matcher, given, table, by_slot=True)
            return NOTHING
        drafts = propose(*given, **named)
        if length and not named.get("dummy_run"):
            _match(matcher, given, drafts, length)
        return drafts

    speculator.propose, speculator.matcher = propose_and_match, matcher
    return speculator


def limit_draft_model(speculator: Any) -> None:
    """Have vLLM's draft model draft as many tokens as it is asked for: it drafts the maximum in every step."""
    propose, longest = speculator.propose, speculator.num_speculative_steps

    def propose_no_more(*given: Any, **named: Any) -> torch.Tensor:
        length = named.get("num_speculative_tokens")
        if named.get("dummy_run") or length is None:
            drafts: torch.Tensor = propose(*given, **named)
            return drafts
        speculator.num_speculative_steps = min(longest, max(1, length))  # one forward keeps its cache complete
        try:
            propose(*given, **named)
        finally:
            speculator.num_speculative_steps = longest
        of_all: torch.Tensor = speculator.draft_tokens[: given[BATCH].num_reqs]
        return of_all

    speculator.propose = propose_no_more


def skip_steps(speculator: Any, states: RequestState) -> Lagging | None:
    """Have a drafter that is a model skip steps in which it drafts nothing, if it can; what it missed."""
    if is_head(speculator):
        return LaggingHead(speculator, states)
    return LaggingDraftModel(speculator, states) if is_draft_model(speculator) else None


def make_speculator(original: Any, config: VllmConfig, device: torch.device, states: RequestState) -> Any:
    """The speculator for an engine of wager's: vLLM's own, matching, or both."""
    settings, method = engine_settings(config), config.speculative_config.method
    restore_lengths(config)
    named = ", ".join(settings.names)
    if settings.speculator and config.speculative_config.use_ngram():
        logger.info("wager: drafting by matching on %s: %s", device, named)
        speculator: Any = MatchSpeculator(settings, states, device)
    else:
        speculator = original(config, device, states)
        if isinstance(speculator, StandaloneARSpeculator):
            limit_draft_model(speculator)
        skip_steps(speculator, states)
        if settings.speculator:
            logger.info("wager: drafting by matching beside %s on %s: %s", method, device, named)
            add_matching(speculator, settings, states, device)
    skip_empty_drafts(states)
    capture = speculator.capture

    def capture_and_warm_up() -> None:
        capture()
        if lagging := getattr(speculator, "lagging", None):
            lagging.warm_up()
        warm_up_verification(states, device, config, getattr(speculator, "draft_logits", None))

    speculator.capture = capture_and_warm_up
    return speculator
