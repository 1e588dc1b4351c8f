"""References of the policies that learn nothing."""

from collections.abc import Sequence

from reference.history import Reference, off_or_shortest
from wager.core import Arm, Context


class Off(Reference):
    """Plain decoding; where it is not available, the shortest arm."""

    def choose(self, context: Context) -> Arm:
        return off_or_shortest(self.available(context))


class Fixed(Reference):
    """One arm for good; where it is not available, as off."""

    def __init__(self, arms: Sequence[Arm], *, seed: int = 0, drafter: str, length: int) -> None:
        super().__init__(arms, seed=seed)
        self.arm = next(arm for arm in self.arms if arm.drafter == drafter and arm.length == length)

    def choose(self, context: Context) -> Arm:
        available = self.available(context)
        return self.arm if self.arm in available else off_or_shortest(available)


class Random(Reference):
    """Every available arm with the same probability."""

    def choose(self, context: Context) -> Arm:
        return self.uniform(self.available(context))


class RoundRobin(Reference):
    """The next available arm after the last one chosen, cyclic in arm order."""

    def __init__(self, arms: Sequence[Arm], *, seed: int = 0) -> None:
        super().__init__(arms, seed=seed)
        self.chosen: list[Arm] = []

    def choose(self, context: Context) -> Arm:
        available = self.available(context)
        position = self.arms.index(self.chosen[-1]) + 1 if self.chosen else 0
        while self.arms[position % len(self.arms)] not in available:
            position += 1
        self.chosen.append(self.arms[position % len(self.arms)])
        return self.chosen[-1]
