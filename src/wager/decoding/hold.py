"""Plain decoding that goes on for a few rounds without asking the policy, where asking takes too much of a round."""

from wager.core import Arm

DECIDING = 0.01  # of a round's seconds that choosing may take in plain decoding
LONGEST = 15  # rounds
PATIENCE = 3  # times in a row that plain decoding is chosen before it is held: at first it is only timed


class PlainHold:
    """For how many rounds a choice of plain decoding stands, if it may stand at all.

    Only where no drafter proposes before the choice: it may have something to propose in the next round. Without such
    drafters nothing is learned in plain rounds but what they take, and the policy is still told that.
    """

    def __init__(self, allowed: bool) -> None:
        self.allowed = allowed
        self.begin()

    def begin(self) -> None:
        """A new text."""
        self.left = 0  # rounds
        self.in_a_row = 0  # choices of plain decoding

    def take(self) -> bool:
        """Whether the next round is held."""
        held = self.left > 0
        self.left -= held
        return held

    def chosen(self, arm: Arm, deciding: float, played: float) -> None:
        """The policy chose this arm in so many seconds, and the round took so many."""
        if not self.allowed or arm.length:
            self.in_a_row = 0
            return
        self.in_a_row += 1
        needed = int(deciding / (DECIDING * played)) if played > 0.0 else 0
        self.left = max(0, min(LONGEST, needed, self.in_a_row - PATIENCE))
