"""The loads of reproduction.turns, on an engine without a model and with a clock of its own."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from reproduction import turn_loads
from reproduction.turn_engine import set_acceptance, stock
from reproduction.turn_loads import LOADS, arrivals
from reproduction.turn_plans import PLANS, Extent, orders
from reproduction.turn_summary import lines, summary
from wager.vllm.launch import TABLE


class Clock:
    """Seconds that pass when somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1e-6)


class Stub:
    """An engine that writes one token for every request in each step of 10 ms, at most ``most`` requests at a time."""

    def __init__(self, clock: Clock, most: int, slow: int = -1, broken: int = -1) -> None:
        self.clock, self.most, self.slow, self.broken = clock, most, slow, broken
        self.steps, self.running, self.ends = 0, dict[str, int](), dict[str, int]()
        self.batches: list[int] = []
        self.leads: dict[int, Any] = {}

    def add_request(self, name: str, prompt: dict[str, list[int]], params: int) -> None:
        assert prompt["prompt_token_ids"]
        self.running[name] = params

    def abort_request(self, names: list[str]) -> None:
        for name in names:
            del self.running[name]

    def step(self) -> list[Any]:
        self.steps += 1
        if self.steps == self.broken:
            raise RuntimeError("illegal memory access")
        self.clock.now += 0.25 if self.steps == self.slow else 0.01
        outputs = []
        self.batches.append(min(self.most, len(self.running)))
        for name in list(self.running)[: self.most]:
            self.running[name] -= 1
            over = not self.running[name]
            outputs.append(
                SimpleNamespace(
                    request_id=name,
                    outputs=[SimpleNamespace(token_ids=[7], logprobs=self.leads and [self.leads])],
                    finished=over,
                )
            )
            if over:
                del self.running[name]
        return outputs


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(turn_loads, "time", clock)
    return clock


def served(clock: Clock, **how: Any) -> Any:
    prompts = {"chat": [[1, 2], [3, 4, 5]], "copy": [[1, 2, 1]] * 2}
    prompts["azure"] = [(0.5 * n, 2000, 300) for n in range(200)]
    return SimpleNamespace(
        engine=Stub(clock, 16, **how), prompts=prompts, most=16, made=0, accepted=0, expected_accepted=0.0,
        step=[0, 0, 0, "-"], wait=lambda: None, params=lambda tokens, **sampling: tokens,
    )  # fmt: skip


def test_a_closed_load_keeps_its_requests_and_leaves_none_behind(clock: Clock) -> None:
    engine = served(clock)
    made = LOADS["closed"](engine, {"kind": "chat", "batch": 4, "turn": 0, "seconds": 3.0})
    assert made["tokens"] == 4 * made["steps"]
    assert made["steps"] == pytest.approx(300, abs=1)
    assert set(engine.engine.batches[:299]) == {4}
    assert not engine.engine.running


def test_a_stress_ends_at_its_count_with_batches_of_many_sizes_and_notes_every_stall(clock: Clock) -> None:
    order = {"seed": 1, "seconds": 1e9, "until_steps": 2000, "until_requests": 0, "kind": "short", "policy": "random"}
    engine = served(clock, slow=500)
    made = LOADS["stress"](engine, order)
    assert made["steps"] == 2000
    (stall,) = made["stalls"]
    assert (stall["step"], round(stall["ms"])) == (500, 250)
    assert made["slowest_ms"] == pytest.approx(250)
    assert len(set(engine.engine.batches)) >= 8
    assert made["finished"] + made["aborted"] <= made["requests"]
    assert min(made["finished"], made["aborted"]) > 20
    made = LOADS["stress"](served(clock), {**order, "until_steps": 0, "until_requests": 300})
    assert 300 <= made["finished"] + made["aborted"] < 320
    assert LOADS["stress"](served(clock), {**order, "seconds": 0.5})["took"] == pytest.approx(0.5, abs=0.02)


def test_poisson_arrivals_have_their_rate_and_are_the_same_for_every_engine(clock: Clock) -> None:
    prompts = served(clock).prompts
    order = {"rate": 50.0, "turn": 0, "seconds": 100.0, "speed": 4.0}
    coming = arrivals(prompts, order)
    assert coming == arrivals(prompts, order)
    assert coming != arrivals(prompts, {**order, "turn": 1})
    assert len(coming) == pytest.approx(5000, rel=0.1)
    assert all(0 <= at < 100 for at, _, _ in coming)


def test_the_trace_is_played_piece_by_piece_and_cut_to_what_an_engine_holds(clock: Clock) -> None:
    prompts = served(clock).prompts | {"chat": [list(range(3000))]}
    order = {"rate": 0.0, "seconds": 1.0, "speed": 4.0}
    first, second = (arrivals(prompts, {**order, "turn": n, "start": 4.0 * n}) for n in (0, 1))
    assert [at for at, _, _ in first] == [n / 8 for n in range(8)]
    assert [at for at, _, _ in second] == [n / 8 for n in range(8)]
    assert {(len(prompt), tokens) for _, prompt, tokens in first + second} == {(1024, 200)}


def test_an_open_load_measures_from_arrival_and_counts_who_was_left(clock: Clock) -> None:
    order = {"turn": 0, "seconds": 5.0, "speed": 4.0, "drain": 5.0, "kind": "chat"}
    idle = LOADS["open"](served(clock), {**order, "rate": 1.0})
    assert idle["unfinished"] == 0
    assert idle["tpot_ms"]["p99"] == pytest.approx(10)
    assert idle["ttft_ms"]["p50"] == pytest.approx(10, abs=1)
    busy = LOADS["open"](served(clock), {**order, "rate": 100.0})  # 16 at a time make 1,600 tokens a second: 18 of them
    assert busy["ttft_ms"]["p50"] > 1000
    assert busy["waiting"] > 100
    assert busy["arrived"] == busy["finished"] + busy["unfinished"]
    assert busy["tokens"] / busy["took"] == pytest.approx(1600, rel=0.01)


def test_samples_are_counted_by_their_text(clock: Clock) -> None:
    order = {"kind": "copy", "prompt": 0, "samples": 50, "first": 6, "seed": 0, "temperature": 1.0, "seconds": 99.0}
    made = LOADS["sample"](served(clock), order)
    assert made["texts"] == [[[7] * 6, 50]]
    cut = LOADS["sample"](served(clock), {**order, "seconds": 0.1})
    assert cut["texts"] == [[[7] * 6, 16]]


def test_greedy_texts_come_in_the_order_of_their_prompts_with_the_leads_of_their_tokens(clock: Clock) -> None:
    engine = served(clock)
    engine.engine.leads = {7: SimpleNamespace(logprob=-0.5), 9: SimpleNamespace(logprob=-2.0)}
    order = {"prompts": 2, "first": 3, "batch": 2, "seconds": 9.0, "with_leads": True}
    made = LOADS["texts"](engine, order)
    assert made["written"] == [[7, 7, 7]] * 4  # two prompts of each kind
    assert made["leads"] == [[1.5] * 3] * 4


def test_acceptance_is_written_by_position_given_the_one_before_and_adaptive_verification_knows_it() -> None:
    rates, zeros = [0.8, 0.6, 0.3], torch.zeros
    now, stale = zeros(3), SimpleNamespace(slope=torch.ones(1), intercepts=zeros(3), info=torch.ones(3, 3))
    stale.grad, stale.counts = torch.ones(3, 2), torch.ones(3)
    set_acceptance(rates, now, stale)
    assert now.tolist() == pytest.approx([0.8, 0.75, 0.5])
    assert now.cumprod(0).tolist() == pytest.approx(rates)
    assert torch.sigmoid(stale.slope * -11 + stale.intercepts).tolist() == pytest.approx([0.8, 0.75, 0.5])
    assert not any(learned.any() for learned in (stale.info, stale.grad, stale.counts))


def test_stock_engines_have_nothing_of_wagers_and_the_same_drafter_and_graphs() -> None:
    table = [[1, 1, 0], [2, 2, 1]]
    speculative = {"method": "eagle", "model": "head", "num_speculative_tokens": 1, TABLE: table}
    ours = {"model": "target", "scheduler_cls": "wager", "additional_config": {"wager": {}}, "sizes": [1, 2]}
    made = {kind: stock({**ours, "speculative_config": speculative}, kind) for kind in ("table", "adaptive", "fixed")}
    assert all(one.keys() == {"model", "sizes", "speculative_config"} for one in made.values())
    assert made["table"]["speculative_config"] == speculative
    without = {key: value for key, value in speculative.items() if key != TABLE}
    assert made["fixed"]["speculative_config"] == without
    assert made["adaptive"]["speculative_config"] == {**without, "enable_adaptive_verification": True}


@pytest.mark.parametrize("plan", PLANS)
def test_every_turn_of_every_plan_can_be_taken_and_its_rows_summed_up(clock: Clock, plan: str) -> None:
    extent = Extent(0.1, 1, window=2.0, stress=1.0, batches=(1, 4), rates=(4, 30), steps=30, requests=30, samples=20)
    leads = {7: SimpleNamespace(logprob=-0.5), 9: SimpleNamespace(logprob=-2.0)}
    rows = []
    for order in orders(plan, extent):
        engine = served(clock)
        engine.engine.leads = leads if order.get("with_leads") else {}
        rows.append({**order, **LOADS[order["do"]](engine, order), "processor_ms": (1.0, 1.0)})
    table = summary(plan, rows)
    assert table
    assert all(lines(plan, table))
    json.dumps(table)
    # No result takes the place of something that was ordered.
    assert all(row[key] == order[key] for row, order in zip(rows, orders(plan, extent), strict=True) for key in order)


def test_what_an_engine_did_before_it_failed_is_known(clock: Clock) -> None:
    engine = served(clock, broken=21)
    with pytest.raises(RuntimeError, match="illegal"):
        LOADS["stress"](engine, {"seed": 0, "seconds": 9.0, "until_steps": 0, "until_requests": 0, "kind": "short"})
    assert engine.live.result()["steps"] == 20
