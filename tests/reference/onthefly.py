"""References of on-the-fly adaptation's methods."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from reference.history import Reference, Rewarded, acceptance_estimate, expected_tokens, longest_of, off_or_shortest
from wager.core import Arm, Context, PromptFeatures, Round


class Analytical(Reference):
    """On-the-fly adaptation, section 4.1: eq. 1 with the estimates of eq. 2."""

    def __init__(self, arms: Sequence[Arm], *, seed: int = 0, history: int = 6, cap: float = 0.98) -> None:
        super().__init__(arms, seed=seed)
        self.h, self.cap = history, cap

    def choose(self, context: Context) -> Arm:
        return self.choose_among(self.available(context))

    def choose_among(self, available: list[Arm]) -> Arm:
        unplayed = self.first_unplayed(available)
        if unplayed is not None:
            return unplayed
        return self.argmax({arm: self.objective(self.beta(arm.drafter), arm.drafter, arm.length) for arm in available})

    def recent(self, drafter: str) -> list[Round]:
        """The last h speculations of the drafter."""
        return [past for past in self.history if past.arm.drafter == drafter][-self.h :]

    def beta(self, drafter: str) -> float:
        """Eq. 2, capped at Acc_max."""
        return min(self.cap, acceptance_estimate(self.recent(drafter)))

    def a(self, drafter: str) -> float:
        """Seconds for one drafted token."""
        rounds = self.recent(drafter)
        tokens = sum(past.drafted / past.batch for past in rounds)
        return sum(past.draft_seconds for past in rounds) / tokens if tokens > 0 else 0.0

    def b(self, length: int) -> float:
        """Seconds of a verification step with this window."""
        seconds = [past.verify_seconds for past in self.history if past.arm.length == length][-self.h :]
        mean = sum(seconds) / len(seconds)
        return mean if mean > 0 else 1.0

    def objective(self, beta: float, drafter: str, length: int) -> float:
        """Eq. 1; plain decoding has length 0."""
        if length == 0:
            return 1 / self.b(0)
        return (1 - beta ** (length + 1)) / ((1 - beta) * (length * self.a(drafter) + self.b(length)))


class FSM(Reference):
    """On-the-fly adaptation, section 4.2, method 2: finite state machine."""

    def __init__(self, arms: Sequence[Arm], *, seed: int = 0, drafter: str | None = None) -> None:
        super().__init__(arms, seed=seed)
        self.drafter = drafter if drafter is not None else self.drafters(arms)[0]

    def choose(self, context: Context) -> Arm:
        available = self.available(context)
        arm = longest_of(self.drafter, available, limit=self.gamma())
        return arm if arm is not None else off_or_shortest(available)

    def gamma(self) -> int:
        gamma_max = max(arm.length for arm in self.arms if arm.drafter == self.drafter)
        gamma = gamma_max
        for past in self.history:
            if past.arm.drafter in (self.drafter, "off"):
                gamma = min(gamma_max, max(0, gamma + self.change(past)))
        return gamma

    def change(self, round: Round) -> int:
        return -1 if round.rejected > 0 else +1


class CachedFSM(FSM):
    """On-the-fly adaptation, section 4.2, method 3: cache-enabled finite state machine."""

    def change(self, round: Round) -> int:
        if round.repeated is None:
            return super().change(round)
        change = +1 if round.repeated > 0 else -1
        if round.drafted > 0 and round.rejected == 0:
            change = change + 1
        return change


class QLearning(Rewarded):
    """On-the-fly adaptation, section 4.2, method 4 and Algorithm 2 of appendix B.4: Q-learning."""

    def __init__(
        self,
        arms: Sequence[Arm],
        *,
        seed: int = 0,
        alpha: float = 0.1,
        gamma: float = 0.9,
        epsilon: float = 0.1,
        reward: str = "acceptance",
    ) -> None:
        super().__init__(arms, seed=seed, reward=reward)
        self.alpha, self.gamma, self.epsilon = alpha, gamma, epsilon
        self.actions: list[int] = []  # the arm of every round, by number

    def choose(self, context: Context) -> Arm:
        available = self.available(context)
        if self.coin(self.epsilon):
            return self.uniform(available)
        q = self.learned()
        return self.argmax({arm: q[self.arms.index(arm)] for arm in available})

    def observe(self, round: Round) -> None:
        super().observe(round)
        self.actions.append(self.arms.index(round.arm))

    def learned(self) -> list[float]:
        """Play the history through: Q[state] of the state it ends in, one value per action."""
        state = start = len(self.arms)  # states 0 to K-1 are the arms; one more before the first round
        q = [[0.0] * len(self.arms) for _ in range(start + 1)]
        for action, unit in zip(self.actions, self.units, strict=True):
            target = unit + self.gamma * max(q[action])
            q[state][action] += self.alpha * (target - q[state][action])
            state = action
        return q[state]


@dataclass
class Prompt:
    """One request: its vector u, the rounds played in it, and whether it belongs to the r observed beforehand."""

    u: tuple[float, ...]
    warm_up: bool
    turn: int = 0
    rounds: list[Round] = field(default_factory=list)
    drafter: str | None = None  # the one it was routed to


class PromptRouter(Reference):
    """On-the-fly adaptation, section 5: draft model selection by eq. 3 to 5."""

    def __init__(self, arms: Sequence[Arm], *, seed: int = 0, history: int = 6, cap: float = 0.98) -> None:
        super().__init__(arms, seed=seed)
        self.cap = cap
        self.inner = Analytical(arms, history=history, cap=cap)
        self.prompts: list[Prompt] = []

    def observe(self, round: Round) -> None:
        super().observe(round)
        self.inner.observe(round)
        if self.prompts:
            self.prompts[-1].rounds.append(round)

    def choose(self, context: Context) -> Arm:
        available = self.available(context)
        if context.prompt is not None:
            self.begin(context.prompt)
        if not self.prompts:  # no features so far: nothing to route by
            arm = self.inner.choose_among(available)
            self.last_index = self.inner.last_index
            return arm
        prompt = self.prompts[-1]
        if prompt.warm_up:
            return self.take_turns(prompt, available)
        allowed = [arm for arm in available if arm.drafter in (prompt.drafter, "off")]
        arm = self.inner.choose_among(allowed if allowed and prompt.drafter else available)
        self.last_index = self.inner.last_index
        return arm

    def begin(self, features: PromptFeatures) -> None:
        u = features.vector
        r = len(self.prompts[0].u) if self.prompts else len(u)
        u = (*u, *[0.0] * r)[:r]
        observed = [prompt.u for prompt in self.prompts if prompt.warm_up]
        rank = int(np.linalg.matrix_rank(np.array(observed))) if observed else 0
        prompt = Prompt(u, warm_up=rank < r and len(observed) < 4 * r)
        if not prompt.warm_up:
            prompt.drafter = self.route(u)
        self.prompts.append(prompt)

    def take_turns(self, prompt: Prompt, available: list[Arm]) -> Arm:
        """In the beginning every drafter is run, here one after the other within the prompt."""
        drafters = self.drafters(available)
        if not drafters:  # nobody's turn
            return off_or_shortest(available)
        k = prompt.turn
        prompt.turn = k + 1
        arm = longest_of(drafters[k % len(drafters)], available)
        assert arm is not None
        return arm

    def route(self, u: tuple[float, ...]) -> str | None:
        """From the smallest draft model to the largest; a larger one has to lower the time per token of eq. 3."""
        selected: str | None = None
        selected_time = float("inf")
        for drafter in sorted(self.drafters(self.arms), key=self.inner.a):  # stable: ties stay in arm order
            alpha = self.predicted_accuracy(drafter, u)
            if alpha is None:
                continue
            time = self.time_per_token(drafter, alpha)
            if selected is None or time < selected_time:
                selected, selected_time = drafter, time
        return selected

    def predicted_accuracy(self, drafter: str, u: tuple[float, ...]) -> float | None:
        """Eq. 5 with the least squares estimate of Z; None for a drafter that was never observed."""
        b, alpha = [], []
        for prompt in self.prompts:
            rounds = [past for past in prompt.rounds if past.arm.drafter == drafter]
            if prompt.warm_up and sum(past.drafted for past in rounds) > 0:
                b.append(prompt.u)
                alpha.append(acceptance_estimate(rounds))
        if not b:
            return None
        z = np.linalg.lstsq(np.array(b), np.array(alpha), rcond=None)[0]
        return min(self.cap, max(0.0, float(np.dot(u, z))))

    def time_per_token(self, drafter: str, alpha: float) -> float:
        """Eq. 3 upside down and per token: b(d) n + a / rho with n = 1 / (d rho)."""
        known = {past.arm.length for past in self.history}  # lengths whose b is known
        d, best = 0, -1.0
        for arm in self.arms:
            if arm.drafter == drafter and arm.length in known:
                objective = self.inner.objective(alpha, drafter, arm.length)
                if objective > best:
                    d, best = arm.length, objective
        rho = expected_tokens(alpha, d) / d  # section 5: (1 - alpha^(d+1)) / ((1 - alpha) d)
        n = 1 / (d * rho)
        return self.inner.b(d) * n + self.inner.a(drafter) / rho
