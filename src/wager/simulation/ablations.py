"""Variants of `auto` for experiments only: without one of its ideas, or with one of its numbers changed."""

from collections.abc import Sequence
from dataclasses import replace

from wager.core import OFF, Arm, Context, Hint, Round, require
from wager.policies.auto import HAND_SET, Auto
from wager.policies.auto.arms import ArmGroup
from wager.policies.registry import EXPERIMENTS, Entry


class NoCosts(Auto):
    """Every verification is taken to cost the same."""

    def _costs(self, batch: int) -> tuple[list[float], float]:
        seconds, rate = super()._costs(batch)
        return [1.0] * len(seconds), rate


class NoSharing(Auto):
    """Every arm is learned by itself, without hints."""

    needs = frozenset()

    def choose(self, context: Context) -> Arm:
        return super().choose(replace(context, hints={}, agreement={}, proposal_seconds={}))

    def _key(self, arm: Arm) -> str:
        return str(arm)


class NoHints(Auto):
    """All proposals of a drafter look the same."""

    def choose(self, context: Context) -> Arm:
        hints = {name: Hint(2 if hint.match else 0, size=hint.size) for name, hint in context.hints.items()}
        return super().choose(replace(context, hints=hints, agreement={}))


class NoOthers(Auto):
    """Only the drafter that was run is learned from, and nobody reads without drafting."""

    def select_readers(self, context: Context) -> tuple[str, ...]:
        return ()

    def observe(self, round: Round) -> None:
        super().observe(replace(round, others={}))


class NoOff(Auto):
    """Always drafts, whether it pays or not."""

    def choose(self, context: Context) -> Arm:
        drafting = tuple(arm for arm in context.arms if arm is not OFF)
        return super().choose(replace(context, arms=drafting or context.arms))


class NoMemory(Auto):
    """Starts afresh with every text."""

    def choose(self, context: Context) -> Arm:
        if context.previous is None and context.batch == 1:
            self.reset()
        return super().choose(context)


class NoRate(Auto):
    """Maximises every round's tokens per second by itself."""

    _ratio = 0.0

    def choose(self, context: Context) -> Arm:
        self._ratio = 0.0
        for _ in range(4):  # Dinkelbach's iteration: it ends with the best ratio
            arm = super().choose(context)
            best = max((option.goodput for option in self.options()), default=0.0)
            if best <= self._ratio:
                break
            self._ratio = best
        return arm

    def _costs(self, batch: int) -> tuple[list[float], float]:
        return super()._costs(batch)[0], self._ratio


class NoSelection(Auto):
    """Every drafter proposes in every round."""

    def select_drafters(self, context: Context) -> tuple[str, ...]:
        return self.drafters


class NoStay(Auto):
    """Drafters are drawn anew in every round, and catching up is always spread over the same number of rounds."""

    def observe(self, round: Round) -> None:
        super().observe(round)
        self.exploration.expected_stay = self.config.round_memory

    def _stays(self, drafter: str) -> bool:
        return False

    def _settled(self, group: ArmGroup, context: Context) -> bool:
        return False


class NoBound(Auto):
    """A text may lose any number of tokens to plain decoding."""

    config = replace(Auto.config, allowed_tokens=1e9)


class Scaled(Auto):
    """`auto` with one field of its config multiplied."""

    def __init__(self, arms: Sequence[Arm], *, field: str, times: float, seed: int = 0) -> None:
        require(field in HAND_SET, f"auto has no field {field!r}; it has {', '.join(HAND_SET)}")
        value = HAND_SET[field] * times
        whole = isinstance(HAND_SET[field], int)
        self.config = replace(Auto.config, **{field: max(1, round(value)) if whole else value})
        super().__init__(arms, seed=seed)


_WITHOUT = (NoCosts, NoSharing, NoHints, NoOthers, NoOff, NoMemory, NoRate, NoSelection, NoStay, NoBound)
ABLATIONS: dict[str, type[Auto]] = {f"auto-no-{made.__name__.removeprefix('No').lower()}": made for made in _WITHOUT}
EXPERIMENTS |= {name: Entry(made, "wager") for name, made in ABLATIONS.items()}
EXPERIMENTS["auto-scaled"] = Entry(Scaled, "wager")
