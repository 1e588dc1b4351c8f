"""Reference of HedgeSpec's drafter selection: full-information losses and NormalHedge."""

import math
from collections.abc import Sequence

from reference.history import Reference, longest_of, shortest
from wager.core import Arm, Context, Round


class Hedge(Reference):
    """HedgeSpec (arXiv 2510.20064) with NormalHedge (Chaudhuri, Freund and Hsu 2009, Figure 1)."""

    def __init__(self, arms: Sequence[Arm], *, seed: int = 0, every: int = 1, length: int = 0) -> None:
        super().__init__(arms, seed=seed)
        self.every, self.limit = every, length or self.longest
        self.names = self.drafters(self.arms)
        self.regret = dict.fromkeys(self.names, 0.0)  # R over all steps in which every drafter is known
        self.waiting: list[Round] = []  # rounds since the last such step

    def choose(self, context: Context) -> Arm:
        available = self.available(context)
        names = self.drafters(available)
        if not names:
            return shortest(available)
        weight = self.normal_hedge(self.regret)
        total = sum(weight[name] for name in names)
        u, so_far = self.rng.random(), 0.0
        for name in (known for known in self.names if known in names):  # in the order of all arms
            so_far += weight[name] / total if total else 1 / len(names)
            if so_far > u:
                break
        return longest_of(name, available, self.limit) or shortest(available)

    def observe(self, round: Round) -> None:
        super().observe(round)
        self.waiting.append(round)
        tokens = {name: [x for past in self.waiting for x in self.known(name, past)] for name in self.names}
        if self.names and all(tokens.values()):
            losses = {name: 1 - sum(own) / len(own) for name, own in tokens.items()}
            p = self.normal_hedge(self.regret)
            expected = sum(p[name] * losses[name] for name in self.names)
            self.regret = {name: r + expected - losses[name] for name, r in self.regret.items()}
            self.waiting = []

    def known(self, name: str, past: Round) -> list[float]:
        """The drafter's acceptance at every token where this round tells it."""
        found: list[float] = []
        told = past.others.get(name)
        if isinstance(told, tuple):
            found += told
        elif told is not None:
            found += [1.0] * told
            if told < past.emitted:
                found.append(0.0)
        if past.arm.drafter == name and past.drafted:
            found += [1.0] * past.accepted + [0.0] * past.rejected
        return found

    def normal_hedge(self, regret: dict[str, float]) -> dict[str, float]:
        positive = {name: max(0.0, r) for name, r in regret.items()}
        if not any(positive.values()):
            return {name: 1 / len(regret) for name in regret}
        c = self.scale(positive)
        # divided by the largest exponential, which leaves the weights as they are
        most = max(r * r for r in positive.values())
        weight = {name: r / c * math.exp((r * r - most) / (2 * c)) for name, r in positive.items()}
        return {name: w / sum(weight.values()) for name, w in weight.items()}

    def scale(self, positive: dict[str, float]) -> float:
        """c with (1/N) sum exp(R^2 / 2c) = e, by halving in logarithms."""
        largest = max(positive.values()) ** 2

        def mean(c: float) -> float:
            return sum(math.exp(min(r * r / (2 * c), 700)) for r in positive.values()) / len(positive)

        low, high = math.log(largest) - 20, math.log(largest) + 20
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if mean(math.exp(middle)) > math.e else (low, middle)
        return math.exp(high)
