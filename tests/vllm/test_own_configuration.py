"""A speculative configuration of the user's own: called as vLLM calls it, and refused where it cannot be meant."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from wager.vllm.settings import FIXED, Settings, adopt, speculative_methods


@pytest.mark.parametrize(("written", "called"), [("qwen3_next_mtp", "mtp"), ("mtp", "mtp"), ("ngram", "ngram")])
def test_a_method_is_called_as_vllm_calls_it(written: str, called: str) -> None:
    settings = adopt(Settings(), {"method": written, "num_speculative_tokens": 2})
    assert settings.drafters == (f"vllm:{called}",)
    assert called in speculative_methods(settings)


def test_the_methods_that_vllm_takes_for_mtp_are_those_that_wager_does() -> None:
    pytest.importorskip("vllm.config", reason="vLLM is not installed; see the README on serving")
    from vllm.config.speculative import MTPModelTypes, SpeculativeMethod

    def names(kinds: Any) -> set[str]:
        return {name for kind in get_args(kinds) for name in ([kind] if isinstance(kind, str) else names(kind))}

    methods = names(SpeculativeMethod) - set(FIXED)
    called = {name: adopt(Settings(), {"method": name, "num_speculative_tokens": 1}).drafters[0] for name in methods}
    assert {name for name, it in called.items() if it == "vllm:mtp"} == names(MTPModelTypes)


def test_an_engine_starts_with_an_older_name_of_its_method(smollm2_folder: str, tmp_path: Path) -> None:
    serving = pytest.importorskip("serving", reason="vLLM is not installed; see the README on serving")
    config = json.loads(Path(smollm2_folder, "config.json").read_text())
    glm = {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "num_nextn_predict_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps({**config, **glm}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).symlink_to(Path(smollm2_folder, name))
    own = {"method": "glm4_moe_mtp", "num_speculative_tokens": 1}
    made = serving.make_scheduler(str(tmp_path), drafters=("suffix", "prompt-lookup"), speculative_config=own)
    assert str(made.lengths.rounds.arms[-1]) == "vllm:mtp:1"


@pytest.mark.parametrize("length", [True, False, 2.0, "2", None])
def test_a_length_is_a_whole_number(length: Any) -> None:
    with pytest.raises(ValueError, match="names its method and num_speculative_tokens"):
        adopt(Settings(), {"method": "mtp", "num_speculative_tokens": length})


def test_a_drafter_that_stands_for_such_a_configuration_is_not_named(launch: Any, smollm2_folder: str) -> None:
    for drafters in ("vllm:mtp", "suffix,vllm:mtp"):
        with pytest.raises(
            ValueError, match=r"'vllm:mtp' stands for .* give that itself, with --speculative-config"
        ) as no:
            launch.engine_args(smollm2_folder, drafters=drafters)
        assert "\n" not in str(no.value)


def test_vllm_may_take_a_draft_model_for_a_head() -> None:
    settings = adopt(Settings(), {"method": "draft_model", "model": "org/eagle3-x", "num_speculative_tokens": 2})
    assert {"draft_model", "eagle3"} <= set(speculative_methods(settings))
    assert speculative_methods(Settings(("draft-model=org/small",))) == ("draft_model",)
