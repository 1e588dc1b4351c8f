"""Where matching runs on which platform, what vLLM is started with for it, and the CUDA graphs that it finds."""

import json
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from wager.core import Arm
from wager.vllm import plugin
from wager.vllm.launch import GRAPH_PROMPTS, capture_sizes
from wager.vllm.placement import in_speculator, place
from wager.vllm.settings import KEY, PROPOSER, SCHEDULER, Settings, speculative_methods


@pytest.mark.parametrize(
    ("drafters", "budget", "there"),
    [
        (("suffix", "prompt-lookup"), 0, True),
        (("prompt-lookup",), 0, True),
        (("suffix",), 0, True),
        (("suffix", "eagle=HEAD"), 0, True),
        (("eagle:ofa", "prompt-lookup"), 0, True),
        (("suffix", "retrieval=STORE"), 0, True),
        (("retrieval=STORE", "eagle=HEAD"), 0, True),
        (("retrieval=STORE",), 0, True),
        (("suffix",), 16, False),  # a length for every request
        (("ngram",), 0, False),  # vLLM's own
        (("eagle=HEAD",), 0, False),
    ],
)
def test_matching_runs_in_the_model_runner_on_a_gpu(drafters: tuple[str, ...], budget: int, there: bool) -> None:
    assert in_speculator(drafters, on_cpu=False, budget=budget) is there
    assert not in_speculator(drafters, on_cpu=True, budget=budget)


def test_matching_is_one_drafter_called_by_its_first_name_and_a_model_beside_it_another() -> None:
    placed = place(Settings(("suffix", "prompt-lookup"), 4), on_cpu=False)
    assert placed.hook == SCHEDULER
    assert placed.arms[1:] == tuple(Arm("suffix", length) for length in (1, 2, 3, 4))
    assert speculative_methods(placed) == ("ngram_gpu",)
    beside = place(Settings(("prompt-lookup", "eagle=HEAD"), 2), on_cpu=False)
    assert [str(arm) for arm in beside.arms] == ["off", "prompt-lookup:1", "prompt-lookup:2", "eagle:1", "eagle:2"]
    assert (beside.matching, placed.matching) == ("prompt-lookup", "")
    assert speculative_methods(beside) == ("eagle", "eagle3")
    here = place(Settings(("suffix", "prompt-lookup"), 4), on_cpu=True)
    assert here == Settings(("suffix", "prompt-lookup"), 4)
    assert here.hook == PROPOSER
    for rows, there in ((5, True), (4, False)):  # too few rows for graphs of every length leave it in the proposer
        assert place(Settings(("suffix",), 4), on_cpu=False, rows=rows).speculator is there


def test_the_engine_is_told() -> None:
    settings = place(Settings(("suffix", "eagle=HEAD"), 3), on_cpu=False)
    carried = json.loads(json.dumps(settings.additional_config()))
    assert Settings.of(carried) == settings
    assert plugin.KEY == KEY


def test_on_a_cpu_a_model_beside_matching_is_refused_with_one_sentence() -> None:
    with pytest.raises(ValueError, match="on a CPU vLLM runs 'eagle' alone; leave out suffix"):
        place(Settings(("suffix", "eagle=HEAD")), on_cpu=True)


def test_vllm_gets_a_table_of_every_length(launch: Any, smollm2_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "on_cpu", lambda: False)
    monkeypatch.setattr(plugin, "check", lambda: None)
    made = launch.engine_args(smollm2_folder, max_length=3, policy="fixed:drafter=suffix,length=3")
    speculative = made["speculative_config"]
    assert speculative["method"] == "ngram_gpu"
    assert {length for _, _, length in speculative["num_speculative_tokens_per_batch_size"]} == {0, 1, 2, 3}
    assert max(made["cudagraph_capture_sizes"]) == 256 * 4 + GRAPH_PROMPTS
    assert Settings.of(made["additional_config"]).speculator
    few = launch.engine_args(smollm2_folder, max_num_seqs=3, max_length=3)
    assert few["speculative_config"]["method"] == "custom_class"


def test_a_head_alone_works_without_the_plugin_and_says_what_that_costs(
    launch: Any, smollm2_folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(launch, "on_cpu", lambda: False)
    for found, said in (("", 0), ("vLLM would not find wager's speculator", 1)):
        monkeypatch.setattr(plugin, "missing", lambda found=found: found)
        with caplog.at_level("WARNING", "wager"):
            launch.engine_args(smollm2_folder, drafters="eagle:ofa")
        assert sum("even in steps without drafts" in record.message for record in caplog.records) == said


def test_an_installation_in_which_vllm_would_not_find_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    monkeypatch.setattr(plugin, "entry_points", lambda group: [])
    with pytest.raises(ValueError, match="install it again"):
        plugin.check()
    monkeypatch.setattr(plugin, "entry_points", lambda group: [SimpleNamespace(name=plugin.NAME)])
    plugin.check()
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    with pytest.raises(ValueError, match="unset VLLM_USE_V2_MODEL_RUNNER"):
        plugin.check()
    monkeypatch.setenv("VLLM_PLUGINS", "other,another")
    with pytest.raises(ValueError, match="add wager to it"):
        plugin.check()


def test_the_entry_point_names_the_function_that_is_there() -> None:
    project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())["project"]
    module, _, function = project["entry-points"][plugin.GROUP][plugin.NAME].partition(":")
    assert (module, function) == (plugin.__name__, plugin.register.__name__)


def test_registering_twice_replaces_once_and_leaves_other_engines_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vllm.config", reason="vLLM is not installed; see the README on serving")
    from vllm.v1.worker.gpu import spec_decode

    calls: list[Any] = []
    monkeypatch.setattr(spec_decode, "init_speculator", lambda *given: calls.append(given) or "vLLM's")
    runner = ModuleType("vllm.v1.worker.gpu.model_runner")
    monkeypatch.setitem(sys.modules, runner.__name__, runner)
    plugin.replace()
    replaced = spec_decode.init_speculator
    plugin.replace()
    assert spec_decode.init_speculator is replaced
    assert runner.init_speculator is replaced
    for additional in (None, {}, {"other": {"speculator": True}}):
        config = SimpleNamespace(additional_config=additional)
        assert replaced(config, "device", "states") == "vLLM's"
        assert calls.pop() == (config, "device", "states")


@pytest.mark.parametrize(
    ("version", "cpu", "replaced"), [("0.99.1", False, False), ("0.32.0", True, False), ("0.32.0", False, True)]
)
def test_other_vllms_are_left_as_they_are(
    version: str, cpu: bool, replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vllm.config", reason="vLLM is not installed; see the README on serving")
    from vllm.platforms import current_platform

    from wager.vllm import compat

    calls: list[bool] = []
    monkeypatch.setattr(compat, "installed_version", lambda: version)
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: cpu)
    monkeypatch.setattr(plugin, "replace", lambda: calls.append(True))
    plugin.register()
    assert calls == [True] * replaced


REQUESTS, LONGEST = 128, 4


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes vLLM's manager of graphs without a GPU, from the configuration that its look-up table is made of."""
    pytest.importorskip("vllm.config", reason="vLLM is not installed")
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


@pytest.mark.parametrize(
    "started", [(Settings(("suffix",), LONGEST).additional_config(),), ({}, "wager.vllm.scheduler.scheduler")]
)
def test_every_batch_size_has_a_full_graph_at_every_length(manager: Any, started: tuple[Any, ...]) -> None:
    ours = manager(*started)
    for width in range(1, LONGEST + 2):
        for requests in range(1, REQUESTS + 1):
            found = ours.dispatch(requests, requests * width, width, 0)
            assert found.cg_mode.name == "FULL", (requests, width)
            assert found.uniform_token_count == width
            assert found.num_reqs >= requests
            smaller = [graph for graph in ours._capture_descs[found.cg_mode] if graph.uniform_token_count == width]
            assert not any(requests <= graph.num_reqs < found.num_reqs for graph in smaller), "a smaller one would do"


def test_steps_of_unequal_lengths_and_with_prefill_get_the_same_graphs_as_before(manager: Any) -> None:
    ours, stock = manager(Settings(("suffix",), LONGEST).additional_config()), manager({})
    for tokens in range(1, 2000):
        assert ours.dispatch(3, tokens, None, 0) == stock.dispatch(3, tokens, None, 0)


def test_an_engine_without_wager_keeps_vllms_table_with_its_gaps(manager: Any) -> None:
    """If this fails, vLLM has closed the gaps and this module is no longer needed."""
    stock = manager({})
    gaps = [
        (requests, width)
        for width in range(1, LONGEST + 2)
        for requests in range(1, REQUESTS + 1)
        if stock.dispatch(requests, requests * width, width, 0).cg_mode.name != "FULL"
    ]
    assert (5, 3) in gaps
    assert len(gaps) > 100
