"""What rounds cost is timed at a Decoder's first prompt, in bounded time, kept on disk, and doubted."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from wager.core import OFF, Arm, Calibration
from wager.decoding import calibrate
from wager.decoding.calibrate import BUDGET, RoundTimer, calibrated, widths_of
from wager.decoding.decoder import Decoder
from wager.drafters.base import Draft, Drafter
from wager.drafters.cards import read_card
from wager.drafters.draft_model import DraftModel
from wager.drafters.kinds import made_of
from wager.policies.auto import Auto
from wager.policies.auto.shifts import NOTICED

ARMS = (OFF, *(Arm(name, n) for name in ("cheap", "model") for n in range(1, 9)))


class Machine:
    """A target and a model drafter that move a clock on."""

    trees = False  # so nothing is merged
    limit, device, vocabulary = 1000, torch.device("cpu"), 8

    def __init__(self, seconds: float = 0.02, wide: float = 0.1) -> None:
        self.now, self.length, self.seconds, self.wide = 0.0, 50, seconds, wide
        self.forwards: list[int] = []

    def clock(self) -> float:
        return self.now

    def forward(self, tokens: Sequence[int], keep: int) -> torch.Tensor:
        self.forwards.append(len(tokens))
        self.length += len(tokens)
        self.now += self.seconds * (1 + self.wide * (len(tokens) - 1))
        return torch.zeros(keep, self.vocabulary)

    def crop(self, length: int) -> None:
        self.length = length


class Model(Drafter):
    name, cheap = "model", False

    def __init__(self, machine: Machine, first: float = 0.0) -> None:
        self.machine, self.text = machine, list[int]()
        self.first, self.drafted = first, set[int]()  # seconds beyond the usual of the first draft of a length

    def begin(self, prompt: Sequence[int]) -> None:
        self.text = list(prompt)

    def extend(self, tokens: Sequence[int]) -> None:
        self.text += tokens

    def propose(self, length: int, sample: object = None) -> Draft:
        first = 0.0 if length in self.drafted else self.first
        self.drafted.add(length)
        reading = 0.002 + 4e-5 * len(self.text)
        self.machine.now += 0.001 * length + reading + first
        return Draft([1] * length, lag=len(self.text), lag_seconds=reading)


def timer(machine: Machine, arms: Sequence[Arm] = ARMS, first: float = 0.0) -> RoundTimer:
    text = [1] * 50
    return RoundTimer(machine, {"model": Model(machine, first)}, arms, text, machine.clock)  # type: ignore[arg-type]


def test_the_most_telling_widths_come_first() -> None:
    assert widths_of(ARMS) == [1, 9, 2, 3, 5]
    assert widths_of([OFF, Arm("x", 1)]) == [1, 2]
    assert widths_of([*ARMS, Arm.parse("x:3@4x16")]) == [1, 17, 2, 3, 5, 9]


def test_what_is_timed_is_what_rounds_take_and_nothing_is_left_behind(tmp_path: Path) -> None:
    machine = Machine()
    timing = timer(machine)
    found = calibrated(timing, "here", tmp_path / "rounds.json")
    assert found.verify == pytest.approx({1: 0.02, 2: 0.022, 3: 0.024, 5: 0.028, 9: 0.036})
    assert found.draft == pytest.approx({Arm("model", 8): 0.008, Arm("model", 1): 0.001})
    assert found.catch_up == {"model": {50: 0.004, 16: pytest.approx(0.00264)}}
    assert machine.length == 50
    assert timing.models["model"].text == [1] * 50  # type: ignore[attr-defined]
    assert machine.now < BUDGET["cpu"]


def test_first_drafts_on_a_gpu_are_neither_timed_nor_counted_to_the_time_allowed(tmp_path: Path) -> None:
    machine = Machine(0.001)
    machine.device = torch.device("cuda")
    found = calibrated(timer(machine, first=0.2), "here", tmp_path / "rounds.json")
    assert found.draft == pytest.approx({Arm("model", 8): 0.008, Arm("model", 1): 0.001})
    assert found.verify.keys() == {1, 2, 3, 5, 9}
    assert (tmp_path / "rounds.json").exists()


class Sized(Model):
    """A model of a size, that counts its drafts."""

    def __init__(self, machine: Machine, name: str, size: str) -> None:
        super().__init__(machine)
        self.name, self.own, self.proposed = name, size, 0

    @property
    def size(self) -> str:
        return self.own

    def propose(self, length: int, sample: object = None) -> Draft:
        self.proposed += 1
        self.machine.now += 0.01 * (self.own == "large")
        return super().propose(length, sample)


def test_of_models_of_one_size_one_is_timed() -> None:
    machine = Machine(0.001)
    sizes = {"one": "small", "two": "large", "three": "small", "four": "small"}
    models = {name: Sized(machine, name, size) for name, size in sizes.items()}
    arms = [Arm(name, n) for name in ("one", "two", "three") for n in (2, 4)] + [Arm("four", 8)]
    timing = RoundTimer(machine, models, arms, [1] * 50, machine.clock)  # type: ignore[arg-type]
    draft, catch_up, complete = timing.draft()
    assert complete
    assert draft.keys() == set(arms)
    assert catch_up.keys() == sizes.keys()
    assert (models["three"].proposed, models["three"].text) == (0, [1] * 50)
    assert draft[Arm("three", 4)] == draft[Arm("one", 4)] == pytest.approx(0.004)
    assert draft[Arm("two", 4)] == pytest.approx(0.014)
    assert draft[Arm("four", 8)] == pytest.approx(0.008), "other lengths have to be timed"


def test_drafters_of_one_shape_are_of_one_size(tmp_path: Path) -> None:
    from decoders import alike, tiny
    from heads import save

    from wager.drafters.draft_model import DraftModel
    from wager.eagle.drafter import Eagle

    model = tiny()
    one, other, narrow = (Eagle(save(tmp_path / str(n), model, n), window=n // 3) for n in (1, 2, 3))
    assert one.size == other.size != narrow.size
    small = [DraftModel(alike(model), str(n)) for n in range(2)]
    assert small[0].size == small[1].size != DraftModel(tiny(num_hidden_layers=1), "2").size


@pytest.mark.parametrize("seconds", [0.1, 0.3, 2.0])
def test_a_slow_model_is_timed_as_far_as_the_time_allows_and_not_kept(seconds: float, tmp_path: Path) -> None:
    machine, path = Machine(seconds), tmp_path / "rounds.json"
    found = calibrated(timer(machine), "here", path)
    assert machine.now < BUDGET["cpu"] + 2 * seconds  # no forward begins after the time is over
    assert 1 in found.verify
    assert not path.exists()


def test_what_was_timed_is_kept_and_taken_at_the_present_speed(tmp_path: Path) -> None:
    path = tmp_path / "rounds.json"
    first = calibrated(timer(Machine()), "here", path)
    busy = Machine(seconds=0.04)  # everything takes twice as long
    again = calibrated(timer(busy), "here", path)
    assert len(busy.forwards) == 4
    assert again.verify == pytest.approx({width: 2 * seconds for width, seconds in first.verify.items()})
    assert calibrated(timer(elsewhere := Machine()), "another model", path).verify == pytest.approx(first.verify)
    assert len(elsewhere.forwards) > 4
    assert json.loads(path.read_text()).keys() == {"here", "another model"}


def test_what_the_clock_contradicts_is_timed_again(tmp_path: Path) -> None:
    path = tmp_path / "rounds.json"
    calibrated(timer(Machine()), "here", path)
    changed = Machine(wide=0.3)
    found = calibrated(timer(changed), "here", path)
    assert found.verify[9] == pytest.approx(0.02 * 3.4)
    assert json.loads(path.read_text())["here"]["verify"]["9"] == pytest.approx(0.02 * 3.4)


NEGATIVE = '{"here": {"verify": {"1": -1}, "draft": {}, "catch_up": {}}}'


@pytest.mark.parametrize("content", ["", "[1]", '{"here": 3}', NEGATIVE])
def test_a_damaged_file_is_replaced(content: str, tmp_path: Path) -> None:
    path = tmp_path / "rounds.json"
    path.write_text(content)
    assert calibrated(timer(Machine()), "here", path).verify[1] == pytest.approx(0.02)
    assert json.loads(path.read_text())["here"]["verify"]["1"] == pytest.approx(0.02)


def test_a_folder_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert calibrated(timer(Machine()), "here", tmp_path / "file" / "rounds.json").verify[1] == pytest.approx(0.02)


@pytest.mark.usefixtures("cache", "prepared")
def test_a_decoder_times_its_rounds_once_and_its_texts_stay_the_same(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Calibration] = []
    monkeypatch.setitem(BUDGET, "cpu", 60.0)  # on a busy machine a few milliseconds may be much longer
    prompt = list(range(1, 21))
    plain = Decoder(model, drafters="suffix", policy="off").generate(prompt, max_new_tokens=24).tokens
    original = Auto.calibrate
    monkeypatch.setattr(Auto, "calibrate", lambda self, known: (told.append(known), original(self, known)))
    decoder = Decoder(model, drafters="suffix,prompt-lookup")
    for _ in range(2):
        assert decoder.generate(prompt, max_new_tokens=24).tokens == plain
    assert len(told) == 1
    assert set(told[0].verify) == {1, 2, 3, 5, 9, 17}  # of a draft and a proposal of 8 tokens each
    decoder.reset()
    assert len(told) == 2  # it has forgotten, and is told again without timing
    rounds: Any = decoder.policy.latency.verify.rounds
    assert rounds[1] == rounds[9] == rounds[17] == 3.0


@pytest.mark.usefixtures("cache", "prepared")
def test_what_a_card_tells_of_kinds_moves_what_is_expected_of_its_drafter(model: Any) -> None:
    prompt = list(range(1, 21))
    told_by = made_of({"low": [prompt], "high": [[token + 1 for token in prompt]]})
    drafter = DraftModel(copy.deepcopy(model), "draft")
    drafter.card = read_card({"acceptance": {"low": [0.3], "high": [0.7]}, "kinds": told_by.notes()})
    decoder = Decoder(model, drafters=[drafter], lengths=(2,))
    first = len(decoder.generate(prompt, max_new_tokens=24).tokens)
    policy: Any = decoder.policy
    assert first == 24
    assert policy.kind.kinds == ["high", "low"]
    # a text that goes on as this one does, which began as texts that are hard to draft for
    assert policy.kind.prior[1] > policy.kind.prior[0]
    assert policy.positional.shifts["draft"].kind == pytest.approx(policy.kind.shift("draft"), abs=NOTICED)
    assert policy.kind.shift("draft") != 0.0


def test_a_policy_that_asks_for_no_seconds_costs_none(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "calibrated", lambda *_: pytest.fail("nobody asked"))
    Decoder(model, drafters="suffix", policy="ucbspec").generate([5, 6, 7], max_new_tokens=4)
