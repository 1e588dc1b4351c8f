"""A server's /metrics, read twice, becomes the view; what cannot be read is one sentence."""

import io
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from commands import Wager, one_sentence
from rich.console import Console, RenderableType
from waiting import default_sigint

from wager.cli import top
from wager.vllm import watch


def text(scale: int) -> str:
    """What a server says after so many times ten steps: 30 rounds of suffix:4 and 10 of off in each."""
    return f"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} 3.0
vllm:num_requests_running{{engine="1",model_name="m"}} 1.0
vllm:num_requests_waiting{{engine="0",model_name="m"}} 2.0
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.25
vllm:kv_cache_usage_perc{{engine="1",model_name="m"}} 0.5
vllm:generation_tokens_total{{engine="0",model_name="m"}} {100 * scale}.0
# TYPE wager_pulls_total counter
wager_pulls_total{{arm="suffix:10"}} 0.0
wager_pulls_total{{arm="suffix:4"}} {30 * scale}.0
wager_pulls_total{{arm="off"}} {10 * scale}.0
wager_drafted_tokens_total{{arm="suffix:4"}} {120 * scale}.0
wager_drafted_tokens_total{{arm="off"}} 0.0
wager_accepted_tokens_total{{arm="suffix:4"}} {60 * scale}.0
wager_emitted_tokens_total{{arm="suffix:4"}} {90 * scale}.0
wager_emitted_tokens_total{{arm="off"}} {10 * scale}.0
wager_tokens_total {102 * scale}.0
wager_steps_total{{kind="clean"}} {9 * scale}.0
wager_steps_total{{kind="mixed"}} {1 * scale}.0
wager_switches_total {2 * scale}.0
wager_decision_seconds_total {0.0002 * scale}
wager_goodput{{arm="suffix:4",batch="16-31"}} 300.5
wager_goodput{{arm="suffix:4",batch="2-3"}} 120.0
wager_goodput{{arm="off",batch="16-31"}} 410.0
wager_length 3.0
wager_batch 4.0
wager_switch_seconds 0.0031
wager_info{{drafters="suffix",hook="scheduler",policy="kl-ucb:reward=goodput",version="0.1.0"}} 1.0
"""


class Server:
    """Answers with a scale that goes up by one each time, or with what it is told."""

    def __init__(self) -> None:
        self.asked, self.paths, self.instead, self.status = 0, [""], "", 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                outer.paths.append(self.path)
                body = (outer.instead or text(outer.asked)).encode("latin-1")
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.http.server_port}"


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        server.http.server_close()
        thread.join()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving(Server()) as found:
        yield found


def test_two_scrapes_give_rates_of_the_interval_and_figures_since_the_start() -> None:
    shown = watch.view(watch.parse(text(3), 10.0), watch.parse(text(5), 14.0))
    assert (shown.policy, shown.hook, shown.drafters) == ("kl-ucb:reward=goodput", "scheduler", "suffix")
    assert (shown.seconds, shown.running, shown.waiting, shown.kv_cache) == (4.0, 4.0, 2.0, 0.5)
    assert shown.tokens_per_second == 51.0
    assert (shown.length, shown.batch, shown.acceptance) == (3.0, 4.0, 0.5)
    assert (shown.switches, shown.switches_last, shown.switch_seconds) == (10.0, 4.0, 0.0031)
    assert shown.decision_us == pytest.approx(20)
    assert shown.mixed_share == pytest.approx(0.1)
    assert shown.buckets == ["2-3", "16-31"]
    off, short, long = shown.arms
    assert [arm.arm for arm in shown.arms] == ["off", "suffix:4", "suffix:10"]
    assert off.last == watch.Rounds(rounds=20, share=0.25, acceptance=None, mat=1.0)
    assert short.last == watch.Rounds(rounds=60, share=0.75, acceptance=0.5, mat=3.0)
    assert short.whole == watch.Rounds(rounds=150, share=0.75, acceptance=0.5, mat=3.0)
    assert short.rate == 15.0
    assert short.goodput == {"2-3": 120.0, "16-31": 300.5}
    assert long.last == watch.Rounds(rounds=0, share=0.0, acceptance=None, mat=None)


def test_counters_that_are_written_now_and_then_are_read_when_they_have_been(server: Server) -> None:
    # vLLM's tokens grow with every reading, wager's counters were written at second 5 and then at second 9.
    def updated(scale: int, at: int) -> str:
        return text(scale) + f"wager_updated_timestamp_seconds {at}.0\n"

    url = f"http://{server.address}/metrics"
    server.instead = updated(1, 5)
    before = watch.scrape(url)
    answers = [updated(1, 5).replace(" 100.0", f" {n}.0") for n in (140, 160)] + [updated(3, 9)]
    server.instead = answers.pop(0)

    def sleep(seconds: float) -> None:
        server.instead = answers.pop(0)

    shown = watch.view(before, watch.scrape_after(url, before, sleep))
    assert not answers, "it read until the counters had been written"
    assert shown.seconds == 4.0, "the seconds between the two times they were written"
    assert shown.arms[1].rate == 15.0
    assert shown.tokens_per_second == 51.0, "of the same seconds as the arms' rounds"
    idle = watch.scrape(url)
    assert watch.scrape_after(url, idle, lambda _: pytest.fail("nothing has happened, nothing is to come")).updated == 9


def test_one_scrape_gives_what_holds_since_the_start_and_a_restarted_server_counts_from_zero() -> None:
    shown = watch.view(None, watch.parse(text(1), 10.0))
    assert (shown.seconds, shown.tokens_per_second, shown.acceptance, shown.arms[1].last) == (None,) * 4
    assert shown.acceptance_whole == 0.5
    shown = watch.view(watch.parse(text(50), 10.0), watch.parse(text(2), 12.0))
    assert shown.tokens_per_second == 102.0
    assert shown.arms[1].rate == 30.0
    assert shown.switches_last == 4.0


def test_an_idle_server_divides_by_nothing() -> None:
    shown = watch.view(watch.parse(text(2), 10.0), watch.parse(text(2), 12.0))
    assert shown.acceptance is shown.decision_us is None
    assert shown.tokens_per_second == 0.0
    watch.view(watch.parse(text(0), 10.0), watch.parse(text(0), 10.0))


def test_an_address_may_be_written_in_every_usual_way() -> None:
    for given in ("host:8000", "http://host:8000", "http://host:8000/"):
        assert watch.metrics_url(given) == "http://host:8000/metrics"
    assert watch.metrics_url("localhost") == "http://localhost/metrics"
    assert watch.metrics_url("http://[::1]:8000") == "http://[::1]:8000/metrics"
    assert watch.metrics_url("https://host/metrics") == "https://host/metrics"
    assert watch.metrics_url("http://host/a/proxy/metrics/") == "http://host/a/proxy/metrics"


@pytest.mark.parametrize("given", ["", "http://", "ftp://host", "host:port", "host:99999", "a b", "file:///metrics"])
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="is not a server's address"):
        watch.metrics_url(given)


def test_once_prints_one_interval_as_tables_or_as_json(cli: Wager, server: Server) -> None:
    done = cli("top", server.address, "--once", "--interval", "0.1")
    assert done.code == 0, done.err
    assert server.paths[1:] == ["/metrics"] * 2
    for words in (
        *("kl-ucb:reward=goodput, drafters suffix", "scheduler hook", "4 running, 2 waiting", "KV cache 50%"),
        *("length 3.0 at batch 4.0, acceptance 50% (50% since start)", "4 (+2), switching on costs 3.1 ms"),
        *("20 µs a step", "suffix:4", "75% (75%)", "16-31", "300.5", "1 arm not played yet"),
    ):
        assert words in done.out

    shown = json.loads(cli("top", server.address, "--once", "--interval", "0.1", "--json").out)
    assert shown["running"] == 4
    assert shown["arms"][1]["last"] == {"rounds": 30, "share": 0.75, "acceptance": 0.5, "mat": 3.0}
    assert shown["arms"][1]["goodput"] == {"2-3": 120.0, "16-31": 300.5}


@pytest.mark.parametrize(
    ("instead", "status", "names"),
    [
        ("<html><body>It works!</body></html>", 200, "not with Prometheus metrics"),
        ("\xff\xfe\x00", 200, "not with Prometheus metrics"),
        ("vllm:num_requests_running 1.0\n", 200, "no wager_ metrics"),
        ("nothing", 404, "answers 404 Not Found"),
    ],
)
def test_a_server_of_another_kind_is_one_sentence(server: Server, instead: str, status: int, names: str) -> None:
    server.instead, server.status = instead, status
    with pytest.raises(ValueError, match=names):
        watch.scrape(f"http://{server.address}/metrics")


def test_bad_input_ends_in_one_sentence_and_exit_code_2(cli: Wager) -> None:
    for words, names in {
        ("127.0.0.1:1", "--once"): "no server answers at http://127.0.0.1:1/metrics: Connection refused",
        ("127.0.0.1:1",): "give --once",
        ("127.0.0.1:1", "--json"): "give --once too",
        ("no where", "--once"): "is not a server's address",
        **{("a:1", "--once", "--interval", n): "at most 86400 seconds" for n in ("inf", "1e300", "86401")},
    }.items():
        one_sentence(cli("top", *words), names)


def test_series_without_their_labels_are_one_sentence(cli: Wager, server: Server) -> None:
    server.instead = text(1).replace(',batch="16-31"', "")
    one_sentence(cli("top", server.address, "--once", "--interval", "0.1"), "without the label 'batch'")
    with pytest.raises(ValueError, match="without the label 'batch'"):
        top.watch(f"http://{server.address}/metrics", 2.0, Console(file=io.StringIO()))


def test_a_server_that_goes_away_is_said_and_waited_for(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    drawn: list[str] = []
    plain = top.draw

    def draw(shown: watch.View, url: str, trouble: str = "") -> RenderableType:
        drawn.append(trouble)
        return plain(shown, url, trouble)

    def sleep(seconds: float) -> None:
        server.instead = "oops" if len(drawn) in (2, 3) else ""
        if len(drawn) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(top, "draw", draw)
    screen = Console(file=io.StringIO(), force_terminal=True, width=140)
    with pytest.raises(KeyboardInterrupt):
        top.watch(f"http://{server.address}/metrics", 2.0, screen, sleep)
    assert [bool(trouble) for trouble in drawn] == [False, False, True, True, False]
    assert "not with Prometheus metrics; last seen 0 s ago, trying again every 2 s" in drawn[2]


def test_the_live_view_outlives_its_server_and_ends_cleanly_with_control_c() -> None:
    ours, theirs = pytest.importorskip("pty", reason="no terminals here").openpty()
    seen = ""

    def wait_for(words: str) -> None:
        nonlocal seen
        until = time.monotonic() + 60
        while words not in seen:
            assert time.monotonic() < until, seen
            if select.select([ours], [], [], 0.1)[0]:
                seen += os.read(ours, 1 << 16).decode(errors="replace")

    with serving(Server()) as server:
        command = [sys.executable, "-m", "wager", "top", server.address, "--interval", "0.1"]
        env = {**os.environ, "COLUMNS": "160", "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1", "TERM": "xterm"}
        live = subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, env=env, preexec_fn=default_sigint)
        os.close(theirs)
        wait_for("75% (75%)")
    wait_for("Connection refused")
    live.send_signal(signal.SIGINT)
    _, errors = live.communicate(timeout=60)
    os.close(ours)
    assert live.returncode == 0, errors
    assert errors == b""
