"""Trained drafters for a server: found by name or by weights, and refused where they belong to another target."""

import json
import re
from pathlib import Path
from typing import Any

import public_heads
import pytest
import torch
from heads import tiny

from wager.core import Arm
from wager.drafters import shipped
from wager.models.fingerprint import agree, fingerprint
from wager.vllm.drafter_check import weights_fingerprint
from wager.vllm.settings import Settings


@pytest.fixture
def ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smollm2_folder: str) -> Any:
    """Makes a drafter shipped for the embedded model, as far as its config.json goes."""
    monkeypatch.setattr(shipped, "places", lambda: [tmp_path / "ready"])
    plain = json.loads(Path(smollm2_folder, "config.json").read_text())

    def make(name: str, target: str = "smollm2-135m", *, notes: dict[str, Any] | None = None, **changed: Any) -> Path:
        folder = tmp_path / "ready" / target / name
        folder.mkdir(parents=True)
        wager = {"kind": name.partition("-")[0], "target": target, **(notes or {})}
        (folder / "config.json").write_text(json.dumps({**plain, "num_hidden_layers": 1, "wager": wager, **changed}))
        return folder

    return make


@pytest.mark.parametrize(
    ("kind", "key"), [("draft-model", "vocab_size"), ("eagle", "hidden_size"), ("eagle", "vocab_size")]
)
def test_a_drafter_for_others_is_refused(launch: Any, kind: str, key: str, tmp_path: Path, smollm2_folder: str) -> None:
    config = json.loads(Path(smollm2_folder, "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: 64}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=f"does not fit.*64.*{config[key]}"):
        launch.engine_args(smollm2_folder, drafters=f"{kind}={tmp_path}")


def test_a_drafter_that_lies_ready_is_found_by_its_name(launch: Any, ready: Any, smollm2_folder: str) -> None:
    head, small = ready("eagle-mine"), ready("draft-mine", hidden_size=64)
    for model in ("smollm2-135m", smollm2_folder):
        for spec, method, folder in (("eagle:mine", "eagle", head), ("draft:mine", "draft_model", small)):
            made = launch.engine_args(model, drafters=spec, max_length=3)
            assert made["speculative_config"]["method"] == method
            assert made["speculative_config"]["model"] == str(folder)
            carried = Settings.of(made["additional_config"])
            assert carried.names == (spec,)
            assert carried.arms[-1] == Arm(spec, 3)
    with pytest.raises(ValueError, match="no drafter 'eagle:other' for smollm2-135m; there are eagle:mine, draft:mine"):
        launch.engine_args("smollm2-135m", drafters="eagle:other")


def test_a_drafter_is_found_by_the_weights(launch: Any, ready: Any, tmp_path: Path, smollm2_folder: str) -> None:
    known = weights_fingerprint(smollm2_folder)
    copy = tmp_path / "copy"
    copy.symlink_to(smollm2_folder)
    head = ready("eagle-mine", notes={"target_fingerprint": known})
    assert launch.engine_args(copy, drafters="eagle:mine")["speculative_config"]["model"] == str(head)
    other = ready("eagle-other", notes={"target": "another", "target_fingerprint": known[:-4] + "4242"})
    with pytest.raises(ValueError, match="does not fit: it was trained for another, and the target has other weights"):
        launch.engine_args(smollm2_folder, drafters="eagle:other")
    with pytest.raises(ValueError, match="other weights"):
        launch.engine_args(smollm2_folder, drafters=f"eagle={other}")
    with pytest.raises(ValueError, match="no drafter 'eagle:other' for copy"):
        launch.engine_args(copy, drafters="eagle:other")


def test_a_head_is_not_taken_for_a_whole_model(launch: Any, ready: Any, smollm2_folder: str) -> None:
    head, small = ready("eagle-mine"), ready("draft-mine")
    with pytest.raises(ValueError, match=re.escape(f"{head} holds an EAGLE head; write eagle={head}")):
        launch.engine_args(smollm2_folder, drafters=f"draft-model={head}")
    with pytest.raises(ValueError, match=re.escape(f"{small} holds a whole model; write draft-model={small}")):
        launch.engine_args(smollm2_folder, drafters=f"eagle={small}")


def test_the_folder_of_a_head_says_by_which_method_it_is_run(launch: Any, tmp_path: Path) -> None:
    public_heads.target().save_pretrained(tmp_path / "target")
    heads = {
        "eagle": public_heads.eagle(tmp_path / "first", qkv_bias=True),
        "eagle3": public_heads.eagle3(tmp_path / "third"),
    }
    for method, folder in heads.items():
        for spec in ("eagle", "eagle3"):
            made = launch.engine_args(tmp_path / "target", drafters=f"{spec}={folder}")["speculative_config"]
            assert (made["method"], made["model"]) == (method, str(folder))
    other = public_heads.speculators(tmp_path / "other")
    assert (
        launch.engine_args(tmp_path / "target", drafters=f"eagle={other}")["speculative_config"]["method"] == "eagle3"
    )
    public_heads.target(hidden_size=96).save_pretrained(tmp_path / "wide")
    for folder in (*heads.values(), other):
        with pytest.raises(ValueError, match="does not fit: it has a hidden size of 64, the target 96"):
            launch.engine_args(tmp_path / "wide", drafters=f"eagle3={folder}")
    biased = public_heads.eagle(tmp_path / "biased", fc_bias=True)
    with pytest.raises(ValueError, match=r"has a bias in fc, which vLLM does not run; wager generate does"):
        launch.engine_args(tmp_path / "target", drafters=f"eagle={biased}")


def test_a_targets_fingerprint_is_told_from_its_files(tmp_path: Path) -> None:
    model = tiny()
    known = fingerprint(model)
    model.save_pretrained(tmp_path / "whole")
    assert weights_fingerprint(tmp_path / "whole") == known
    model.to(torch.bfloat16).save_pretrained(tmp_path / "shards", max_shard_size="5KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    assert agree(weights_fingerprint(tmp_path / "shards"), known)
    tiny(seed=1).save_pretrained(tmp_path / "other")
    assert not agree(weights_fingerprint(tmp_path / "other"), known)
    assert weights_fingerprint("org/name") == ""
