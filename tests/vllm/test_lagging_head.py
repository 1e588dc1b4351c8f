"""A head that skips steps without drafts has read the same in the end as one that reads every step."""

import os
import random
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("vllm.config", reason="vLLM is not installed; see the README on serving")

from test_lagging_layers import FULL, cache

from wager.vllm import lagging
from wager.vllm.lagging_head import LaggingHead, is_head

SLOTS, SIZE, CONTEXT = 5, 4, 400
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


class Head:
    """Notes what it reads and where that is written: a slot's place in the cache is its number and the position."""

    def __init__(self) -> None:
        self.max_num_reqs, self.max_num_tokens, self.max_model_len = SLOTS, 64, CONTEXT
        self.hidden_size, self.dtype, self.device = SIZE, torch.float32, torch.get_default_device()
        self.hidden_states = torch.zeros(64, SIZE)
        self.draft_tokens = torch.zeros(SLOTS, 3, dtype=torch.int64)
        self.kv_cache_config, self.draft_attn_layer_names = None, {"layer"}
        self.model = SimpleNamespace(combine_hidden_states=lambda states: states.view(-1, 3, SIZE).sum(1))
        self.input_buffers = SimpleNamespace(
            input_ids=torch.zeros(64, dtype=torch.int32),
            positions=torch.zeros(64, dtype=torch.int64),
            query_start_loc=torch.zeros(SLOTS + 1, dtype=torch.int32),
            seq_lens=torch.zeros(SLOTS, dtype=torch.int32),
        )
        self.block_tables = SimpleNamespace(
            slot_mappings=torch.zeros(1, 64, dtype=torch.int64), compute_slot_mappings=self.compute
        )
        self.cache: dict[int, tuple[int, float]] = {}  # place -> token, hidden state
        self.order: list[int] = []
        self.forwards = 0

    def set_attn(self, state: Any, kv_cache_config: Any) -> None:
        self.kv_cache_config = kv_cache_config

    def compute(self, rows: Any, starts: Any, positions: Any, total: int, out: torch.Tensor) -> torch.Tensor:
        request = torch.repeat_interleave(torch.arange(len(rows)), starts.diff().long())
        out[0, :total] = rows[request] * CONTEXT + positions[:total]
        return out[:, :total]

    def _build_attn_metadata(self, **given: Any) -> Any:
        starts, lengths = given["query_start_loc_np"], self.input_buffers.seq_lens[: given["num_reqs"]]
        written = given["slot_mappings"][0].tolist()
        for end, length in zip(starts[1:], lengths.tolist(), strict=True):
            if written[end - 1] >= 0:  # it missed something: the newest of it ends the text as attention sees it
                assert written[end - 1] % CONTEXT == length - 1
        assert given["batch_desc"].num_tokens == starts[-1]
        return given["slot_mappings"]

    def _run_model(self, total: int, metadata: Any, mapping: Any, across: None) -> None:
        self.forwards += 1
        tokens, hidden = self.input_buffers.input_ids[:total].tolist(), self.hidden_states[:total, 0].tolist()
        self.write(metadata[0].tolist(), tokens, hidden)

    def write(self, places: list[int], tokens: list[int], hidden: list[float]) -> None:
        for place, token, state in zip(places, tokens, hidden, strict=True):
            if place >= 0:
                self.cache[place] = token, state
                self.order.append(place)

    def propose(self, batch: Any, *given: Any, **named: Any) -> torch.Tensor:
        if not named.get("dummy_run"):
            self.forwards += 1
            tokens, states = zip(*batch.kept.values(), strict=True) if batch.kept else ((), ())
            self.write(list(batch.kept), list(tokens), list(states))
        return self.draft_tokens[: batch.num_reqs]


@pytest.fixture(autouse=True)
def mappings(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.worker.gpu import attn_utils

    monkeypatch.setattr(attn_utils, "build_slot_mappings_by_layer", lambda mapping, config: {"layer": mapping})


class Run:
    """Requests that decode, in any order and company, with a head that lags and what it should have read."""

    def __init__(self, seed: int, window: int, *, layers: bool = False) -> None:
        self.rng = random.Random(seed)
        self.head = Head()
        self.states = SimpleNamespace(remove_request=int)
        self.lag = LaggingHead(self.head, self.states, window)
        self.head.set_attn(None, cache(layer=FULL))
        self.layers = layers  # whether the head reads several layers
        self.ends: dict[int, int] = {}  # slot -> tokens read by the target
        self.expected: dict[int, tuple[int, float]] = {}

    def step(self, slots: list[int], length: int, tokens: int = 1, *, right: int = 0, prefill: bool = False) -> None:
        """The target reads so many tokens of each request, ``right`` of them at most are right; 0: all.

        The head is asked for drafts of this length.
        """
        counts = [self.rng.randint(1, right) if right else tokens for _ in slots]
        read = [slot * CONTEXT + self.ends[slot] + i for slot in slots for i in range(tokens)]
        ids = [self.rng.randrange(1000) for _ in read]
        hidden = [float(self.rng.randrange(1000)) for _ in read]
        last = torch.zeros(SLOTS, 1, dtype=torch.int64)
        kept: dict[int, tuple[int, float]] = {}
        for i, (slot, count) in enumerate(zip(slots, counts, strict=True)):
            last[slot] = self.rng.randrange(1000)
            new = [*ids[i * tokens + 1 : i * tokens + count], int(last[slot])]
            own = slice(i * tokens, i * tokens + count)
            kept.update(zip(read[own], zip(new, hidden[own], strict=True), strict=True))
            self.ends[slot] += count
        self.expected.update(kept)
        ends = torch.tensor([self.ends[slot] for slot in slots])
        batch = SimpleNamespace(
            num_reqs=len(slots),
            has_prefill=prefill,
            num_scheduled_tokens=np.full(len(slots), tokens),
            query_start_loc_np=np.arange(len(slots) + 1) * tokens,
            query_start_loc=torch.arange(len(slots) + 1, dtype=torch.int32) * tokens,
            input_ids=torch.tensor(ids, dtype=torch.int32),
            idx_mapping=torch.tensor(slots),
            idx_mapping_np=np.array(slots),
            positions=torch.tensor([place % CONTEXT for place in read]),
            seq_lens=ends.int(),
            seq_lens_cpu_upper_bound=ends,
            kept=kept,
        )
        states = torch.tensor(hidden)[:, None].expand(-1, SIZE)
        layers = [states / 4, states / 2, states / 4] if self.layers else None
        states = states if layers is None else torch.full_like(states, -1.0)
        given = (batch, None, None, states, layers, torch.tensor(counts, dtype=torch.int32), None, last)
        self.head.propose(*given, None, None, None, num_speculative_tokens=length)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("window", [1, 3, 12, 40])
def test_before_it_drafts_it_has_read_every_token_in_order(seed: int, window: int) -> None:
    lag_of_many_steps(seed, window)


@pytest.mark.parametrize("window", [3, 40])
def test_what_a_head_reads_of_several_layers_is_kept_as_the_one_state_it_makes_of_them(window: int) -> None:
    lag_of_many_steps(0, window, layers=True)


def lag_of_many_steps(seed: int, window: int, kernels: ModuleType | None = None, *, layers: bool = False) -> None:
    run = Run(seed, window, layers=layers)
    run.lag.kernels = kernels or run.lag.kernels
    rng = run.rng
    for _ in range(150):
        for slot in [slot for slot in run.ends if rng.random() < 0.05]:
            run.states.remove_request(slot)
            for place in range(slot * CONTEXT, (slot + 1) * CONTEXT):
                run.expected.pop(place, None)
                run.head.cache.pop(place, None)
            run.head.order = [place for place in run.head.order if place // CONTEXT != slot]
            del run.ends[slot]
        new = [slot for slot in range(SLOTS) if slot not in run.ends and rng.random() < 0.3]
        run.ends.update(dict.fromkeys(new, 0))
        slots = rng.sample(sorted(run.ends), rng.randint(0, len(run.ends)))
        if not slots:
            continue
        length = rng.choice([0, 0, 0, 0, 0, 2])
        tokens = rng.choice([1, 1, 3])
        run.step(slots, length, tokens, right=rng.choice([0, tokens]), prefill=rng.random() < 0.1)
        if length:  # it has read all of these
            for slot in slots:
                own = {place: run.expected[place] for place in run.expected if place // CONTEXT == slot}
                assert {place: run.head.cache.get(place) for place in own} == own
                read = [place for place in run.head.order[::-1] if place // CONTEXT == slot]
                assert list(dict.fromkeys(read)) == sorted(own, reverse=True)  # what was read twice counts once


def test_warming_up_leaves_nothing_missed() -> None:
    run = Run(0, 8)
    run.lag.warm_up()
    run.ends = {0: 0, 1: 0}
    run.step([0, 1], 2)
    assert run.lag.catch_ups == 0
    assert run.head.cache == run.expected


def test_plain_decoding_takes_one_forward_for_a_window_of_steps() -> None:
    run = Run(0, 8)
    run.ends = {0: 0, 1: 0}
    for _ in range(40):
        run.step([0, 1], 0)
    assert run.head.forwards == run.lag.catch_ups == 4
    run.step([0, 1], 2)
    assert run.head.forwards == 6
    for _ in range(6):  # drafts of two tokens by another are verified; two such steps are kept
        run.step([0, 1], 0, tokens=3)
    assert run.head.forwards == 8
    run.step([0, 1], 2)
    assert run.head.cache == run.expected


def test_beside_a_prefill_nobody_catches_up_and_nothing_is_lost() -> None:
    run = Run(0, 8)
    run.ends = {0: 0, 1: 0, 2: 0}
    run.step([0, 1, 2], 0)
    run.step([2, 0, 1], 0, prefill=True)
    run.step([0, 1], 0)
    assert run.lag.catch_ups == 0
    assert run.lag.most_missed.tolist()[:3] == [3, 3, 2]
    run.step([0, 1, 2], 0, tokens=6, prefill=True)  # more than are kept: they catch up
    assert run.lag.catch_ups == 1
    assert not run.lag.most_missed.any()
    run.step([1, 0, 2], 1)
    assert run.head.cache == run.expected


@pytest.mark.parametrize(("size", "window"), [(SIZE, 512), (100_000, 67), (300_000, 32)])
def test_as_much_is_kept_as_fits(size: int, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "zeros", torch.empty)  # memory that is not touched
    head = Head()
    head.hidden_size = size
    assert LaggingHead(head, SimpleNamespace(remove_request=int)).window == window


def test_a_dummy_run_skips_nothing() -> None:
    run = Run(0, 8)
    run.ends = {0: 0}
    run.step([0], 0)
    assert run.head.forwards == 0
    run.head.propose(SimpleNamespace(num_reqs=1), dummy_run=True, num_speculative_tokens=0)
    assert run.head.forwards == 0
    assert run.lag.most_missed.tolist() == [1, 0, 0, 0, 0]
    assert not is_head(run.head)  # only heads that read the target's hidden states do


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("window", [3, 12, 40])
def test_the_kernel_does_the_same_on_a_gpu(window: int) -> None:
    pytest.importorskip("triton")
    with torch.device("cuda"):
        lag_of_many_steps(0, window)


def test_only_those_that_have_missed_much_catch_up_while_the_head_lags() -> None:
    run = Run(0, 8)
    run.ends = {0: 0, 1: 0}
    for _ in range(6):
        run.step([0], 0)
    for _ in range(3):
        run.step([1, 0], 0)
    assert run.lag.catch_ups == 1
    assert run.lag.most_missed.tolist()[:2] == [1, 3]
    run.step([0, 1], 2)
    assert run.head.cache == run.expected


@pytest.mark.skipif(INTERPRETED, reason="starts itself over in the interpreter")
def test_the_kernel_does_the_same_in_the_interpreter(rerun_in_interpreter: Callable[[str], None]) -> None:
    rerun_in_interpreter(__file__)


@pytest.mark.skipif(not INTERPRETED, reason="runs in the interpreter, which a test here starts")
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("position % WINDOW", "(position + 1) % WINDOW"),
        ("tl.load(starts + request).to(tl.int64) + number", "tl.load(starts + request).to(tl.int64)"),
        ("number < count - 1", "number < count - 2"),  # the token sampled in the place of the next one read
        ("tl.load(inputs + token + 1)", "tl.load(inputs + token)"),
        ("if number < count:", "if number >= 0:"),  # rejected tokens are kept
        ("tl.where(fresh, 0, before)", "before"),  # what another request has missed
        ("fresh = request % 2 == 1", "pass"),
        ("tl.load(last + slot)", "tl.load(last + request)"),
        ("tl.store(newest + slot, position)", "pass"),
    ],
)
def test_a_bug_in_the_kernel_is_caught(right: str, wrong: str, planted: Callable[..., ModuleType]) -> None:
    from wager.vllm import lag_kernels

    kernels = planted(lag_kernels, right, wrong)
    with pytest.raises(AssertionError):
        lag_of_many_steps(0, 12, kernels)


def test_a_catch_up_that_writes_its_padding_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lagging, "NO_SLOT", 7)  # a place of the first request
    with pytest.raises(AssertionError):
        lag_of_many_steps(0, 3)


def test_rows_that_were_not_missed_would_be_noticed_if_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU counts rejected tokens too: it has the head read more rows than were missed."""
    original = LaggingHead._read

    def read(self: LaggingHead, batch: Any, *given: Any) -> None:
        self.missed.fill_(self.window)
        original(self, batch, *given)

    monkeypatch.setattr(LaggingHead, "_read", read)
    with pytest.raises(AssertionError):
        lag_of_many_steps(0, 12)
