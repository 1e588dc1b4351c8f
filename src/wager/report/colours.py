"""Who has which colour: one hue a drafter on the whole page, longer drafts stronger; lines differ by dashes too."""

from collections.abc import Iterable

from wager.core.arm import Arm

HUES = 8  # --c1 … --c8 of the style sheet; --c0 is plain decoding's grey
OWN = {"off": "var(--c0)", "plain": "var(--c0)", "bonus": "var(--bonus)"}


def drafter_of(arm: str) -> str:
    """The drafter an arm names, also where the text is no arm of wager's."""
    try:
        return _own(arm).drafter
    except ValueError:
        return arm


def length_of(arm: str) -> int:
    """How deep an arm drafts; 0 where the text is no arm of wager's."""
    return _own(arm).length if drafter_of(arm) != arm else 0


def _own(arm: str) -> Arm:
    """The arm without what is merged into its draft."""
    return Arm.parse(arm.partition("+")[0])


class Palette:
    """Colours of a page, by drafter in the order they are met."""

    def __init__(self) -> None:
        self._hue: dict[str, str] = {}

    def drafter(self, name: str) -> str:
        """The colour of a token's source."""
        return OWN.get(name) or self._hue.setdefault(name, line_colour(len(self._hue)))

    def arms(self, arms: Iterable[str]) -> dict[str, str]:
        """Colours of arms, in the order to stack them: plain decoding first, then each drafter's from short to long."""
        by_drafter: dict[str, list[str]] = {}
        for arm in dict.fromkeys(arms):
            by_drafter.setdefault(drafter_of(arm), []).append(arm)
        full, colours = {name: self.drafter(name) for name in by_drafter}, {}
        for name in sorted(full, key=[*OWN, *self._hue].index):
            *shorter, longest = sorted(by_drafter[name], key=lambda arm: (length_of(arm), arm))
            for i, arm in enumerate(shorter):
                colours[arm] = f"color-mix(in oklab, {full[name]} {40 + round(60 * i / len(shorter))}%, var(--card))"
            colours[longest] = full[name]
        return colours


def line_colour(i: int) -> str:
    """The colour of the i-th line of a chart."""
    return f"var(--c{1 + i % HUES})"
