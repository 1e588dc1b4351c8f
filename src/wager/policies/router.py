"""On-the-fly adaptation's choice of a drafter per prompt."""

import numpy as np

from wager.core import OFF, Arm, Context, Round, Signal
from wager.policies.base import Arms, Policy, expected_tokens
from wager.policies.onthefly import Analytical


class PromptRouter(Policy):
    """One drafter per prompt, predicted from the prompt's features; the analytical model sets the length."""

    # On-the-fly section 5. The first prompts are answered with all drafters in turn, until their feature vectors span
    # the space; ordinary least squares then predicts every drafter's acceptance alpha on a new prompt (eq. 5).
    # Condition 4 is read as Delta n > L Delta(c / rho), which is what eq. 3 gives; printed is Delta c / Delta rho.
    needs = frozenset({Signal.PROMPT})
    learned = ("size", "vectors", "rows", "features", "turn", "counts", "chosen", "inner")

    def __init__(self, arms: Arms, *, history: int = 6, cap: float = 0.98, seed: int = 0) -> None:
        super().__init__(arms, seed=seed)
        self.inner = Analytical(arms, history=history, cap=cap, seed=seed)
        self.reset()

    def reset(self) -> None:
        super().reset()
        self.inner.reset()
        self.size = 0  # r, the length of a feature vector; 0 before the first request
        self.vectors: list[list[float]] = []  # of the finished warm-up requests
        self.rows: dict[str, list[tuple[list[float], float]]] = {}  # drafter -> (vector, acceptance) per request
        self.features: list[float] = []  # of the request being answered
        self.turn = 0  # round of a warm-up request
        self.counts: dict[str, tuple[int, int]] = {}  # drafter -> (accepted, rejected) in this warm-up request
        self.chosen: str | None = None  # drafter of this request; None while warming up
        self._kept: tuple[tuple[Arm, ...], str, tuple[Arm, ...]] | None = None

    def choose(self, context: Context) -> Arm:
        if context.prompt is not None:
            self._begin(list(context.prompt.vector))
        slots = self.available(context.arms)
        if not self.size:  # no features so far: nothing to route by
            return self.inner.pick(self.inner.available(context.arms))
        if self.chosen is not None:
            return self.inner.pick(self.inner.available(self._only(context.arms, self.chosen)))
        able = list(dict.fromkeys(self.arms[i].drafter for i in slots if self.arms[i] != OFF))
        if not able:
            return OFF
        self.turn += 1
        return self.at_most(self.longest, able[(self.turn - 1) % len(able)], slots)

    def observe(self, round: Round) -> None:
        self.inner.observe(round)
        if self.size and self.chosen is None and round.drafted:
            accepted, rejected = self.counts.get(round.arm.drafter, (0, 0))
            self.counts[round.arm.drafter] = (accepted + round.accepted, rejected + round.rejected)

    def _begin(self, vector: list[float]) -> None:
        """A new request: close the last one if it was a warm-up, then warm up or decide."""
        if self.size and self.chosen is None:
            self.vectors.append(self.features)
            for drafter, (accepted, rejected) in self.counts.items():
                row = (self.features, accepted / max(1, accepted + rejected))
                self.rows.setdefault(drafter, []).append(row)
        self.size = self.size or len(vector)
        self.features = (vector + [0.0] * self.size)[: self.size]
        self.turn, self.counts = 0, {}
        spanned = len(self.vectors) >= self.size and np.linalg.matrix_rank(np.array(self.vectors)) == self.size
        if self.rows and (spanned or len(self.vectors) >= 4 * self.size):
            self.chosen = self._decide()

    def _decide(self) -> str:
        """The drafter with the least expected time per token on this prompt (eq. 3); the faster to draft on a tie."""
        ranked = sorted(self.rows, key=self._step_seconds)
        best, least = ranked[0], float("inf")
        for drafter in ranked:
            vectors, alphas = zip(*self.rows[drafter], strict=True)
            fitted = np.linalg.lstsq(np.array(vectors), np.array(alphas), rcond=None)[0]
            alpha = min(self.inner.cap, max(0.0, float(np.array(self.features) @ fitted)))
            seconds = self._time_per_token(drafter, alpha)
            if seconds < least:
                best, least = drafter, seconds
        return best

    def _step_seconds(self, drafter: str) -> tuple[float, int]:
        place, length = self.inner.places[drafter][0]
        return self.inner.drafting[place] / length, place

    def _time_per_token(self, drafter: str, alpha: float) -> float:
        """Seconds per token, b n / L + a / rho of eq. 3, at the length d that eq. 1 favours."""
        seconds = {
            length: self.inner.drafting[i] + self.inner.verifying[i]
            for i, length in self.inner.places[drafter]
            if length in self.inner.verify
        }
        depth = max(seconds, key=lambda d: expected_tokens(alpha, d) / seconds[d])
        return seconds[depth] / expected_tokens(alpha, depth)  # d rho = (1 - alpha^(d+1))/(1 - alpha)

    def _only(self, arms: tuple[Arm, ...], drafter: str) -> tuple[Arm, ...]:
        """The available arms of one drafter and `off`; all of them if there are none."""
        if self._kept is None or self._kept[0] is not arms or self._kept[1] != drafter:
            kept = tuple(arm for arm in arms if arm.drafter in (drafter, OFF.drafter))
            self._kept = (arms, drafter, kept or arms)
        return self._kept[2]
