"""Rules that learn nothing: what every other policy is measured against."""

from wager.core import OFF, Arm, Context
from wager.policies.base import Arms, Policy, require


class Fixed(Policy):
    """Always the same arm; the shortest available one while it cannot be had."""

    holds = True

    def __init__(self, arms: Arms, *, drafter: str, length: int, tree: str = "", seed: int = 0) -> None:
        super().__init__(arms, seed=seed)
        self.arm = Arm.parse(f"{drafter}:{length}" + (f"@{tree}" if tree else "")) if length else OFF
        require(self.arm in self.slot, f"no arm {self.arm} here; the arms are {', '.join(map(str, self.arms))}")
        self.reset()

    def choose(self, context: Context) -> Arm:
        slots = self.available(context.arms)
        return self.arm if self.slot[self.arm] in slots else self.at_most(0, OFF.drafter, slots)


def fixed(arm: Arm) -> str:
    """The specification of the policy that always plays this arm."""
    return f"fixed:drafter={arm.drafter},length={arm.length}" + (f",tree={arm.tree}" if arm.tree else "")


class Off(Fixed):
    """Plain decoding: never speculate."""

    def __init__(self, arms: Arms, *, seed: int = 0) -> None:
        super().__init__(arms, drafter=OFF.drafter, length=OFF.length, seed=seed)


class Random(Policy):
    """An arm drawn at random every round."""

    def choose(self, context: Context) -> Arm:
        return self.uniform(self.available(context.arms))


class RoundRobin(Policy):
    """Every arm in turn."""

    learned = ("last",)
    last = -1

    def reset(self) -> None:
        super().reset()
        self.last = -1

    def choose(self, context: Context) -> Arm:
        slots = self.available(context.arms)
        self.last = next((i for i in slots if i > self.last), slots[0])
        return self.arms[self.last]
