"""Steps without drafts, and steps in which matching drafts alone.

The V2 model runner copies drafts to and fro in every step; each copy is a kernel launch.
"""

from typing import Any

import torch


class MatchOnly(int):
    """A draft length that the scheduler sets for a step in which matching drafts alone, beside a model.

    vLLM takes it for the number it is, so that wherever its kind is lost, the model drafts as well.
    """


class _Nothing:
    """What a speculator returns for a step without drafts, or whose drafts are in the runner's table already; the
    runner may write to it."""

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
