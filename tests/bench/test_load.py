"""The load benchmark, against a small server whose delays are known."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import default_sigint, wait_until

from wager.bench import workloads
from wager.bench.arrivals import Closed, Conversation, Plan, Poisson, Trace, conversations, traced
from wager.bench.load import UNFINISHED, Load, Served, Spread, _served, summarise
from wager.cli import main
from wager.vllm import compat

pytest.importorskip("vllm.benchmarks", reason="vLLM is not installed; its client sends the requests")

FIRST, EACH = 0.06, 0.02  # seconds to the first token, and to each one after it
SLACK = 0.1  # seconds a busy machine may add


@dataclass
class Server:
    """Answers by the prompt: fail, cut, die, end, hang, uncounted, or an answer of max_completion_tokens."""

    port: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)  # the clock's
    flying: int = 0
    most_flying: int = 0
    speculates: bool = False
    models: str | None = (
        '{"object": "list", "data": [{"id": "tiny", "object": "model", "created": 0, "owned_by": "t"}]}'
    )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ")[1].decode()
                length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                body = await reader.readexactly(int(length[0].split(b":")[1])) if length else b""
                if path == "/v1/models":
                    answer = self.models or '{"error": {"message": "no such path"}}'
                    writer.write(_whole("200 OK" if self.models else "404 Not Found", answer))
                elif path == "/metrics":
                    writer.write(_whole("200 OK", self._metrics()))
                elif not await self._chat(json.loads(body), writer):
                    break
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    def _metrics(self) -> str:
        """As a server writes them that drafts two tokens for every request and sees the first accepted."""
        if not self.speculates:
            return ""
        n = len(self.bodies)
        counts = {"num_drafts": n, "num_draft_tokens": 2 * n, "num_accepted_tokens": n}
        lines = [f'vllm:spec_decode_{name}_total{{engine="0"}} {count}' for name, count in counts.items()]
        name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        lines += [f'{name}{{engine="0",position="{i}"}} {count}' for i, count in enumerate((n, 0))]
        return "\n".join(lines) + "\n"

    async def _chat(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        self.bodies.append(body)
        self.arrived.append(time.perf_counter())
        self.flying += 1
        self.most_flying = max(self.most_flying, self.flying)
        try:
            return await self._answer(body, body["messages"][-1]["content"], writer)
        finally:
            self.flying -= 1

    async def _answer(self, body: dict[str, Any], asked: str, writer: asyncio.StreamWriter) -> bool:
        if asked == "fail":
            writer.write(_whole("500 Internal Server Error", '{"error": {"message": "out of memory"}}'))
            return True
        if asked == "hang":
            await asyncio.sleep(5)
            return False
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        count = body["max_completion_tokens"]
        await asyncio.sleep(FIRST)
        writer.write(_event({"role": "assistant", "content": ""}))  # as vLLM starts: with the first token
        for i in range(count):
            if i:
                await asyncio.sleep(EACH)
            if asked == "cut" and i == 2:
                return False
            if asked == "die" and i == 2:
                writer.write(_piece(b'data: {"error": {"message": "engine died", "code": 500}}\n\ndata: [DONE]\n\n'))
                break
            writer.write(_event({"content": f"{asked} {i};"}))
            await writer.drain()
        if asked not in ("end", "die"):
            writer.write(_event({}, finish="length"))
            if asked != "uncounted":
                writer.write(_event(usage={"prompt_tokens": 7, "completion_tokens": count, "total_tokens": 7 + count}))
            writer.write(_piece(b"data: [DONE]\n\n"))
        writer.write(b"0\r\n\r\n")
        return True


def _whole(status: str, text: str) -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
    return (head + text).encode()


def _piece(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _event(delta: dict[str, Any] | None = None, finish: str | None = None, usage: Any = None) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    said = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "tiny", "choices": choices}
    return _piece(f"data: {json.dumps({**said, 'usage': usage}, ensure_ascii=False)}\n\n".encode())


@pytest.fixture
def server() -> Iterator[Server]:
    made, ready, loop = Server(), threading.Event(), asyncio.new_event_loop()

    async def listen() -> None:
        listening = await asyncio.start_server(made.connected, "127.0.0.1", 0, backlog=200)
        made.port = listening.sockets[0].getsockname()[1]
        ready.set()

    def work() -> None:
        loop.create_task(listen())
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks))
        loop.close()

    thread = threading.Thread(target=work)
    thread.start()
    assert ready.wait(5)
    yield made
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)


def unused() -> str:
    """A URL nobody listens at."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


def undisturbed(attempt: Callable[[], None], times: int = 4) -> None:
    """What must hold of times, unless a busy machine stalls every attempt."""
    for _ in range(times - 1):
        try:
            return attempt()
        except AssertionError:
            continue
    return attempt()


def said(*texts: str) -> list[Conversation]:
    return [[{"role": "user", "content": text}] for text in texts]


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"question {i}"}) + "\n" for i in range(5)))
    return str(path)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "load.csv"
    rows = ((0, 44), (5, 9), (10.5, 3), (11, 200), (30, 16))
    stamps = [f"2023-11-16 18:00:{seconds:010.7f},374,{tokens}\r\n" for seconds, tokens in rows]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\r\n" + "".join(stamps))
    return path


def cli(*words: str) -> int:
    sys.argv = ["wager", "bench", "serve", *words]
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


def run(server: Server | str, plan: Plan, asked: list[Conversation], **given: Any) -> list[Served]:
    return Load(server if isinstance(server, str) else server.url, plan, asked, **given).run()


# The client


def test_times_and_counts_are_the_servers(server: Server) -> None:
    served = run(server, Closed(1, 5), said("sea\u2028\x85"), max_tokens=8)
    for request in served:
        assert request.error is None
        assert (request.prompt_tokens, request.output_tokens) == (7, 8)
        assert request.text == "".join(f"sea\u2028\x85 {i};" for i in range(8))
    # What disturbs the machine only adds time, so the least disturbed request tells.
    ttft, tpot = min(r.ttft or 0 for r in served), min(r.tpot or 0 for r in served)
    assert FIRST <= ttft < FIRST + SLACK / 2
    assert tpot == pytest.approx(EACH, abs=SLACK / 10)
    assert min(r.latency for r in served) == pytest.approx(FIRST + 7 * EACH, abs=SLACK)


def test_what_is_sent_to_the_server(server: Server) -> None:
    extra = {"vllm_xargs": {"arm": "suffix:4"}}
    run(server.url + "/v1/", Closed(1, 1), said("sea"), max_tokens=2, extra=extra, ignore_eos=True)
    (body,) = server.bodies
    assert body == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "sea"}],
        "max_completion_tokens": 2,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "vllm_xargs": {"arm": "suffix:4"},
    }


def test_a_trace_starts_on_schedule_however_slow_the_server_is(server: Server) -> None:
    at = (0.0, 0.02, 0.04, 0.2, 0.21)

    def attempt() -> None:
        server.arrived.clear()
        served = run(server, Trace(at, (1, 20, 2, 3, 2)), said("a", "b"), max_tokens=10)
        assert [r.scheduled for r in served] == list(at)
        assert [r.output_tokens for r in served] == [1, 10, 2, 3, 2]  # the plan's, cut to max_tokens
        assert [r.text[0] for r in served] == ["a", "b", "a", "b", "a"]  # prompts from the start again
        assert [r.start for r in served] == pytest.approx(list(at), abs=SLACK)
        assert served[3].start < served[1].scheduled + served[1].latency
        assert [arrived - server.arrived[0] for arrived in server.arrived] == pytest.approx(list(at), abs=SLACK)

    undisturbed(attempt)


def test_poisson_arrivals_have_their_rate_and_repeat_with_a_seed(server: Server) -> None:
    def gaps(seed: int) -> list[float]:
        served = run(server, Poisson.of(50.0, requests=10), said("a"), max_tokens=1, seed=seed)
        assert max(r.start for r in served) == pytest.approx(10 / 50, abs=SLACK)
        return [r.start for r in served]

    def attempt() -> None:
        one, again, other = gaps(3), gaps(3), gaps(4)
        assert one == pytest.approx(again, abs=0.02)
        assert one != pytest.approx(other, abs=0.02)

    undisturbed(attempt)


def test_acceptance_by_position_is_read_from_the_servers_metrics(server: Server) -> None:
    server.speculates = True
    load = Load(server.url, Closed(1, 3), said("a"), max_tokens=2)
    load.run()
    assert load.speculation == {
        "num_drafts": 3,
        "draft_tokens": 6,
        "accepted_tokens": 3,
        "acceptance_rate": 50.0,
        "acceptance_length": 2.0,
        "per_position_acceptance_rates": [1.0, 0.0],
    }


def test_waiting_counts_from_the_scheduled_arrival() -> None:
    answer = SimpleNamespace(success=True, ttft=0.5, latency=2.5, prompt_len=1, output_tokens=5, generated_text="")
    late = _served(0, answer, start=1.5, arrival=1.0)
    assert (late.ttft, late.latency, late.tpot) == (1.0, 3.0, 0.5)
    assert Served(0, 1.0, 1.0, 2.0, 2.0, 1, 1).tpot is None
    assert summarise([late]).late_seconds == 0.5


def test_a_closed_loop_keeps_its_places_full_and_never_more(server: Server) -> None:
    def attempt() -> None:
        served = run(server, Closed(3, 12), said("a"), max_tokens=3)
        assert [r.number for r in served] == list(range(12))
        assert server.most_flying == 3
        starts, ends = sorted(r.start for r in served), sorted(r.start + r.latency for r in served)
        assert starts[2] < ends[0]
        assert all(0 <= start - end < SLACK for start, end in zip(starts[3:], ends, strict=False))

    undisturbed(attempt)


def test_a_closed_loop_ends_with_its_time(server: Server) -> None:
    def attempt() -> None:
        served = run(server, Closed(2, seconds=0.3), said("a"), max_tokens=2)
        assert 2 <= len(served) <= 10
        assert max(r.start for r in served) < 0.3 + SLACK
        assert all(r.error is None for r in served)  # those in flight were waited for

    undisturbed(attempt)


def test_every_kind_of_failure_is_a_result(server: Server) -> None:
    asked = said("fail", "cut", "die", "end", "hang", "uncounted", "fine")
    served = run(server, Closed(7, 7), asked, max_tokens=4, timeout=1.5)
    fail, cut, die, end, hang, uncounted, fine = served
    assert fail.error == "Internal Server Error"
    assert "payload is not completed" in str(cut.error)
    assert die.error == end.error == uncounted.error == UNFINISHED
    assert hang.error == "no whole answer within 1.5 s"
    assert fine.error is None
    summary = summarise(served)
    assert (summary.requests, summary.errors, summary.output_tokens) == (7, 6, 4)
    assert summary.first_error == fail.error
    assert summary.latency_seconds is not None
    assert summary.latency_seconds.mean == fine.latency


def test_a_summary_is_that_of_its_requests() -> None:
    good = [Served(i, 0.0, 0.0, 1.0, 2.0 + i, 10, 11) for i in range(3)]
    summary = summarise([*good, Served(3, 1.0, 1.0, None, 9.0, error="refused")])
    assert (summary.requests, summary.errors, summary.first_error) == (4, 1, "refused")
    assert (summary.output_tokens, summary.output_tokens_per_second, summary.requests_per_second) == (33, 3.3, 0.3)
    assert summary.latency_seconds == Spread(3.0, 3.0, pytest.approx(3.98))
    assert summary.ttft_seconds == Spread(1.0, 1.0, 1.0)
    assert summary.tpot_seconds == Spread(pytest.approx(0.2), pytest.approx(0.2), pytest.approx(0.298))
    empty = summarise([])
    assert (empty.requests, empty.output_tokens_per_second, empty.latency_seconds) == (0, 0.0, None)


# Plans and prompts


def test_poisson_arrivals_end_with_their_count_or_their_time() -> None:
    assert Poisson.of(20.0, requests=4000) == Poisson(20.0, 4000)
    assert Poisson.of(20.0, seconds=10.0) == Poisson(20.0, 200)
    assert Poisson.of(20.0, requests=3, seconds=10.0) == Poisson(20.0, 3)


def test_a_trace_is_sliced_in_its_own_seconds_then_scaled(trace: Path) -> None:
    assert traced(trace) == Trace((0.0, 5.0, 10.5, 11.0, 30.0), (44, 9, 3, 200, 16))
    assert traced(trace, start=5, seconds=6) == Trace((0.0, 5.5), (9, 3))
    assert traced(trace, start=4, seconds=7.5, speed=0.1) == Trace((10.0, 65.0, 70.0), (9, 3, 200))
    assert traced(trace, speed=10, requests=2) == Trace((0.0, 0.5), (44, 9))
    with pytest.raises(ValueError, match=r"no request from second 31 to inf; it lasts 30 seconds"):
        traced(trace, start=31)


def test_prompts_are_read_in_three_forms(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    records = [{"prompt": "a\u2028b"}, {"turns": ["first", "second"]}, {"messages": chat}]
    path.write_text("\n".join(json.dumps(r, ensure_ascii=False) for r in records) + "\n\n", encoding="utf-8")
    assert conversations(path) == [*said("a\u2028b", "first"), chat]
    for wrong in ('{"text": "a"}', "[1]", "{", '{"turns": []}', '{"messages": ["hi"]}'):
        path.write_text(json.dumps({"prompt": "fine"}) + "\n" + wrong)
        with pytest.raises(ValueError, match=r"p\.jsonl, line 2: not a JSON object with a prompt"):
            conversations(path)
    path.write_text("\n")
    with pytest.raises(ValueError, match="holds no prompt"):
        conversations(path)


# The command


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


def test_tasks_are_prompts_too(server: Server, tmp_path: Path) -> None:
    records = {
        "spec_bench.jsonl": [{"category": c, "turns": [c]} for c in (*workloads.SPEC_BENCH, "writing")],
        "humaneval.jsonl": [{"prompt": "def f(x):"}],
        "debug_bench.jsonl": [{"description": "sum", "buggy_code": "a - b"}],
    }
    for name, rows in records.items():
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("--url", server.url, "--data", str(tmp_path), "--rate", "50", "--requests", "4", "--max-tokens", "1")
    assert cli(*words, "--prompts", "qa, rag") == 0
    assert {body["messages"][0]["content"] for body in server.bodies} == {"qa", "rag"}


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


def test_ctrl_c_reports_what_was_measured(server: Server, prompts: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    code = "import sys; from wager.cli import main; sys.exit(main())"
    words = ("--concurrency", "2", "--duration", "60", "--max-tokens", "2", "--json", str(out))
    process = subprocess.Popen(
        [sys.executable, "-c", code, "bench", "serve", "--url", server.url, "--prompts", prompts, *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=default_sigint,
    )  # fmt: skip
    wait_until(lambda: len(server.bodies) >= 6 or process.poll() is not None, "no six requests", seconds=180)
    process.send_signal(signal.SIGINT)
    printed, complained = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "0 errors" in printed
    assert "Traceback" not in complained
    assert "interrupted after" in complained
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


def test_a_server_that_is_not_there_is_one_sentence(prompts: str, capsys: pytest.CaptureFixture[str]) -> None:
    url = unused()
    for model in ((), ("--model", "mine")):
        assert cli("--url", url, "--prompts", prompts, "--concurrency", "1", *model) == 2
        complained = capsys.readouterr().err
        assert complained.startswith(f"wager: no server answers at {url}: ")
        assert complained.count("\n") == 1


def test_a_server_that_is_gone_is_counted_not_hammered(prompts: str) -> None:
    served = run(unused(), Closed(2, seconds=0.35), said("a"), model="tiny")
    assert 2 <= len(served) <= 10
    assert all("onnect" in str(r.error) for r in served)


def test_a_missing_vllm_is_one_sentence(
    server: Server, prompts: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

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
