"""What serving is told, and what it refuses before anything is loaded; no vLLM needed but where it says so."""

import json
import logging
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import Done, Wager, called

import wager
from wager.core import Arm
from wager.vllm import compat
from wager.vllm.policy_file import PolicyFile
from wager.vllm.settings import KEY, PROPOSER, SCHEDULER, Settings, speculative_methods
from wager.vllm.state import open_state


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"drafters": ("medusa",)}, "unknown drafter 'medusa'"),
        ({"drafters": ("suffix=3",)}, "is written suffix"),
        ({"drafters": ("eagle",)}, "is written eagle=MODEL"),
        ({"drafters": ("ngram=3",)}, "is written ngram"),
        ({"drafters": ("ngram", "suffix")}, "only one such in an engine"),
        ({"drafters": ("eagle:ofa", "eagle:code")}, "only one such in an engine"),
        ({"drafters": ("eagle:*",)}, "name one, as in eagle:ofa"),
        ({"drafters": ("draft:",)}, "is written draft:NAME"),
        ({"drafters": ("eagle:ofa=",)}, "or eagle:NAME=PATH"),
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
    for spec in ("ngram", "eagle=folder", "eagle:ofa", "eagle:mine=folder", "draft:ofa"):
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


def test_an_engine_without_settings_says_how_to_start_it() -> None:
    for carried in (None, {}, {KEY: 3}, {"other": {}}):
        with pytest.raises(ValueError, match="start it with `wager serve`"):
            Settings.of(carried)
    with pytest.raises(ValueError, match="no setting speed"):
        Settings.of({KEY: {"drafters": ["suffix"], "speed": 2}})


@pytest.mark.parametrize("found", ["0.26.0", "0.31.0", "0.33.0", "1.0.0", "dev"])
def test_a_version_that_was_not_tried_is_refused_by_name_and_range(found: str) -> None:
    with pytest.raises(ValueError, match=re.escape(found)) as refused:
        compat.check_version(found)
    assert "0.32" in str(refused.value)
    assert "pip install" in str(refused.value)
    for tried in ("0.32.0", "0.32.1+cpu"):
        compat.check_version(tried)


def test_state_survives(tmp_path: Path) -> None:
    settings = Settings(("ngram",), policy="round-robin")
    policy = settings.build_policy()
    path = tmp_path / "state.json"
    kept = open_state(path, policy)
    assert kept.loaded is None
    policy.last = 3  # type: ignore[attr-defined]
    kept.tick()
    kept.save()
    other = settings.build_policy()
    assert open_state(path, other).loaded is not None
    assert other.state_dict() == policy.state_dict()
    assert open_state(path, other, 1).path == tmp_path / "state.1.json", "replicas keep states of their own"


def test_in_a_shared_folder_a_new_replica_begins_with_what_another_learned_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(host: str, spec: str = "round-robin") -> tuple[Any, Any]:
        monkeypatch.setattr("socket.gethostname", lambda: host)
        policy = Settings(("ngram",), policy=spec).build_policy()
        return policy, open_state(tmp_path, policy)

    first, kept = start("a")
    assert kept.loaded is None
    assert kept.path == tmp_path / "a.json"
    first.last = 3
    kept.tick()
    kept.save()
    second, own = start("b")
    assert second.state_dict() == first.state_dict()
    assert own.path == tmp_path / "b.json"
    assert not own.path.exists(), "nothing is written before anything was learned here"
    other, _ = start("c", "nightjar")  # of another policy: it begins from nothing
    assert other.state_dict() == Settings(("ngram",), policy="nightjar").build_policy().state_dict()


def test_state_that_does_not_fit_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "state.json"
    for content in ("", "[]", "{", '{"policy": "Nightjar"}'):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"\A.*does not fit.*\Z"):  # one line
            open_state(path, Settings(("ngram",), policy="round-robin").build_policy())
    path.unlink()
    kept = open_state(path, Settings(("ngram",), policy="round-robin").build_policy())
    kept.tick()
    kept.save()
    with pytest.raises(ValueError, match="saved state is for policy RoundRobin"):
        open_state(path, Settings(("ngram",), policy="nightjar").build_policy())
    path.write_text(path.read_text().replace(f'"wager": "{wager.__version__}"', '"wager": "0.0.1"'))
    assert open_state(path, Settings(("ngram",), policy="round-robin").build_policy()).loaded is None
    assert "will be replaced: it has wager 0.0.1" in caplog.text


def test_a_control_file_changes_the_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "policy"
    settings = Settings(("ngram",), policy="off", control=str(path))
    first = settings.build_policy()
    control = PolicyFile(settings, first)
    monkeypatch.setattr("wager.vllm.policy_file.INTERVAL", 0.0)
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


@pytest.fixture
def serve(
    smollm2_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Wager:
    """`wager serve` of the embedded model in this process, as far as it goes before vLLM starts."""
    pytest.importorskip("vllm.config", reason="vLLM is not installed; see the README on serving")
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))

    def run(*words: str) -> Done:
        monkeypatch.setattr("sys.argv", ["wager", "serve", smollm2_folder, *words])
        return called(capfd)

    return run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--drafter", "medusa"], "unknown drafter 'medusa'"),
        (["--scheduler-cls", "mine.Scheduler"], "leave scheduler_cls out"),
        (["--speculative-config", "{"], "speculative-config"),
        (["--speculative-config", '{"method": "ngram"}'], "names its method and num_speculative_tokens"),
        (["--speculative-config.method", "ngram"], "names its method and num_speculative_tokens"),
        (["-sc", '{"method": "medusa", "num_speculative_tokens": 3}'], "a draft length of its own"),
        (["-sc", '{"method": "mtp", "num_speculative_tokens": 3}', "--drafter", "ngram"], "says who drafts"),
        (["-sc", '{"method": "mtp", "num_speculative_tokens": 3}', "--max-length", "4"], "leave one out"),
        (["--speculative_config.num_speculative_tokens", "3"], "follows from the drafter"),
        (["--additional-config", '{"wager": {}}'], "is made here"),
        (["-pp", "2"], "through a pipeline"),
        (["--no-such-option", "2"], "--no-such-option"),
        (["--drafter", "retrieval=/no/such.store"], "/no/such.store"),
        (["--drafter", "eagle=/no/such/model"], "/no/such/model"),
        (["--drafter", "draft-model=smollm2-135m", "--max-model-len", "many"], "vLLM"),
        (["--state", "/no/such/folder/state.json"], "no folder"),
    ],
)
def test_bad_input_to_serve_is_one_sentence_and_exit_code_2(serve: Wager, arguments: list[str], said: str) -> None:
    done = serve(*arguments)
    assert done.code == 2
    assert said in done.err.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["org/none"], "no folder 'org/none', nothing downloaded earlier"),
        (["smollm2-135m", "--drafter", "medusa"], "unknown drafter 'medusa'"),
        (["smollm2-135m", "--policy", "clairvoyant"], "unknown policy 'clairvoyant'"),
        (["smollm2-135m", "--max-length", "0"], "max_length is 1 to"),
        (["smollm2-135m", "--host", "127.0.0.1", "--port", "TAKEN"], "of 127.0.0.1: Address already in use"),
        (["smollm2-135m", "--seed", "3", "--port=TAKEN", "--host=127.0.0.1", "-tp", "1"], "choose another with --port"),
    ],
)
def test_what_wager_refuses_is_refused_before_vllm_is_imported(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("wager.vllm.compat.check_version", lambda: None)
    monkeypatch.setitem(sys.modules, "vllm", None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        monkeypatch.setattr("sys.argv", ["wager", "serve", *(word.replace("TAKEN", port) for word in arguments)])
        done = called(capsys)
    assert done.code == 2
    assert said in done.err


def test_vllms_own_arguments_pass_however_they_are_written(smollm2_folder: str) -> None:
    pytest.importorskip("vllm.config", reason="vLLM is not installed; see the README on serving")
    from wager.cli.serve import _configure

    given = ["--max_model_len", "512", "--seed", "7", "--served_model_name", "mine", "-tp", "1"]
    parsed, shown = _configure(smollm2_folder, Settings(("ngram",)), given)
    assert (parsed.max_model_len, parsed.seed, parsed.served_model_name) == (512, 7, ["mine"])
    assert parsed.dtype == "float32"
    assert parsed.speculative_config["method"] == "ngram"
    assert parsed.additional_config[KEY]["drafters"] == ["ngram"]
    assert shown[: len(given) + 1] == [smollm2_folder, *given]
    more = ["--dtype", "bfloat16", "--additional-config", '{"a": 1}']
    parsed, _ = _configure(smollm2_folder, Settings(("ngram",)), more)
    assert parsed.dtype == "bfloat16"
    assert parsed.additional_config["a"] == 1
    more = ["--speculative-config", '{"rejection_sample_method": "strict"}']
    parsed, _ = _configure("smollm2-135m", Settings(("suffix",)), more)
    assert parsed.served_model_name == ["smollm2-135m"]
    assert parsed.speculative_config["rejection_sample_method"] == "strict"


def test_a_users_speculative_config_stays(launch: Any, smollm2_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"method": "mtp", "num_speculative_tokens": 3, "rejection_sample_method": "block"}
    made = launch.engine_args(smollm2_folder, speculative_config=own)
    assert made["speculative_config"] == own
    settings = Settings.of(made["additional_config"])
    assert [str(arm) for arm in settings.arms] == ["off", "vllm:mtp:1", "vllm:mtp:2", "vllm:mtp:3"]
    assert speculative_methods(settings) == ("mtp",)
    monkeypatch.setattr(launch, "on_cpu", lambda: False)
    monkeypatch.setattr(launch.plugin, "check", lambda: None)
    assert launch.TABLE in launch.engine_args(smollm2_folder, data_parallel_size=2)["speculative_config"]
    table = {launch.TABLE: [[1, 1, 0], [2, 2, 1], [3, 3, 2], [4, 4, 3]]}
    assert launch.engine_args(smollm2_folder, speculative_config=own)["speculative_config"] == own | table
    beside = launch.engine_args(smollm2_folder, drafters="suffix", speculative_config=own)
    settings = Settings.of(beside["additional_config"])
    assert (settings.names, settings.speculator) == (("suffix", "vllm:mtp"), True)


def test_help_says_where_other_arguments_come_from_and_a_port_in_use_is_named(
    serve: Wager, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = "wager.cli.serve._check"  # vLLM's configuration takes long: the port is looked at before
    monkeypatch.setattr(late, lambda parsed: pytest.fail("configured before the port was looked at"))
    assert "vllm serve --help" in serve("--help").out
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = serve("--host", "127.0.0.1", "--port", str(port), "--max-model-len", "512")
    sentence = f"cannot serve on port {port} of 127.0.0.1: Address already in use; choose another with --port"
    assert (done.code, sentence in done.err) == (2, True)


def test_a_check_prints_the_command_and_no_log_lines_and_needs_no_engine(
    serve: Wager, smollm2_folder: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    for engine in ("cli.serve", "launchers.api_server.entry"):  # the engine and the API server: seconds of imports
        monkeypatch.setitem(sys.modules, f"vllm.entrypoints.{engine}", None)
    done = serve("--check", "--max-model-len", "512")
    assert (done.code, done.err, caplog.messages) == (0, "", [])
    assert done.out.startswith(f"vllm serve {smollm2_folder} --max-model-len 512")
    assert not re.search(r"INFO|WARNING", done.out)
    assert "speculation changes nothing else" in done.out
    dry = serve("--dry-run", "--max-model-len", "512")
    assert dry.out.splitlines()[0] == done.out.splitlines()[0]
