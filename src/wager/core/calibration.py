"""What is known of rounds before the first one is run: seconds that were timed, and acceptance that was published."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from wager.core.arm import Arm


@dataclass(frozen=True, slots=True)
class Calibration:
    """Seconds of the parts of a round of one request, and acceptance; what is not known is left out."""

    verify: Mapping[int, float] = field(default_factory=dict)  # width -> seconds of a verification
    draft: Mapping[Arm, float] = field(default_factory=dict)  # arm of a drafter that is a model -> seconds of its draft
    # drafter -> tokens to catch up on -> seconds of that
    catch_up: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    # drafter, or its trees as DRAFTER@SHAPE -> share of its tokens accepted at each position, those before it accepted
    acceptance: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    # by how much those drafters differ in one kind of text beyond what they do in all, as a variance of log odds
    apart: float | None = None
    # drafter -> kind of text -> log odds of its tokens there beyond those of all kinds, by its card
    kinds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
