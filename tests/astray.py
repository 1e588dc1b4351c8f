"""Policies of the user's own that choose what is not there."""

from typing import Any

import numpy as np

from wager.core import OFF, Context
from wager.core.batch import Batch, Choices
from wager.policies import Policy
from wager.policies.base import Arms


class Astray(Policy):
    """Plain decoding, and from some choice on something else."""

    def __init__(self, arms: Arms, *, instead: Any = None, calls: int = 0, seed: int = 0) -> None:
        super().__init__(arms, seed=seed)
        self.instead, self.left = instead, calls

    def choose(self, context: Context) -> Any:
        self.left -= 1
        return OFF if self.left >= 0 else self.instead


class AstrayBatches(Astray):
    """The same for every request by itself."""

    per_request = True

    def choose_batch(self, batch: Batch) -> Choices:
        self.left -= 1
        count = len(batch.slots)
        return Choices.off(count) if self.left >= 0 else Choices(*(np.full(count, n) for n in self.instead))
