"""What is said of an engine before it starts: what speculation costs it, and which requests it will refuse."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm.config", reason="vLLM is not installed; see the README on serving")

from vllm.engine.arg_utils import EngineArgs
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams

from wager.vllm.launch import engine_args, idle_overhead


@pytest.fixture
def folder(tmp_path: Path, smollm2_folder: str) -> Path:
    """The embedded model in a folder of the test's own."""
    for file in Path(smollm2_folder).iterdir():
        if file.name != "generation_config.json":
            (tmp_path / file.name).symlink_to(file)
    return tmp_path


def remarks(folder: Path, **given: Any) -> list[str]:
    args = EngineArgs(**engine_args(str(folder), drafters="ngram", max_model_len=256, **given))
    speculating = args.create_engine_config()
    args.speculative_config, args.scheduler_cls = None, None
    return idle_overhead(args.create_engine_config(), speculating)


def test_a_model_whose_own_defaults_have_every_request_refused_is_said_to(folder: Path) -> None:
    assert not any("min_p" in remark for remark in remarks(folder))
    (folder / "generation_config.json").write_text(json.dumps({"min_p": 0.1, "temperature": 0.6}))
    said = [remark for remark in remarks(folder) if "min_p" in remark]
    assert len(said) == 1
    assert "sets min_p to 0.1" in said[0]
    cured = remarks(folder, override_generation_config={"min_p": 0})
    assert not any("min_p" in remark for remark in cured), "what it advises helps"


@pytest.mark.parametrize("refused", [{"min_p": 0.1}, {"logit_bias": {5: 1.0}}])
def test_vllm_refuses_such_requests(refused: dict[str, Any]) -> None:
    with pytest.raises(VLLMValidationError, match="not yet supported with speculative decoding"):
        SamplingParams(**refused)._validate_spec_decode(SimpleNamespace())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("drafter", "skips"),
    [({}, True), ({"sliding_window": 64}, False), ({"attention_chunk_size": 64}, False), ({"is_hybrid": True}, False)],
)
def test_a_drafter_that_cannot_skip_steps_is_said_to_run_in_each(drafter: dict[str, Any], skips: bool) -> None:
    text = {"sliding_window": None, **drafter}
    hybrid = bool(drafter.get("is_hybrid"))
    draft = SimpleNamespace(hf_text_config=SimpleNamespace(**text), is_hybrid=hybrid, is_attention_free=False)
    config: Any = SimpleNamespace(
        speculative_config=SimpleNamespace(method="draft_model", draft_model_config=draft),
        scheduler_config=SimpleNamespace(async_scheduling=True),
        compilation_config=SimpleNamespace(cudagraph_mode=None),
        model_config=SimpleNamespace(get_diff_sampling_param=dict),
        use_v2_model_runner=True,
    )
    assert any("one forward a step" in remark for remark in idle_overhead(config, config)) is not skips
