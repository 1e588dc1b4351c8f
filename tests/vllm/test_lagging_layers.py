"""A drafter whose layers do not keep whole texts runs in every step: what it missed could not be written later."""

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm.config", reason="vLLM is not installed; see the README on serving")

from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    RSWASpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator
from vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator import StandaloneARSpeculator

from wager.vllm import lagging
from wager.vllm.drafts import NOTHING
from wager.vllm.lagging import keeps_whole_texts
from wager.vllm.lagging_draft_model import LaggingDraftModel

SIZES: dict[str, Any] = {"block_size": 16, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
FULL, MLA = FullAttentionSpec(**SIZES), MLAAttentionSpec(**SIZES)
WINDOW = SlidingWindowSpec(**SIZES, sliding_window=64)
# Layers with windows in an engine that keeps all of their blocks.
KEPT = FullAttentionSpec(**SIZES, sliding_window=64)
FREED: list[KVCacheSpec] = [
    WINDOW,
    SlidingWindowMLASpec(**SIZES, sliding_window=64),
    ChunkedLocalAttentionSpec(**SIZES, attention_chunk_size=64),
    RSWASpec(**SIZES, rswa_window=64),
    MambaSpec(block_size=16, shapes=((4,),), dtypes=(torch.float32,)),
]


def cache(**groups: KVCacheSpec) -> KVCacheConfig:
    """A KV cache with these groups of layers; a name may be of several layers, as in ``a_b``."""
    return KVCacheConfig(9, [], [KVCacheGroupSpec(names.split("_"), spec) for names, spec in groups.items()])


@pytest.mark.parametrize("spec", FREED, ids=lambda spec: type(spec).__name__)
def test_layers_of_which_blocks_are_freed_before_a_request_is_over_are_told_apart(spec: KVCacheSpec) -> None:
    assert not keeps_whole_texts({"draft"}, cache(target=FULL, draft=spec))
    assert not keeps_whole_texts({"draft", "other"}, cache(draft=FULL, other=spec)), "one of its layers is enough"
    assert keeps_whole_texts({"draft"}, cache(target=spec, draft=FULL)), "the target's own layers do not matter"
    assert not keeps_whole_texts({"draft"}, cache(draft=UniformTypeKVCacheSpecs(16, {"draft": spec})))


def test_layers_that_keep_whole_texts_are_told_apart() -> None:
    for spec in (FULL, MLA, KEPT):
        assert keeps_whole_texts({"draft"}, cache(target_draft=spec))
    both = UniformTypeKVCacheSpecs(16, {"target": MLA, "draft": FULL})
    assert keeps_whole_texts({"draft"}, cache(target_draft=both))
    assert not keeps_whole_texts({"draft"}, cache(target=FULL)), "of a layer in no group nothing is known"


@pytest.mark.parametrize("kind", ["draft model", "head"])
def test_a_drafter_with_such_layers_runs_in_every_step(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import test_lagging_draft_model
    import test_lagging_head
    from vllm.v1.worker.gpu import attn_utils

    monkeypatch.setattr(attn_utils, "build_slot_mappings_by_layer", lambda mapping, config: {"layer": mapping})
    said: list[str] = []
    monkeypatch.setattr(lagging.logger, "info_once", said.append)
    steps = 40
    for spec, forwards in ((FULL, 0), (WINDOW, steps)):
        if kind == "head":
            run: Any = test_lagging_head.Run(0, 100)
            run.ends, made = {0: 0, 1: 0}, run.head
        else:
            run = test_lagging_draft_model.Run(0, 100)
            run.step([0, 1], 2)
            made = run.model
        made.set_attn(None, cache(layer=spec))
        run.lag.warm_up()
        before = made.forwards
        for _ in range(steps):
            run.step([0, 1], 0)
        assert made.forwards - before == forwards
        assert bool(run.lag.most_missed.any()) == (spec is FULL)
        if spec is WINDOW:
            run.step([0, 1], 2)
            assert run.lag.catch_ups == 0, "it has missed nothing"
    assert len(said) == 1
    assert said[0].startswith("wager: the drafter has layers without full attention")


def test_nothing_is_skipped_before_the_layers_are_known() -> None:
    drafts = torch.zeros(1, 3)
    made: Any = SimpleNamespace(max_num_reqs=1, propose=lambda *given, **named: drafts, set_attn=None)
    LaggingDraftModel(made, SimpleNamespace(remove_request=int))
    assert made.propose(SimpleNamespace(num_reqs=1, has_prefill=False), num_speculative_tokens=0) is not NOTHING


def test_vllm_says_what_the_layers_keep_where_this_listens() -> None:
    for kind in (DraftModelSpeculator, StandaloneARSpeculator):
        names = [*inspect.signature(kind.set_attn).parameters][1:3]
        assert names == ["model_state", "kv_cache_config"]
    assert "self.draft_attn_layer_names =" in inspect.getsource(DraftModelSpeculator.load_model)
