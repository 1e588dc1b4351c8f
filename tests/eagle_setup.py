"""Targets that have read a text, and EAGLE drafters that follow them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from heads import TEXT, config, weights
from reference.eagle import SlowHead

from wager.eagle.cuda_graphs import CUDAGraphHead
from wager.eagle.drafter import Eagle
from wager.models.runner import Runner
from wager.models.select import runner


def reading(model: Any, text: Sequence[int] = TEXT) -> Runner:
    """A target that has read the text but for its last token."""
    target = runner(model)
    target.watch()
    target.begin()
    target.prefill(text[:-1])
    return target


def feed(target: Runner, text: Sequence[int]) -> None:
    """Let the target read what it has not."""
    if target.length < len(text):
        target.prefill(text[target.length :])


def following(folder: Path, target: Runner, text: Sequence[int] = TEXT, **how: Any) -> Eagle:
    """A drafter at the end of a text that the target has read."""
    return begun(Eagle(folder, **how), target, text)


def begun(eagle: Eagle, target: Runner, text: Sequence[int] = TEXT) -> Eagle:
    """The drafter at the end of a text that the target has read."""
    eagle.follow(target)
    eagle.begin(text[:-1])
    eagle.extend(text[-1:])
    return eagle


def slow(model: Any, seed: int = 1) -> SlowHead:
    return SlowHead(weights(model, seed), config(model), model)


def features(model: Any, text: Sequence[int] = TEXT) -> torch.Tensor:
    """The model's own, not through wager."""
    with torch.no_grad():
        return model.model(input_ids=torch.tensor([text])).last_hidden_state[0]


def graphed(
    folder: Path, target: Runner, text: Sequence[int] = TEXT, kind: type[CUDAGraphHead] = CUDAGraphHead, **how: Any
) -> tuple[Eagle, Any]:
    """A drafter by the graphs' bodies, which nothing captures here."""
    eagle, graphs = Eagle(folder, **how), kind(folder, **how)
    eagle.head = graphs
    return begun(eagle, target, text), graphs
