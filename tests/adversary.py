"""Texts against an adversary, who decides what is accepted and what rounds cost, and what `auto` loses in them."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from wager.core import OFF, Arm, Calibration, Context, Hint, Round
from wager.policies import build
from wager.policies.auto import Auto

ARMS = (OFF, *(Arm(name, n) for name in ("hinted", "model") for n in range(1, 9)))
PLAIN = 0.02  # seconds
STEP, CATCH_UP = 0.06, 0.002  # of plain decoding: a token that the model drafts, and one it has not read
ASKING = 0.0005  # of plain decoding: a proposal of the hinted one


def steep(width: int) -> float:
    return 1.0 if width == 1 else 2.0 + 0.06 * (width - 1)


def fair(width: int) -> float:
    return 1.0 + 0.12 * (width - 1)


def flat(width: int) -> float:
    return 1.0 + 0.02 * (width - 1)


Accept = Callable[["World", Arm], int]


def nothing(world: "World", arm: Arm) -> int:
    return 0


def by_chance(chance: float) -> Accept:
    return lambda world, arm: int(world.rng.geometric(1.0 - chance)) - 1


def until(drafts: int) -> Accept:
    """Everything until so many drafts were made and are trusted, then nothing."""
    return lambda world, arm: arm.length if world.drafts <= drafts else 0


def short_only(world: "World", arm: Arm) -> int:
    return arm.length if arm.length <= 2 else 0


@dataclass
class World:
    """One text after the other; ``plain`` and ``draft`` are factors on the seconds of rounds, by their number."""

    verify: Callable[[int], float]
    accept: Accept
    noise: float = 0.0
    stalls: float = 0.0  # share of rounds that stall
    plain: Callable[[int], float] = lambda n: 1.0
    draft: Callable[[int], float] = lambda n: 1.0
    seed: int = 0
    drafts: int = 0
    round: int = 0
    worst: float = -1e9  # the most that was lost beyond 2 % of a text's tokens so far, in plain tokens
    surprise: float = 0.0  # the most that a draft took beyond what the policy expected at most, in plain tokens
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def calibration(self) -> Calibration:
        timed = {width: PLAIN * self.plain(0) * self.verify(width) for width in (1, 2, 3, 5, 9)}
        model = {Arm("model", n): PLAIN * STEP * n for n in (1, 8)}
        return Calibration(timed, model, {"model": {64: PLAIN * CATCH_UP * 64}})

    def text(self, policy: Auto, tokens: int = 160) -> float:
        """What is lost in one text, in plain tokens; stalls, which strike plain decoding too, do not count."""
        emitted, lost, read, previous = 0, 0.0, -40, None
        while emitted < tokens:
            names = policy.select_drafters(Context(ARMS, previous=previous))
            hints = {name: Hint(3, size=8) for name in names if name == "hinted"}
            plain, lag = PLAIN * self.plain(self.round), emitted - read
            asking = dict.fromkeys(hints, ASKING * plain)
            arm = policy.choose(
                Context(ARMS, 1, emitted, previous, {"model": lag}, hints, {}, asking, remaining=tokens - emitted)
            )
            self.drafts += arm.length > 0
            accepted = min(arm.length, self.accept(self, arm)) if arm.length else 0
            verify = plain * self.verify(arm.length + 1) * (self.draft(self.round) if arm.length else 1.0)
            late = CATCH_UP * lag * plain if arm.drafter == "model" and lag > 1 else 0.0
            drafting = sum(asking.values()) + (STEP * plain * arm.length if arm.drafter == "model" else 0.0)
            stall = plain * self.rng.exponential(20) if self.rng.random() < self.stalls else 0.0
            if arm.length:
                self.surprise = max(self.surprise, (verify + late + drafting - policy._most_seconds) / plain)
            timed = verify * float(np.exp(self.rng.normal(0, self.noise))) + stall
            others = {name: min(self.accept(self, Arm(name, 8)), accepted + 1) for name in hints if name != arm.drafter}
            policy.observe(
                Round(arm, arm.length, accepted, accepted + 1, draft_seconds=drafting, verify_seconds=timed,
                      lag=lag if late else 0, lag_seconds=late, others=others)
            )  # fmt: skip
            emitted += accepted + 1
            if arm.drafter == "model":
                read = emitted
            lost += (verify + late + drafting) / plain - accepted - 1
            self.worst = max(self.worst, lost - 0.02 * emitted)
            previous, self.round = arm, self.round + 1
        return lost


def auto(seed: int = 0, spec: str = "auto") -> Auto:
    policy = build(spec, ARMS, seed=seed)
    assert isinstance(policy, Auto)
    return policy
