"""What serving is told, and what it refuses before anything is loaded; no vLLM needed but where it says so."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from wager.cli import main
from wager.core import Arm
from wager.vllm import state, versions
from wager.vllm.control import Control
from wager.policies.auto.latency import StepLatency
from wager.vllm.settings import KEY, PROPOSER, SCHEDULER, Settings


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"drafters": ("medusa",)}, "unknown drafter 'medusa'"),
        ({"drafters": ("suffix=3",)}, "is written suffix"),
        ({"drafters": ("eagle",)}, "is written eagle=MODEL"),
        ({"drafters": ("ngram=3",)}, "is written ngram"),
        ({"drafters": ("ngram", "suffix")}, "only one such in an engine"),
        ({"drafters": ("eagle:ofa", "eagle:code")}, "only one such in an engine"),
        ({"drafters": ("suffix", "draft:ofa")}, "only one such in an engine"),
        ({"drafters": ("eagle:*",)}, "name one, as in eagle:ofa"),
        ({"drafters": ("draft:",)}, "is written draft:NAME"),
        ({"drafters": ("eagle:ofa=",)}, "is written eagle:NAME=PATH"),
        ({"drafters": ("suffix", "suffix")}, "named twice"),
        ({"drafters": ()}, "at least one drafter"),
        ({"max_length": 0}, "1 to 32 tokens, not 0"),
        ({"max_length": 33}, "1 to 32 tokens, not 33"),
        ({"budget": -1}, "0 (none) or more"),
        ({"budget": 8, "drafters": ("ngram",)}, "a token budget is for"),
        ({"budget": 8, "policy": "nightjar"}, "has no token budget; auto has"),
        ({"uniform": "maybe"}, "auto, always or never"),
        ({"policy": "clairvoyant"}, "unknown policy 'clairvoyant'"),
        ({"policy": "fixed:length=3"}, "needs both"),
        ({"policy": "nightjar:beta=1"}, "has no parameter 'beta'"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_one_sentence(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as refused:
        Settings(**given)
    assert "\n" not in str(refused.value)


def test_a_drafter_that_vllm_runs_goes_to_the_scheduler_and_ours_to_the_proposer() -> None:
    assert Settings(("ngram",)).hook == SCHEDULER
    for spec in ("eagle=folder", "eagle:ofa", "eagle:mine=folder", "draft:ofa"):
        assert Settings((spec,)).hook == SCHEDULER
    assert Settings(("suffix", "prompt-lookup")).hook == PROPOSER


def test_off_and_the_longest_length_are_always_arms() -> None:
    for drafters in (("ngram",), ("suffix", "prompt-lookup")):
        for longest in (1, 2, 5, 8):
            arms = Settings(drafters, longest).arms
            assert str(arms[0]) == "off"
            names = {arm.drafter for arm in arms[1:]}
            assert len(names) == len(drafters)
            assert all(Arm(name, longest) in arms for name in names)


def test_settings_reach_the_engine_as_they_were() -> None:
    settings = Settings(("suffix",), 4, "kl-ucb:reward=goodput", 0, "never", 7, "file", "other", 3.0)
    carried = json.loads(json.dumps(settings.additional_config()))
    assert Settings.of(carried) == settings


@pytest.mark.parametrize("carried", [None, {}, {KEY: 3}, {"other": {}}])
def test_an_engine_without_settings_says_how_to_start_it(carried: Any) -> None:
    with pytest.raises(ValueError, match="start it with `wager serve`"):
        Settings.of(carried)


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="no setting speed"):
        Settings.of({KEY: {"drafters": ["suffix"], "speed": 2}})


@pytest.mark.parametrize("found", ["0.26.0", "0.31.0", "0.33.0", "1.0.0", "dev"])
def test_a_version_that_was_not_tried_is_refused_by_name_and_range(found: str) -> None:
    with pytest.raises(ValueError, match=re.escape(found)) as refused:
        versions.check(found)
    assert "0.32" in str(refused.value)
    assert "pip install" in str(refused.value)


@pytest.mark.parametrize("found", ["0.32.0", "0.32.1+cpu"])
def test_a_version_that_was_tried_is_not(found: str) -> None:
    versions.check(found)


def test_state_survives_and_is_never_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(("ngram",), policy="round-robin")
    policy = settings.build_policy()
    path = tmp_path / "state.json"
    assert not state.load(path, policy)
    policy.last = 3  # type: ignore[attr-defined]
    state.save(path, policy.state_dict())
    other = settings.build_policy()
    assert state.load(path, other)
    assert other.state_dict() == policy.state_dict()

    def fails(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="disk full"):
        state.save(path, {"half": 1})
    assert state.load(path, other)
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"policy": "Nightjar"}'])
def test_state_that_does_not_fit_is_refused_with_one_sentence(tmp_path: Path, content: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="does not fit") as refused:
        state.load(path, Settings(("ngram",), policy="round-robin").build_policy())
    assert "\n" not in str(refused.value)


def test_a_full_disk_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(state.log, "warning", lambda text, *values: said.append(text % values))
    keeper = state.Keeper(tmp_path / "state.json", Settings(("ngram",), policy="round-robin").build_policy())

    def fails(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fails)
    keeper.save()
    assert "disk full" in said[0]


def test_a_control_file_changes_the_policy_and_each_keeps_what_it_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "policy"
    settings = Settings(("ngram",), policy="off", control=str(path))
    first = settings.build_policy()
    control = Control(settings, first)
    monkeypatch.setattr("wager.vllm.control.EVERY", 0.0)
    assert control.policy() is first

    def say(spec: str, at: int) -> Any:
        path.write_text(spec)
        os.utime(path, ns=(at, at))
        return control.policy()

    robin = say("round-robin", 1)
    assert type(robin).__name__ == "RoundRobin"
    assert say("off", 2) is first
    assert say("round-robin", 3) is robin
    again = say("+round-robin", 4)
    assert again is not robin, "a plus starts anew"
    assert say("clairvoyant", 5) is again, "a running engine does not stop for a wrong name"


def test_a_step_in_which_the_length_changes_is_taken_apart() -> None:
    import random

    rng = random.Random(0)
    costs = StepLatency()
    verify = {0: 0.050, 2: 0.055, 5: 0.070}
    draft = {0: 0.0, 2: 0.010, 5: 0.025}
    before = 0
    for _ in range(4000):
        now = rng.choice([0, 2, 5])
        costs.observe(4, before, now, (verify[before] + draft[now]) * rng.uniform(0.95, 1.05))
        before = now
    for length, seconds in draft.items():
        assert costs.drafting(4, length) == pytest.approx(seconds, abs=0.003)
    assert costs.drafting(64, 5) == 0.0, "nothing is known of such a batch"


def test_what_taking_up_drafting_costs_is_measured() -> None:
    costs = StepLatency()
    for turn in range(400):
        for step in range(8):
            now = 4 if step >= 4 else 0
            was = 4 if step >= 5 or (step == 0 and turn) else 0
            woke = step == 4
            costs.observe(1, was, now, 0.05 + 0.02 * (was > 0) + 0.01 * (now > 0) + 0.03 * woke, resumed=woke)
    assert costs.switching > 0.01


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--drafter", "medusa"], "unknown drafter 'medusa'"),
        (["--policy", "clairvoyant"], "unknown policy 'clairvoyant'"),
        (["--max-length", "0"], "1 to 32 tokens, not 0"),
        (["--max-length", "99"], "1 to 32 tokens, not 99"),
        (["--scheduler-cls", "mine.Scheduler"], "leave scheduler_cls out"),
        (["--speculative-config", "{"], "speculative-config"),
        (["--speculative-config", '{"method": "ngram"}'], "follows from the drafter"),
        (["--speculative-config.method", "ngram"], "follows from the drafter"),
        (["--speculative_config.num_speculative_tokens", "3"], "follows from the drafter"),
        (["-sc", '{"model": "x"}'], "follows from the drafter"),
        (["--additional-config", '{"wager": {}}'], "is made here"),
        (["--data-parallel-size", "2"], "start one server for each replica"),
        (["-dp", "2"], "start one server for each replica"),
        (["-pp", "2"], "through a pipeline"),
        (["--no-such-option", "2"], "--no-such-option"),
        (["--drafter", "retrieval=/no/such.store"], "/no/such.store"),
        (["--drafter", "eagle=/no/such/model"], "/no/such/model"),
        (["--drafter", "draft-model=smollm2-135m", "--max-model-len", "many"], "vLLM"),
        (["--state", "/no/such/folder/state.json"], "no folder"),
    ],
)
def test_bad_input_to_serve_is_one_sentence_and_exit_code_2(
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    smollm2_folder: str,
) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed; see the README on serving")
    monkeypatch.setattr("sys.argv", ["wager", "serve", smollm2_folder, *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert said in error


@pytest.fixture
def ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smollm2_folder: str) -> Any:
    """Makes a drafter that lies ready for the embedded model, as far as its config.json goes."""
    from wager.drafters import shipped

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
    ("kind", "changed"), [("draft-model", "vocab_size"), ("eagle", "hidden_size"), ("eagle", "vocab_size")]
)
def test_a_drafter_made_for_another_target_is_refused(
    kind: str, changed: str, tmp_path: Path, smollm2_folder: str
) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed; see the README on serving")
    from wager.vllm import engine_args

    config = json.loads(Path(smollm2_folder, "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, changed: 64}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=f"does not fit.*64.*{config[changed]}"):
        engine_args(smollm2_folder, drafters=f"{kind}={tmp_path}")


def test_a_drafter_that_lies_ready_is_found_by_its_name(ready: Any, smollm2_folder: str) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed; see the README on serving")
    from wager.vllm import engine_args

    head, small = ready("eagle-mine"), ready("draft-mine", hidden_size=64)
    for model in ("smollm2-135m", smollm2_folder):
        for spec, method, folder in (("eagle:mine", "eagle", head), ("draft:mine", "draft_model", small)):
            made = engine_args(model, drafters=spec, max_length=3)
            assert made["speculative_config"]["method"] == method
            assert made["speculative_config"]["model"] == str(folder)
            carried = Settings.of(made["additional_config"])
            assert carried.names == (spec,)
            assert carried.arms[-1] == Arm(spec, 3)
    with pytest.raises(ValueError, match="no drafter 'eagle:other' for smollm2-135m; there are eagle:mine, draft:mine"):
        engine_args("smollm2-135m", drafters="eagle:other")


def test_a_drafter_that_lies_ready_is_found_by_the_weights_and_refused_for_others(
    ready: Any, tmp_path: Path, smollm2_folder: str
) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed; see the README on serving")
    from wager.vllm import engine_args, fit

    known = fit.mark(smollm2_folder)
    copy = tmp_path / "copy"
    copy.symlink_to(smollm2_folder)
    head = ready("eagle-mine", notes={"target_fingerprint": known})
    assert engine_args(copy, drafters="eagle:mine")["speculative_config"]["model"] == str(head)
    other = ready("eagle-other", notes={"target": "another", "target_fingerprint": known[:-4] + "4242"})
    with pytest.raises(ValueError, match="does not fit: it was trained for another, and the target has other weights"):
        engine_args(smollm2_folder, drafters="eagle:other")
    with pytest.raises(ValueError, match="other weights"):
        engine_args(smollm2_folder, drafters=f"eagle={other}")
    with pytest.raises(ValueError, match="no drafter 'eagle:other' for copy"):
        engine_args(copy, drafters="eagle:other")


def test_a_head_is_not_taken_for_a_whole_model(ready: Any, smollm2_folder: str) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed; see the README on serving")
    from wager.vllm import engine_args

    head, small = ready("eagle-mine"), ready("draft-mine")
    with pytest.raises(ValueError, match=re.escape(f"{head} holds an EAGLE head; write eagle={head}")):
        engine_args(smollm2_folder, drafters=f"draft-model={head}")
    with pytest.raises(ValueError, match=re.escape(f"{small} holds a whole model; write draft-model={small}")):
        engine_args(smollm2_folder, drafters=f"eagle={small}")


def test_a_targets_fingerprint_is_told_from_its_files(tmp_path: Path) -> None:
    import torch
    from heads import tiny

    from wager.models.fingerprint import agree, fingerprint
    from wager.vllm import fit

    model = tiny()
    known = fingerprint(model)
    model.save_pretrained(tmp_path / "whole")
    assert fit.mark(tmp_path / "whole") == known
    model.to(torch.bfloat16).save_pretrained(tmp_path / "shards", max_shard_size="5KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    assert agree(fit.mark(tmp_path / "shards"), known)
    tiny(seed=1).save_pretrained(tmp_path / "other")
    assert not agree(fit.mark(tmp_path / "other"), known)
    assert fit.mark("org/name") == ""


def test_the_lengths_of_a_head_change_and_are_called_after_it(ready: Any, smollm2_folder: str) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed; see the README on serving")
    from serving import Engine, make_request, make_scheduler, true_text

    ready("eagle-mine")
    scheduler = make_scheduler(smollm2_folder, drafters="eagle:mine", max_length=3, asynchronous=True)
    requests = [make_request(f"r{n}", 10 + n, 40) for n in range(4)]
    for request in requests:
        scheduler.add_request(request)
    engine = Engine(scheduler, asynchronous=True)
    engine.run()
    assert all(engine.emitted[request.request_id] == true_text(request, 40) for request in requests)
    assert set(engine.asked) == {0, 1, 2, 3}
    assert {arm.drafter for arm in scheduler.lengths.arms} == {"off", "eagle:mine"}


def test_vllms_own_arguments_pass_however_they_are_written(smollm2_folder: str) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed; see the README on serving")
    from wager.cli.serve import _configure

    given = ["--max_model_len", "512", "--seed", "7", "--served_model_name", "mine", "-tp", "1"]
    parsed, shown = _configure(smollm2_folder, Settings(("ngram",)), given)
    assert (parsed.max_model_len, parsed.seed, parsed.served_model_name) == (512, 7, ["mine"])
    assert parsed.dtype == "float32"
    assert parsed.speculative_config["method"] == "ngram"
    assert parsed.additional_config[KEY]["drafters"] == ["ngram"]
    assert shown[: len(given) + 1] == [smollm2_folder, *given]
    parsed, _ = _configure(
        smollm2_folder, Settings(("ngram",)), ["--dtype", "bfloat16", "--additional-config", '{"a": 1}']
    )
    assert parsed.dtype == "bfloat16"
    assert parsed.additional_config["a"] == 1
    parsed, _ = _configure(
        "smollm2-135m", Settings(("suffix",)), ["--speculative-config", '{"rejection_sample_method": "strict"}']
    )
    assert parsed.served_model_name == ["smollm2-135m"]
    assert parsed.speculative_config["rejection_sample_method"] == "strict"


def test_help_says_where_the_other_arguments_come_from() -> None:
    from wager.cli.app import app

    shown = CliRunner().invoke(app, ["serve", "--help"])
    assert shown.exit_code == 0
    assert "vllm serve --help" in shown.output
