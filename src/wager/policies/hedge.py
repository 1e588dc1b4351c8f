"""HedgeSpec: drafters are compared on every token of the text, not only where they draft, by NormalHedge."""

from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate
from math import e, exp, log
from typing import ClassVar

from wager.core import Arm, Context, Round, Signal
from wager.policies.base import Arms, Policy, require

STEPS = 60  # of the bisection for c: more than a float tells apart


class Hedge(Policy):
    """NormalHedge over drafters, all of which are scored on the verified tokens."""

    # HedgeSpec (arXiv 2510.20064): the loss of drafter i is 1 - its acceptance on the tokens that were verified.
    # NormalHedge (Chaudhuri, Freund & Hsu 2009): with R_i the regret towards drafter i,
    #   w_i ~ [R_i]+/c * exp([R_i]+^2 / 2c), where the mean of exp([R_i]+^2 / 2c) is e
    per_text = True
    needs = frozenset({Signal.OTHERS, Signal.READ})
    learned: ClassVar[tuple[str, ...]] = ("rounds", "regrets", "hits", "seen")

    def __init__(self, arms: Arms, *, every: int = 1, length: int = 0, seed: int = 0) -> None:
        super().__init__(arms, seed=seed)
        require(every >= 1, f"every is at least 1 round, not {every}")
        require(length >= 0, f"length is at least 0 tokens (0: the longest), not {length}")
        self.every, self.length = every, length or self.longest
        self.reset()

    def reset(self) -> None:
        super().reset()
        self.rounds = 0
        self.regrets = [0.0] * len(self.drafters)  # R
        # since regrets were last updated, by drafter: acceptance summed over tokens, and tokens
        self.hits, self.seen = [0.0] * len(self.drafters), [0.0] * len(self.drafters)

    def select_readers(self, context: Context) -> tuple[str, ...]:
        return self.drafters if (self.rounds + 1) % self.every == 0 else ()

    def choose(self, context: Context) -> Arm:
        slots = self.available(context.arms)
        names = [d for d, name in enumerate(self.drafters) if any(self.arms[i].drafter == name for i in slots)]
        if not names:
            return self.at_most(self.length, "", slots)
        weights = weights_of(self.regrets)
        own = [weights[d] for d in names]
        total = sum(own)
        own = [w / total for w in own] if total else [1.0 / len(own)] * len(own)
        drawn = bisect(list(accumulate(own)), self.rng.random())
        return self.at_most(self.length, self.drafters[names[min(drawn, len(names) - 1)]], slots)

    def observe(self, round: Round) -> None:
        self.rounds += 1
        for d, name in enumerate(self.drafters):
            known = round.others.get(name, ())
            if isinstance(known, int):  # of a proposal: the tokens up to the first wrong one
                known = (1.0,) * known + (0.0,) * (known < round.emitted)
            self.hits[d] += sum(known)
            self.seen[d] += len(known)
            if name == round.arm.drafter and round.drafted:
                self.hits[d] += round.accepted
                self.seen[d] += round.accepted + round.rejected
        if self.seen and all(self.seen):
            losses = [1.0 - hits / seen for hits, seen in zip(self.hits, self.seen, strict=True)]
            weights = weights_of(self.regrets)
            own = sum(w * loss for w, loss in zip(weights, losses, strict=True))
            self.regrets = [r + own - loss for r, loss in zip(self.regrets, losses, strict=True)]
            self.hits, self.seen = [0.0] * len(losses), [0.0] * len(losses)


def weights_of(regrets: Sequence[float]) -> list[float]:
    """NormalHedge's weights, which add up to 1; equal while there is no regret."""
    squares = [max(0.0, r) ** 2 for r in regrets]
    most = max(squares, default=0.0)
    if most <= 0.0:
        return [1.0 / len(squares)] * len(squares)
    # The mean lies between exp(most / 2c) / n and exp(most / 2c), so c between these two.
    low, high = most / (2.0 * (1.0 + log(len(squares)))), most / 2.0
    for _ in range(STEPS):
        c = 0.5 * (low + high)
        if sum(exp(s / (2.0 * c)) for s in squares) > e * len(squares):
            low = c
        else:
            high = c
    weights = [s**0.5 * exp((s - most) / (2.0 * high)) for s in squares]
    total = sum(weights)
    return [w / total for w in weights]
