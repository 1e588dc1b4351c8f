"""Every batch size has a full CUDA graph at every draft length, as vLLM's own look-up finds them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from wager.vllm import plugin
from wager.vllm.launch import capture_sizes
from wager.vllm.settings import Settings

pytest.importorskip("vllm", reason="vLLM is not installed")

REQUESTS, LONGEST = 128, 4


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes vLLM's manager of graphs without a GPU, from the configuration that its look-up table is made of."""
    from vllm.config.compilation import CUDAGraphMode
    from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager

    monkeypatch.setattr(CudaGraphManager, plugin.CANDIDATES, CudaGraphManager._init_candidates)  # restored afterwards
    plugin.replace()

    def make(additional_config: dict[str, Any], scheduler: str | None = None) -> Any:
        made = CudaGraphManager.__new__(CudaGraphManager)
        sizes = capture_sizes(REQUESTS, LONGEST)
        speculative = SimpleNamespace(
            uses_dynamic_speculative_decoding=lambda: True,
            num_speculative_tokens_per_batch_size=[[n + 1, n + 1, n] for n in range(LONGEST + 1)],
        )
        made.vllm_config = SimpleNamespace(
            additional_config=additional_config,
            scheduler_config=SimpleNamespace(scheduler_cls=scheduler),
            num_speculative_tokens=LONGEST,
            speculative_config=speculative,
            cache_config=SimpleNamespace(use_kda_recoverssm=False),
        )
        made.compilation_config = SimpleNamespace(cudagraph_capture_sizes=sizes, max_cudagraph_capture_size=max(sizes))
        made.cudagraph_mode, made.max_num_reqs, made.decode_query_len = CUDAGraphMode.FULL_AND_PIECEWISE, REQUESTS, 5
        made.varlen_decode, made.ubatch_runner, made.lora_capture_cases = False, None, [0]
        made._candidates, made._capture_descs, made._lora_dispatch_map, made._max_lora_case = {}, {}, {}, 0
        made._graphs_captured = True
        made._init_candidates()
        return made

    return make


def _found(manager: Any, requests: int, width: int) -> Any:
    return manager.dispatch(requests, requests * width, width, 0)


@pytest.mark.parametrize(
    "started", [(Settings(("suffix",), LONGEST).additional_config(),), ({}, "wager.vllm.scheduler.scheduler")]
)
def test_every_batch_size_has_a_full_graph_at_every_length(manager: Any, started: tuple[Any, ...]) -> None:
    ours = manager(*started)
    for width in range(1, LONGEST + 2):
        for requests in range(1, REQUESTS + 1):
            found = _found(ours, requests, width)
            assert found.cg_mode.name == "FULL", (requests, width)
            assert found.uniform_token_count == width
            assert found.num_reqs >= requests
            smaller = [graph for graph in ours._capture_descs[found.cg_mode] if graph.uniform_token_count == width]
            assert not any(requests <= graph.num_reqs < found.num_reqs for graph in smaller), "a smaller one would do"


def test_steps_of_unequal_lengths_and_with_prefill_get_the_same_graphs_as_before(manager: Any) -> None:
    ours, stock = manager(Settings(("suffix",), LONGEST).additional_config()), manager({})
    for tokens in range(1, 700):
        assert ours.dispatch(3, tokens, None, 0) == stock.dispatch(3, tokens, None, 0)


def test_an_engine_without_wager_keeps_vllms_table_with_its_gaps(manager: Any) -> None:
    """If this fails, vLLM has closed the gaps and this module is no longer needed."""
    stock = manager({})
    gaps = [
        (requests, width)
        for width in range(1, LONGEST + 2)
        for requests in range(1, REQUESTS + 1)
        if _found(stock, requests, width).cg_mode.name != "FULL"
    ]
    assert (5, 3) in gaps
    assert len(gaps) > 100
