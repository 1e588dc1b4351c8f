"""One text of a batch that is decoded text by text: what treats rows differently is shown the text at its own row."""

import copy
import time
from collections.abc import Iterable
from typing import Any

import torch

from wager.models.compat_transformers import same_for_rows, times_generation


class InRow:
    """A logits processor or stopping criterion of a whole batch, for the text in one of its rows."""

    def __init__(self, whole: Any, row: int, batch: int) -> None:
        self.whole, self.row, self.batch = whole, row, batch

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor | None, **more: Any) -> Any:
        # Rows do not look at each other, so the others may hold anything.
        many = None if scores is None else scores.expand(self.batch, -1).clone()
        found = self.whole(ids.expand(self.batch, -1), many, **more)
        return found[self.row : self.row + 1] if isinstance(found, torch.Tensor) and found.dim() else found


def of_row(given: Iterable[Any] | None, row: int, batch: int) -> list[Any]:
    """Logits processors or stopping criteria of a batch, as the text in this row is to see them."""
    found = []
    for one in given or ():
        if times_generation(one):  # every text has the whole time
            one = copy.copy(one)
            one.initial_timestamp = time.time()
        found.append(one if same_for_rows(one) else InRow(one, row, batch))
    return found
