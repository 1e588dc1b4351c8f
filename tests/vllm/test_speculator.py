"""Matching as a speculator of vLLM's V2 model runner, with as much of a runner as it looks at."""

import inspect
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm.config", reason="vLLM is not installed; see the README on serving")

from test_speculator_matching import SLOTS, texts, write
from vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator import StandaloneARSpeculator

from wager.vllm import plugin, speculator
from wager.vllm.drafts import NOTHING, MatchOnly
from wager.vllm.settings import Settings
from wager.vllm.speculator import MatchSpeculator, add_matching, limit_draft_model, make_speculator

DEVICE = torch.device("cpu")
REPEATS = [1, 2, 3, 4, 9, 1, 2, 3, 4]  # a match of four tokens, then 9, 1, 2
SHORT = [1, 2, 3, 9, 1, 2]  # one of two, then 3, 9, 1


def states(*slots: list[int]) -> Any:
    made = texts()
    made.free, made.order = [], []
    made.draft_tokens = torch.full((SLOTS, 3), 4)
    made.num_speculative_steps, made.vocab_size = 3, 40
    made.remove_request = lambda name: made.free.append(name) or (int(name) if name.isdigit() else None)
    made.apply_staged_writes = lambda: made.order.append(made.total_len.gpu.tolist())
    for slot, text in enumerate(slots):
        write(made, slot, text)
    return made


def settings(*drafters: str, length: int = 3) -> Settings:
    return Settings(drafters, length, speculator=True)


def batch(rows: list[int]) -> Any:
    return SimpleNamespace(
        num_reqs=len(rows), idx_mapping=torch.tensor(rows), seq_lens_cpu_upper_bound=torch.tensor([60] * len(rows))
    )


def call(of: Any, rows: list[int], length: int = 3) -> Any:
    """As the runner calls it: by position as far as the seeds, the rest by name."""
    sampled = torch.ones(len(rows), dtype=torch.int32)
    last = torch.full((SLOTS, 1), 7)
    return of.propose(
        batch(rows), None, None, None, None, sampled, sampled, last, None, None, None,
        num_speculative_tokens=length, dp_sync_state=None, mm_inputs=None,
    )  # fmt: skip


def propose(of: Any, rows: list[int], length: int = 3) -> torch.Tensor:
    """The drafts of these requests, wherever they are."""
    drafts: torch.Tensor = call(of, rows, length)
    return of.matcher.texts.draft_tokens[rows] if drafts is NOTHING else drafts  # type: ignore[no-any-return]


class Model:
    """A model's speculator: it drafts 50 and counts what it was asked for."""

    def __init__(self, logits: torch.Tensor | None = None) -> None:
        self.draft_logits, self.calls = logits, []
        self.draft_tokens = torch.zeros(SLOTS, 3, dtype=torch.int64)

    def capture(self) -> None:
        self.calls.append("capture")

    def propose(self, *given: Any, **named: Any) -> torch.Tensor:
        self.calls.append((given, named))
        return self.draft_tokens.fill_(50)[: given[0].num_reqs] if given else self.draft_tokens


def config(given: Settings, *, dtype: torch.dtype = torch.float32, sampling: str = "standard") -> Any:
    ngram = len(given.drafters) == 1 and given.speculator
    spec = SimpleNamespace(
        method="ngram_gpu" if ngram else "eagle", use_ngram=lambda: ngram, rejection_sample_method=sampling,
        num_speculative_tokens=3, num_speculative_tokens_per_batch_size=None,
    )  # fmt: skip
    parts = {"model_config": SimpleNamespace(dtype=dtype), "parallel_config": SimpleNamespace(data_parallel_size=1)}
    return SimpleNamespace(additional_config=given.additional_config(), speculative_config=spec, **parts)


def test_arguments_are_where_vllm_has_them() -> None:
    _, *names = inspect.signature(speculator.BaseSpeculator.propose).parameters
    found = [names[at] for at in (speculator.BATCH, speculator.SAMPLED, speculator.LAST)]
    assert found == ["input_batch", "num_sampled", "last_sampled"]


def test_alone_it_drafts_for_every_request() -> None:
    drafts = propose(MatchSpeculator(settings("prompt-lookup"), states(SHORT, [5, 6], REPEATS), DEVICE), [2, 1, 0])
    assert drafts.tolist() == [[9, 1, 2], [7, 7, 7], [3, 9, 1]]


def test_it_launches_nothing_at_length_0_nor_in_a_dummy_run(monkeypatch: pytest.MonkeyPatch) -> None:
    made = MatchSpeculator(settings("suffix"), states(REPEATS), DEVICE)
    beside = add_matching(Model(), settings("suffix", "eagle=HEAD"), states(REPEATS), DEVICE)
    for of in (made, beside):
        monkeypatch.setattr(of.matcher, "draft", lambda *given: pytest.fail("launched"))
        monkeypatch.setattr(of.matcher, "flush", lambda: pytest.fail("launched"))
        propose(of, [0], length=0)
        of.propose(input_batch=batch([0]), dummy_run=True)  # by name, as the runner does


def test_in_a_step_of_matching_alone_the_model_drafts_nothing_and_every_request_has_a_match_or_a_placeholder() -> None:
    model = Model()
    of = states(SHORT, [5, 6], REPEATS)
    made = add_matching(model, settings("suffix", "eagle=HEAD"), of, DEVICE)
    learned = [made.matcher.choice.gains.tolist(), made.matcher.choice.kept.tolist()]
    drafts = propose(made, [2, 1, 0], length=pickle.loads(pickle.dumps(MatchOnly(2))))
    assert [row[:2] for row in drafts.tolist()] == [[9, 1], [7, 7], [3, 9]]
    assert [named["num_speculative_tokens"] for _, named in model.calls] == [0]
    # nothing is there to be compared with a model's draft
    assert [made.matcher.choice.gains.tolist(), made.matcher.choice.kept.tolist()] == learned
    assert propose(made, [2, 1, 0], length=2).tolist() == [[9, 1, 2], [50, 50, 50], [50, 50, 50]]
    assert [named["num_speculative_tokens"] for _, named in model.calls] == [0, 2]
    as_a_number: Any = 2 + MatchOnly(0)
    assert type(as_a_number) is int, "whoever computes with it gets the length alone: then the model drafts as well"


def test_a_step_of_matching_alone_that_the_model_drafts_in_is_seen() -> None:
    model = Model()
    made = add_matching(model, settings("suffix", "eagle=HEAD"), states(REPEATS), DEVICE)
    propose(made, [0], length=int(MatchOnly(2)))  # the bug: its kind is lost on the way
    assert [named["num_speculative_tokens"] for _, named in model.calls] == [2]


def test_a_draft_model_makes_no_more_forwards_than_it_is_asked_for_tokens() -> None:
    """vLLM's own drafts the maximum whatever it is asked for: the reason for this, seen in its source."""
    model, made = Model(), []
    model.num_speculative_steps = 3

    def draft(*given: Any, **named: Any) -> torch.Tensor:
        made.append(model.num_speculative_steps)
        if given[0].num_reqs == 3:
            raise RuntimeError
        return model.draft_tokens[: given[0].num_reqs, : model.num_speculative_steps]

    model.propose = draft
    limit_draft_model(model)
    shapes = [tuple(propose(model, [0, 1], length=length).shape) for length in (0, 1, 2, 3)]
    assert made == [1, 1, 2, 3]
    assert set(shapes) == {(2, 3)}, "the runner writes drafts of the maximum length"
    model.propose(batch([0, 1]), dummy_run=True)
    with pytest.raises(RuntimeError):
        propose(model, [0, 1, 2], length=1)
    assert made[4:] == [3, 1]
    assert model.num_speculative_steps == 3
    source = inspect.getsource(StandaloneARSpeculator)
    assert "range(1, self.num_speculative_steps)" in source
    assert source.count("num_speculative_tokens") == 1, "vLLM reads the length by now: leave this out"


def test_without_drafts_the_runner_copies_nothing_and_matches_are_where_it_looks_for_them() -> None:
    of = states(REPEATS, [5, 6], SHORT)
    made = make_speculator(None, config(settings("prompt-lookup")), DEVICE, of)
    slots = torch.tensor([0, 2])

    def as_the_runner(length: int) -> torch.Tensor:
        drafts = call(made, [0, 2], length)
        if length < 3:
            drafts[:, length:] = -1
        of.draft_tokens[slots] = drafts
        read: torch.Tensor = of.draft_tokens[slots, :length]
        return read

    assert as_the_runner(0).shape == (2, 0)
    assert of.draft_tokens[1:].tolist() == [[4] * 3] * (SLOTS - 1)  # the first row is that of the warm-up
    assert as_the_runner(2).tolist() == [[9, 1], [3, 9]]
    assert of.draft_tokens[1].tolist() == [4] * 3, "another request's"
    of.draft_tokens[slots] = torch.full((2, 3), 8)  # a model's
    assert of.draft_tokens[:3].tolist() == [[8] * 3, [4] * 3, [8] * 3]
    assert type(of.draft_tokens + 1) is torch.Tensor
    of.draft_tokens[0].zero_()
    assert of.draft_tokens[0].tolist() == [0, 0, 0]


def test_beside_a_model_long_matches_are_taken_and_the_model_is_asked_as_always() -> None:
    model = Model()
    made = add_matching(model, settings("prompt-lookup", "eagle=HEAD"), states(SHORT, REPEATS, [5]), DEVICE)
    assert made is model  # vLLM loads and captures it by its class
    assert propose(made, [0, 1, 2]).tolist() == [[50] * 3, [9, 1, 2], [50] * 3]
    given, named = model.calls[-1]
    assert len(given) == 11
    assert named["num_speculative_tokens"] == 3
    made.matcher.choice.gains.fill_(1)
    assert propose(made, [0, 1, 2]).tolist() == [[3, 9, 1], [9, 1, 2], [50] * 3]
    made.matcher.choice.gains.fill_(0)
    assert propose(made, [0, 1, 2]).tolist() == [[50] * 3] * 3
    propose(made, [0], length=0)
    assert model.calls[-1][1]["num_speculative_tokens"] == 0  # its cache stays in step


def test_drafts_drawn_from_a_model_are_refused_for_a_match_was_not_drawn() -> None:
    with pytest.raises(ValueError, match="leave draft_sample_method greedy"):
        add_matching(Model(torch.zeros(1)), settings("suffix", "eagle=HEAD"), states(), DEVICE)


@pytest.mark.parametrize("drafter", ["suffix", "prompt-lookup"])  # which alone remembers nothing of others
def test_a_finished_text_is_remembered_before_its_slot_is_written_to(drafter: str) -> None:
    of = states(REPEATS, [8, 1, 2])
    made = MatchSpeculator(settings(drafter), of, DEVICE)
    assert of.remove_request("0") == 0
    assert of.remove_request("unknown") is None
    assert of.free == ["0", "unknown"]
    of.apply_staged_writes()  # vLLM's own, called after the text was copied
    assert of.order
    write(of, 0, [0])
    if drafter == "suffix":
        assert [token for token in made.matcher.finished() if token >= 0] == REPEATS
    # the later of two matches, which ends with its text
    assert propose(made, [1]).tolist() == [[3, 4, 7] if drafter == "suffix" else [7, 7, 7]]


def test_texts_in_the_memory_of_the_cpu_are_moved_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    of = states()
    of.all_token_ids._uva_buf = object()
    made: list[Any] = []
    monkeypatch.setattr(
        speculator, "StagedWriteTensor", lambda size, dtype, device: made.append((size, dtype)) or texts().all_token_ids
    )
    add_matching(Model(), settings("suffix", "eagle=HEAD"), of, DEVICE)
    assert made == [((SLOTS, 64), torch.int32)]
    MatchSpeculator(settings("suffix"), states(), DEVICE)
    assert len(made) == 1


def test_the_plugin_makes_the_speculator_that_the_settings_ask_for() -> None:
    asked: list[Any] = []
    model = Model()
    replaced = plugin._init_speculator(lambda *given: asked.append(given) or model)
    assert isinstance(replaced(config(settings("suffix")), DEVICE, states()), MatchSpeculator)
    assert not asked
    assert replaced(config(settings("suffix", "eagle=HEAD")), DEVICE, states()) is model
    assert len(asked) == 1
    made = config(settings("prompt-lookup"))
    assert isinstance(make_speculator(None, made, DEVICE, states()), MatchSpeculator)
    assert made.speculative_config.num_speculative_tokens_per_batch_size[-1] == [4, 4, 3], "a rank's lengths are back"


def test_the_runner_finds_every_attribute_it_asks_a_speculator_for() -> None:
    made = MatchSpeculator(settings("suffix"), states(), DEVICE)
    assert made.draft_logits is None
    assert not made.supports_mm_inputs
    assert (made.num_query_per_req, made.num_extra_query_per_req) == (1, 0)
    assert made.init_cudagraph_manager(None) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("given", [settings("suffix"), settings("suffix", "eagle=HEAD"), Settings(("eagle=HEAD",), 3)])
def test_verification_is_compiled_before_the_first_request(
    given: Settings, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[Any] = []
    monkeypatch.setattr(speculator, "rejection_sample", lambda *given, **named: called.append((*given, named)))
    of = states()
    for sampling in ("standard", "synthetic", "block"):
        make_speculator(lambda *_: Model(), config(given, dtype=dtype, sampling=sampling), DEVICE, of).capture()
        logits, draft_logits, *_, length, rates, named = called.pop()
        assert (logits.dtype, logits.shape, draft_logits, length) == (dtype, (4, 40), None, 3)
        assert (rates is not None, named["use_block_verification"]) == (sampling == "synthetic", sampling == "block")
        assert not called
