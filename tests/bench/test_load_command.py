"""`wager bench serve`: what the command sends, reports and refuses, against a small server."""

import json
import signal
import subprocess
import sys
import threading
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from chat_server import FIRST, SLACK, Server, undisturbed, unused
from waiting import wait_until

from wager.bench import workloads
from wager.cli import main
from wager.vllm import compat

pytest.importorskip("vllm.benchmarks", reason="vLLM is not installed; its client sends the requests")


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"question {i}"}) + "\n" for i in range(5)))
    return str(path)


def cli(*words: str) -> int:
    sys.argv = ["wager", "bench", "serve", *words]
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


def test_the_command_reports_and_writes_what_it_measured(
    server: Server, prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    words = ("--concurrency", "2", "--requests", "6", "--max-tokens", "3", "--warmup", "2", "--json", str(out))
    assert cli("--url", server.url, "--prompts", prompts, *words) == 0
    printed = capsys.readouterr()
    assert "6 requests, 0 errors" in printed.out
    assert "18 output tokens" in printed.out
    assert "time to first token" in printed.out
    assert printed.err == ""  # no bar where there is no terminal
    result = json.loads(out.read_text())
    assert {"command", "date", "machine", "versions"} <= result.keys()
    assert (result["url"], result["model"]) == (server.url, "tiny")
    assert result["load"] == {"concurrency": 2, "requests": 6}
    assert (result["requests"], result["errors"], result["output_tokens"]) == (6, 0, 18)
    assert result["output_tokens_per_second"] == pytest.approx(18 / result["seconds"])
    assert FIRST <= result["ttft_seconds"]["p50"] < result["latency_seconds"]["p50"]
    assert result["ttft_seconds"]["p50"] <= result["ttft_seconds"]["p99"]
    assert [row["number"] for row in result["served"]] == list(range(6))
    assert "text" not in result["served"][0]
    asked = [body["messages"][0]["content"] for body in server.bodies]
    assert len(asked) == 8  # with the warm-up
    assert set(asked[2:]) == {f"question {i}" for i in range(5)}  # each once before one comes again


def test_a_trace_from_the_data_folder_sets_times_and_lengths(
    server: Server, prompts: str, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "traces").mkdir()
    trace.rename(tmp_path / "traces" / "load.csv")
    words = ("--url", server.url, "--prompts", prompts, "--trace", "load.csv", "--speed", "20")

    def attempt() -> None:
        server.arrived.clear()
        server.bodies.clear()
        assert cli(*words, "--data", str(tmp_path), "--max-tokens", "5", "--start", "5", "--duration", "7") == 0
        assert [body["max_completion_tokens"] for body in server.bodies] == [5, 3, 5]
        assert all(body["ignore_eos"] for body in server.bodies)
        gaps = [arrived - server.arrived[0] for arrived in server.arrived]
        assert gaps == pytest.approx([0.0, 0.275, 0.3], abs=SLACK)

    undisturbed(attempt)
    server.bodies.clear()
    monkeypatch.setenv("WAGER_DATA", str(tmp_path))
    assert cli(*words, "--requests", "2", "--max-tokens", "1", "--heed-eos") == 0
    assert not any("ignore_eos" in body for body in server.bodies)
    assert len(server.bodies) == 2


def test_tasks_are_prompts_too(server: Server, data: Path) -> None:
    words = ("--url", server.url, "--data", str(data), "--rate", "50", "--requests", "6", "--max-tokens", "1")
    assert cli(*words, "--prompts", "qa, rag") == 0
    assert {body["messages"][0]["content"].split()[0] for body in server.bodies} == {"qa", "rag"}


def test_some_errors_are_reported_and_only_errors_end_with_1(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "p.jsonl", tmp_path / "out.json"
    words = ("--url", server.url, "--prompts", str(path), "--concurrency", "2", "--requests", "4", "--max-tokens", "1")
    path.write_text('{"prompt": "fail"}\n{"prompt": "fine"}\n')
    assert cli(*words) == 0
    printed = capsys.readouterr().out
    assert "4 requests, 2 errors" in printed
    assert "first error: Internal Server Error" in printed
    path.write_text('{"prompt": "fail"}\n')
    assert cli(*words, "--json", str(out)) == 1
    assert capsys.readouterr().err.startswith("wager: none of 4 requests succeeded: Internal Server Error")
    assert not out.exists()


def test_a_server_that_lists_no_models_needs_a_name(
    server: Server, prompts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.models = None
    words = ("--url", server.url, "--prompts", prompts, "--concurrency", "1", "--requests", "1", "--max-tokens", "1")
    assert cli(*words) == 2
    assert "does not list its models" in capsys.readouterr().err
    assert cli(*words, "--model", "mine") == 0
    assert server.bodies[0]["model"] == "mine"


def test_ctrl_c_reports_what_was_measured(
    server: Server, prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt() -> None:
        wait_until(lambda: len(server.bodies) >= 6, "no six requests", seconds=180)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    out = tmp_path / "out.json"
    words = ("--concurrency", "2", "--duration", "200", "--max-tokens", "2", "--json", str(out))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    threading.Thread(target=interrupt).start()
    try:
        assert cli("--url", server.url, "--prompts", prompts, *words) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    printed = capsys.readouterr()
    assert "0 errors" in printed.out
    assert "interrupted after" in printed.err
    result = json.loads(out.read_text())
    assert result["interrupted"] is True
    assert result["requests"] >= 4


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--rate", "1", "--concurrency", "2"), "not --rate and --concurrency"),
        (("--rate", "0"), "a rate is above 0 requests a second, not 0"),
        (("--rate", "nan"), "a rate is above 0 requests a second, not nan"),
        (("--rate", "1", "--duration", "-3"), "a duration is above 0 seconds, not -3"),
        (("--rate", "0.001", "--duration", "0.01"), "make the duration longer"),
        (("--rate", "1", "--speed", "2"), "--speed is a trace's"),
        (("--concurrency", "0"), "concurrency is at least 1, not 0"),
        (("--concurrency", "1", "--requests", "0"), "at least 1 request, not 0"),
        (("--concurrency", "1", "--warmup", "-1"), "from 0, not -1"),
        (("--concurrency", "1", "--max-tokens", "0"), "an answer has at least 1 token, not 0"),
        (("--concurrency", "1", "--temperature", "-1"), "a temperature is 0 (greedy) or above, not -1"),
        (("--concurrency", "1", "--timeout", "0"), "more than 0 seconds, not 0"),
        (("--concurrency", "1", "--prompts", "chess"), "--prompts is a .jsonl file or tasks among mt_bench"),
        (("--concurrency", "1", "--prompts", "none.jsonl"), "none.jsonl: No such file"),
        (("--concurrency", "1", "--url", "localhost"), "a server's URL is as in http://127.0.0.1:8000"),
        (("--concurrency", "1", "--json", "/nowhere/out.json"), "no folder /nowhere"),
        (("--trace", "none.csv"), "none.csv: No such file"),
        (("--trace", "PROMPTS"), "is not a load trace"),
        (("--trace", "TRACE", "--start", "99"), "no request from second 99"),
        (("--trace", "TRACE", "--speed", "0"), "a speed above 0, not 0"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(
    words: tuple[str, ...],
    sentence: str,
    server: Server,
    prompts: str,
    trace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("WAGER_DATA", raising=False)
    given = [{"PROMPTS": prompts, "TRACE": str(trace)}.get(word, word) for word in words]
    assert cli("--url", server.url, "--prompts", prompts, *given) == 2
    complained = capsys.readouterr().err
    assert sentence in complained
    assert complained.startswith("wager: ")
    assert complained.count("\n") == 1
    assert not server.bodies


def test_a_missing_server_and_a_missing_vllm_are_one_sentence(
    server: Server, prompts: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    url = unused()
    for model in ((), ("--model", "mine")):
        assert cli("--url", url, "--prompts", prompts, "--concurrency", "1", *model) == 2
        complained = capsys.readouterr().err
        assert complained.startswith(f"wager: no server answers at {url}: ")
        assert complained.count("\n") == 1
    monkeypatch.setattr(compat, "version", missing)
    assert cli("--url", server.url, "--prompts", prompts, "--concurrency", "1") == 2
    assert "needs vLLM, which is not installed" in capsys.readouterr().err


def test_without_options_and_without_a_data_folder_the_prompts_of_wager_are_sent(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WAGER_DATA", raising=False)
    assert cli("--url", server.url, "--max-tokens", "1") == 0
    asked = {body["messages"][0]["content"] for body in server.bodies}
    assert asked <= {prompt.text for prompt in workloads.own_prompts()}
    assert (len(server.bodies), server.most_flying) == (100, 8)


def test_help_does_not_wait_for_the_client() -> None:
    code = "import sys, wager, wager.cli.app; sys.exit('vllm' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
