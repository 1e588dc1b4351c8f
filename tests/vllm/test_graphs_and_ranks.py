"""What engines on a GPU are given: sizes of graphs, and the lengths of data-parallel ranks."""

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from wager.vllm import compat
from wager.vllm.launch import GRAPH_PROMPTS, capture_sizes
from wager.vllm.settings import Settings


def test_on_a_gpu_ngram_has_graphs(launch: Any, smollm2_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings.of(launch.engine_args(smollm2_folder)["additional_config"]).names == ("suffix", "prompt-lookup")
    monkeypatch.setattr(launch, "on_cpu", lambda: False)
    made = launch.engine_args(smollm2_folder, drafters="ngram", max_num_seqs=128, max_length=4)
    speculative = made["speculative_config"]
    assert speculative["method"] == "ngram_gpu"  # under the name "ngram" vLLM turns asynchronous scheduling off
    assert {length for *_, length in speculative["num_speculative_tokens_per_batch_size"]} == {0, 1, 2, 3, 4}
    assert max(made["cudagraph_capture_sizes"]) == 128 * 5 + GRAPH_PROMPTS
    few = launch.engine_args(smollm2_folder, drafters="ngram", max_num_seqs=128, max_num_batched_tokens=512)
    assert max(few["cudagraph_capture_sizes"]) <= 512, "vLLM drops larger ones with a warning"
    for own in (
        {"cudagraph_capture_sizes": [1, 2]},
        {"compilation_config": {"cudagraph_mode": "NONE"}},
        {"compilation_config": {"max_cudagraph_capture_size": 64}},
        {"enforce_eager": True},
    ):
        kept = launch.engine_args(smollm2_folder, drafters="ngram", **own)
        assert kept.get("cudagraph_capture_sizes") == own.get("cudagraph_capture_sizes")


@pytest.mark.parametrize(("requests", "longest"), [(1, 1), (7, 3), (128, 4), (256, 5), (256, 32)])
def test_every_step_of_every_length_has_a_graph_hardly_larger_than_itself(requests: int, longest: int) -> None:
    sizes = capture_sizes(requests, longest)
    assert sizes == sorted(set(sizes))
    for length in range(longest + 1):
        for count in range(1, requests + 1):
            tokens = count * (1 + length)
            fits = next(size for size in sizes if size >= tokens)
            assert fits <= max(tokens + 8, 1.25 * tokens)


@pytest.mark.parametrize(("requests", "longest"), [(1, 1), (8, 5), (128, 5), (256, 5), (256, 32)])
def test_prompts_that_are_read_beside_a_full_batch_leave_the_step_within_graphs(requests: int, longest: int) -> None:
    """On an H200 steps of 128 requests that copied took 30 ms without graphs, two thirds of all time; 16 with them."""
    sizes = capture_sizes(requests, longest)
    for prompts in range(1, GRAPH_PROMPTS + 1):
        tokens = requests * (1 + longest) + prompts
        fits = next(size for size in sizes if size >= tokens)
        assert fits <= max(tokens + 8, 1.25 * tokens)
    assert len(sizes) <= 60 + requests * (1 + longest) // 64, "each is captured before the server is ready"


@pytest.mark.parametrize(("ranks", "table"), [(1, None), (2, None), (1, [[1, 8, 2]])])
def test_a_rank_that_is_an_engine_of_its_own_has_its_lengths_back(ranks: int, table: Any) -> None:
    """In the process of a dense model's rank there is one; ranks that run in step know of each other, and keep none."""
    speculative = SimpleNamespace(num_speculative_tokens=2, num_speculative_tokens_per_batch_size=table)
    config: Any = SimpleNamespace(
        speculative_config=speculative, parallel_config=SimpleNamespace(data_parallel_size=ranks)
    )
    compat.restore_lengths(config)
    wanted = [[1, 1, 0], [2, 2, 1], [3, 3, 2]] if ranks == 1 and table is None else table
    assert speculative.num_speculative_tokens_per_batch_size == wanted


def test_vllm_drops_the_lengths_of_data_parallel_ranks_and_makes_each_one_of_a_dense_model_an_engine() -> None:
    """If this fails, vLLM keeps them by now, or its ranks are others: `restore_lengths` has to be looked at."""
    config = pytest.importorskip("vllm.config", reason="vLLM is not installed; see the README on serving")
    dropped = inspect.getsource(config.VllmConfig._maybe_disable_dynamic_sd_for_data_parallel)
    assert "num_speculative_tokens_per_batch_size = None" in dropped
    own = inspect.getsource(config.ParallelConfig.reconfigure_for_independent_dp_rank)
    assert "self.data_parallel_size = 1" in own
