"""Choosing the way of each operation: the fastest one, in bounded time, with at most one call of a hopeless kernel."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from wager.models import calibration
from wager.models.calibration import BUDGET, WIDTHS, Operations, calibrated, measure, way_at
from wager.models.packed import FUSED, PACKED, PLAIN


class Machine:
    """A clock that kernels with given seconds move on; counts their calls."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: Counter[tuple[str, str]] = Counter()

    def clock(self) -> float:
        return self.now

    def operations(self, seconds: Mapping[str, Mapping[str, Callable[[int], float]]]) -> Operations:
        def prepared(name: str, way: str) -> Callable[[], calibration.Way]:
            def run(width: int) -> None:
                self.calls[name, way] += 1
                self.now += seconds[name][way](width)

            return lambda: run

        return {name: {way: prepared(name, way) for way in ways} for name, ways in seconds.items()}

    def measure(
        self, seconds: Mapping[str, Mapping[str, Callable[[int], float]]], budget: float = BUDGET
    ) -> tuple[calibration.Plan, bool]:
        return measure(self.operations(seconds), budget, self.clock, self.clock)


def takes(milliseconds: float) -> Callable[[int], float]:
    return lambda width: milliseconds / 1e3


# An ARM processor's kernels on the rows that are timed, in milliseconds: the fused activation is 150 times as slow.
ARM = {
    "qkv": {PLAIN: takes(0.9), PACKED: takes(0.3)},
    "gated": {PLAIN: takes(0.75), PACKED: takes(0.2), FUSED: takes(30)},
    "down": {PLAIN: takes(0.75), PACKED: takes(0.22), FUSED: takes(0.2)},
}


def test_a_hopeless_kernel_is_called_once_and_the_unfused_way_is_taken() -> None:
    machine = Machine()
    plan, complete = machine.measure(ARM)
    assert complete
    assert machine.now <= BUDGET
    assert machine.calls["gated", FUSED] == 1
    assert plan["gated"] == [PACKED] * len(WIDTHS)
    assert plan["down"] == [FUSED] * len(WIDTHS), "other operations keep their fused kernels"


@pytest.mark.parametrize("slower", [0.1, 1, 4, 40])
def test_calibration_keeps_to_its_budget_on_any_machine(slower: float) -> None:
    machine = Machine()
    seconds = {name: {way: takes(slower * 1e3 * s(2)) for way, s in ways.items()} for name, ways in ARM.items()}
    if slower == 40:  # the machine cannot even run everything once
        del seconds["gated"][FUSED]
    plan, complete = machine.measure(seconds)
    longest = max(each(2) for ways in seconds.values() for each in ways.values())
    assert complete == (slower < 40)
    assert machine.now <= (BUDGET if complete else BUDGET + longest), "nothing begins after the budget is spent"
    assert plan["qkv"] == [PACKED] * len(WIDTHS), "widths not reached go by the nearest that was"


def test_the_faster_way_is_taken_at_each_width_that_of_one_token_too() -> None:
    seconds = {"qkv": {PLAIN: lambda width: 0.001 * (4 if width >= 8 else 1), PACKED: takes(2)}}
    plan, complete = Machine().measure(seconds)
    assert complete
    assert plan == {"qkv": [PLAIN, PLAIN, PLAIN, PACKED, PACKED, PACKED]}
    assert [way_at(plan["qkv"], width) for width in (1, 2, 4, 5, 9, 64, 500)] == [PLAIN] * 3 + [PACKED] * 4
    assert way_at(None, 1) == way_at(None, 4) == PLAIN
    # A processor whose matrix-vector path is slow.
    slow_at_one = {"qkv": {PLAIN: lambda width: 0.004 if width == 1 else 0.001, PACKED: takes(2)}}
    assert Machine().measure(slow_at_one)[0] == {"qkv": [PACKED, *[PLAIN] * (len(WIDTHS) - 1)]}
    # A tie goes to the plain way.
    assert Machine().measure({"qkv": {PLAIN: takes(1), PACKED: takes(0.97)}})[0] == {"qkv": [PLAIN] * len(WIDTHS)}


def test_a_slow_first_call_that_creates_the_kernel_is_forgiven() -> None:
    machine = Machine()

    def creating(width: int) -> float:
        return 0.004 if machine.calls["qkv", PACKED] == 1 else 0.0001

    assert machine.measure({"qkv": {PLAIN: takes(0.2), PACKED: creating}})[0] == {"qkv": [PACKED] * len(WIDTHS)}


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WAGER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / calibration.FILE


def test_a_plan_is_measured_once_for_a_machine_and_its_shapes(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    operations = machine.operations({"qkv": {PLAIN: takes(0), PACKED: takes(0)}})
    first = calibrated({"qkv": (8, 4)}, operations)
    calls = machine.calls.total()
    assert calls
    assert calibrated({"qkv": (8, 4)}, operations) == first
    assert machine.calls.total() == calls
    calibrated({"qkv": (16, 4)}, operations)
    assert machine.calls.total() == 2 * calls, "other shapes are measured"
    monkeypatch.setattr("torch.get_num_threads", lambda: 77)
    calibrated({"qkv": (8, 4)}, operations)
    assert machine.calls.total() == 3 * calls, "and so is another number of threads"
    assert len(json.loads(own_cache.read_text())) == 3


@pytest.mark.parametrize(
    "content",
    ["", "{", "[1]", "\xff", '{"KEY": 3}', '{"KEY": {"qkv": ["plain"]}}', '{"KEY": {"qkv": [[], [], [], [], []]}}',
     '{"KEY": {"qkv": ["quick", "plain", "plain", "plain", "plain"]}}', '{"KEY": {}}'],
)  # fmt: skip
def test_a_damaged_file_is_measured_anew_and_replaced(own_cache: Path, content: str) -> None:
    machine = Machine()
    operations = machine.operations({"qkv": {PLAIN: takes(0), PACKED: takes(0)}})
    plan = calibrated({"qkv": (8, 4)}, operations)
    (key,) = json.loads(own_cache.read_text())
    own_cache.write_bytes(content.replace('"KEY"', json.dumps(key)).encode("latin-1"))
    calls = machine.calls.total()
    assert calibrated({"qkv": (8, 4)}, operations).keys() == plan.keys()
    assert machine.calls.total() == 2 * calls
    assert json.loads(own_cache.read_text()).keys() == {key}


def test_a_cache_that_cannot_be_written_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WAGER_CACHE", str(tmp_path / "file"))
    operations = Machine().operations({"qkv": {PLAIN: takes(0), PACKED: takes(0)}})
    assert calibrated({"qkv": (8, 4)}, operations).keys() == {"qkv"}
