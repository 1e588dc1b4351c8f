"""A draft model that skips steps without drafts has the whole text in its cache whenever it drafts."""

import inspect
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("vllm.config", reason="vLLM is not installed; see the README on serving")

from test_lagging_layers import FULL, cache
from vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator import StandaloneARSpeculator

from wager.vllm import lagging
from wager.vllm.drafts import NOTHING
from wager.vllm.lagging_draft_model import LaggingDraftModel, is_draft_model
from wager.vllm.lagging_head import is_head
from wager.vllm.speculator import skip_steps

SLOTS, CONTEXT = 5, 600
WRONG = -1  # what is computed for a token that does not see exactly the text before it


class DraftModel:
    """Notes what it reads and where that is written: a slot's place in the cache is its number and the position."""

    def __init__(self) -> None:
        self.max_num_reqs, self.max_num_tokens, self.max_model_len = SLOTS, 64, CONTEXT
        self.device = torch.device("cpu")
        self.kv_cache_config, self.draft_attn_layer_names = None, {"layer"}
        self.input_buffers = SimpleNamespace(
            positions=torch.zeros(64, dtype=torch.int64),
            query_start_loc=torch.zeros(SLOTS + 1, dtype=torch.int32),
            seq_lens=torch.zeros(SLOTS, dtype=torch.int32),
        )
        self.block_tables = SimpleNamespace(
            slot_mappings=torch.zeros(1, 64, dtype=torch.int64), compute_slot_mappings=self.compute
        )
        self.cache: dict[int, int] = {}  # place -> token
        self.forwards = 0
        self.drafts = torch.zeros(SLOTS, 3, dtype=torch.int64)

    def set_attn(self, state: Any, kv_cache_config: Any) -> None:
        self.kv_cache_config = kv_cache_config

    def compute(self, rows: Any, starts: Any, positions: Any, total: int, out: torch.Tensor) -> torch.Tensor:
        request = torch.repeat_interleave(torch.arange(len(rows)), starts.diff().long())
        out[0, :total] = rows[request] * CONTEXT + positions[:total]
        return out[:, :total]

    def _build_attn_metadata(self, **given: Any) -> Any:
        assert given["batch_desc"].num_tokens == given["query_start_loc_np"][-1]
        assert given["batch_desc"].num_tokens <= self.max_num_tokens
        # As attention aligns them: a request's last row sees all of its ``seq_lens`` tokens, the row before one fewer.
        starts, lengths = given["query_start_loc_np"], self.input_buffers.seq_lens[: given["num_reqs"]].tolist()
        places = zip(starts[:-1], starts[1:], lengths, strict=True)
        return [length - (end - row) for start, end, length in places for row in range(start, end)]

    def _run_model(self, tokens: torch.Tensor, positions: torch.Tensor, seen: Any, mapping: Any, across: None) -> None:
        self.forwards += 1
        rows = zip(mapping["layer"][0].tolist(), tokens.tolist(), positions.tolist(), seen, strict=True)
        for place, token, position, sees in rows:
            if place >= 0:
                complete = all(place - position + at in self.cache for at in range(position))
                self.cache[place] = token if position == sees and complete else WRONG

    def propose(self, batch: Any, *given: Any, **named: Any) -> torch.Tensor:
        """Reads the step's tokens that are right, and the one sampled after them."""
        if not named.get("dummy_run"):
            self.forwards += 1
            for slot, start, new in batch.right:
                for at, token in enumerate(new):
                    complete = all(slot * CONTEXT + before in self.cache for before in range(start + at))
                    self.cache[slot * CONTEXT + start + at] = token if complete else WRONG
        return self.drafts[: batch.num_reqs]


@pytest.fixture(autouse=True)
def mappings(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.worker.gpu import attn_utils

    monkeypatch.setattr(attn_utils, "build_slot_mappings_by_layer", lambda mapping, config: {"layer": mapping})


class Run:
    """Requests that decode, in any order and company, with a draft model that skips steps."""

    def __init__(self, seed: int, window: int) -> None:
        self.rng = random.Random(seed)
        self.model = DraftModel()
        table = torch.zeros(SLOTS, CONTEXT, dtype=torch.int32)
        self.states = SimpleNamespace(remove_request=int, all_token_ids=SimpleNamespace(gpu=table))
        self.lag = LaggingDraftModel(self.model, self.states, window)
        self.model.set_attn(None, cache(layer=FULL))
        self.texts: dict[int, list[int]] = {}  # slot -> tokens, the last one not read by the target

    def end(self, slot: int) -> None:
        """A request is over; another one will have its slot, its row of the table and its blocks."""
        self.states.remove_request(slot)
        del self.texts[slot]
        for place in range(slot * CONTEXT, (slot + 1) * CONTEXT):
            self.model.cache.pop(place, None)

    def step(self, slots: list[int], length: int, tokens: int = 1, *, right: int = 0) -> Any:
        """The target reads so many tokens of each request, or its prompt, ``right`` of them at most are right; 0: all.

        The draft model is asked for drafts of this length.
        """
        prefill, ids, starts, counts, read = False, [], [], [], [0]
        for slot in slots:
            text = self.texts.setdefault(slot, [])
            new, count = tokens, self.rng.randint(1, right) if right else tokens
            if not text:  # a prompt, of which the last token is sampled
                prefill, new = True, self.rng.randint(1, 9)
                count, text[:] = new, [self.rng.randrange(1000)]
            starts.append(len(text) - 1)
            own = [text[-1], *(self.rng.randrange(1000) for _ in range(new - 1))]
            text += [*own[1:count], self.rng.randrange(1000)]
            ids += own
            counts.append(count)
            read.append(len(ids))
            self.states.all_token_ids.gpu[slot, : len(text)] = torch.tensor(text)
        scheduled = np.diff(read)
        positions = np.concatenate([start + np.arange(new) for start, new in zip(starts, scheduled, strict=True)])
        ends = torch.tensor(starts) + torch.tensor(scheduled)
        batch = SimpleNamespace(
            num_reqs=len(slots),
            has_prefill=prefill,
            num_scheduled_tokens=scheduled,
            query_start_loc=torch.tensor(read, dtype=torch.int32),
            idx_mapping=torch.tensor(slots, dtype=torch.int32),
            idx_mapping_np=np.array(slots),
            positions=torch.tensor(positions),
            seq_lens=ends.int(),
            seq_lens_cpu_upper_bound=ends,
            right=[(slot, start, self.texts[slot][start:]) for slot, start in zip(slots, starts, strict=True)],
        )
        drafts = self.model.propose(batch, *(None,) * 9, num_speculative_tokens=length)
        if length:
            for slot in slots:
                have = [self.model.cache.get(slot * CONTEXT + at) for at in range(len(self.texts[slot]))]
                assert have == self.texts[slot]
        return drafts


def lag_of_many_steps(seed: int, window: int) -> Run:
    run = Run(seed, window)
    rng = run.rng
    for _ in range(200):
        for slot in [slot for slot in run.texts if rng.random() < 0.05]:
            run.end(slot)
        new = [slot for slot in range(SLOTS) if slot not in run.texts and rng.random() < 0.2]
        slots = rng.sample(sorted(run.texts), rng.randint(0, len(run.texts))) + new
        if slots:
            tokens = rng.choice([1, 1, 3])
            run.step(slots, rng.choice([0, 0, 0, 0, 0, 2]), tokens, right=rng.choice([0, tokens]))
            assert run.lag.most_missed.max() <= max(window, 3) + 3
    return run


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("window", [1, 3, 12, 40, 200])
def test_before_it_drafts_it_has_read_the_whole_text(seed: int, window: int) -> None:
    assert lag_of_many_steps(seed, window).lag.catch_ups > 3


def test_steps_without_drafts_take_no_forward() -> None:
    run = Run(0, 100)
    run.step([0, 1], 2)
    assert run.model.forwards == 1, "the prompts"
    for _ in range(90):
        assert run.step([0, 1], 0) is NOTHING
    assert run.model.forwards == 1
    run.step([0, 1], 2)
    assert run.model.forwards == 1 + 3 + 1, "what was missed, 32 tokens of each request at a time, and the draft"
    run.step([1, 0], 2, tokens=3, right=2)
    assert run.model.forwards == 6
    assert run.lag.catch_ups == 1


def test_no_request_misses_more_than_its_window() -> None:
    run = Run(0, 8)
    run.step([0, 1, 2], 0)
    for _ in range(6):
        run.step([0], 0)
    for _ in range(3):
        run.step([1, 0], 0)
    assert run.lag.catch_ups == 1
    assert run.lag.most_missed.tolist()[:3] == [1, 3, 0], "only those that have missed much catch up"
    run.step([0, 1, 2], 2)
    assert not run.lag.most_missed.any()


def test_beside_a_prompt_nobody_catches_up_and_nothing_is_lost() -> None:
    run = Run(0, 8)
    run.step([0, 1], 1)
    run.step([0, 1], 0)
    assert run.step([2, 0, 1], 0) is not NOTHING, "it reads the prompt"
    assert run.lag.catch_ups == 0
    assert run.lag.most_missed.tolist()[:3] == [2, 2, 0]
    run.step([0, 1, 2], 1)
    assert run.lag.catch_ups == 1


def test_a_dummy_run_skips_nothing() -> None:
    run = Run(0, 8)
    run.step([0], 0)
    forwards = run.model.forwards
    drafts = run.model.propose(SimpleNamespace(num_reqs=1), dummy_run=True, num_speculative_tokens=0)
    assert drafts.shape == (1, 3)
    assert run.model.forwards == forwards


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("ends", lambda right: lambda *given: right(*given) + 2),  # one is known: it was sampled when it last drafted
        ("ends", lambda right: lambda *given: right(*given) - 1),
        ("was_read", lambda right: lambda *given: torch.zeros_like(right(*given))),
        ("was_read", lambda right: lambda self, slots, at, back: at <= at.max() // 2),
        ("catch_up", lambda right: lambda self, batch, least=1: right(self, batch, least + 3)),
        ("run", lambda right: lambda self, slots, at, *given: right(self, slots, (at - 1).clamp(min=0), *given)),
        ("run", lambda right: lambda self, slots, at, *given: right(self, slots.flip(0), at, *given)),
    ],
)
def test_a_bug_would_be_noticed(name: str, bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LaggingDraftModel, name, bug(getattr(LaggingDraftModel, name)))
    with pytest.raises(AssertionError):
        lag_of_many_steps(0, 12)


def test_a_catch_up_that_writes_its_padding_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lagging, "NO_SLOT", 7)  # a place of the first request
    with pytest.raises(AssertionError):
        lag_of_many_steps(0, 3)


def bare(*, ranks: int = 1, images: bool = False) -> StandaloneARSpeculator:
    """vLLM's own speculator without its model."""
    made = StandaloneARSpeculator.__new__(StandaloneARSpeculator)
    parallel = {"decode_context_parallel_size": 1, "prefill_context_parallel_size": 1, "data_parallel_size": ranks}
    made.vllm_config = SimpleNamespace(
        parallel_config=SimpleNamespace(**parallel), model_config=SimpleNamespace(is_multimodal_model=images)
    )
    made.max_num_reqs, made.device = SLOTS, torch.device("cpu")
    return made


def test_vllms_draft_model_is_recognised() -> None:
    states: Any = SimpleNamespace(remove_request=int)
    assert is_draft_model(bare())
    assert not is_head(bare())
    assert isinstance(skip_steps(bare(), states), LaggingDraftModel)
    assert skip_steps(bare(ranks=2), states) is None, "its ranks move in step"
    assert skip_steps(bare(images=True), states) is None, "it reads more than tokens"


def test_vllms_draft_model_is_run_as_this_expects() -> None:
    assert [*inspect.signature(StandaloneARSpeculator._run_model).parameters][1:] == [
        "input_ids",
        "positions",
        "attn_metadata",
        "slot_mappings",
        "num_tokens_across_dp",
    ]
    taken = inspect.signature(StandaloneARSpeculator._build_attn_metadata).parameters
    given = ("num_reqs", "batch_desc", "query_start_loc_np", "seq_lens_cpu_upper_bound", "step", "slot_mappings")
    assert set(given) <= set(taken)
