"""Steps without drafts in vLLM's V2 model runner: its own sample_tokens, with stubs for what it calls."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm.config", reason="vLLM is not installed; see the README on serving")

from vllm.v1.worker.gpu import model_runner
from vllm.v1.worker.gpu.spec_decode.utils import DraftTokensHandler

from wager.vllm import plugin
from wager.vllm.drafts import NOTHING, skip_empty_drafts, skip_idle_speculators
from wager.vllm.speculator import MatchSpeculator

LONGEST, SLOTS = 3, 4


class Noting:
    """A speculator that notes the lengths it is asked for, and what the runner holds meanwhile."""

    supports_mm_inputs = False

    def __init__(self, idle: bool) -> None:
        self.idle_without_drafts, self.asked = idle, list[int]()

    def propose(self, *given: Any, num_speculative_tokens: int, **named: Any) -> Any:
        self.asked.append(num_speculative_tokens)
        return NOTHING


def make_runner(speculator: Any) -> Any:
    """As much of a runner as sample_tokens looks at."""

    class Runner:
        sample_tokens = model_runner.GPUModelRunner.sample_tokens

    states = SimpleNamespace(
        draft_tokens=torch.zeros(SLOTS, LONGEST, dtype=torch.int64), all_token_ids=SimpleNamespace(gpu=None),
        num_computed_tokens=SimpleNamespace(gpu=None), prompt_len=SimpleNamespace(np=None), last_sampled_tokens=None,
        next_prefill_tokens=None,
    )  # fmt: skip
    skip_empty_drafts(states)
    handler = DraftTokensHandler.__new__(DraftTokensHandler)  # without the stream it makes
    handler.req_ids, handler.num_draft_tokens, handler.draft_tokens_np = ["earlier"], LONGEST, None
    gpu = SimpleNamespace(gpu=None)
    runner: Any = Runner()
    vars(runner).update(
        is_last_pp_rank=True, pcp_manager=None, pp_handler=None, aux_output_connector=None, main_stream=None,
        output_copy_stream=None, check_ep_fault=False, adaptive_verification=None, _draft_workspace_lane=0,
        model=SimpleNamespace(compute_logits=None), model_state=SimpleNamespace(supports_mm_inputs=False),
        sample=lambda *_: (SimpleNamespace(sampled_token_ids=None), None, None), req_states=states,
        prompt_logprobs_worker=SimpleNamespace(
            compute_prompt_logprobs=lambda *_: {}, compute_prompt_token_id_logprobs=lambda *_: {}
        ),
        postprocess_sampled=lambda *_: None, draft_tokens_handler=handler, speculator=speculator,
        sampler=SimpleNamespace(sampling_states=SimpleNamespace(temperature=gpu, seeds=gpu)),
        num_speculative_steps=LONGEST, eplb=SimpleNamespace(step=lambda **_: None),
        kv_connector=SimpleNamespace(post_forward=lambda _, **how: None, finalize_step=lambda: None),
    )  # fmt: skip
    return runner


def step(runner: Any, length: int, *, verified: int = 0, structured: bool = False) -> Any:
    batch = SimpleNamespace(
        req_ids=["now"], idx_mapping=torch.tensor([1]), query_start_loc=None, num_draft_tokens=verified,
        has_structured_output_reqs=structured,
    )  # fmt: skip
    names = ("attn_metadata", "slot_mappings_by_layer", "hidden_states", "aux_hidden_states", "dp_sync_state")
    runner.execute_model_state = SimpleNamespace(
        input_batch=batch, num_spec_tokens_to_schedule=length, finished_req_ids=set(), ec_connector_output=None,
        cudagraph_stats=None, **dict.fromkeys(names, torch.zeros(1)),
    )  # fmt: skip
    return runner.sample_tokens(None)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setattr(model_runner, "AsyncOutput", lambda **given: given["model_runner_output"].req_ids)

    def made(speculator: Any, skip: bool = True) -> Any:
        runner = make_runner(speculator)
        if skip:
            skip_idle_speculators(type(runner))
            skip_idle_speculators(type(runner))  # once is enough
        return runner

    return made


@pytest.mark.parametrize("idle", [True, False])
def test_only_a_speculator_that_is_idle_without_drafts_is_passed_over_and_only_there(make: Any, idle: bool) -> None:
    runner = make(Noting(idle))
    assert [step(runner, length) for length in (0, 2, 0, 0, 3, 0)] == [["now"]] * 6
    assert runner.speculator.asked == ([2, 3] if idle else [0, 2, 0, 0, 3, 0])
    assert runner.num_speculative_steps == LONGEST
    assert not hasattr(type(runner).sample_tokens.original, "original")


def test_it_is_called_where_the_runner_needs_it(make: Any) -> None:
    runner = make(Noting(True))
    seen: list[Any] = []

    def sample(*_: Any) -> Any:
        seen.append(runner.speculator)
        return SimpleNamespace(sampled_token_ids=None), None, None

    runner.sample = sample
    step(runner, 0, verified=2)  # the rejection sampler reads its logits
    assert seen == [runner.speculator]
    runner.draft_tokens_handler = SimpleNamespace(set_draft_tokens=lambda batch, drafts: seen.append(drafts.shape))
    step(runner, 0, structured=True)
    assert seen[-1] == (1, 0), "the scheduler checks drafts against a grammar"
    asked = len(runner.speculator.asked)
    runner.pp_handler = SimpleNamespace(broadcast=lambda *_: None, broadcast_drafts=lambda *_: None)
    step(runner, 0)
    assert len(runner.speculator.asked) == asked + 1, "other ranks are told of the drafts"
    assert runner.speculator.asked == [0, 0, 0]


@pytest.mark.parametrize("skip", [True, False])
def test_a_scheduler_that_asks_for_drafts_is_told_that_there_are_none(make: Any, skip: bool) -> None:
    runner = make(Noting(True), skip)
    step(runner, 0)
    said = runner.draft_tokens_handler.get_draft_tokens()
    assert (said.req_ids, said.draft_token_ids) == (["now"], [[]])
    step(runner, 2)
    assert runner.draft_tokens_handler.get_draft_tokens().draft_token_ids == [[-1, -1]]


def test_the_speculator_is_back_after_an_error_and_without_a_step(make: Any) -> None:
    runner = make(Noting(True))
    runner.postprocess_sampled = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        step(runner, 0)
    assert isinstance(runner.speculator, Noting)
    assert runner.num_speculative_steps == LONGEST
    runner.execute_model_state = None
    assert runner.sample_tokens(None) is None


def test_matching_alone_is_idle_without_drafts_and_no_other_speculator() -> None:
    from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator

    assert MatchSpeculator.idle_without_drafts
    assert not hasattr(BaseSpeculator, "idle_without_drafts")


def test_the_plugin_sees_to_it_in_engines_of_wagers(monkeypatch: pytest.MonkeyPatch) -> None:
    from test_speculator import DEVICE, config, settings, states

    class Runner:
        def sample_tokens(self, grammar_output: Any) -> None: ...

    monkeypatch.setattr(model_runner, "GPUModelRunner", Runner)
    plain = SimpleNamespace(additional_config={})
    factory = plugin._init_speculator(lambda *_: None)
    factory(plain, DEVICE, states())
    assert not hasattr(Runner.sample_tokens, "original")
    factory(config(settings("suffix")), DEVICE, states())
    assert hasattr(Runner.sample_tokens, "original")
