"""A choice that stands for a few rounds without asking the policy, where asking takes too much of a round."""

from collections.abc import Callable

from wager.core import Arm

DECIDING = 0.01  # of a round's seconds that choosing may take
LONGEST = 15  # rounds
PATIENCE = 3  # times in a row that an arm is chosen before it is held: at first all are only tried


class Hold:
    """For how many rounds a choice stands, if any may.

    None may where a drafter proposes before the choice: what it proposes next is another thing.
    """

    def __init__(self, allowed: bool) -> None:
        self.allowed = allowed
        self.begin()

    def begin(self) -> None:
        """A new text."""
        self.arm: Arm | None = None  # chosen last
        self.in_a_row = 0  # times that it was
        self.left = 0  # rounds

    def take(self) -> Arm | None:
        """The arm of the next round, if it is held."""
        if not self.left:
            return None
        self.left -= 1
        return self.arm

    def chosen(self, arm: Arm, may_stand: Callable[[], int], deciding: float, played: float) -> None:
        """The policy chose this arm in so many seconds, and the round took so many."""
        self.in_a_row = self.in_a_row + 1 if arm == self.arm else 1
        self.arm = arm
        longest = min(LONGEST, self.in_a_row - PATIENCE)
        if self.allowed and longest > 0 and deciding > DECIDING * played > 0.0:
            self.left = min(longest, int(deciding / (DECIDING * played)), may_stand())
