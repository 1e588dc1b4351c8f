"""Texts against an adversary, who decides what is accepted and what rounds cost, and what `auto` loses in them."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from wager.core import OFF, Arm, Calibration, Context, Hint, Round
from wager.core.round import Accepted
from wager.decoding.hold import Hold
from wager.policies import build
from wager.policies.auto import Auto

MODELS = ("model", "second", "third")


def arms_of(models: int) -> tuple[Arm, ...]:
    return OFF, *(Arm(name, n) for name in ("hinted", *MODELS[:models]) for n in range(1, 9))


PLAIN = 0.02  # seconds
STEP, CATCH_UP = 0.06, 0.002  # of plain decoding: a token that the model drafts, and one it has not read
PROPOSING = 0.0005  # of plain decoding: a proposal of the hinted one


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
    models: int = 1
    reading: float = 1.0  # times that reading without drafting takes longer than catching up and drafting a token
    merges: bool = False  # whether proposals may be merged into the models' drafts
    proposing: float = PROPOSING
    late: bool = False  # whether rounds are observed after the next choice, as on a GPU
    deciding: float = 0.0  # of plain decoding that choosing takes: where that is much, a choice is held
    seed: int = 0
    drafts: int = 0
    round: int = 0
    worst: float = -1e9  # the most that was lost beyond 2 % of a text's tokens so far, in plain tokens
    surprise: float = 0.0  # the most that a draft took beyond what the policy expected at most, in plain tokens
    reads: int = 0
    merged: int = 0  # rounds with a merged draft
    held: int = 0  # rounds for which the policy was not asked
    hold: Hold | None = None
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def calibration(self) -> Calibration:
        widths = (1, 2, 3, 5, 9, 17) if self.merges else (1, 2, 3, 5, 9)
        timed = {width: PLAIN * self.plain(0) * self.verify(width) for width in widths}
        names = MODELS[: self.models]
        drafts = {Arm(name, n): PLAIN * STEP * n for name in names for n in (1, 8)}
        return Calibration(timed, drafts, {name: {64: PLAIN * CATCH_UP * 64} for name in names})

    def policy(self, *, calibrated: bool) -> Auto:
        made = auto(self.seed, models=self.models)
        if calibrated:
            made.calibrate(self.calibration())
        return made

    def text(self, policy: Auto, tokens: int = 160) -> float:
        """What is lost in one text, in plain tokens; stalls, which strike plain decoding too, do not count."""
        emitted, lost, previous, arms = 0, 0.0, None, arms_of(self.models)
        read = dict.fromkeys(MODELS[: self.models], -40)
        waiting: Round | None = None  # to be observed
        hold = self.hold = self.hold if self.hold is not None and self.hold.policy is policy else Hold(policy)
        hold.begin()
        while emitted < tokens:
            plain, lags = PLAIN * self.plain(self.round), {name: emitted - at for name, at in read.items()}
            arm, context = hold.take(), None
            hints: dict[str, Hint] = {}
            proposing: dict[str, float] = {}
            if arm is None:
                names = policy.select_drafters(Context(arms, previous=previous, unobserved=waiting is not None))
                hints = {name: Hint(3, size=8) for name in names if name == "hinted"}
                proposing = dict.fromkeys(hints, self.proposing * plain)
                known = (arms, 1, emitted, previous, lags, hints, {}, proposing)
                after = waiting is not None
                context = Context(*known, remaining=tokens - emitted, unobserved=after, merges=self.merges)
                arm = policy.choose(context)
            if waiting is not None:
                policy.observe(waiting)
            self.drafts += arm.length > 0
            own = min(arm.length, self.accept(self, arm.alone)) if arm.length else 0
            other = min(arm.merged.length, self.accept(self, arm.merged)) if arm.merged is not None else 0
            accepted, self.merged = max(own, other), self.merged + (arm.merged is not None)
            verify = plain * self.verify(arm.budget + 1) * (self.draft(self.round) if arm.length else 1.0)
            lag = lags.get(arm.drafter, 0)
            late = CATCH_UP * lag * plain if lag > 1 else 0.0
            drafting = sum(proposing.values()) + (STEP * plain * arm.length if arm.drafter in read else 0.0)
            stall = plain * self.rng.exponential(20) if self.rng.random() < self.stalls else 0.0
            over = (verify + late + drafting - policy._now.most_seconds) / plain if arm.length else 0.0
            timed = verify * float(np.exp(self.rng.normal(0, self.noise))) + stall
            others: dict[str, Accepted] = {
                name: min(self.accept(self, Arm(name, 8)), accepted + 1) for name in hints if name != arm.drafter
            }
            if arm.merged is not None:
                others[arm.merged.drafter] = other
            emitted += accepted + 1
            taken, more = self.read(policy, context, read, emitted, others) if context else ({}, 0.0)
            self.surprise = max(self.surprise, over, max(0.0, over) + more)
            waiting = Round(
                arm, arm.budget, accepted, accepted + 1, draft_seconds=drafting, verify_seconds=timed,
                lag=lag if late else 0, lag_seconds=late, others=others, read_seconds=taken,
                unmerged=own if arm.merged is not None else -1,
            )  # fmt: skip
            if not self.late or emitted >= tokens:
                policy.observe(waiting)
                waiting = None
            if context is not None:
                hold.chosen(arm.alone, self.deciding * plain, verify + late + drafting)
                self.held += hold.left
            if arm.drafter in read:
                read[arm.drafter] = emitted
            lost += (verify + late + drafting + sum(taken.values())) / plain - accepted - 1
            self.worst = max(self.worst, lost - 0.02 * emitted)
            previous, self.round = arm.alone, self.round + 1
        return lost

    def read(
        self, policy: Auto, context: Context, read: dict[str, int], end: int, others: dict[str, Accepted]
    ) -> tuple[dict[str, float], float]:
        """Seconds of the models that the policy lets read, and plain tokens beyond what it expected at most; what they
        tell is that all their tokens were right."""
        plain, taken, over = PLAIN * self.plain(self.round), dict[str, float](), 0.0
        for name in policy.select_readers(context) if self.models > 1 else ():
            taken[name] = (STEP + CATCH_UP * (end - read[name])) * plain * self.reading
            _, most = policy._reading_seconds(name, end - read[name], plain)
            over += max(0.0, taken[name] - most) / plain
            others[name], read[name] = (1.0,) * min(64, end - read[name]), end
            self.reads += 1
        return taken, over


def auto(seed: int = 0, spec: str = "auto", models: int = 1) -> Auto:
    policy = build(spec, arms_of(models), seed=seed)
    assert isinstance(policy, Auto)
    return policy
