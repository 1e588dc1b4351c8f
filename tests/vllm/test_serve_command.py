"""`wager serve`: what it refuses before vLLM is loaded, what it says, and what it would start vLLM with."""

import json
import logging
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import Done, Wager, called

from wager.core import Context
from wager.vllm import compat
from wager.vllm.settings import KEY, Settings, speculative_methods


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
        (["--speculative-config", "{"], "--speculative-config is not JSON"),
        (["--speculative-config", '{"method": "ngram"}'], "names its method and num_speculative_tokens"),
        (["--speculative-config.method", "ngram"], "names its method and num_speculative_tokens"),
        (["-sc", '{"method": "medusa", "num_speculative_tokens": 3}'], "a draft length of its own"),
        (["-sc", '{"method": "mtp", "num_speculative_tokens": 3}', "--drafter", "ngram"], "says who drafts"),
        (["-sc", '{"method": "mtp", "num_speculative_tokens": 3}', "--max-length", "4"], "leave one out"),
        (["--speculative_config.num_speculative_tokens", "3"], "follows from the drafter"),
        (["--speculative_config.rejection_sample_method", "fly"], "which wager never does"),
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
        (["smollm2-135m", "--max-length", "0"], "--max-length is 1 to"),
        (["smollm2-135m", "--host", "127.0.0.1", "--port", "TAKEN"], "of 127.0.0.1: Address already in use"),
        (["smollm2-135m", "--seed", "3", "--port=TAKEN", "--host=127.0.0.1", "-tp", "1"], "choose another with --port"),
        (["smollm2-135m", "--port", "99999"], "--port is a number from 1 to 65535, not 99999"),
        (["smollm2-135m", "--port", "99999", "--dry-run"], "--port is a number from 1 to 65535, not 99999"),
        (["smollm2-135m", "--port=0"], "--port is a number from 1 to 65535, not 0"),
        (["smollm2-135m", "--port", "http"], "--port is a number from 1 to 65535, not 'http'"),
        (["smollm2-135m", "--host", "no-such-host.invalid"], "--host is an address of this machine"),
        (["smollm2-135m", "--host", "a" * 70], "--host"),
        (["smollm2-135m", "--speculative-config", "{bad"], "--speculative-config is not JSON"),
        (["smollm2-135m", "-sc", "[1]"], "--speculative-config is a JSON object, not [1]"),
        (["smollm2-135m", "--additional-config={"], "--additional-config is not JSON"),
        (["smollm2-135m", "--control", "/no/such/folder/policy"], "--control /no/such/folder/policy: no folder"),
        (["smollm2-135m", "--state", "/no/such/folder/state"], "--state /no/such/folder/state: no folder"),
        (["smollm2-135m", "--control", "/"], "--control is a file, and / is a folder"),
        (["smollm2-135m", "--policy", "fixed:drafter=suffix,length=9"], "maximum length is 5; choose 1 to 5 or raise"),
        (["smollm2-135m", "--policy", "fixed:drafter=ngram,length=3"], "the drafters here are suffix, prompt-lookup"),
    ],
)
def test_what_wager_refuses_is_refused_before_vllm_is_imported(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("wager.vllm.compat.check_version", lambda: None)
    monkeypatch.setattr("wager.vllm.compat.installed_version", lambda: "0.32.0")  # whatever is installed
    monkeypatch.setitem(sys.modules, "vllm", None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        monkeypatch.setattr("sys.argv", ["wager", "serve", *(word.replace("TAKEN", port) for word in arguments)])
        done = called(capsys)
    assert done.code == 2
    assert said in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_a_fixed_length_between_those_of_other_policies_is_played() -> None:
    settings = Settings(policy="fixed:drafter=suffix,length=3")
    policy = settings.build_policy()
    assert str(policy.choose(Context(policy.arms))) == "suffix:3"
    assert "suffix:3" not in map(str, settings.build_policy("auto").arms)
    with pytest.raises(ValueError, match="--uniform always drafts 5"):
        Settings(policy="fixed:drafter=suffix,length=3", uniform="always")


@pytest.mark.parametrize(
    "given",
    [
        ["--speculative-config", '{"rejection_sample_method": "strict"}'],
        ['--speculative_config={"rejection_sample_method": "strict"}', "--seed", "3"],
        ["--seed", "3", "-sc", '{"rejection_sample_method": "strict"}'],
        ["--speculative-config.rejection_sample_method", "strict", "--seed", "3"],
        ["--additional-config", '{"a": 1}', "--dtype", "auto"],
    ],
    ids=" ".join,
)
def test_a_dry_run_names_every_argument_once(serve: Wager, given: list[str]) -> None:
    done = serve(*given, "--dry-run")
    assert done.code == 0
    words = shlex.split(done.out.splitlines()[0])
    named = [word for word in words if word.startswith("-")]
    assert len(named) == len(set(named))
    assert not {"-sc", "--speculative_config"} & {word.partition("=")[0] for word in named}
    assert ("--seed" in named) == ("--seed" in given)
    config = json.loads(words[words.index("--speculative-config") + 1])
    assert config.get("rejection_sample_method") == (None if "--dtype" in given else "strict")


def test_what_is_started_is_said_before_vllm_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("wager.vllm.compat.installed_version", lambda: "0.32.0")
    monkeypatch.setattr("wager.vllm.compat.is_cpu_build", lambda: True)
    monkeypatch.setitem(sys.modules, "vllm", None)
    for more, compiles in (([], True), (["--enforce-eager"], False)):
        words = ["wager", "serve", "smollm2-135m", "--port", "45679", "--policy", "nightjar", *more]
        monkeypatch.setattr("sys.argv", words)
        monkeypatch.setattr("wager.cli.serve._configure", lambda *given: sys.exit(3))  # from here vLLM is imported
        done = called(capsys)
        assert done.code == 3
        first = done.err.splitlines()[0]
        assert "starting vLLM 0.32.0 with smollm2-135m; drafters: suffix, prompt-lookup; policy: nightjar" in first
        assert ("vLLM compiles" in first) == compiles


# A process with a child, that loses interrupts as vLLM does while its engine starts.
STARTING = """
import subprocess, sys, time
from pathlib import Path
from wager.vllm.server import end_when_interrupted
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
end_when_interrupted(Path(sys.argv[1]).unlink)
print(child.pid, flush=True)
while True:
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        pass
"""


def test_an_interrupt_while_the_engine_starts_ends_it_and_what_it_started(tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil", reason="it comes with vLLM, which is not installed")
    left = tmp_path / "left"
    left.touch()
    command = [sys.executable, "-c", STARTING, str(left)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as starting:
        try:
            assert starting.stdout is not None
            child = psutil.Process(int(starting.stdout.readline()))
            starting.send_signal(signal.SIGINT)
            _, said = starting.communicate(timeout=60)
            gone = psutil.wait_procs([child], timeout=60)[0]
        finally:
            starting.kill()
    assert (starting.returncode, said, left.exists()) == (130, "", False)
    assert gone == [child]


def test_an_interrupt_that_vllm_raises_ends_with_130_and_no_traceback(
    serve: Wager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(parsed: Any) -> None:
        raise KeyboardInterrupt

    installed: list[Any] = []
    monkeypatch.setattr("wager.vllm.server.run", interrupted)
    monkeypatch.setattr("wager.vllm.server.end_when_interrupted", installed.append)
    monkeypatch.setattr("wager.cli.serve._check", lambda parsed: [])
    done = serve("--uds", "/tmp/none", "--enforce-eager")
    assert (done.code, len(installed)) == (130, compat.is_cpu_build())
    assert "Traceback" not in done.err


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
    assert "vllm.entrypoints.openai.api_server --help=all" in serve("--help").out
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
    assert (done.code, len(done.err.splitlines()), caplog.messages) == (0, 1, [])
    assert done.err.startswith("wager: checking vLLM")
    assert done.out.startswith(f"{shlex.join(compat.serve_command())} {smollm2_folder} --max-model-len 512")
    assert "vLLM accepts this configuration; no weights were read" in done.out
    assert not re.search(r"INFO|WARNING", done.out)
    assert "runs as it would without speculation" in done.out
    dry = serve("--dry-run", "--max-model-len", "512")
    assert dry.out.splitlines()[0] == done.out.splitlines()[0]
