"""The load benchmark's client and plans, against a small server whose delays are known."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from chat_server import EACH, FIRST, SLACK, Server, undisturbed, unused

from wager.bench.arrivals import Conversation, Plan, closed, poisson, traced
from wager.bench.load import UNFINISHED, Load, Served, _served, base_url, summarise

pytest.importorskip("vllm.benchmarks", reason="vLLM is not installed; its client sends the requests")


def said(*texts: str) -> list[Conversation]:
    return [[{"role": "user", "content": text}] for text in texts]


def run(server: Server | str, plan: Plan, asked: list[Conversation], **given: Any) -> list[Served]:
    return Load(server if isinstance(server, str) else server.url, plan, asked, **given).run()


def test_times_and_counts_are_the_servers(server: Server) -> None:
    served = run(server, closed(1, 5), said("sea\u2028\x85"), max_tokens=8)
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
    run(server.url + "/v1/", closed(1, 1), said("sea"), max_tokens=2, extra=extra, ignore_eos=True)
    (body,) = server.bodies
    sent = {"model": "tiny", "messages": [{"role": "user", "content": "sea"}], "max_completion_tokens": 2}
    how = {"temperature": 0.0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    assert body == {**sent, **how, **extra}


def test_a_trace_starts_on_schedule_however_slow_the_server_is(server: Server) -> None:
    at = (0.0, 0.02, 0.04, 0.2, 0.21)

    def attempt() -> None:
        server.arrived.clear()
        served = run(server, Plan(5, at, (1, 20, 2, 3, 2)), said("a", "b"), max_tokens=10)
        assert [r.scheduled for r in served] == list(at)
        assert [r.output_tokens for r in served] == [1, 10, 2, 3, 2]  # the plan's, cut to max_tokens
        assert [r.text[0] for r in served] == ["a", "b", "a", "b", "a"]  # prompts from the start again
        assert [r.start for r in served] == pytest.approx(list(at), abs=SLACK)
        assert served[3].start < served[1].scheduled + served[1].latency
        assert [arrived - server.arrived[0] for arrived in server.arrived] == pytest.approx(list(at), abs=SLACK)

    undisturbed(attempt)


def test_poisson_arrivals_have_their_rate_and_repeat_with_a_seed(server: Server) -> None:
    def gaps(seed: int) -> list[float]:
        served = run(server, poisson(50.0, requests=10), said("a"), max_tokens=1, seed=seed)
        assert max(r.start for r in served) == pytest.approx(10 / 50, abs=SLACK)
        return [r.start for r in served]

    def attempt() -> None:
        one, again, other = gaps(3), gaps(3), gaps(4)
        assert one == pytest.approx(again, abs=0.02)
        assert one != pytest.approx(other, abs=0.02)

    undisturbed(attempt)


def test_acceptance_by_position_is_read_from_the_servers_metrics(server: Server) -> None:
    server.speculates = True
    load = Load(server.url, closed(1, 3), said("a"), max_tokens=2)
    load.run()
    counts = {"num_drafts": 3, "draft_tokens": 6, "accepted_tokens": 3}
    rates = {"acceptance_rate": 50.0, "acceptance_length": 2.0, "per_position_acceptance_rates": [1.0, 0.0]}
    assert load.speculation == {**counts, **rates}


def test_waiting_counts_from_the_scheduled_arrival() -> None:
    answer = SimpleNamespace(success=True, ttft=0.5, latency=2.5, prompt_len=1, output_tokens=5, generated_text="")
    late = _served(0, answer, start=1.5, arrival=1.0)
    assert (late.ttft, late.latency, late.tpot) == (1.0, 3.0, 0.5)
    assert Served(0, 1.0, 1.0, 2.0, 2.0, 1, 1).tpot is None
    assert summarise([late])["late_seconds"] == 0.5


def test_a_closed_loop_keeps_its_places_full_and_never_more(server: Server) -> None:
    def attempt() -> None:
        served = run(server, closed(3, 12), said("a"), max_tokens=3)
        assert [r.number for r in served] == list(range(12))
        assert server.most_flying == 3
        starts, ends = sorted(r.start for r in served), sorted(r.start + r.latency for r in served)
        assert starts[2] < ends[0]
        assert all(0 <= start - end < SLACK for start, end in zip(starts[3:], ends, strict=False))

    undisturbed(attempt)


def test_a_closed_loop_ends_with_its_time(server: Server) -> None:
    def attempt() -> None:
        served = run(server, closed(2, seconds=0.3), said("a"), max_tokens=2)
        assert 2 <= len(served) <= 10
        assert max(r.start for r in served) < 0.3 + SLACK
        assert all(r.error is None for r in served)  # those in flight were waited for

    undisturbed(attempt)


def test_every_kind_of_failure_is_a_result(server: Server) -> None:
    asked = said("fail", "cut", "die", "end", "hang", "uncounted", "fine")
    served = run(server, closed(7, 7), asked, max_tokens=4, timeout=1.5)
    fail, cut, die, end, hang, uncounted, fine = served
    assert fail.error == "Internal Server Error"
    assert "payload is not completed" in str(cut.error)
    assert die.error == end.error == uncounted.error == UNFINISHED
    assert hang.error == "no whole answer within 1.5 s"
    assert fine.error is None
    summary = summarise(served)
    assert (summary["requests"], summary["errors"], summary["output_tokens"]) == (7, 6, 4)
    assert summary["first_error"] == fail.error
    assert summary["latency_seconds"] is not None
    assert summary["latency_seconds"]["mean"] == fine.latency


def test_a_summary_is_that_of_its_requests() -> None:
    good = [Served(i, 0.0, 0.0, 1.0, 2.0 + i, 10, 11) for i in range(3)]
    summary = summarise([*good, Served(3, 1.0, 1.0, None, 9.0, error="refused")])
    assert (summary["requests"], summary["errors"], summary["first_error"]) == (4, 1, "refused")
    assert (summary["output_tokens"], summary["output_tokens_per_second"]) == (33, 3.3)
    assert summary["requests_per_second"] == 0.3
    assert summary["latency_seconds"] == {"mean": 3.0, "p50": 3.0, "p99": pytest.approx(3.98)}
    assert summary["ttft_seconds"] == {"mean": 1.0, "p50": 1.0, "p99": 1.0}
    assert summary["tpot_seconds"] == pytest.approx({"mean": 0.2, "p50": 0.2, "p99": 0.298})
    empty = summarise([])
    assert (empty["requests"], empty["output_tokens_per_second"], empty["latency_seconds"]) == (0, 0.0, None)


def test_poisson_arrivals_end_with_their_count_or_their_time() -> None:
    assert poisson(20.0, requests=4000) == Plan(4000, rate=20.0)
    assert poisson(20.0, seconds=10.0) == Plan(200, rate=20.0)
    assert poisson(20.0, requests=3, seconds=10.0) == Plan(3, rate=20.0)


def test_a_trace_is_sliced_in_its_own_seconds_then_scaled(trace: Path) -> None:
    assert traced(trace) == Plan(5, (0.0, 5.0, 10.5, 11.0, 30.0), (44, 9, 3, 200, 16))
    assert traced(trace, start=5, seconds=6) == Plan(2, (0.0, 5.5), (9, 3))
    assert traced(trace, start=4, seconds=7.5, speed=0.1) == Plan(3, (10.0, 65.0, 70.0), (9, 3, 200))
    assert traced(trace, speed=10, requests=2) == Plan(2, (0.0, 0.5), (44, 9))
    with pytest.raises(ValueError, match=r"no request from second 31 to inf; it lasts 30 seconds"):
        traced(trace, start=31)


def test_a_server_that_is_gone_is_counted_not_hammered() -> None:
    served = run(unused(), closed(2, seconds=0.35), said("a"), model="tiny")
    assert 2 <= len(served) <= 10
    assert all("onnect" in str(r.error) for r in served)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1"])
def test_a_server_is_named_with_or_without_its_scheme(url: str) -> None:
    assert base_url(url) == "http://127.0.0.1:8000"
