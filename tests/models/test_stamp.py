"""Changed weights are noticed, also where they were written through ``.data``."""

import pytest
import torch
from heads import tiny

from wager.models.llama_weights import stamp
from wager.models.select import current, runner


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_or_a_part_of_every_row_of_the_output_head_is_noticed(dtype: torch.dtype) -> None:
    model = tiny().to(dtype)
    before, rows = stamp(model), model.lm_head.weight.data
    assert stamp(model) == before
    for row in range(0, len(rows), 3):
        kept = rows[row].clone()
        rows[row] = rows[(row + 1) % len(rows)]
        assert stamp(model) != before
        rows[row] = kept
    assert stamp(model) == before
    rows[:, rows.shape[1] // 2 :] *= 1.5
    assert stamp(model) != before


def test_weights_that_change_between_two_texts_are_noticed_by_begin_and_by_current() -> None:
    model = tiny()
    target = runner(model)
    assert current(model, target) is target
    target.restart()
    weights = target.weights  # type: ignore[attr-defined]
    with torch.no_grad():
        model.lm_head.weight.mul_(2.0)
    target.begin()
    assert target.weights is not weights  # type: ignore[attr-defined]
