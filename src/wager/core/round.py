"""What came back from a round."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from wager.core.arm import Arm

MOST_SCORED = 64  # of the tokens that a model drafter missed, the last so many are scored when it reads them

# What a drafter would have had accepted. Of a proposal made before the round: its leading tokens that are the text's
# own. Of a model that read tokens it had missed, one number in [0, 1] for each, the oldest first: whether what it
# predicts after the text before the token is that token; where tokens are drawn, how likely it is to be accepted.
Accepted = int | tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """One draft-verify-accept step. Token counts are totals over the batch; seconds are the step's."""

    arm: Arm
    drafted: int  # draft tokens verified
    accepted: int  # of those, accepted; of a draft with another merged into it, along one path
    emitted: int  # accepted tokens plus a bonus token per request, less what an end of text cut off
    batch: int = 1  # requests in the step
    rejected: int = -1  # requests whose draft was cut short; -1: worked out from the counts (batch > 1: at most)
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    lag: int = 0  # most tokens any request's drafter had to catch up on first
    lag_seconds: float = 0.0  # what that catching up took; not part of draft_seconds
    overlap: tuple[float, ...] = ()  # 1 - TV(target, drafter) at each drafted position, also after a rejection
    others: Mapping[str, Accepted] = field(default_factory=dict)  # by drafter, where it became known in this round
    repeated: int | None = None  # emitted tokens that had occurred before in prompt or output; None: not counted
    # of a batch, how many requests had their 1st, 2nd, … draft token accepted; empty: only the totals are known
    survivors: tuple[int, ...] = ()
    # model drafter that did not draft -> seconds in which it read what it had missed, for the sake of ``others``
    read_seconds: Mapping[str, float] = field(default_factory=dict)
    begun: bool = True  # False: as long as an arm stays its drafts are begun ahead, but this one was not
    unmerged: int = -1  # accepted tokens there would be without what was merged into the draft; -1: nothing was

    def __post_init__(self) -> None:
        arm, batch = self.arm, self.batch
        if batch < 1:
            raise ValueError(f"a round has a batch of at least 1, not {batch}")
        if not 0 <= self.accepted <= self.drafted <= arm.budget * batch or self.accepted > arm.deepest * batch:
            raise ValueError(
                f"{self.accepted} accepted of {self.drafted} drafted tokens cannot come from {batch} x arm {arm}"
            )
        if not 1 <= self.emitted <= self.accepted + batch:
            raise ValueError(f"{self.emitted} emitted tokens do not fit {self.accepted} accepted in a batch of {batch}")
        if self.unmerged != -1 and (arm.merged is None or not 0 <= self.unmerged <= min(arm.length, self.accepted)):
            raise ValueError(f"{self.unmerged} of {self.accepted} accepted tokens cannot be the own ones of arm {arm}")
        if self.rejected == -1:
            whole = arm.tree is not None or arm.merged is not None
            short = (arm.length * batch if whole else self.drafted) - self.own
            object.__setattr__(self, "rejected", max(0, min(batch, short)) if self.drafted else 0)
        elif not 0 <= self.rejected <= batch:
            raise ValueError(f"{self.rejected} requests with a rejection do not fit a batch of {batch}")
        seconds = (self.draft_seconds, self.verify_seconds, self.lag_seconds, *self.read_seconds.values())
        if min(seconds) < 0 or not math.isfinite(sum(seconds)):
            raise ValueError(f"seconds are finite and at least 0, not {seconds}")
        if self.overlap and (len(self.overlap) > arm.budget or not all(0 <= x <= 1 for x in self.overlap)):
            raise ValueError(f"overlap needs at most {arm.budget} values in [0, 1], not {self.overlap}")
        if self.lag < 0 or (self.repeated is not None and not 0 <= self.repeated <= self.emitted):
            raise ValueError(f"lag {self.lag} or repeated {self.repeated} is out of range")

    @property
    def own(self) -> int:
        """Accepted tokens of the arm's own drafter, whatever was merged into its draft."""
        return self.accepted if self.unmerged < 0 else self.unmerged

    @property
    def seconds(self) -> float:
        """Wall time of the whole round."""
        read = sum(self.read_seconds.values()) if self.read_seconds else 0.0
        return self.draft_seconds + self.verify_seconds + self.lag_seconds + read
