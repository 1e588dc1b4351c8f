"""A mistake in a reference is noticed by the comparison with the policy."""

from collections.abc import Sequence

import pytest
from agreement import disagreement_of
from reference.banditspec import EXP3Spec, UCBSpec
from reference.hedge import Hedge
from reference.history import Reference
from reference.metasd import DiscountedUCB, Halving, SlidingUCB
from reference.nightjar import Nightjar
from reference.onthefly import Analytical, PromptRouter, QLearning
from reference.serving import LinTS, LinUCB
from reference.stronger import KLUCB

from wager.core import Arm, Context, Round

# Each of these has one mistake in it. A comparison that lets it pass would let the package's mistakes pass too.


class RadiusOfTotalCount(UCBSpec):
    def radius(self, n: int, t: int) -> float:
        return super().radius(t, t)


class UnshiftedClock(UCBSpec):
    def radius(self, n: int, t: int) -> float:
        return super().radius(n, t + 1)


class LossWithoutImportance(EXP3Spec):
    def observe(self, round: Round) -> None:
        super().observe(round)
        self.z[round.arm][-1] = 1 - self.units[-1]


class PlayedDrafterOnly(Hedge):
    def known(self, name: str, past: Round) -> list[float]:
        return super().known(name, past) if name == past.arm.drafter else [0.5]


class RegretNotCut(Hedge):
    def normal_hedge(self, regret: dict[str, float]) -> dict[str, float]:
        return super().normal_hedge({name: abs(r) for name, r in regret.items()})


class ScaleOfOne(Hedge):
    def scale(self, positive: dict[str, float]) -> float:
        return 1.0


class WorseHalf(Halving):
    def half(self, survivors: list[Arm], total: dict[Arm, float]) -> list[Arm]:
        return super().half(survivors, {arm: -value for arm, value in total.items()})


class AllRoundsInOnePhase(Halving):
    def pulls_each(self, survivors: list[Arm]) -> int:
        return 128 // len(survivors)


class UndiscountedCount(DiscountedUCB):
    def count(self, arm: Arm) -> float:
        return len(self.rewards_of[arm])


class WindowOneShort(SlidingUCB):
    def __init__(self, arms: Sequence[Arm], *, seed: int, window: int) -> None:
        super().__init__(arms, seed=seed, window=window - 1)


class FreeSwitching(Nightjar):
    def cost_term(self, arm: Arm, context: Context) -> float:
        return 0.0


class GoodputWithCatchingUp(Nightjar):
    def value(self, round: Round) -> float:
        return round.emitted / (round.seconds or 1.0)


class LongMemory(Analytical):
    def recent(self, drafter: str) -> list[Round]:
        return [past for past in self.history if past.arm.drafter == drafter]


class MyopicLearner(QLearning):
    def learned(self) -> list[float]:
        self.gamma = 0.0
        return super().learned()


class LargestDrafter(PromptRouter):
    def time_per_token(self, drafter: str, alpha: float) -> float:
        return -self.inner.a(drafter)


class NothingTriedFirst(LinUCB):
    def first_unplayed(self, available: list[Arm]) -> Arm | None:
        return None


class BonusInOwnUnits(LinUCB):
    def spread(self) -> float:
        return 1.0  # whatever the size of the rewards


class NarrowPosterior(LinTS):
    def posterior(self, arm: Arm, batch: int) -> tuple[float, float]:
        mean, deviation = super().posterior(arm, batch)
        return mean, deviation**2


class TrialsWithoutRejections(KLUCB):
    def failures(self, arm: Arm) -> int:
        return len(self.rounds_of[arm])


@pytest.mark.parametrize(
    ("spec", "scenario", "mistaken"),
    [
        ("ucbspec", "drafters", RadiusOfTotalCount),
        ("ucbspec", "drafters", UnshiftedClock),
        ("exp3spec", "drafters", LossWithoutImportance),
        ("hedge", "drafters", PlayedDrafterOnly),
        ("hedge", "drafters", RegretNotCut),
        ("hedge", "drafters", ScaleOfOne),
        ("halving", "drafters", WorseHalf),
        ("halving", "drafters", AllRoundsInOnePhase),
        ("discounted-ucb", "drafters", UndiscountedCount),
        ("sliding-ucb:window=40", "drafters", WindowOneShort),
        ("nightjar", "batched", FreeSwitching),
        ("nightjar", "batched", GoodputWithCatchingUp),
        ("analytical", "mixed", LongMemory),
        ("qlearning", "mixed", MyopicLearner),
        ("prompt-router", "mixed", LargestDrafter),
        ("linucb", "batched", NothingTriedFirst),
        ("linucb", "batched", BonusInOwnUnits),
        ("lints", "batched", NarrowPosterior),
        ("kl-ucb", "mixed", TrialsWithoutRejections),
    ],
)
def test_comparison_notices_a_planted_mistake(spec: str, scenario: str, mistaken: type[Reference]) -> None:
    assert disagreement_of(spec, scenario, mistaken).disagreement
