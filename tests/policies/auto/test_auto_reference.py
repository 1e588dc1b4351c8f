"""One request is decided as by a slow reference, and the comparison notices planted mistakes."""

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from auto_lab import SEVERAL, WITH_TREES, models_context, random_context, random_reading, random_round
from auto_reference import Slow

from wager.core import Arm, Calibration, Context, Hint
from wager.policies import build
from wager.policies.auto import Auto, positional
from wager.policies.auto.features import AGREEMENT


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference works everything out anew in every round."""
    monkeypatch.setattr(positional, "NOTICED", 0.0)


def first_difference(slow: type[Slow]) -> str:
    """Where `auto` and the reference part, both knowing what `auto` has learned; empty if nowhere."""
    # Drafts that cost little, drafts that sometimes pay, and drafts that hardly ever do.
    return next((found for seconds in (0.002, 0.006, 0.02) if (found := part_from(slow, seconds))), "")


OTHER_CARDS: list[dict[str, Any]] = [{}, {"told": 0.002}, {"told": 0.25, "readers": frozenset("u")}]
OTHER_CARDS += [{"told": 0.002, "rates": {"w": 0.95, "v": 0.5, "u": 0.1}}]


def first_difference_of_several(slow: type[Slow]) -> str:
    """The same with several models, of which the cards tell nothing, or how much they differ in a text, though they may
    differ more: all of them can read without drafting, or one can."""
    return next((found for how in OTHER_CARDS if (found := part_from(slow, 0.002, SEVERAL, **how))), "")


def part_from(
    slow: type[Slow],
    token_seconds: float,
    arms: tuple[Arm, ...] = WITH_TREES,
    told: float | None = None,  # variance between drafters, by their cards
    readers: frozenset[str] | None = None,
    rates: Mapping[str, float] = MappingProxyType({}),  # of tokens that are right, where they read
) -> str:
    rng, policy = np.random.default_rng(0), build("auto", arms)
    assert isinstance(policy, Auto)
    cards = {"w": (0.6, 0.5, 0.4), "w@2x6": (0.8, 0.7, 0.6), "v": (0.5, 0.5)}
    cards |= {"u": (0.45, 0.55)} if told is not None else {}
    policy.calibrate(Calibration(acceptance=cards, apart=told))
    for number in range(200):
        context = random_context(rng, policy, number)
        context = models_context(rng, context, readers) if arms is SEVERAL else context
        worth = slow(policy).choose(context)
        arm = policy.choose(context)
        assert arm in context.arms
        if worth.get(arm, -math.inf) < max(worth.values()) - 1e-10:
            return f"round {number}: {arm}, but {[(str(a), v) for a, v in worth.items()]}"
        listed = [option.arm for option in policy.options()]
        assert listed[0] == arm
        assert len(set(listed)) == len(listed)
        played = random_round(rng, context, arm, token_seconds)
        policy.observe(random_reading(rng, context, played, policy, rates) if arms is SEVERAL else played)
    return ""


def test_one_stream_is_decided_as_by_the_reference() -> None:
    assert first_difference(Slow) == ""


def test_several_models_are_compared_as_by_the_reference() -> None:
    assert first_difference_of_several(Slow) == ""


class BestRatio(Slow):
    """Maximises every round by itself."""

    def value(self, tokens: float, seconds: float) -> float:
        return tokens / seconds


class LeavesAtNoCost(Slow):
    def leaving(self, context: Context) -> float:
        return 0.0


class NobodyBeside(Slow):
    def company(self, other: int, j: int, common: int, size: int) -> int:
        return AGREEMENT + 4 * other


class NoAverage(Slow):
    def average(self, i: int) -> float:
        return 0.0


class NeverCautious(Slow):
    def affords(self, arm: Arm, context: Context) -> bool:
        return True


class FullTrust(Slow):
    def trust(self, i: int) -> float:
        return 1.0


class FirstPositionOnly(Slow):
    def chance(self, i: int, hint: Hint, j: int, beside: dict[int, tuple[int, int]]) -> float:
        return super().chance(i, hint, 0, beside)


class PlainPace(Slow):
    """Takes a second to be worth what plain decoding brings."""

    def rate(self) -> float:
        return 1 / self.known.latency.verify.seconds[1]


class NeverOverdue(Slow):
    def timed(self) -> bool:
        return True


class NothingShared(Slow):
    """Draws every shape of a drafter by itself, as if its card told nothing of the others."""

    def deviations(self, key: str) -> tuple[float, float, float]:
        return math.hypot(*super().deviations(key)), 0.0, 0.0


class CardAsPrinted(Slow):
    """Believes the card, however far the drafter's other shapes are from it."""

    def distance(self, name: str) -> float:
        return 0.0


class WideDraws(Slow):
    def deviations(self, key: str) -> tuple[float, float, float]:
        own, drafter, common = super().deviations(key)
        wide = 2 if self.known.positional.counts[key].card else 1
        return wide * own, wide * drafter, wide * common


class DrawsAnew(Slow):
    def draw(self, context: Context) -> None:
        self.known.positional.drawn.clear()
        super().draw(context)


MISTAKEN = [BestRatio, LeavesAtNoCost, NobodyBeside, NoAverage, NeverCautious, FullTrust, FirstPositionOnly, PlainPace,
            NeverOverdue, NothingShared, CardAsPrinted, WideDraws, DrawsAnew]  # fmt: skip


@pytest.mark.parametrize("mistaken", MISTAKEN)
def test_the_comparison_notices_a_planted_mistake(mistaken: type[Slow]) -> None:
    assert first_difference(mistaken)


class NoShift(Slow):
    def shift(self, name: str) -> float:
        return 0.0


class WholeShift(Slow):
    """Counts what is common to all drafters too."""

    def shift(self, name: str) -> float:
        own = self.known.in_text.drafters.get(name)
        return own.surplus / (own.information + self.usual()) if own else 0.0


class TextsDifferAlike(Slow):
    """Does not learn by how much drafters differ in a text."""

    def usual(self) -> float:
        return 8.0


class NothingCommon(Slow):
    """Takes every drafter's distance from its card to be its own."""

    def distance(self, name: str) -> float:
        shift = self.known.positional.shifts[name]
        return shift.start + shift.evidence / (shift.information + 4)


class OwnProportions(Slow):
    """Trusts the counts of one drafter's positions, though cards say that drafters hardly differ."""

    def card_prior_tokens(self, key: str) -> float:
        return 50.0


class ProportionsOfCards(Slow):
    """Trusts the cards at each position, however far the counts are from them."""

    def card_prior_tokens(self, key: str) -> float:
        return max(50.0, 4 / self.variance())


class LuckWithTexts(Slow):
    """Takes what a drafter showed in the texts in which it was run for what it would show in others."""

    def conditioned(self, shown: list[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
        return super().conditioned([(s.evidence, s.information) for s in self.known.positional.shifts.values()])


class LuckAtPositions(Slow):
    """The same of what it showed at one position."""

    def share(self) -> float:
        return 1.0


class VarianceOfCards(Slow):
    """Believes the cards that drafters hardly differ, whatever these have shown."""

    def variance(self) -> float:
        return max(0.004, self.known.positional.between_drafter_variance)


class AlwaysDrawn(Slow):
    def is_drawn(self, key: str, context: Context, cautious: bool) -> bool:
        return True


class AllRead(Slow):
    """Takes every model to be one that can read without drafting."""

    def is_drawn(self, key: str, context: Context, cautious: bool) -> bool:
        return super().is_drawn(key, replace(context, readers=None), cautious)


class FreeChange(Slow):
    def fee(self, name: str, context: Context) -> float | None:
        return None if super().fee(name, context) is None else 0.0


class SpreadChange(Slow):
    """Spreads catching up over the expected stay."""

    def fee(self, name: str, context: Context) -> float | None:
        return None


SEVERAL_MISTAKEN = [NoShift, WholeShift, TextsDifferAlike, NothingCommon, OwnProportions, ProportionsOfCards,
                    LuckWithTexts, LuckAtPositions, VarianceOfCards, AlwaysDrawn, AllRead, FreeChange,
                    SpreadChange]  # fmt: skip


@pytest.mark.parametrize("mistaken", SEVERAL_MISTAKEN)
def test_the_comparison_of_several_models_notices_a_planted_mistake(mistaken: type[Slow]) -> None:
    assert first_difference_of_several(mistaken)
