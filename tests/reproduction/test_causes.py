"""Why a part is undecided is read from its figures."""

from typing import Any

import pytest

from reproduction import causes


def part(low: float | None, high: float | None, **sizes: int | None) -> dict[str, Any]:
    return {"verdict": "undecided", "interval": [0.0, low, high], "prompts": 40, "seeds": 20, **sizes}


@pytest.mark.parametrize(
    ("own", "premise", "why"),
    [
        (part(-0.1, 0.1), "", causes.BOTH),
        (part(-0.1, 0.1), "specialists are none", causes.BOTH),
        (part(0.05, 0.1), "specialists are none", causes.PREMISE),
        (part(-0.1, -0.05), "specialists are none", causes.PREMISE),
        (part(-0.1, -0.05), "", causes.BOTH),  # of a margin
        (part(0.05, 0.1, prompts=19), "specialists are none", causes.FEW),
        (part(0.05, 0.1, prompts=None, seeds=4), "", causes.FEW),
        (part(None, None, prompts=0, seeds=None), "", causes.ABSENT),
    ],
)
def test_a_part_is_undecided_for_one_of_four_reasons(own: dict[str, Any], premise: str, why: str) -> None:
    assert causes.of_part(own, premise) == why


def test_a_row_counts_its_undecided_parts_by_reason() -> None:
    held = {**part(0.1, 0.2), "verdict": "holds"}
    row = {"parts": [held, part(None, None), part(-0.1, 0.1), part(-0.2, 0.1)], "premise": ""}
    assert causes.of_row(row) == {causes.BOTH: 2, causes.ABSENT: 1}
    assert causes.told(row) == f"2 of 4 parts, {causes.BOTH}; 1 of 4 parts, {causes.ABSENT}"
