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
from commands import Wager, one_sentence
from waiting import wait_until

from wager.bench import workloads
from wager.vllm import compat

pytest.importorskip("vllm.benchmarks", reason="vLLM is not installed; its client sends the requests")


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"question {i}"}) + "\n" for i in range(5)))
    return str(path)


@pytest.fixture
def serve(cli: Wager, server: Server) -> Wager:
    """`wager bench serve` on that server."""
    return lambda *words: cli("bench", "serve", "--url", server.url, *words)


def test_the_command_reports_and_writes_what_it_measured(
    serve: Wager, server: Server, prompts: str, tmp_path: Path
) -> None:
    words = ("--concurrency", "2", "--requests", "6", "--max-tokens", "3", "--warmup", "2", "--json", "out.json")
    printed = serve("--prompts", prompts, *words)
    assert printed.code == 0
    assert "6 requests, 0 errors" in printed.out
    assert "18 output tokens" in printed.out
    assert "time to first token" in printed.out
    *stages, answered = printed.err.splitlines()  # lines and no bar where there is no terminal
    loading, warming = "loading vLLM's benchmark client …", "warming up with 2 requests …"
    assert stages == [loading, warming, f"measuring {server.url} with 6 requests …"]
    assert answered.startswith("requests answered: 1 of 6")
    result = json.loads((tmp_path / "out.json").read_text())
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
    serve: Wager, server: Server, prompts: str, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "traces").mkdir()
    trace.rename(tmp_path / "traces" / "load.csv")
    words = ("--prompts", prompts, "--trace", "load.csv", "--speed", "20")

    def attempt() -> None:
        server.arrived.clear()
        server.bodies.clear()
        assert serve(*words, "--data", tmp_path, "--max-tokens", "5", "--start", "5", "--duration", "7").code == 0
        assert [body["max_completion_tokens"] for body in server.bodies] == [5, 3, 5]
        assert all(body["ignore_eos"] for body in server.bodies)
        gaps = [arrived - server.arrived[0] for arrived in server.arrived]
        assert gaps == pytest.approx([0.0, 0.275, 0.3], abs=SLACK)

    undisturbed(attempt)
    server.bodies.clear()
    monkeypatch.setenv("WAGER_DATA", str(tmp_path))
    assert serve(*words, "--requests", "2", "--max-tokens", "1", "--heed-eos").code == 0
    assert not any("ignore_eos" in body for body in server.bodies)
    assert len(server.bodies) == 2


def test_tasks_are_prompts_too(serve: Wager, server: Server, data: Path) -> None:
    words = ("--data", data, "--rate", "50", "--requests", "6", "--max-tokens", "1")
    assert serve(*words, "--prompts", "qa, rag").code == 0
    assert {body["messages"][0]["content"].split()[0] for body in server.bodies} == {"qa", "rag"}


def test_some_errors_are_reported_and_only_errors_end_with_1(serve: Wager, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    words = ("--prompts", path, "--concurrency", "2", "--requests", "4", "--max-tokens", "1")
    path.write_text('{"prompt": "fail"}\n{"prompt": "fine"}\n')
    done = serve(*words)
    assert (done.code, "4 requests, 2 errors" in done.out) == (0, True)
    assert "first error: Internal Server Error" in done.out
    path.write_text('{"prompt": "fail"}\n')
    done = serve(*words, "--json", "out.json")
    assert done.code == 1
    assert done.err.splitlines()[-1].startswith("wager: none of 4 requests succeeded: Internal Server Error")
    assert not (tmp_path / "out.json").exists()


def test_a_server_that_lists_no_models_needs_a_name(serve: Wager, server: Server, prompts: str) -> None:
    server.models = None
    words = ("--prompts", prompts, "--concurrency", "1", "--requests", "1", "--max-tokens", "1")
    one_sentence(serve(*words), "does not list its models")
    assert serve(*words, "--model", "mine").code == 0
    assert server.bodies[0]["model"] == "mine"


def test_ctrl_c_reports_what_was_measured(serve: Wager, server: Server, prompts: str, tmp_path: Path) -> None:
    def interrupt() -> None:
        wait_until(lambda: len(server.bodies) >= 6, "no six requests", seconds=180)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    words = ("--concurrency", "2", "--duration", "200", "--max-tokens", "2", "--json", "out.json")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    threading.Thread(target=interrupt).start()
    try:
        printed = serve("--prompts", prompts, *words)
    finally:
        signal.signal(signal.SIGINT, before)
    assert printed.code == 130
    assert "0 errors" in printed.out
    assert "interrupted after" in printed.err
    result = json.loads((tmp_path / "out.json").read_text())
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
        (("--concurrency", "1", "--url", "ftp://localhost"), "a server's URL is as in http://127.0.0.1:8000"),
        (("--concurrency", "1", "--json", "/nowhere/out.json"), "no folder /nowhere"),
        (("--trace", "none.csv"), "none.csv: No such file"),
        (("--trace", "PROMPTS"), "is not a load trace"),
        (("--trace", "TRACE", "--start", "99"), "no request from second 99"),
        (("--trace", "TRACE", "--speed", "0"), "a speed above 0, not 0"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(
    words: tuple[str, ...], sentence: str, serve: Wager, server: Server, prompts: str, trace: Path
) -> None:
    given = [{"PROMPTS": prompts, "TRACE": str(trace)}.get(word, word) for word in words]
    one_sentence(serve("--prompts", prompts, *given), sentence)
    assert not server.bodies


def test_a_missing_server_and_a_missing_vllm_are_one_sentence(
    serve: Wager, prompts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    url = unused()
    for model in ((), ("--model", "mine")):
        words = ("--url", url, "--prompts", prompts, "--concurrency", "1", *model)
        one_sentence(serve(*words), f"wager: no server answers at {url}: ")
    monkeypatch.setattr(compat, "version", missing)
    one_sentence(serve("--prompts", prompts, "--concurrency", "1"), "needs vLLM, which is not installed")


def test_without_options_and_without_a_data_folder_the_prompts_of_wager_are_sent(serve: Wager, server: Server) -> None:
    assert serve("--max-tokens", "1").code == 0
    asked = {body["messages"][0]["content"] for body in server.bodies}
    assert asked <= {prompt.text for prompt in workloads.own_prompts()}
    assert (len(server.bodies), server.most_flying) == (100, 8)


def test_help_does_not_wait_for_the_client() -> None:
    code = "import sys, wager, wager.cli.app; sys.exit('vllm' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
