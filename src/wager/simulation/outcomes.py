"""What any round of a recorded text brings and what it costs, and the quickest way through the text."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wager.core import OFF, Arm, require
from wager.core.recording import Text, Track
from wager.simulation.stream import VerifyCost


@dataclass(frozen=True, slots=True)
class RoundCost:
    """Seconds of a round's parts."""

    verify: VerifyCost
    propose: Mapping[str, float] = field(default_factory=dict)  # drafter -> one proposal, where those are cheap
    step: Mapping[str, float] = field(default_factory=dict)  # drafter -> one drafted token, where it is a model
    lag: Mapping[str, float] = field(default_factory=dict)  # drafter -> one token to catch up on
    draft: Mapping[str, float] = field(default_factory=dict)  # arm of a tree -> drafting it
    lag_fixed: Mapping[str, float] = field(default_factory=dict)  # drafter -> catching up at all, whatever the tokens

    def __post_init__(self) -> None:
        for seconds in (
            s for own in (self.propose, self.step, self.lag, self.draft, self.lag_fixed) for s in own.values()
        ):
            finite = 0 <= seconds < math.inf
            require(finite, f"the costs of drafting are finite and at least 0 seconds, not {seconds}")

    def catch_up(self, drafter: str, tokens: int) -> float:
        """Seconds in which a model reads tokens that it missed; a single one it reads along with the next."""
        if tokens < 2:
            return 0.0
        return self.lag_fixed.get(drafter, 0.0) + tokens * self.lag.get(drafter, 0.0)


def room_at(text: Text, at: int, longest: int) -> int:
    """Tokens a draft may have there: the target adds one itself."""
    return min(longest, text.limit - at - 2)


def drafted_tokens(track: Track, arm: Arm, at: int, room: int) -> tuple[int, int]:
    """Tokens that the arm sends to verification there, and those that are accepted."""
    if arm.tree is None:
        drafted = min(arm.length, track.size[at], room)
        return drafted, min(drafted, track.agreed[at])
    return arm.tree.size(min(arm.length, room)), track.trees[f"{arm.length}@{arm.tree}"][at]


def merged_tokens(text: Text, arm: Arm, at: int, room: int) -> tuple[int, int]:
    """Tokens that the proposal merged into an arm's draft adds to verification there, and how many of all are right."""
    assert arm.merged is not None
    one, other = arm.drafter, arm.merged.drafter
    drafted, right = drafted_tokens(text.tracks[other], arm.merged, at, room)
    shared = 0  # with a tree or a model's chain nothing is known to be shared, and both are verified
    if text.tracks[one].cheap and arm.tree is None:
        common = text.agreement.get(one, {}).get(other) or text.agreement.get(other, {}).get(one)
        shared = min(common[at] if common else 0, arm.length, drafted)
    return drafted - shared, right


def model_seconds(costs: RoundCost, arm: Arm, drafted: int, room: int) -> float:
    """Seconds in which a model drafts; a tree whose seconds are not known takes a step a level."""
    step = costs.step.get(arm.drafter, 0.0)
    if arm.tree is None:
        return drafted * step
    return costs.draft.get(str(arm), min(arm.length, room) * step)


def quickest(text: Text, arms: Sequence[Arm], costs: RoundCost, longest: int) -> tuple[list[Arm], float]:
    """The best arm at every position, by dynamic programming from the end, and the seconds of the whole text."""
    # Knowing the future, it asks no drafter but the one it plays, and lets models read along for nothing: no policy,
    # which has to make them catch up, can be quicker.
    end = text.tokens - 1
    left = [0.0] * (end + 1)  # seconds from each position to the end
    plan = [OFF] * end
    verify = [costs.verify(drafted + 1) for drafted in range(max(longest, *(arm.budget for arm in arms)) + 1)]
    choices = [(arm, text.tracks[arm.drafter]) for arm in arms if arm.drafter in text.tracks]
    for at in range(end - 1, -1, -1):
        best, seconds = OFF, verify[0] + left[at + 1]
        room = room_at(text, at, longest)
        for arm, track in choices if room else ():
            drafted, accepted = drafted_tokens(track, arm, at, room)
            drafting = costs.propose.get(arm.drafter, 0.0) if track.cheap else model_seconds(costs, arm, drafted, room)
            taken = verify[drafted] + left[min(at + accepted + 1, end)] + drafting
            if taken < seconds:
                best, seconds = arm, taken
        plan[at], left[at] = best, seconds
    return plan, left[0]
