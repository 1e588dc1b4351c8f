"""References of the policies from serving and of the linear contextual bandits."""

import math
from collections.abc import Sequence

import numpy as np

from reference.history import Reference, Rewarded, acceptance_estimate, expected_tokens, longest_of, off_or_shortest
from wager.core import Arm, Context, Round


class DSD(Reference):
    """SmartSpec (Liu et al., 2024), DSD in Nightjar: the arm of the largest modelled goodput."""

    def __init__(self, arms: Sequence[Arm], *, seed: int = 0, cap: float = 0.98) -> None:
        super().__init__(arms, seed=seed)
        self.cap = cap

    def choose(self, context: Context) -> Arm:
        available = self.available(context)
        unplayed = self.first_unplayed(available)  # in place of an offline profile
        if unplayed is not None:
            return unplayed
        line = self.fitted_line()
        return self.argmax({arm: self.goodput(arm, context.batch, line) for arm in available})

    def rounds_with(self, drafter: str) -> list[Round]:
        return [past for arm in self.arms if arm.drafter == drafter for past in self.rounds_of[arm]]

    def goodput(self, arm: Arm, batch: int, line: tuple[float, float]) -> float:
        """Expected tokens of the batch over the seconds the round is predicted to take."""
        alpha = min(self.cap, acceptance_estimate(self.rounds_with(arm.drafter)))
        tokens = batch * expected_tokens(alpha, arm.length)
        intercept, slope = line
        verify_seconds = max(1e-9, intercept + slope * batch * (arm.length + 1))
        return tokens / (arm.length * self.draft_seconds(arm.drafter) + verify_seconds)

    def draft_seconds(self, drafter: str) -> float:
        """Seconds of one drafted position."""
        positions = sum(past.drafted / past.batch for past in self.rounds_with(drafter))
        seconds = sum(past.draft_seconds for past in self.rounds_with(drafter))
        return seconds / positions if positions > 0 else 0.0

    def fitted_line(self) -> tuple[float, float]:
        """Intercept and slope of the least squares line through (tokens verified, seconds) of all rounds."""
        x = [past.drafted + past.batch for past in self.history]
        y = [past.verify_seconds for past in self.history]
        mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
        if mean_y == 0:
            return 1.0, 0.0
        variance = sum((xi - mean_x) ** 2 for xi in x) / len(x)
        covariance = sum((xi - mean_x) * (yi - mean_y) for xi, yi in zip(x, y, strict=True)) / len(x)
        slope = covariance / variance if variance > 1e-12 else 0.0
        return mean_y - slope * mean_x, slope


class Tetris(Reference):
    """TETRIS (Wu et al., 2025): a batch's budget of draft tokens goes to those most likely to be accepted."""

    def __init__(self, arms: Sequence[Arm], *, seed: int = 0, per_request: int = 3, drafter: str | None = None) -> None:
        super().__init__(arms, seed=seed)
        self.per_request = per_request
        self.drafter = drafter if drafter is not None else self.drafters(arms)[0]

    def choose(self, context: Context) -> Arm:
        return self.choose_batch([context])[0]

    def choose_batch(self, contexts: Sequence[Context]) -> list[Arm]:
        values = []
        for request, context in enumerate(contexts):
            value = 1.0
            for position, confidence in enumerate(self.confidences(context)):
                value = value * confidence
                if value > 0:
                    values.append((-value, request, position))
        budget = self.per_request * len(contexts)
        chosen = sorted(values)[:budget]
        arms = []
        for request, context in enumerate(contexts):
            n = sum(1 for _, owner, _ in chosen if owner == request)
            available = self.available(context)
            arm = longest_of(self.drafter, available, limit=n)
            arms.append(arm if arm is not None else off_or_shortest(available))
        return arms

    def confidences(self, context: Context) -> list[float]:
        """How likely each position is to be accepted, given that those before it were."""
        longest = longest_of(self.drafter, self.available(context))
        if longest is None:
            return []
        if self.drafter in context.hints:
            return list(context.hints[self.drafter].confidence[: longest.length])
        rounds = [past for past in self.history if past.arm.drafter == self.drafter]
        judged = any(past.accepted + past.rejected > 0 for past in rounds)
        return [acceptance_estimate(rounds) if judged else 1.0] * longest.length


class LinUCB(Rewarded):
    """Li et al. (2010), Algorithm 1: LinUCB with disjoint linear models."""

    def __init__(
        self,
        arms: Sequence[Arm],
        *,
        seed: int = 0,
        alpha: float = 2.22,
        batch_scale: float = 16,
        reward: str = "goodput",
    ) -> None:
        super().__init__(arms, seed=seed, reward=reward)
        self.alpha, self.batch_scale = alpha, batch_scale

    def choose(self, context: Context) -> Arm:
        index = {}
        available = self.available(context)
        if (unplayed := self.first_unplayed(available)) is not None:
            return unplayed
        for arm in available:
            mean, deviation = self.posterior(arm, context.batch)
            index[arm] = mean + self.alpha * self.spread() * deviation
        return self.argmax(index)

    def posterior(self, arm: Arm, batch: int) -> tuple[float, float]:
        """theta'x and sqrt(x' A^-1 x)."""
        w = [past.batch / self.batch_scale for past in self.rounds_of[arm]]  # x = (1, w)
        r = self.rewards_of[arm]
        a = [[1 + len(w), sum(w)], [sum(w), 1 + sum(wi * wi for wi in w)]]  # identity + sum of x x'
        b = [sum(r), sum(wi * ri for wi, ri in zip(w, r, strict=True))]  # sum of r x
        inverse = np.linalg.inv(np.array(a))
        x = np.array([1.0, batch / self.batch_scale])
        return float(inverse @ np.array(b) @ x), math.sqrt(x @ inverse @ x)


class LinTS(LinUCB):
    """Agrawal and Goyal (2013), Algorithm 1: Thompson sampling for linear contextual bandits."""

    def __init__(
        self, arms: Sequence[Arm], *, seed: int = 0, v: float = 0.5, batch_scale: float = 16, reward: str = "goodput"
    ) -> None:
        super().__init__(arms, seed=seed, batch_scale=batch_scale, reward=reward)
        self.v = v

    def choose(self, context: Context) -> Arm:
        index = {}
        available = self.available(context)
        if (unplayed := self.first_unplayed(available)) is not None:
            return unplayed
        z = dict(zip(self.arms, self.rng.standard_normal(len(self.arms)), strict=True))
        for arm in available:
            mean, deviation = self.posterior(arm, context.batch)
            index[arm] = mean + self.v * self.spread() * deviation * float(z[arm])
        return self.argmax(index)
