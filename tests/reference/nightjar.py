"""References of Nightjar and of the framework it is built on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reference.history import Rewarded
from wager.core import Arm, Context, Round


@dataclass
class Hierarchy:
    """Nightjar, Algorithm 1, line 3."""

    j: int = 1  # block
    h: int = 1  # block size H
    b: int = 1  # bin
    tau: int = 1  # round of the bin

    def step(self) -> None:
        """Algorithm 1, lines 16 to 22."""
        self.tau = self.tau + 1
        if self.tau > math.sqrt(self.h):
            self.b, self.tau = self.b + 1, 1
            if self.b > math.sqrt(self.h):
                self.j = self.j + 1
                self.h = 2 ** (self.j - 1)
                self.b = 1


class BinGreedy(Rewarded):
    """Nightjar, Algorithm 1 with one state for all batch sizes and no cost term: ADA-BINGREEDY."""

    def __init__(self, arms: Sequence[Arm], *, seed: int = 0, reward: str = "goodput") -> None:
        super().__init__(arms, seed=seed, reward=reward)
        self.exploring: dict[tuple[int, int, int], bool] = {}  # type of every bin so far: state, block, bin

    def state_of(self, batch: int) -> int:
        return 0

    def hierarchy(self, state: int) -> Hierarchy:
        counters = Hierarchy()
        for past in self.history:
            if self.state_of(past.batch) == state:
                counters.step()
        return counters

    def choose(self, context: Context) -> Arm:
        available = self.available(context)
        state = self.state_of(context.batch)  # line 5
        counters = self.hierarchy(state)
        this_bin = state, counters.j, counters.b
        if this_bin not in self.exploring:  # lines 6 to 8: tau is 1, unless rounds were played that nobody chose
            self.exploring[this_bin] = self.coin(1 / math.sqrt(counters.b))
        if self.exploring[this_bin]:  # lines 9 to 11
            return self.uniform(available)
        return self.exploit(available, state, context)  # lines 12 to 14

    def exploit(self, available: list[Arm], state: int, context: Context) -> Arm:
        """The best mean reward."""
        g = {arm: self.mean_goodput(arm, state) for arm in available}
        tried = {arm: mean for arm, mean in g.items() if mean is not None}
        return self.argmax(tried) if tried else self.uniform(available)

    def mean_goodput(self, arm: Arm, state: int) -> float | None:
        """g-tilde: the mean reward of the rounds of this state; None before the first."""
        seen = [
            reward
            for past, reward in zip(self.rounds_of[arm], self.rewards_of[arm], strict=True)
            if self.state_of(past.batch) == state
        ]
        return sum(seen) / len(seen) if seen else None


class Nightjar(BinGreedy):
    """Nightjar, Algorithm 1 and eq. 3."""

    def __init__(self, arms: Sequence[Arm], *, seed: int = 0, max_batch: int = 512) -> None:
        super().__init__(arms, seed=seed)
        self.max_batch = max_batch

    def value(self, round: Round) -> float:
        """Goodput without the catching up, which eq. 3's second term stands for."""
        seconds = round.draft_seconds + round.verify_seconds
        return round.emitted / (seconds if seconds > 0 else 1.0)

    def state_of(self, batch: int) -> int:
        return min(batch, self.max_batch)

    def exploit(self, available: list[Arm], state: int, context: Context) -> Arm:
        """Eq. 3, over the arms tried at this batch size."""
        objective = {}
        for arm in available:
            g = self.mean_goodput(arm, state)
            if g is not None:
                objective[arm] = 1 / g + self.cost_term(arm, context)
        if not objective:
            return self.uniform(available)
        return self.argmax({arm: -value for arm, value in objective.items()})

    def cost_term(self, arm: Arm, context: Context) -> float:
        """Eq. 3's second term, for any change to another drafter."""
        if context.previous is None or context.previous.drafter == arm.drafter or arm.length == 0:
            return 0.0
        return self.c_prefill(context.lag.get(arm.drafter, 0), context.batch) / arm.length

    def c_prefill(self, lag: int, batch: int) -> float:
        """The lookup table c_prefill(L_max, B), filled from the rounds that had to catch up."""
        if lag == 0:
            return 0.0
        table: dict[tuple[int, int], list[float]] = {}
        for past in self.history:
            if past.lag > 0:
                table.setdefault((past.lag.bit_length(), past.batch.bit_length()), []).append(past.lag_seconds)
        if not table:
            return 0.0
        wanted = (lag.bit_length(), batch.bit_length())
        key = min(sorted(table), key=lambda known: abs(known[0] - wanted[0]) + abs(known[1] - wanted[1]))
        return sum(table[key]) / len(table[key])
