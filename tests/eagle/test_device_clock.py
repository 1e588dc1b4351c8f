"""Rounds on the device: what is played before the first text, and how their forwards are timed."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from test_device_rounds import PROMPT, Setup, settings

CUDA = torch.cuda.is_available()
needs_kernels = pytest.mark.skipif(
    not CUDA and os.environ.get("TRITON_INTERPRET") != "1", reason="needs CUDA, or Triton's interpreter"
)


@needs_kernels
def test_warming_plays_every_arm_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(tmp_path, monkeypatch)
    decoder, played = setup.decoder(["eagle:4", "eagle:3@3x8", "suffix:3", "off"])
    assert played == [4], "one round of each arm of the head, and one with a proposal beside it"
    assert decoder.target.length == 0
    assert decoder.drafters["eagle"].lag == 0
    assert (
        decoder.generate(PROMPT, **settings(False)).tokens == setup.alone().generate(PROMPT, **settings(False)).tokens
    )


class Clock:
    """An event of the device; between two of them it has worked for 2 ms."""

    def record(self) -> None:
        pass

    def elapsed_time(self, other: "Clock") -> float:
        return 2.0


class Forwards:
    """A target whose forwards take as many milliseconds of the host's clock as were given."""

    length, now = 7, 0.0

    def __init__(self, took: list[float]) -> None:
        self.took = iter(took)

    def forward(self, tokens: list[int], last: int) -> torch.Tensor:
        self.length += len(tokens)
        self.now += next(self.took) / 1e3
        return torch.zeros(1, 4)

    def crop(self, length: int) -> None:
        self.length = length


@needs_kernels
@pytest.mark.parametrize(("took", "waiting"), [([9.0, 2.5, 2.3, 4.0], 0.3), ([1.9, 9.0, 9.0, 9.0], 0.0)])
def test_waiting_is_the_least_time_beyond_the_devices_own(
    monkeypatch: pytest.MonkeyPatch, took: list[float], waiting: float
) -> None:
    from wager.eagle import device_round

    target: Any = Forwards(took)
    rounds = device_round.DeviceRounds.__new__(device_round.DeviceRounds)
    rounds.target, rounds.clock, rounds.cuda = target, [Clock(), Clock()], True
    monkeypatch.setattr(device_round, "perf_counter", lambda: target.now)
    assert rounds._time_waiting(3) == pytest.approx(waiting / 1e3)
    assert target.length == 7, "the text is left alone"
