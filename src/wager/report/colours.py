"""Who has which colour: one hue a drafter on the whole page, longer drafts stronger; lines differ by dashes too."""

from collections.abc import Iterable

from wager.core.arm import Arm

HUES = 8  # --c1 … --c8 of the style sheet; --c0 is plain decoding's grey
OWN = {"off": "var(--c0)", "plain": "var(--c0)", "bonus": "var(--bonus)"}


def drafter_of(arm: str) -> str:
    """The drafter an arm names, also where the text is no arm of wager's."""
    try:
        return Arm.parse(arm).drafter
    except ValueError:
        return arm


def length_of(arm: str) -> int:
    """How deep an arm drafts; 0 where the text is no arm of wager's."""
    return Arm.parse(arm).length if drafter_of(arm) != arm else 0


class Palette:
    """Colours of a page, by drafter in the order they are met."""

    def __init__(self, drafters: Iterable[str]) -> None:
        named = [name for name in dict.fromkeys(drafters) if name not in OWN]
        self._hue = {name: f"var(--c{1 + i % HUES})" for i, name in enumerate(named)}

    def drafter(self, name: str) -> str:
        """The colour of a token's source."""
        return OWN.get(name) or self._hue.get(name, "var(--c0)")

    def arms(self, arms: Iterable[str]) -> dict[str, str]:
        """Colours of arms, in the order to stack them: plain decoding first, then each drafter's from short to long."""
        place = {name: i for i, name in enumerate(self._hue)}
        known = sorted(
            dict.fromkeys(arms),
            key=lambda a: (drafter_of(a) not in OWN, place.get(drafter_of(a), len(place)), length_of(a), a),
        )
        colours = {}
        for arm in known:
            siblings = [a for a in known if drafter_of(a) == drafter_of(arm)]
            share = 100 if len(siblings) < 2 else 40 + round(60 * siblings.index(arm) / (len(siblings) - 1))
            full = self.drafter(drafter_of(arm))
            colours[arm] = full if share == 100 else f"color-mix(in oklab, {full} {share}%, var(--card))"
        return colours


def line_colour(i: int) -> str:
    """The colour of the i-th line of a chart."""
    return f"var(--c{1 + i % HUES})"
