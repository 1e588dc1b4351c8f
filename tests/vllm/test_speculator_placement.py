"""Where matching runs on which platform, and what vLLM is started with for it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wager.core import Arm
from wager.vllm import plugin
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
        (("suffix", "retrieval=STORE"), 0, False),  # no datastore on the GPU
        (("retrieval=STORE",), 0, False),
        (("suffix",), 16, False),  # a length for every request
        (("ngram",), 0, False),  # vLLM's own
        (("eagle=HEAD",), 0, False),
    ],
)
def test_on_a_gpu_matching_runs_in_the_model_runner_and_on_a_cpu_never(
    drafters: tuple[str, ...], budget: int, there: bool
) -> None:
    assert in_speculator(drafters, on_cpu=False, budget=budget) is there
    assert not in_speculator(drafters, on_cpu=True, budget=budget)


def test_one_drafter_for_the_policy_called_by_the_first_name_with_every_length() -> None:
    placed = place(Settings(("suffix", "prompt-lookup"), 4), on_cpu=False)
    assert placed.hook == SCHEDULER
    assert placed.arms[1:] == tuple(Arm("suffix", length) for length in (1, 2, 3, 4))
    assert speculative_methods(placed) == ("ngram_gpu",)
    beside = place(Settings(("prompt-lookup", "eagle=HEAD"), 2), on_cpu=False)
    assert [str(arm) for arm in beside.arms] == ["off", "prompt-lookup:1", "prompt-lookup:2"]
    assert speculative_methods(beside) == ("eagle",)
    here = place(Settings(("suffix", "prompt-lookup"), 4), on_cpu=True)
    assert here == Settings(("suffix", "prompt-lookup"), 4)
    assert here.hook == PROPOSER


def test_too_few_rows_for_graphs_of_every_length_leave_matching_in_the_proposer() -> None:
    settings = Settings(("suffix",), 4)
    assert place(settings, on_cpu=False, rows=5).speculator
    assert not place(settings, on_cpu=False, rows=4).speculator


def test_the_engine_is_told() -> None:
    settings = place(Settings(("suffix", "eagle=HEAD"), 3), on_cpu=False)
    carried = json.loads(json.dumps(settings.additional_config()))
    assert Settings.of(carried) == settings
    assert plugin.KEY == KEY


def test_on_a_cpu_a_model_beside_matching_is_refused_with_one_sentence() -> None:
    with pytest.raises(ValueError, match="on a CPU vLLM runs 'eagle' alone; leave out suffix"):
        place(Settings(("suffix", "eagle=HEAD")), on_cpu=True)


def test_vllm_gets_a_table_that_names_every_length(smollm2_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vllm.config", reason="vLLM is not installed; see the README on serving")
    from wager.vllm import launch

    monkeypatch.setattr(launch, "on_cpu", lambda: False)
    monkeypatch.setattr(plugin, "check", lambda: None)
    made = launch.engine_args(smollm2_folder, max_length=3, policy="fixed:drafter=suffix,length=3")
    speculative = made["speculative_config"]
    assert speculative["method"] == "ngram_gpu"
    assert {length for _, _, length in speculative["num_speculative_tokens_per_batch_size"]} == {0, 1, 2, 3}
    assert max(made["cudagraph_capture_sizes"]) == 256 * 4
    assert Settings.of(made["additional_config"]).speculator
    few = launch.engine_args(smollm2_folder, max_num_seqs=3, max_length=3)
    assert few["speculative_config"]["method"] == "custom_class"


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


class _Config:
    def __init__(self, additional: Any) -> None:
        self.additional_config = additional


def test_registering_twice_replaces_once_and_leaves_other_engines_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vllm.config", reason="vLLM is not installed; see the README on serving")
    import sys
    from types import ModuleType

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
        config = _Config(additional)
        assert replaced(config, "device", "states") == "vLLM's"
        assert calls.pop() == (config, "device", "states")


@pytest.mark.parametrize(
    ("version", "cpu", "replaced"), [("0.99.1", False, False), ("0.32.0", True, False), ("0.32.0", False, True)]
)
def test_another_vllm_and_one_for_the_cpu_are_left_as_they_are(
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
