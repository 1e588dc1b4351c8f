"""Steps without drafts, and steps in which matching drafts alone.

The V2 model runner copies drafts to and fro in every step; each copy is a kernel launch.
"""

from functools import wraps
from typing import Any

import torch


class MatchOnly(int):
    """A draft length that the scheduler sets for a step in which matching drafts alone, beside a model.

    vLLM takes it for the number it is, so that wherever its kind is lost, the model drafts as well.
    """


class _Nothing:
    """What a speculator returns for a step without drafts, or whose drafts are in the runner's table already; the
    runner may write to it."""

    shape = (0, 0)  # [requests, length]

    def __setitem__(self, where: Any, value: Any) -> None:
        """There is nothing to write to."""


NOTHING = _Nothing()


class DraftTable(torch.Tensor):
    """The runner's drafts by slot. Where there are none nothing is written, and no tokens are read without a launch."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # a plain tensor otherwise

    def __setitem__(self, where: Any, value: Any) -> None:
        if value is not NOTHING:
            super().__setitem__(where, value)

    def __getitem__(self, where: Any) -> Any:
        if isinstance(where, tuple) and where[1:] == (slice(None, 0, None),):
            return self.new_empty(len(where[0]), 0)
        return super().__getitem__(where)


def skip_empty_drafts(states: Any) -> None:
    """Let speculators return NOTHING to the runner that has these request states."""
    states.draft_tokens = states.draft_tokens.as_subclass(DraftTable)


def skip_idle_speculators(runner_class: type[Any]) -> None:
    """Have model runners of this class pass over their speculator where nothing is drafted, if it says so.

    A speculator with a true ``idle_without_drafts`` neither drafts nor learns anything in a step of length 0. vLLM
    calls it all the same, and looks up the drafts of every request. In a step of a small model this is a noticeable
    share of the CPU's time, as its code and data are seldom in the caches by then.
    """
    sample = runner_class.sample_tokens
    if hasattr(sample, "original"):
        return

    @wraps(sample)
    def sample_tokens(runner: Any, grammar_output: Any) -> Any:
        state, speculator, longest = runner.execute_model_state, runner.speculator, runner.num_speculative_steps
        if (
            state is None
            or state.num_spec_tokens_to_schedule
            or not getattr(speculator, "idle_without_drafts", False)
            or state.input_batch.num_draft_tokens  # the sampler that verifies them asks the speculator for its logits
            or state.input_batch.has_structured_output_reqs  # whose drafts are told to the scheduler
            or runner.pp_handler is not None  # as are those of a pipeline to its other ranks
        ):
            return sample(runner, grammar_output)
        runner.speculator, runner.num_speculative_steps = None, 0
        try:
            return sample(runner, grammar_output)
        finally:
            runner.speculator, runner.num_speculative_steps = speculator, longest
            runner.draft_tokens_handler.set_draft_tokens(state.input_batch, NOTHING)  # synchronous scheduling reads it

    sample_tokens.original = sample  # type: ignore[attr-defined]
    runner_class.sample_tokens = sample_tokens
