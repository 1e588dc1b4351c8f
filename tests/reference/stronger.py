"""References of the bandits that use the truncated geometric's likelihood."""

import math
from collections.abc import Sequence

from reference.history import Rewarded, expected_tokens
from wager.core import Arm, Context


class Geometric(Rewarded):
    """A reference whose index is the expected number of tokens, or that over the mean seconds of a round."""

    def successes(self, arm: Arm) -> int:
        return sum(past.accepted for past in self.rounds_of[arm])

    def failures(self, arm: Arm) -> int:
        return sum(past.rejected for past in self.rounds_of[arm])

    def index(self, arm: Arm, probability: float) -> float:
        tokens = expected_tokens(probability, arm.length)
        if self.reward == "tokens":
            return tokens
        # a round without a clock counts as one second, as it does in the goodput reward
        seconds = [past.draft_seconds + past.verify_seconds + past.lag_seconds or 1.0 for past in self.rounds_of[arm]]
        return tokens / (sum(seconds) / len(seconds))


class KLUCB(Geometric):
    """Garivier and Cappe (2011), Algorithm 1: KL-UCB, on the acceptance probability."""

    def __init__(self, arms: Sequence[Arm], *, seed: int = 0, c: float = 0.0, reward: str = "tokens") -> None:
        super().__init__(arms, seed=seed, reward=reward)
        self.c = c

    def choose(self, context: Context) -> Arm:
        available = self.available(context)
        unplayed = self.first_unplayed(available)
        if unplayed is not None:
            return unplayed
        return self.argmax({arm: self.index(arm, self.upper(arm)) for arm in available})

    def upper(self, arm: Arm) -> float:
        """max {q in [p, 1]: N kl(p, q) <= ln t + c ln ln t}, by bisection."""
        s, trials = self.successes(arm), self.successes(arm) + self.failures(arm)
        if trials == 0:
            return 1.0
        p, log_t = s / trials, math.log(len(self.history))
        bound = log_t + self.c * math.log(max(log_t, 1.0))
        low, high = p, 1.0
        for _ in range(100):
            middle = (low + high) / 2
            if trials * kl(p, middle) <= bound:
                low = middle
            else:
                high = middle
        return low


def kl(p: float, q: float) -> float:
    """Kullback-Leibler divergence between Bernoulli(p) and Bernoulli(q), 0 ln 0 being 0."""
    if p == q:
        return 0.0
    if q in (0.0, 1.0):
        return math.inf
    first = p * math.log(p / q) if p > 0 else 0.0
    second = (1 - p) * math.log((1 - p) / (1 - q)) if p < 1 else 0.0
    return first + second


class Thompson(Geometric):
    """Thompson (1933) with a Beta(1, 1) prior on each arm's acceptance probability."""

    def __init__(self, arms: Sequence[Arm], *, seed: int = 0, reward: str = "tokens") -> None:
        super().__init__(arms, seed=seed, reward=reward)
        self.blocks: dict[Arm, tuple[int, int, list[float]]] = {}

    def choose(self, context: Context) -> Arm:
        available = self.available(context)
        unplayed = self.first_unplayed(available)
        if self.reward == "goodput" and unplayed is not None:
            return unplayed
        return self.argmax({arm: self.index(arm, self.draw(arm)) for arm in available})

    def draw(self, arm: Arm) -> float:
        """Beta(1 + s, 1 + f): drawn 1, then 4, 16, 64 and 128 at a time since the arm's last round."""
        a, b = 1.0 + self.successes(arm), 1.0 + self.failures(arm)
        rounds = len(self.rounds_of[arm])
        known, size, left = self.blocks.get(arm, (-1, 1, []))
        if known != rounds:
            size, left = 1, []
        if not left:
            left = [float(self.rng.beta(a, b))] if size == 1 else self.rng.beta(a, b, size).tolist()
            size = min(4 * size, 128)
        self.blocks[arm] = (rounds, size, left)
        return left.pop()
