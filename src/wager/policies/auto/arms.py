"""The arms available in a round, arranged for the decision, and what each is worth."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from wager.core import OFF, Arm, Context
from wager.policies.auto.latency import DraftLine
from wager.policies.auto.positional import AcceptanceCounts


class ArmGroup(NamedTuple):
    """Arms that share their acceptance: one drafter's chains, or one of its trees."""

    key: str
    drafter: str
    longest: int  # tokens
    arms: list[tuple[Arm, int, int]]  # arm, length, width of its verification; by length


class ArmTable:
    """Made anew whenever other arms are available."""

    def __init__(self, menu: Sequence[Arm], drafters: Sequence[str], longest: int, key: Callable[[Arm], str]) -> None:
        self.off = OFF in menu
        self.shortest: dict[str, Arm] = {}  # by drafter
        for arm in sorted(menu, key=lambda arm: arm.budget):
            self.shortest.setdefault(arm.drafter, arm)
        self.fallback = min(menu, key=lambda arm: arm.budget)
        chains = [{a.length: a for a in menu if a.drafter == name and a.tree is None} for name in drafters]
        numbers = range(longest + 1)
        self.exact = [[own.get(n) for n in numbers] for own in chains]  # the arm of exactly n tokens
        # the shortest arm of at least n tokens: what proposals of n tokens are run with
        self.at_least = [[next((own[m] for m in sorted(own) if m >= n > 0), None) for n in numbers] for own in chains]
        self.longest = [max(own, default=0) for own in chains]  # by drafter, of its chains
        groups: dict[str, list[Arm]] = {}
        for name in drafters:
            for arm in sorted((a for a in menu if a.drafter == name), key=lambda arm: arm.length):
                groups.setdefault(key(arm), []).append(arm)
        self.groups = [
            ArmGroup(name, own[0].drafter, own[-1].length, [(arm, arm.length, arm.budget + 1) for arm in own])
            for name, own in groups.items()
        ]


# of every group its drafter, its arms with their lengths and widths, what is known of its acceptance, and its seconds
Plan = list[tuple[ArmGroup, str, list[tuple[Arm, int, int]], AcceptanceCounts, DraftLine]]
Estimate = tuple[Arm, float, float]  # an arm, and the tokens and seconds expected of it
Best = tuple[float, Estimate | None]  # the largest value, and what it is expected of
Table = list[float]  # seconds of verification, by width
Weighed = list[tuple[ArmGroup, list[float], float, float, float]]  # with odds, the factor on them, and seconds


class Models(NamedTuple):
    """What the arms of drafters without hints are worth, and what it was worked out from."""

    previous: Arm | None
    lag: Mapping[str, int]
    arms: list[tuple[float, Estimate]]
    by_drafter: dict[str, float]  # of its best arm, catching up left out
    weighed: Weighed

    def fits(self, context: Context) -> bool:
        """Whether it is what this context asks for."""
        return context.batch == 1 and self.previous == context.previous and self.lag == context.lag
