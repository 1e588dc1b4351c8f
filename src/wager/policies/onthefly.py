"""On-the-fly adaptation: the analytical model, the state machines and Q-learning."""

from collections import deque

from wager.core import OFF, Arm, Context, Round, Signal
from wager.core.rewards import timed
from wager.policies.base import Arms, Policy, RewardPolicy, expected_tokens, require

MOST_ROUNDS = 1_000_000  # of a history: it is summed up in every round


class ModelPolicy(Policy):
    """A policy that predicts tokens and seconds of every arm, from rounds of which each arm gets one at first."""

    def __init__(self, arms: Arms, *, cap: float, seed: int = 0) -> None:
        super().__init__(arms, seed=seed)
        require(0 < cap < 1, f"cap lies between 0 and 1, not {cap}")
        self.cap = cap  # on the acceptance of one token, so that 1 - acceptance never is 0
        self.places: dict[str, list[tuple[int, int]]] = {}  # drafter -> places and lengths of its arms
        for i, arm in enumerate(self.arms):
            self.places.setdefault(arm.drafter, []).append((i, arm.length))

    def reset(self) -> None:
        super().reset()
        self.played = [False] * len(self.arms)
        self.tokens = [1.0] * len(self.arms)  # expected per request and round
        self.drafting = [0.0] * len(self.arms)  # expected seconds per round

    def fit(self, drafter: str, accepted: float, rejected: float, seconds: float, steps: float) -> None:
        """Predict the drafter's arms from what it had accepted and what drafting took."""
        acceptance = min(self.cap, accepted / (accepted + rejected)) if accepted + rejected else 0.0  # eq. 2
        step = seconds / steps if steps else 0.0
        for i, length in self.places[drafter]:
            self.tokens[i] = expected_tokens(acceptance, length)
            self.drafting[i] = length * step


class Analytical(ModelPolicy):
    """The length that maximises expected tokens per second, from acceptance and latencies of the last rounds."""

    # On-the-fly eq. 1 and 2. Length 0 brings no new acceptance data: once it turns itself off it has no way back.
    learned = ("played", "past", "verify")

    def __init__(self, arms: Arms, *, history: int = 6, cap: float = 0.98, seed: int = 0) -> None:
        super().__init__(arms, cap=cap, seed=seed)
        require(1 <= history <= MOST_ROUNDS, f"history is 1 to {MOST_ROUNDS:,} rounds, not {history}")
        self.history = history
        self.by_length = {n: [i for i, arm in enumerate(self.arms) if arm.length == n] for n in range(self.longest + 1)}
        self.reset()

    def reset(self) -> None:
        super().reset()
        # drafter -> (accepted, rejected, draft seconds, draft steps) of its last rounds
        self.past: dict[str, deque[tuple[int, int, float, float]]] = {}
        self.verify: dict[int, deque[float]] = {}  # length -> verify seconds of its last rounds
        self.verifying = [1.0] * len(self.arms)  # expected seconds per round

    def choose(self, context: Context) -> Arm:
        return self.pick(self.available(context.arms))

    def pick(self, slots: list[int]) -> Arm:
        """The best of the arms at these places (eq. 1)."""
        per_arm = zip(self.tokens, self.drafting, self.verifying, strict=True)
        first = self.unplayed(self.played, slots)
        return first or self.best([tokens / (draft + base) for tokens, draft, base in per_arm], slots)

    def observe(self, round: Round) -> None:
        arm = round.arm
        self.played[self.slot[arm]] = True
        if arm.length:
            past = self.past.setdefault(arm.drafter, deque(maxlen=self.history))
            past.append((round.accepted, round.rejected, round.draft_seconds, round.drafted / round.batch))
            self._fit(arm.drafter)
        self.verify.setdefault(arm.length, deque(maxlen=self.history)).append(round.verify_seconds)
        self._time(arm.length)

    def _fit(self, drafter: str) -> None:
        self.fit(drafter, *map(sum, zip(*self.past[drafter], strict=True)))

    def _time(self, length: int) -> None:
        times = self.verify[length]
        seconds = timed(sum(times) / len(times))
        for i in self.by_length[length]:
            self.verifying[i] = seconds

    def settle(self) -> None:
        for drafter in self.past:
            self._fit(drafter)
        for length in self.verify:
            self._time(length)


class FSM(Policy):
    """A saturating counter: one token longer after a clean round, one shorter after a rejection."""

    # On-the-fly section 4.2, method 2.
    learned = ("gamma",)

    def __init__(self, arms: Arms, *, drafter: str = "", seed: int = 0) -> None:
        super().__init__(arms, seed=seed)
        self.drafter = only_drafter(self.arms, drafter)
        self.limit = max((arm.length for arm in self.arms if arm.drafter == self.drafter), default=0)
        self.reset()

    def reset(self) -> None:
        super().reset()
        self.gamma = self.limit

    def choose(self, context: Context) -> Arm:
        return self.at_most(self.gamma, self.drafter, self.available(context.arms))

    def observe(self, round: Round) -> None:
        if round.arm.drafter in (self.drafter, OFF.drafter):
            self.gamma = min(self.limit, max(0, self.gamma + self.change(round)))

    def change(self, round: Round) -> int:
        """How far the counter moves."""
        return -1 if round.rejected else 1


class CachedFSM(FSM):
    """A saturating counter that also counts tokens of the text that have occurred before."""

    # On-the-fly section 4.2, method 3. The cache is the engine's; here only the number of known tokens arrives.
    needs = frozenset({Signal.REPEATS})

    def change(self, round: Round) -> int:
        if round.repeated is None:
            return super().change(round)
        clean = round.drafted > 0 and not round.rejected
        return (1 if round.repeated else -1) + clean


class QLearning(RewardPolicy):
    """Q-learning over arms: the last arm is the state, the next one the action."""

    # On-the-fly section 4.2, method 4, and Alg. 2 of its appendix; the reward is the share of drafts accepted.
    learned = ("spread", "q", "at")
    trials = 25  # D.1: "25 warmup trials before recording benchmarks"

    def __init__(self, arms: Arms, *, alpha: float = 0.1, gamma: float = 0.9, epsilon: float = 0.1,
                 reward: str = "acceptance", seed: int = 0) -> None:  # fmt: skip
        super().__init__(arms, reward=reward, seed=seed)
        require(0 < alpha <= 1, f"alpha is above 0 and at most 1, not {alpha}")
        require(0 <= gamma < 1, f"gamma is at least 0 and below 1, not {gamma}")
        require(0 <= epsilon <= 1, f"epsilon is a probability, not {epsilon}")
        self.alpha, self.gamma, self.epsilon = alpha, gamma, epsilon
        self.reset()

    def reset(self) -> None:
        super().reset()
        k = len(self.arms)
        self.q = [[0.0] * k for _ in range(k + 1)]  # the last row is the state before the first round
        self.at = k

    def choose(self, context: Context) -> Arm:
        slots = self.available(context.arms)
        if self.rng.random() < self.epsilon:
            return self.uniform(slots)
        return self.best(self.q[self.at], slots)

    def observe(self, round: Round) -> None:
        action = self.slot[round.arm]
        row = self.q[self.at]
        row[action] += self.alpha * (self.unit(round) + self.gamma * max(self.q[action]) - row[action])
        self.at = action


def only_drafter(arms: Arms, name: str) -> str:
    """The drafter a one-drafter policy works with: the named one, or the first that is not `off`."""
    names = dict.fromkeys(arm.drafter for arm in arms if arm != OFF)
    require(not name or name in names, f"no drafter {name!r} here; the drafters are {', '.join(names) or 'none'}")
    return name or next(iter(names), OFF.drafter)
